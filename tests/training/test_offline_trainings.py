"""Trainings from data: without an environment, with one for evaluations, and mixed with env steps."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from offline_data import write_data

from rekindle import RunReader, fork
from rekindle.checkpoint import read_agent_state, tree_digest
from rekindle.checkpoint.store import list_steps
from rekindle.data import Dataset
from rekindle.errors import ConfigError, DataError, InputError
from rekindle.events import Updated
from rekindle.run.finding import find_runs
from rekindle.session.session import TrainingSession
from rekindle.space_json import space_text
from rekindle.training import Offline, Synchronous, Trainer, rebuild
from rekindle.training.diagnosing import diagnose
from rekindle.training.rebuilding import rebuild_agent
from rekindle.verification import verify

pytest.importorskip("jax")

_BOUNDED = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)
_FALLING = {"start": 1e-3, "end": 0.0, "steps": 240}
TINY: dict[str, Any] = {"hidden_sizes": (4,), "batch_size": 8, "capacity": 500}
OPTIONS: dict[str, Any] = {
    "steps": 240,
    "checkpoint_every": 75,
    "metrics_every": 60,
    "eval_every": 120,
    "eval_episodes": 1,
    "determinism": "repeats",
    "signals": False,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data") / "random.npz")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def make(root: Path, algorithm: str = "bc", env: str | None = "Pendulum-v1", **options: Any) -> Trainer:
    settings = {**TINY, **options.pop("agent_settings", {})}
    return Trainer(env, algorithm, root=root, agent_settings=settings, **{**OPTIONS, "name": "run", **options})


def rows(path: Path, log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / f"{log}.jsonl").read_text().splitlines()]


def test_without_env_steps_everything_counts_updates(tmp_path: Path, data: Path) -> None:
    trainer = make(tmp_path, data=data)
    sizes: list[int] = []
    trainer.on(Updated, lambda event: sizes.append(event.count))
    report = trainer.train()
    assert (report.env_steps, report.updates, report.episodes) == (0, 240, 0)
    assert trainer.agent.env_steps == 0
    assert sum(sizes) == 240
    assert trainer.path is not None
    assert list_steps(trainer.path / "checkpoints") == [150, 225, 240]
    assert [row["env_steps"] for row in rows(trainer.path, "metrics")][:4] == [60, 120, 180, 240]
    assert [row["env_steps"] for row in rows(trainer.path, "eval_episodes")] == [120, 240, 240]
    assert not rows(trainer.path, "train_episodes")
    metadata = RunReader(trainer.path).metadata
    assert (metadata.step_unit, metadata.total_steps) == ("updates", 240)
    assert str(report).startswith("finished (max_steps) after 240 updates")


def test_no_environment_is_needed(tmp_path: Path) -> None:
    data = Dataset.open(write_data(tmp_path / "cartpole.npz", "CartPole-v1"))
    trainer = make(tmp_path, "bc", None, data=data)
    assert trainer.train().best_score is None
    assert trainer.path is not None
    assert not rows(trainer.path, "eval_episodes")
    with pytest.raises(ConfigError, match="no environment"):
        rebuild(trainer.path)
    assert Trainer.resume(trainer.path, steps=300, signals=False).train().updates == 300


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("bc", {"normalise_observations": True}),
        pytest.param("iql", {"cosine_updates": 240}, marks=pytest.mark.exhaustive),
        pytest.param("dqn", {"cql_alpha": 1.0, "env": "CartPole-v1"}, marks=pytest.mark.exhaustive),
        pytest.param("awac", {}, marks=pytest.mark.exhaustive),
        pytest.param("td3", {"bc_alpha": 2.5, "learning_rate": _FALLING}, marks=pytest.mark.exhaustive),
    ],
)
def test_stopped_and_resumed_it_ends_as_if_it_had_not_been(
    tmp_path: Path, algorithm: str, settings: dict[str, Any]
) -> None:
    env = settings.get("env", "Pendulum-v1")
    settings = {name: value for name, value in settings.items() if name != "env"}
    data = write_data(tmp_path / "data.npz", env)
    whole = make(tmp_path / "whole", algorithm, env, data=data, agent_settings=settings)
    whole.train()
    cut = make(tmp_path / "cut", algorithm, env, data=data, agent_settings=settings)
    cut.on(Updated, lambda event: cut.stop() if event.stamp.updates >= 90 else None)
    cut.train()
    assert cut.path is not None
    assert whole.path is not None
    assert 90 <= RunReader(cut.path).metadata.updates < 240
    again = Trainer.resume(cut.path, signals=False)
    again.train()
    assert tree_digest(again.agent.state()) == tree_digest(whole.agent.state())
    assert verify(cut.path).digests == verify(whole.path).digests


@pytest.mark.slow
def test_killed_it_ends_as_if_it_had_not_been(tmp_path: Path, data: Path) -> None:
    def command(name: str) -> list[str]:
        return [
            *(sys.executable, "-m", "rekindle", "train", "bc", "Pendulum-v1", "--data", str(data)),
            *("--steps", "8000", "--eval-every", "1500", "--eval-episodes", "1", "--determinism", "repeats"),
            *("--checkpoint-every", "100", "--metrics-every", "130", "--agent.hidden-sizes", "4"),
            *("--agent.batch-size", "8", "--agent.capacity", "500", "--ui", "none", "--resume", "auto"),
            *("--name", name, "--runs", str(tmp_path)),
        ]

    def newest() -> int:
        runs = find_runs(tmp_path / "killed") if (tmp_path / "killed").exists() else []
        return max(list_steps(runs[-1] / "checkpoints"), default=0) if runs else 0

    # What is compiled is kept where no other test looks for it, as a kill may leave half of it.
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
    }
    process = subprocess.Popen(command("killed"), env=environment, stdout=subprocess.DEVNULL)
    while newest() <= 500 and process.poll() is None:
        time.sleep(0.002)
    process.kill()
    assert process.wait() == -9, "it was too quick to be killed"
    for name in ("killed", "whole"):
        subprocess.run(command(name), check=True, env=environment, stdout=subprocess.DEVNULL)
    killed, whole = (verify(find_runs(tmp_path / name)[-1]) for name in ("killed", "whole"))
    assert RunReader(tmp_path / "killed").metadata.resumes
    assert (killed.grade, killed.digests) == ("exact", whole.digests)


def test_a_resume_with_other_data_is_refused(tmp_path: Path, data: Path) -> None:
    make(tmp_path, data=data).train()
    moved = shutil.copy(data, tmp_path / "moved.npz")
    assert Trainer.resume(tmp_path / "run", steps=260, data=moved, signals=False).train().updates == 260
    other = write_data(tmp_path / "other.npz", seed=7)
    with pytest.raises(ConfigError, match=r"the digest of the data was [0-9a-f]{64}, and of .*other\.npz is"):
        Trainer.resume(tmp_path / "run", steps=280, data=other, signals=False).train()
    Path(moved).unlink()
    with pytest.raises(DataError, match=r"moved.npz does not exist: pass --data PATH \(data= in Python\)"):
        Trainer.resume(tmp_path / "run", steps=280, signals=False)


def test_counters_of_a_parent_that_leave_nothing_to_train_are_refused(tmp_path: Path, data: Path) -> None:
    make(tmp_path, data=data).train()
    child = make(tmp_path, data=data, name="child", start_from=tmp_path / "run", with_optimiser=True)
    with pytest.raises(ConfigError, match=r"has trained 240 updates, which with_optimiser takes over, and steps"):
        child.train()
    assert not (tmp_path / "child").exists()
    assert child.train(250).updates == 250


def test_a_run_that_learned_from_data_alone_is_no_data_set(tmp_path: Path, data: Path) -> None:
    make(tmp_path, data=data, steps=20).train()
    with pytest.raises(DataError, match=r"learned from data alone, and has no transitions: open its data instead"):
        Dataset.open(tmp_path / "run")


def test_a_fork_keeps_the_unit_of_its_steps(tmp_path: Path, data: Path) -> None:
    trainer = make(tmp_path, "iql", data=data, steps=60, eval_episodes=0)
    trainer.train()
    with pytest.raises(ConfigError, match="steps of the run are updates, and with these settings they are env steps"):
        fork(trainer.path or "", "child", data_share=0.5)
    assert not (tmp_path / "child").exists()


def test_a_diagnosis_counts_updates(tmp_path: Path, data: Path) -> None:
    make(tmp_path, data=data, checkpoint_every=None).train()
    found = diagnose(tmp_path / "run", step=60)
    assert (found.from_step, found.to_step, len(found.metrics)) == (0, 60, 60)


def test_a_share_of_each_batch_is_from_the_data(tmp_path: Path, data: Path) -> None:
    settings = {"warmup_steps": 20, "update_every": 5}
    options: dict[str, Any] = {"data": data, "data_share": 0.5, "agent_settings": settings, "steps": 200}
    whole = make(tmp_path / "whole", "sac", **options)
    report = whole.train()
    assert (report.env_steps, report.updates) == (200, 36)
    cut = make(tmp_path / "cut", "sac", **options)
    for step in cut.steps():
        if step.total_steps == 111:
            break
    again = Trainer.resume(tmp_path / "cut" / "run", signals=False)
    again.train()
    assert tree_digest(again.agent.state()) == tree_digest(whole.agent.state())


@pytest.mark.parametrize("name", ["target_score", "patience"])
def test_settings_for_evaluations_are_refused_without_an_environment(name: str, tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is for evaluations, and there are none without an environment"):
        make(tmp_path, "bc", None, data=data, **{name: 3})


def test_an_agent_goes_on_with_an_environment(tmp_path: Path, data: Path) -> None:
    make(tmp_path, "iql", data=data).train()
    settings = {"warmup_steps": 20, "update_every": 5}
    options: dict[str, Any] = {"start_from": tmp_path / "run", "steps": 60, "agent_settings": settings}
    alone = make(tmp_path, "iql", name="alone", **options)
    _, state = read_agent_state(RunReader(tmp_path / "run").path / "checkpoints" / "latest.mpk")
    assert tree_digest(alone.agent.state()["weights"]) == tree_digest(state["weights"])
    assert alone.train().env_steps == 60
    assert make(tmp_path, "iql", name="mixed", data=data, data_share=0.25, **options).train().env_steps == 60


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        ("bc", {}, "bc learns from data: pass --data PATH, or data= in Python$"),
        ("iql", {}, "iql learns from data: pass --data PATH.*--from RUN"),
        ("awac", {}, "awac learns from data: pass --data PATH"),
        ("bc", {"data": True, "data_share": 0.5}, "bc learns from data only"),
        ("sac", {"data_share": 0.5}, "there is no data: pass --data PATH"),
        ("sac", {"data": True, "data_share": 0.0}, "data_share is 0.0: use a number above 0"),
        ("sac", {"data": True, "keep_data": True}, "makes no transitions"),
        ("sac", {"data": True, "env": None, "data_share": 0.5}, "pass an environment"),
        ("sac", {"env": None}, "nothing to learn from"),
        ("sac", {"timeout_after": 5}, "timeout_after is for data, but there is none: pass --data PATH"),
        ("sac", {"fixed_length": True}, "fixed_length is for data"),
        ("sac", {"timeout_after": 0}, "timeout_after is 0"),
        ("sac", {"data": True, "agent_settings": {"prioritised": True}}, "prioritised is True"),
    ],
)
def test_what_cannot_be_is_refused_before_a_run_is_made(
    tmp_path: Path, data: Path, algorithm: str, options: dict[str, Any], message: str
) -> None:
    given = {**options, "data": Dataset.open(data, action_space=_BOUNDED) if "data" in options else None}
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, algorithm, **given)
    assert not (tmp_path / "run").exists()


def test_a_replay_buffer_that_stays_empty_needs_no_memory(tmp_path: Path, data: Path) -> None:
    settings = {"capacity": 2**32}
    trainer = make(tmp_path, data=data, agent_settings=settings, steps=50)
    assert trainer.train().updates == 50
    assert trainer.config.agent["capacity"] == 2**32
    assert RunReader(tmp_path / "run").read_config()["agent"]["capacity"] == 2**32
    assert Trainer.resume(tmp_path / "run", steps=100, signals=False).train().updates == 100
    assert type(rebuild_agent(tmp_path / "run")) is type(trainer.agent)
    with pytest.raises(ConfigError, match=r"sac needs more memory than this machine has: .*spaces are Box.* and Box"):
        make(tmp_path, "sac", data=data, data_share=0.5, agent_settings=settings)


def test_what_to_do_about_inferred_actions_without_bounds_is_said(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match=r"finite bounds.*random\.npz has no action_space.*name the environment"):
        make(tmp_path, "bc", None, data=data)


def test_observations_without_numbers_are_refused(tmp_path: Path, data: Path) -> None:
    with np.load(data) as file:
        fields: dict[str, Any] = {**file, "action_space": space_text(_BOUNDED)}
    for name in ("observations", "next_observations"):
        fields[name] = np.zeros((len(fields["rewards"]), 0), np.float32)
    empty = space_text(gymnasium.spaces.Box(-1.0, 1.0, (0,), np.float32))
    np.savez(tmp_path / "empty.npz", **fields, observation_space=empty)
    with pytest.raises(ConfigError, match="has no number to learn from"):
        make(tmp_path, "bc", None, data=tmp_path / "empty.npz")


def test_data_that_may_grow_are_warned_of(tmp_path: Path) -> None:
    def warnings(name: str) -> str:
        file = RunReader(tmp_path / name).path / "warnings.jsonl"
        return file.read_text() if file.exists() else ""

    tiny: dict[str, Any] = {"agent_settings": {"warmup_steps": 20}, "keep_data": True, "checkpoint_every": 20}
    for step in make(tmp_path, "sac", name="fuel", **{**tiny, "steps": 100}).steps():
        if step.total_steps == 60:
            make(tmp_path, data=tmp_path / "fuel", steps=50).train()
    assert "is a run that is not finished" in warnings("run")
    make(tmp_path, name="later", data=tmp_path / "fuel", steps=50).train()
    assert "is a run that is not finished" not in warnings("later")


def test_terminations_that_may_be_time_limits_are_warned_of(tmp_path: Path, data: Path) -> None:
    fields = dict(np.load(data))
    fields["terminals"], fields["timeouts"] = fields["timeouts"], fields["terminals"]
    fields["terminals"][20] = True  # a shorter episode
    np.savez(tmp_path / "doubtful.npz", **fields)
    make(tmp_path, data=tmp_path / "doubtful.npz", steps=20).train()
    warnings = (RunReader(tmp_path / "run").path / "warnings.jsonl").read_text()
    assert "3 of 5 episodes terminate after exactly 50 steps" in warnings


def test_an_on_policy_agent_cannot_learn_from_data(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="PPO cannot learn from data"):
        Trainer("Pendulum-v1", "ppo", data=data, root=tmp_path, **OPTIONS)


def test_data_of_another_environment_is_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(DataError, match="shape"):
        make(tmp_path, "bc", "MountainCarContinuous-v0", data=data)


def test_a_training_from_data_yields_no_env_steps(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="makes no env steps"):
        next(make(tmp_path, data=data, strategy=Offline()).steps())


def test_a_strategy_that_steps_environments_is_refused(tmp_path: Path, data: Path) -> None:
    with pytest.raises(ConfigError, match="use Offline"):
        make(tmp_path, data=data, strategy=Synchronous()).train()


def test_in_your_own_loop_a_session_counts_updates(tmp_path: Path, data: Path) -> None:
    agent: Any = make(tmp_path, data=data).agent
    with TrainingSession.open("own", agent, root=tmp_path, max_steps=130, signals=False) as session:
        assert session.learn(updates=100) == 100
        assert session.learn(updates=100) == 30
        assert (session.total_steps, session.is_done) == (130, True)
        stream = session.stream()
        stream.begin(np.zeros(3, np.float32))
        with pytest.raises(InputError, match="takes no transitions"):
            stream.step(np.zeros(3, np.float32), 0.0)
    agent.learn_from(None)
    with (
        TrainingSession(agent, signals=False) as session,
        pytest.raises(ConfigError, match="agents that learn from data alone"),
    ):
        session.learn(updates=1)


def test_the_options_of_a_data_set_are_kept_for_a_resume(tmp_path: Path, data: Path) -> None:
    with np.load(data) as file:
        fields: dict[str, Any] = {**file, "action_space": space_text(_BOUNDED)}
    ends = {"terminals": fields["timeouts"], "timeouts": fields["terminals"]}
    np.savez(tmp_path / "fixed.npz", **{**fields, **ends})
    del fields["timeouts"]
    np.savez(tmp_path / "cut.npz", **fields)
    choices: dict[str, dict[str, Any]] = {"cut": {"timeout_after": 50}, "fixed": {"fixed_length": True}}
    for name, option in choices.items():
        path, options = tmp_path / f"{name}.npz", {"name": name, "env": None, "steps": 50}
        with pytest.raises(DataError, match=f"pass --{next(iter(option)).replace('_', '-')}"):
            make(tmp_path, data=path, **options)
        by_path = make(tmp_path, data=path, **options, **option)
        opened = make(tmp_path, data=Dataset.open(path, **option), **options)
        assert by_path.config == opened.config
        run = str(opened.train().path)
        assert Trainer.resume(run, steps=100, signals=False).train().updates == 100
        assert type(rebuild_agent(run)) is type(opened.agent)


def test_a_data_set_comes_with_the_package(tmp_path: Path) -> None:
    data = Dataset.open("rekindle:pendulum-medium", cache=tmp_path)
    assert data.digest == "4e7ba238b35d6cb8aff17e89a58a30d71610320a8d5daf83db29a86e72974014"
    assert data.statistics().truncated == data.num_episodes == 100
    assert data.path.stat().st_size < 1_000_000
    with pytest.raises(DataError, match=r"there is no data set rekindle:chess; .*pendulum-medium"):
        Dataset.open("rekindle:chess")
    trainer = make(tmp_path, data="rekindle:pendulum-medium", steps=10)
    assert trainer.config.data == "rekindle:pendulum-medium"

"""Trainings that begin with what another one has learned."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import ToyAgent

import rekindle
from rekindle.agents import IQL
from rekindle.checkpoint import read_agent_state, tree_digest
from rekindle.envs import EnvFactory
from rekindle.errors import CheckpointError, ConfigError
from rekindle.events import Evaluated
from rekindle.training import Trainer
from rekindle.training.evaluation import Act, EpisodeEvaluator, Evaluation

TINY: dict[str, dict[str, Any]] = {
    "tabular": {"env": "FrozenLake-v1"},
    "dqn": {"env": "CartPole-v1", "hidden_sizes": (8,), "warmup_steps": 20, "normalise_observations": True},
    "ppo": {
        "env": "CartPole-v1",
        "hidden_sizes": (8,),
        "rollout_steps": 20,
        "minibatch_size": 20,
        "epochs": 2,
        "normalise_observations": True,
        "normalise_rewards": True,
    },
    "sac": {"env": "Pendulum-v1", "hidden_sizes": (8,), "warmup_steps": 20, "update_every": 4, "batch_size": 8},
    "iql": {"env": "CartPole-v1", "hidden_sizes": (8,), "warmup_steps": 20, "update_every": 4, "batch_size": 8},
    "td3": {"env": "Pendulum-v1", "hidden_sizes": (8,), "warmup_steps": 20, "update_every": 4, "batch_size": 8},
}
NAMES = ("weights", "previous", "critics", "value", "moments", "reward_scale")


def is_learned(name: str) -> bool:
    return name in NAMES or name.startswith("target")


def make(root: Path, algorithm: str, name: str, **options: Any) -> Trainer:
    if algorithm != "tabular":
        pytest.importorskip("jax")
    settings = {key: value for key, value in TINY[algorithm].items() if key != "env"}
    chosen: dict[str, Any] = {"steps": 60, "eval_every": 30, "eval_episodes": 1, "checkpoint_every": 30, "seed": 1}
    if algorithm == "iql":  # by name it needs data, or a parent
        seed = options.get("seed", chosen["seed"])
        agent = functools.partial(IQL, seed=seed, **settings)
        return Trainer(TINY[algorithm]["env"], agent, name=name, root=root, **{**chosen, **options})
    options.setdefault("agent_settings", settings)
    return Trainer(TINY[algorithm]["env"], algorithm, name=name, root=root, **{**chosen, **options})


def digest(state: Any) -> str:
    return tree_digest(state)


@pytest.mark.parametrize("algorithm", TINY)
def test_what_was_learned_is_taken_over_and_nothing_else(tmp_path: Path, algorithm: str) -> None:
    parent = make(tmp_path, algorithm, "parent")
    parent.train()
    learned = parent.agent.state()
    child = make(tmp_path, algorithm, "child", seed=2, start_from=tmp_path / "parent")
    plain = make(tmp_path, algorithm, "plain", seed=2)
    found, fresh = child.agent.state(), plain.agent.state()
    for name in learned:
        expected = learned if is_learned(name) else fresh
        assert digest({"": found[name]}) == digest({"": expected[name]}), name
    assert child.train().env_steps == 60
    metadata = rekindle.RunReader(tmp_path / "child").metadata
    assert metadata.parent == f"{parent.path}@60"


@pytest.mark.parametrize("algorithm", TINY)
def test_optimiser_and_counters_come_along_when_asked_for(tmp_path: Path, algorithm: str) -> None:
    parent = make(tmp_path, algorithm, "parent")
    parent.train()
    learned = parent.agent.state()
    child = make(tmp_path, algorithm, "child", start_from=tmp_path / "parent", with_optimiser=True, steps=100)
    found = child.agent.state()
    for name in learned.keys() & {*NAMES, "optimiser", "env_steps", "updates"}:
        assert digest({"": found[name]}) == digest({"": learned[name]}), name
    report = child.train()
    assert report.env_steps == 100
    assert report.updates > parent.report.updates


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "td3"])
@pytest.mark.parametrize("with_optimiser", [True, False])
def test_a_child_with_an_empty_memory_warms_up(tmp_path: Path, algorithm: str, with_optimiser: bool) -> None:
    parent = make(tmp_path, algorithm, "parent")
    parent.train()
    begins = parent.agent.env_steps if with_optimiser else 0
    options: dict[str, Any] = {"start_from": tmp_path / "parent", "with_optimiser": with_optimiser}
    child = make(tmp_path, algorithm, "child", steps=begins + 40, **options)
    agent: Any = child.agent
    held: list[int] = []
    before = agent.updates
    for _ in child.steps():
        if agent.updates > before:
            held.append(len(agent.replay()))
            before = agent.updates
    assert held[0] >= agent.config.warmup_steps
    assert held[0] <= agent.config.warmup_steps + 3 * agent.config.update_every + 4
    whole = make(tmp_path, algorithm, "whole", steps=40)
    whole.train()
    made = agent.updates - (parent.agent.updates if with_optimiser else 0)
    assert made == whole.agent.updates, "as many as without a parent"


def test_best_and_steps_can_be_chosen(tmp_path: Path) -> None:
    parent = make(tmp_path, "tabular", "parent")
    parent.train()
    assert parent.path is not None
    for which, file in (("best", "best.mpk"), ("30", "step_30.mpk"), ("latest", "step_60.mpk")):
        child = make(tmp_path, "tabular", f"child-{which}", start_from=f"{tmp_path}/parent@{which}")
        _, state = read_agent_state(parent.path / "checkpoints" / file)
        assert np.array_equal(child.agent.state()["weights"]["table"], state["weights"]["table"])
    with pytest.raises(CheckpointError, match="no checkpoint 31; existing steps: 30, 60"):
        make(tmp_path, "tabular", "child", start_from=f"{tmp_path}/parent@31")


@pytest.mark.parametrize("resumes_by", ["name", "path"])
def test_killed_before_its_first_checkpoint_a_child_begins_with_its_parent_again(
    tmp_path: Path, resumes_by: str
) -> None:
    make(tmp_path, "tabular", "parent", steps=500).train()
    options: dict[str, Any] = {"start_from": tmp_path / "parent", "steps": 90}
    make(tmp_path, "tabular", "whole", **options).train()
    for _ in make(tmp_path, "tabular", "cut", **options).steps():
        break
    for file in (rekindle.RunReader(tmp_path / "cut").path / "checkpoints").glob("*.mpk"):
        file.unlink()  # as if it had never been written
    by_name = resumes_by == "name"
    (make(tmp_path, "tabular", "cut", **options) if by_name else Trainer.resume(tmp_path / "cut")).train()
    assert rekindle.verify(tmp_path / "cut").digests == rekindle.verify(tmp_path / "whole").digests


def test_a_resume_does_not_need_the_parent(tmp_path: Path) -> None:
    make(tmp_path, "tabular", "parent").train()
    child = make(tmp_path, "tabular", "child", start_from=tmp_path / "parent")
    child.train()
    for file in (rekindle.RunReader(tmp_path / "parent").path / "checkpoints").iterdir():
        file.unlink()
    assert Trainer.resume(tmp_path / "child", steps=90).train().env_steps == 90
    metadata = rekindle.RunReader(tmp_path / "child").metadata
    assert (metadata.parent or "").endswith("@60")


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    make(tmp_path, "tabular", "parent").train()
    with pytest.raises(ConfigError, match=r"step_60.mpk does not fit the agent: .*; use the algorithm"):
        Trainer("CliffWalking-v1", "tabular", name="child", root=tmp_path, start_from=tmp_path / "parent")
    with pytest.raises(ConfigError, match="ToyAgent cannot start from another agent's weights"):
        Trainer("FrozenLake-v1", ToyAgent(seed=1), name="child", root=tmp_path, start_from=tmp_path / "parent")
    assert not (tmp_path / "child").exists()


def evaluated_steps(run: Path) -> list[int]:
    return [row["env_steps"] for row in rekindle.RunReader(run).eval_episodes()]


@pytest.mark.parametrize("with_optimiser", [True, False])
def test_a_child_is_evaluated_before_its_first_step(tmp_path: Path, with_optimiser: bool) -> None:
    make(tmp_path, "tabular", "parent", steps=30).train()
    options: dict[str, Any] = {"start_from": tmp_path / "parent", "with_optimiser": with_optimiser, "steps": 90}
    make(tmp_path, "tabular", "whole", **options).train()
    begins = 30 if with_optimiser else 0
    assert evaluated_steps(tmp_path / "whole") == [*range(begins, 91, 30), 90]
    make(tmp_path, "tabular", "seldom", **{**options, "eval_every": None}).train()
    assert evaluated_steps(tmp_path / "seldom") == [90], "without evaluations at intervals there is only the last"


class StoppingEvaluator(EpisodeEvaluator):
    """Requests a stop as soon as it is to play."""

    stop: Callable[[], None]

    def evaluate(self, act: Act, episodes: int) -> Evaluation:
        self.stop()
        return super().evaluate(act, episodes)


@pytest.mark.parametrize("with_optimiser", [True, False])
@pytest.mark.parametrize("stops", ["in the first evaluation", "after it"])
def test_a_stop_around_the_evaluation_before_the_first_step_changes_nothing(
    tmp_path: Path, stops: str, with_optimiser: bool
) -> None:
    make(tmp_path, "tabular", "parent", steps=30).train()
    options: dict[str, Any] = {"start_from": tmp_path / "parent", "with_optimiser": with_optimiser, "steps": 90}
    make(tmp_path, "tabular", "whole", **options).train()
    evaluator = StoppingEvaluator(EnvFactory("FrozenLake-v1"), seed=1)
    cut = make(tmp_path, "tabular", "cut", evaluator=None if stops == "after it" else evaluator, **options)
    evaluator.stop = cut.stop
    if stops == "after it":
        cut.on(Evaluated, lambda _: cut.stop())
    made = cut.train()
    assert made.env_steps == (30 if with_optimiser else 0)
    Trainer.resume(tmp_path / "cut").train()
    assert rekindle.verify(tmp_path / "cut").digests == rekindle.verify(tmp_path / "whole").digests


def test_a_child_of_a_run_that_reached_the_target_has_nothing_to_do(tmp_path: Path) -> None:
    make(tmp_path, "tabular", "parent").train()
    child = make(tmp_path, "tabular", "child", start_from=tmp_path / "parent", target_score=-1.0)
    report = child.train()
    assert (report.env_steps, report.status) == (0, "finished")
    assert "target reached" in str(rekindle.RunReader(tmp_path / "child").metadata.stop_reason)

"""Trainings with actors: rounds, pipelines, and what is due between two rounds."""

from __future__ import annotations

import itertools
import math
import re
from pathlib import Path
from typing import Any

import env_worlds
import numpy as np
import pytest
from own_agents import Wandering
from toys import ToyAgent

import rekindle
from rekindle import EpisodeEnded, RunReader, Trainer
from rekindle.agents import TabularPolicy
from rekindle.checkpoint.store import list_steps
from rekindle.errors import ConfigError
from rekindle.training import Actors
from rekindle.ui.feed import RunFeed

ROUND = 2 * 2 * 5
SMALL: dict[str, Any] = {
    "tabular": {"capacity": 300, "replay_updates": 2},
    "dqn": {"hidden_sizes": [16], "capacity": 400, "warmup_steps": 50, "update_every": 4, "n_step": 2},
    "ppo": {
        "hidden_sizes": [16],
        "rollout_steps": 2 * ROUND,
        "minibatch_size": 20,
        "epochs": 2,
        "normalise_observations": True,
    },
    "sac": {"hidden_sizes": [16], "capacity": 400, "warmup_steps": 50, "update_every": 4, "batch_size": 16},
    "td3": {"hidden_sizes": [16], "capacity": 400, "warmup_steps": 50, "update_every": 4, "batch_size": 16},
}


def trainer(root: Path, agent: Any = Wandering, env: Any = "env_worlds:Path", **options: Any) -> Trainer:
    if agent is Wandering:
        agent = lambda *spaces: Wandering(*spaces, seed=3)  # noqa: E731
    known: dict[str, Any] = {
        "steps": 200,
        "name": "t",
        "root": root,
        "actors": 2,
        "envs_each": 2,
        "round_steps": 5,
        "actors_on": "here",
        "eval_every": 50,
        "eval_episodes": 2,
        "metrics_every": 30,
        "checkpoint_every": 70,
        "agent_settings": SMALL.get(agent) if isinstance(agent, str) else None,
    }
    return Trainer(env, agent, **{**known, **options})


def digests(root: Path) -> dict[str, str | None]:
    found = rekindle.verify(root / "t")
    assert found.ok
    return found.digests


def stopped_and_resumed(root: Path, stops: list[int], **options: Any) -> None:
    """Leave the loop after this many steps of all environments, each time with a new trainer, and train to the end."""
    for stop in stops:
        for _ in itertools.islice(trainer(root, **options).steps(), stop * 4):
            pass
    trainer(root, **options).train()


@pytest.mark.parametrize("pipeline", [0, 1])
def test_a_training_that_was_left_after_any_step_ends_the_same(tmp_path: Path, pipeline: int) -> None:
    trainer(tmp_path / "whole", pipeline=pipeline).train()
    stopped_and_resumed(tmp_path / "cut", [1, 4, 5, 3, 7, 5, 2, 11], pipeline=pipeline)
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")
    assert all(one.grade == "exact" for one in RunReader(tmp_path / "cut" / "t").metadata.resumes)


QUICK = [("tabular", 0), ("tabular", 1), ("ppo", 1)]
SLOW = [(agent, pipeline) for agent in ("dqn", "ppo", "sac", "td3") for pipeline in (0, 1)]


@pytest.mark.parametrize(
    ("agent", "pipeline"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in SLOW if case not in QUICK)],
)
def test_every_algorithm_goes_on_exactly(tmp_path: Path, agent: str, pipeline: int) -> None:
    env = {"tabular": "FrozenLake-v1", "sac": "Pendulum-v1", "td3": "Pendulum-v1"}.get(agent, "CartPole-v1")
    options: dict[str, Any] = {"agent": agent, "env": env, "pipeline": pipeline, "eval_episodes": 0}
    trainer(tmp_path / "whole", **options).train()
    stopped_and_resumed(tmp_path / "cut", [18, 12], **options)
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def test_pipeline_0_and_1_are_two_trainings(tmp_path: Path) -> None:
    for pipeline in (0, 1):
        trainer(tmp_path / str(pipeline), pipeline=pipeline).train()
    assert digests(tmp_path / "0")["logs"] != digests(tmp_path / "1")["logs"]
    for _ in itertools.islice(trainer(tmp_path / "2").steps(), 40):
        pass
    with pytest.raises(ConfigError, match="pipeline was 1 and is 0"):
        trainer(tmp_path / "2", pipeline=0).train()


@pytest.mark.parametrize("pipeline", [0, 1])
def test_more_steps_later_are_the_same_as_more_steps_at_once(tmp_path: Path, pipeline: int) -> None:
    trainer(tmp_path / "whole", pipeline=pipeline, steps=300, eval_episodes=0).train()
    training = trainer(tmp_path / "longer", pipeline=pipeline, steps=100, eval_episodes=0)
    training.train()
    training.train(300)
    assert digests(tmp_path / "longer") == digests(tmp_path / "whole")


def test_everything_that_is_due_is_done_between_two_rounds(tmp_path: Path) -> None:
    training = trainer(tmp_path, keep_checkpoints=99)
    training.on(EpisodeEnded, lambda event: training.stop("enough") if event.stamp.env_steps > 130 else None)
    training.train()
    reader = RunReader(tmp_path / "t")
    steps = list_steps(reader.path / "checkpoints")
    rows = [row["env_steps"] for row in reader.metric_windows()]
    assert steps[-1] in (140, 160)
    assert [step % ROUND for step in [*steps, *rows]] == [0] * len([*steps, *rows])
    assert {row["total_steps_at_eval"] for row in reader.eval_episodes()} <= {60, 100, 160}


def test_no_round_begins_beyond_the_last_step(tmp_path: Path) -> None:
    assert trainer(tmp_path / "a", steps=101).train().env_steps == 120
    assert trainer(tmp_path / "b", steps=100).train().env_steps == 100


def test_a_rollout_must_consist_of_whole_rounds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no multiple of the 20 .* use --round-steps 3 or 4 or 6"):
        trainer(tmp_path, agent="ppo", agent_settings={"rollout_steps": 48, "minibatch_size": 8})
    with pytest.raises(ConfigError, match=r"multiple of 4 for rollout_steps"):
        trainer(tmp_path, agent="ppo", agent_settings={"rollout_steps": 50, "minibatch_size": 8})


@pytest.mark.exhaustive
def test_ppo_learns_from_every_transition_although_its_first_policy_changes_early(tmp_path: Path) -> None:
    """The first observations are clipped, so the first policy is replaced before anything was learned."""
    training = trainer(tmp_path, agent="ppo", env=env_worlds.Path, steps=100, eval_episodes=0)
    training.train()
    agent: Any = training.agent
    assert agent.stale_steps == 0
    assert agent.updates == 2 * 2 * 2


def test_an_agent_without_a_policy_acts_itself_and_only_here(tmp_path: Path) -> None:
    for name in ("a", "b"):
        trainer(tmp_path / name, agent=ToyAgent(seed=1)).train()
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    with pytest.raises(ConfigError, match=r"ToyAgent has no policy\(\)\. Use --actors-on here"):
        trainer(tmp_path / "c", agent=ToyAgent(seed=1), actors_on="processes")


def test_a_policy_that_only_a_script_can_define_stays_here(tmp_path: Path) -> None:
    class Local(TabularPolicy, frozen=True):
        pass

    class Agent(ToyAgent):
        def policy(self) -> Any:
            return Local(np.zeros((1, 1)), 0.0, None, None)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match="another process cannot import it"):
        trainer(tmp_path, agent=Agent(), actors_on="processes")


def test_an_environment_that_does_not_repeat_itself_is_truncated_and_approximate(tmp_path: Path) -> None:
    options: dict[str, Any] = {"env": env_worlds.Moody, "steps": 60}
    for _ in itertools.islice(trainer(tmp_path, **options).steps(), 7 * 4):
        pass
    training = trainer(tmp_path, **options)
    report = training.train()
    assert report.status == "finished"
    resumed = RunReader(tmp_path / "t").metadata.resumes[-1]
    assert resumed.grade == "approximate"
    assert "could not be replayed" in resumed.lost[0]


def test_an_environment_that_saves_its_state_is_not_replayed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"env": env_worlds.Saved, "steps": 60, "eval_episodes": 0, "determinism": "repeats"}
    trainer(tmp_path / "whole", **options).train()
    for _ in itertools.islice(trainer(tmp_path / "cut", **options).steps(), 7 * 4):
        pass
    env_worlds.Saved.steps_in_all = 0
    trainer(tmp_path / "cut", **options).train()
    assert env_worlds.Saved.steps_in_all == 20
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def test_reset_options_see_the_env_steps_before_the_round(tmp_path: Path) -> None:
    seen: list[tuple[int, int, int]] = []

    def level(stream: int, episode: int, env_steps: int) -> dict[str, Any]:
        seen.append((stream, episode, env_steps))
        return {"level": env_steps // 50}

    trainer(tmp_path / "whole", reset_options=level).train()
    assert {steps % ROUND for _, _, steps in seen} == {0}
    assert len({(stream, episode) for stream, episode, _ in seen}) == len(seen)
    stopped_and_resumed(tmp_path / "cut", [3, 6], reset_options=level)
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def test_a_step_processor_changes_the_rewards(tmp_path: Path) -> None:
    training = trainer(tmp_path, step_processor=lambda transitions, _: np.full(len(transitions), 2.0))
    rewards = {step.reward for step in training.steps()}
    assert rewards == {2.0}


@pytest.mark.exhaustive
def test_named_and_composite_spaces_pass_through_rounds(tmp_path: Path) -> None:
    for env in (env_worlds.Nested, env_worlds.Both):
        root = tmp_path / env.__name__
        options: dict[str, Any] = {"agent": "ppo", "env": env, "steps": 80, "eval_episodes": 0}
        trainer(root / "whole", **options).train()
        stopped_and_resumed(root / "cut", [7], **options)
        assert digests(root / "cut") == digests(root / "whole")


def test_the_strategy_sets_the_settings(tmp_path: Path) -> None:
    strategy = Actors(actors=3, envs_each=2, round_steps=4, pipeline=0, on="here")
    training = Trainer("env_worlds:Path", lambda *spaces: Wandering(*spaces, seed=0), strategy=strategy, steps=20)
    assert (training.config.actors, training.config.num_envs, training.config.actors_on) == (3, 6, "here")
    assert training.train().env_steps == 24


def test_metrics_tell_what_rounds_cost(tmp_path: Path) -> None:
    trainer(tmp_path).train()
    windows = [row["metrics"] for row in RunReader(tmp_path / "t").metric_windows()]
    names = {name for window in windows for name in window}
    expected = [
        "samples_per_sec",
        "updates_per_sec",
        "learner_waiting",
        "actors_waiting",
        "staleness",
        "actor_restarts",
    ]
    assert {f"time/{name}" for name in [*expected, "actor_0_samples_per_sec", "actor_1_samples_per_sec"]} <= names
    rates = [window["time/actor_0_samples_per_sec"]["max"] for window in windows[:-1]]
    assert max(rates) < 1e8
    assert "time/actor_0_samples_per_sec" not in windows[-1], "nothing is played after the last round"
    assert "time/actor_0_restarts" not in names
    feed = RunFeed(tmp_path / "t")
    feed.poll()
    assert re.fullmatch(r"actors \d+% busy, learner \d+% busy", feed.actors or "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vectorization": "native"}, "vectorization is native: actors step their environments one by one"),
        ({"vectorization": "async", "actors_on": "processes"}, "vectorization is async: actors on processes"),
        ({"pipeline": 2}, "pipeline is 2: use 0 or 1"),
        ({"actor_patience": 0}, "actor_patience is 0"),
        ({"actor_patience": math.inf}, "actor_patience is inf: use a finite number"),
        ({"actors": 0}, "actors is 0"),
        ({"sampler": lambda session, envs: None}, "sampler: with actors, they step the environments"),
        ({"actors": 2**12, "envs_each": 2}, "actors x envs_each is 8192"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, **settings)

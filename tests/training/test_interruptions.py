"""Whatever a training does, a stop interrupts it, and the run that is resumed is the run that was not stopped."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import env_worlds
import numpy as np
import pytest
from toys import ToyAgent

import rekindle
from rekindle.envs import Determinism, EnvFactory, check_env, probe
from rekindle.errors import ConfigError, Interrupted
from rekindle.events import MetricsFlushed
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.interrupt import Interrupter
from rekindle.training import EpisodeEvaluator, Evaluation, Trainer, trainer

STEPS = 200


def make(root: Path, agent: Any = "tabular", env: Any = "FrozenLake-v1", **options: Any) -> Trainer:
    chosen: dict[str, Any] = {
        "steps": STEPS,
        "name": "t",
        "root": root,
        "seed": 5,
        "determinism": Determinism.REPEATS,
        "checkpoint_every": 70,
        "metrics_every": 40,
        "eval_every": 60,
        "eval_episodes": 3,
    }
    return Trainer(env, agent, **{**chosen, **options})


def toy(observation_space: Any, action_space: Any) -> ToyAgent:
    return ToyAgent(seed=1)


def digests(root: Path) -> dict[str, str | None]:
    found = rekindle.verify(root / "t")
    assert (found.problems, found.grade) == ([], "exact")
    return found.digests


@pytest.fixture
def stop_at_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[int]]:
    """Ask for a stop when a training looks for the n-th time whether there is one; returns a count of looks."""

    def stop_at(look: int | None) -> list[int]:
        looks = [0]

        class StopsAtLook(Interrupter):
            def should_stop(self) -> bool:
                looks[0] += 1
                if looks[0] == look:
                    self.stop(f"look {look}")
                return super().should_stop()

        monkeypatch.setattr(trainer, "Interrupter", StopsAtLook)
        return looks

    return stop_at


PPO_SETTINGS = {"hidden_sizes": (8,), "rollout_steps": 50, "minibatch_size": 5, "epochs": 20}
TRAININGS: dict[str, dict[str, Any]] = {
    "table": {},
    "table of several": {"num_envs": 3},
    "rollouts": {"agent": "ppo", "env": "CartPole-v1", "agent_settings": PPO_SETTINGS},
    "rollouts of several": {"agent": "ppo", "env": "CartPole-v1", "agent_settings": PPO_SETTINGS, "num_envs": 2},
    "rollouts within a divergence": {
        "agent": "ppo",
        "env": env_worlds.Path,
        "agent_settings": {**PPO_SETTINGS, "target_kl": 0.001, "normalise_observations": True},
    },
}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.exhaustive if kind.startswith("rollouts ") else ()) for kind in TRAININGS],
)
def test_stopped_wherever_it_looks_and_resumed_it_is_the_run_that_was_not(
    tmp_path: Path, kind: str, stop_at_look: Callable[[int | None], list[int]]
) -> None:
    stops = 6
    if TRAININGS[kind].get("agent") == "ppo":
        pytest.importorskip("jax")
        stops = 3  # each compiles twice
    looks = stop_at_look(None)
    make(tmp_path / "whole", **TRAININGS[kind]).train()
    expected, in_all = digests(tmp_path / "whole"), looks[0]
    assert in_all > 20
    for look in np.linspace(1, in_all, stops).astype(int).tolist():
        root = tmp_path / str(look)
        stop_at_look(look)
        report = make(root, **TRAININGS[kind]).train()
        assert (report.status, report.reason) == ("stopped", f"look {look}")
        stop_at_look(None)
        assert make(root, **TRAININGS[kind]).train().status == "finished"
        assert digests(root) == expected


@pytest.mark.parametrize("kind", ["table", "rollouts within a divergence"])
def test_stopped_again_and_again_it_still_is(
    tmp_path: Path, kind: str, stop_at_look: Callable[[int | None], list[int]]
) -> None:
    if TRAININGS[kind].get("agent") == "ppo":
        pytest.importorskip("jax")
    options = {**TRAININGS[kind], "eval_every": 20}  # so that one evaluation is a small part of all
    looks = stop_at_look(None)
    make(tmp_path / "whole", **options).train()
    in_all, stops = looks[0], 0
    while True:
        stop_at_look(in_all // 4)
        if make(tmp_path / "cut", **options).train().status == "finished":
            break
        stops += 1
        assert stops < 40
    assert stops > 2
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


class StopsInEvaluation(EpisodeEvaluator):
    """Asks for a stop when it has begun an evaluation."""

    training: Trainer

    def __init__(self, *, number: int) -> None:
        super().__init__(EnvFactory("FrozenLake-v1"), seed=5)
        self._left = number

    def evaluate(self, act: Any, episodes: int) -> Evaluation:
        self._left -= 1
        if self._left == 0:
            self.training.stop("enough")
        return super().evaluate(act, episodes)


def stop_in_evaluation(number: int, root: Path, **options: Any) -> Trainer:
    evaluator = StopsInEvaluation(number=number)
    evaluator.training = make(root, evaluator=evaluator, **options)
    return evaluator.training


class TestEvaluations:
    def test_nothing_of_an_interrupted_one_is_logged_and_the_resume_makes_it(self, tmp_path: Path) -> None:
        report = stop_in_evaluation(2, tmp_path).train()
        assert (report.status, report.reason, report.env_steps) == ("stopped", "enough", 120)
        reader = rekindle.RunReader(tmp_path / "t")
        assert {row["total_steps_at_eval"] for row in reader.eval_episodes()} == {60}
        make(tmp_path).train()
        steps = [row["total_steps_at_eval"] for row in reader.eval_episodes()]
        assert steps == [60] * 3 + [120] * 3 + [180] * 3 + [200] * 3

    def test_one_at_the_last_step_that_is_interrupted_is_made_before_the_run_finishes(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"steps": 120}
        make(tmp_path / "whole", **options).train()
        report = stop_in_evaluation(2, tmp_path / "cut", **options).train()
        assert (report.status, report.env_steps) == ("stopped", 120)
        assert stop_in_evaluation(1, tmp_path / "cut", **options).train().status == "stopped"
        assert make(tmp_path / "cut", **options).train().status == "finished"
        assert digests(tmp_path / "cut") == digests(tmp_path / "whole")

    @pytest.mark.parametrize("is_solved", [False, True])
    def test_a_final_one_that_is_interrupted_leaves_the_run_stopped_and_the_resume_finishes_it(
        self, tmp_path: Path, is_solved: bool
    ) -> None:
        options: dict[str, Any] = {"eval_every": None, "steps": 100, "metrics_every": 50}

        def solve(training: Trainer) -> Trainer:
            if is_solved:
                training.on(MetricsFlushed, lambda _: training.stop("solved", complete=True))
            return training

        report = solve(stop_in_evaluation(1, tmp_path, **options)).train()
        assert (report.status, report.reason, report.env_steps) == ("stopped", "enough", 50 if is_solved else 100)
        reader = rekindle.RunReader(tmp_path / "t")
        assert reader.eval_episodes() == []
        if is_solved:  # by whoever stopped it, which no checkpoint knows
            return
        assert make(tmp_path, **options).train().status == "finished"
        assert [row["final"] for row in reader.eval_episodes()] == [True] * 3

    def test_an_evaluation_of_ones_own_loop_raises_and_is_not_logged(self, tmp_path: Path) -> None:
        training = make(tmp_path, eval_every=None)
        with pytest.raises(Interrupted):  # noqa: PT012 - it is the loop that ends
            for _ in training.steps():
                training.stop("enough")
                training.eval(2)
        assert (training.report.status, training.report.reason) == ("stopped", "enough")
        assert rekindle.RunReader(tmp_path / "t").eval_episodes() == []

    def test_an_evaluation_after_an_interrupted_training_is_made(self, tmp_path: Path) -> None:
        training = stop_in_evaluation(1, tmp_path)
        assert training.train().status == "stopped"
        assert training.eval(2).n_episodes == 2


def left(observations: Observations) -> Array:
    return np.zeros(len(observations), int)


class TestTheLimitOfEvaluationEpisodes:
    def test_without_a_limit_of_its_own_an_environment_gets_that_of_the_setting(self, tmp_path: Path) -> None:
        make(tmp_path, env=env_worlds.Endless, eval_max_steps=17).train()
        rows = rekindle.RunReader(tmp_path / "t").eval_episodes()
        assert {(row["length"], row["total_reward"], row["status"]) for row in rows} == {(17, 17.0, "truncated")}

    def test_by_default_there_is_one(self) -> None:
        record = EpisodeEvaluator(EnvFactory(env_worlds.Endless), seed=0).evaluate(left, 1).records[0]
        assert (record.length, record.status) == (10_000, EpisodeStatus.TRUNCATED)

    def test_an_environment_that_has_one_keeps_it(self) -> None:
        evaluator = EpisodeEvaluator(EnvFactory(env_worlds.Endless, max_episode_steps=23), seed=0, max_steps=7)
        assert evaluator.evaluate(left, 1).records[0].length == 23

    def test_a_limit_that_ends_the_task_in_the_same_step_is_no_truncation(self) -> None:
        evaluator = EpisodeEvaluator(EnvFactory(lambda: env_worlds.Path(wall=0.0)), seed=0, max_steps=1)
        record = evaluator.evaluate(left, 1).records[0]
        assert (record.length, record.status) == (1, EpisodeStatus.TERMINATED)

    @pytest.mark.parametrize("value", [0, -1, "many"])
    def test_it_is_a_count(self, tmp_path: Path, value: Any) -> None:
        with pytest.raises(ConfigError, match="eval_max_steps"):
            make(tmp_path, eval_max_steps=value)


class TestBeforeTheFirstStep:
    def test_a_stop_in_the_probe_leaves_a_run_that_can_be_resumed(
        self, tmp_path: Path, stop_at_look: Callable[[int | None], list[int]]
    ) -> None:
        stop_at_look(100)
        training = make(tmp_path / "cut", env=env_worlds.Path, agent=toy, determinism=None)
        report = training.train()
        assert (report.status, report.reason, report.env_steps) == ("stopped", "look 100", 0)
        assert training.config.determinism is None
        stop_at_look(None)
        assert Trainer.resume(tmp_path / "cut" / "t", agent=toy, modules=["env_worlds"]).train().status == "finished"
        make(tmp_path / "whole", env=env_worlds.Path, agent=toy).train()
        assert digests(tmp_path / "cut") == digests(tmp_path / "whole")

    def test_a_stop_while_open_episodes_are_replayed_changes_nothing(
        self, tmp_path: Path, stop_at_look: Callable[[int | None], list[int]]
    ) -> None:
        options: dict[str, Any] = {"env": env_worlds.Endless, "num_envs": 2, "eval_episodes": 0}
        make(tmp_path / "whole", **options).train()
        for step in make(tmp_path / "cut", **options).steps():
            if step.total_steps == 90:
                break
        before = digests(tmp_path / "cut")
        looks = stop_at_look(60)  # the first episode has 45 steps to replay, and the second as many
        report = make(tmp_path / "cut", **options).train()
        assert (report.status, report.reason, report.env_steps, looks[0]) == ("stopped", "look 60", 90, 60)
        assert digests(tmp_path / "cut") == before
        stop_at_look(None)
        make(tmp_path / "cut", **options).train()
        assert digests(tmp_path / "cut") == digests(tmp_path / "whole")

    def test_the_probe_and_the_check_of_an_environment_can_be_stopped(self) -> None:
        for look in (lambda stop: probe(EnvFactory(env_worlds.Endless), should_stop=stop), _check):
            for number in (1, 3, 400):
                answers = itertools.chain([False] * (number - 1), itertools.repeat(True))
                with pytest.raises(Interrupted):
                    look(lambda answers=answers: next(answers))


def _check(should_stop: Callable[[], bool]) -> None:
    check_env(env_worlds.Endless, should_stop=should_stop)


def test_whoever_wants_to_know_is_told_of_a_stop_at_once(tmp_path: Path) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Waits(EpisodeEvaluator):
        def evaluate(self, act: Any, episodes: int) -> Evaluation:
            training.stop("enough")
            assert told.get(timeout=60) == "enough"
            return super().evaluate(act, episodes)

    training = make(tmp_path, evaluator=Waits(EnvFactory("FrozenLake-v1"), seed=5))
    training.on_stop(told.put)
    assert training.train().reason == "enough"
    other = make(tmp_path / "other")
    with contextlib.closing(other.steps()) as steps:
        next(steps)
        with pytest.raises(ConfigError, match="before the training starts"):
            other.on_stop(told.put)

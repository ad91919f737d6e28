"""Supervision of actors: what counts as silence, stopping in the middle of a round, and what a worker takes."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import env_worlds
import numpy as np
import pytest
from perilous import digests, trainer

from rekindle import EpisodeEnded, Transitions, Warned
from rekindle.actors import ActorProcesses, Cast, Order, RoundShape, supervision
from rekindle.actors.policies import packed_policy
from rekindle.actors.processes import start_patience
from rekindle.actors.rounds import first_start
from rekindle.envs import Determinism, EnvFactory
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer
from rekindle.policy.policy import NetworkPolicy
from rekindle.training import Trainer

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The digests of the training here."""
    root = tmp_path_factory.mktemp("here")
    trainer(root, root / "perils", actors_on="here").train()
    return digests(root)


def test_a_learner_that_was_suspended_does_not_take_its_workers_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(supervision.time, "monotonic", lambda: now[0])
    silence = supervision.Silence(5)
    found: list[float] = []
    for seconds, beats in ((0.5, 5), (0.5, 5), (3600.0, 5), (0.5, 6), (0.5, 6)):
        now[0] += seconds
        found.append(silence.seconds(beats))
    assert found == [0.5, 1.0, 3.0, 0.0, 0.5]


def test_a_stop_does_not_wait_for_a_round_and_a_resume_plays_it_again(tmp_path: Path, expected: dict[str, Any]) -> None:
    perils = tmp_path / "perils"
    training = trainer(tmp_path, perils, actor_patience=10_000)
    is_there = threading.Event()

    def hang(event: EpisodeEnded) -> None:
        if event.stamp.episodes == 20:
            (perils / "hang").touch()
            is_there.set()

    def stop_when_it_hangs() -> None:
        is_there.wait()
        while (perils / "hang").exists():
            time.sleep(0.01)
        training.stop("enough")

    training.on(EpisodeEnded, hang)
    threading.Thread(target=stop_when_it_hangs, daemon=True).start()
    assert training.train().status == "stopped"
    assert trainer(tmp_path, perils).train().status == "finished"
    assert digests(tmp_path) == expected


class Stopping(env_worlds.Path):
    """The walk; calls a function before the 33rd step of all."""

    steps = 0
    calls: ClassVar[list[Callable[[], object]]] = []

    def step(self, action: Any) -> Any:
        Stopping.steps += 1
        if Stopping.steps == 33:
            for call in Stopping.calls:
                call()
        return super().step(action)


@pytest.mark.parametrize("pipeline", [0, 1])
def test_a_stop_in_the_middle_of_a_round_here_is_exact_too(tmp_path: Path, pipeline: int) -> None:
    def made(root: Path, call: Callable[[Trainer], object]) -> Trainer:
        training = trainer(
            root, tmp_path / "perils", env=Stopping, actors_on="here", pipeline=pipeline, eval_episodes=0
        )
        Stopping.steps, Stopping.calls[:] = 0, [lambda: call(training)]
        return training

    made(tmp_path / "whole", lambda _: None).train()
    stopped = made(tmp_path / "cut", lambda training: training.stop("enough")).train()
    assert (stopped.status, Stopping.steps) == ("stopped", 34)
    made(tmp_path / "cut", lambda _: None).train()
    assert digests(tmp_path / "cut") == digests(tmp_path / "whole")


def crew_on_cartpole(workers: int) -> tuple[ActorProcesses, Order]:
    factory = EnvFactory("CartPole-v1")
    env = factory()
    shape = RoundShape.of(env.observation_space, env.action_space, actors=2, envs_each=1, steps=20)
    layer = Layer("dense", {"weight": np.zeros((4, 2), np.float32), "bias": np.zeros(2, np.float32)})
    head = ActionHead("softmax", "<i8", [], [2], [0], exploration=1.0)
    policy = packed_policy(NetworkPolicy(Encoding.of(env.observation_space), [layer], head, algorithm="linear"))
    order = Order(0, 0, policy, None, [first_start(0, actor, 1) for actor in range(2)])
    return ActorProcesses(Cast(factory, shape, 0, Determinism.REPEATS), workers=workers), order


def test_a_worker_of_cartpole_takes_less_than_120_mb() -> None:
    crew, order = crew_on_cartpole(1)
    try:
        crew.start(order)
        crew.collect()
        status = Path(f"/proc/{crew.processes[0]}/status").read_text()
    finally:
        crew.close()
    (most,) = re.findall(r"VmHWM:\s+(\d+) kB", status)
    assert int(most) < 120 * 1024


def test_a_free_worker_that_dies_is_started_again_although_the_learner_never_waits() -> None:
    crew, order = crew_on_cartpole(2)
    reports: list[str] = []
    crew.report = reports.append
    try:
        os.kill(crew.processes[0], signal.SIGKILL)
        places: set[int] = set()
        for place in range(2):
            crew.start_one(place, order)
        while places != {0, 1}:
            places |= {place for place, _, _ in crew.take_ready(0.0)}
            time.sleep(0.01)
    finally:
        crew.close()
    assert len(reports) == 1
    assert "actor 0 was killed by signal 9 in chunk 0: it is started again" in reports[0]


def test_many_workers_on_few_processors_get_longer_to_start() -> None:
    alone, crowded = start_patience(4, 4), start_patience(128, 2)
    assert alone < 130
    assert crowded > 64 * 4  # each needs a second or two of a processor


class SlowStart(env_worlds.Path):
    """Takes a while to be created, and to be reset."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.3)

    def reset(self, **options: Any) -> Any:
        time.sleep(0.3)
        return super().reset(**options)


def test_many_environments_that_start_slowly_do_not_count_as_silence(tmp_path: Path) -> None:
    options: dict[str, Any] = {"actors": 1, "envs_each": 10, "steps": 100, "eval_episodes": 0, "actor_patience": 2}
    training = trainer(tmp_path, tmp_path / "perils", env=SlowStart, **options)
    warnings: list[str] = []
    training.on(Warned, lambda event: warnings.append(event.message))
    training.train()
    assert not [text for text in warnings if "is started again" in text]


class Continuity:
    """A step processor that finds gaps: the walk counts its steps, so each stream must go on where it was."""

    def __init__(self) -> None:
        self.gaps: list[int] = []
        self.count = 0
        self._ends: dict[int, tuple[Any, bool]] = {}

    def __call__(self, transitions: Transitions, rows: Any) -> Any:
        self.count += len(transitions)
        for place, row in enumerate(rows):
            before, is_over = self._ends.get(row, (None, True))
            now: Any = transitions.observations[place]  # type: ignore[index]
            if (now[1] != 0) if is_over else not np.array_equal(before, now):
                self.gaps.append(row)
            following: Any = transitions.next_observations[place]  # type: ignore[index]
            self._ends[row] = following, bool(transitions.statuses[place])
        return transitions.rewards


def test_no_transition_of_free_actors_is_lost_or_learned_from_twice(tmp_path: Path) -> None:
    perils, check = tmp_path / "perils", Continuity()
    training = trainer(tmp_path, perils, free=True, eval_episodes=0, step_processor=check)
    warnings: list[str] = []
    training.on(Warned, lambda event: warnings.append(event.message))
    training.on(
        EpisodeEnded,
        lambda event: (perils / f"kill-{event.stamp.episodes}").touch() if event.stamp.episodes in (15, 60) else None,
    )
    report = training.train()
    assert [text for text in warnings if "is started again" in text]
    assert (check.gaps, check.count) == ([], report.env_steps)


def test_free_actors_that_are_left_in_the_middle_of_a_chunk_continue_there(tmp_path: Path) -> None:
    check = Continuity()
    options: dict[str, Any] = {"free": True, "eval_episodes": 0, "step_processor": check}
    for steps in (50, 101, 150):  # a chunk has 20
        with contextlib.closing(trainer(tmp_path, tmp_path / "perils", **options).steps()) as made:
            for _ in itertools.islice(made, steps):
                pass
    report = trainer(tmp_path, tmp_path / "perils", **options).train()
    assert (check.gaps, check.count) == ([], report.env_steps)

"""What rounds and chunks cost, with a clock that the test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rekindle.training import actor_metrics
from rekindle.training.actor_metrics import ChunkMetrics, RoundMetrics


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(actor_metrics, "time", made)
    return made


@pytest.fixture
def logged() -> dict[str, list[float]]:
    return {}


@pytest.fixture
def session(logged: dict[str, list[float]]) -> Any:
    def log(name: str, value: float) -> None:
        logged.setdefault(name.removeprefix("time/"), []).append(value)

    return SimpleNamespace(log=log, agent=SimpleNamespace(updates=0))


@pytest.fixture
def crew() -> Any:
    """Two workers with two actors each; a round has 20 transitions of each actor."""
    shape = SimpleNamespace(actors=4, envs_each=2, steps=10, transitions=80)
    return SimpleNamespace(shape=shape, workers=2, restarts=[0, 0, 0, 0], worker_restarts=0)


def ends(*seconds: float) -> Any:
    return [SimpleNamespace(seconds=each) for each in seconds]


def test_a_round_tells_who_played_and_who_waited(
    clock: Clock, session: Any, crew: Any, logged: dict[str, list[float]]
) -> None:
    metrics = RoundMetrics(session, crew)
    with metrics.waiting():
        clock.now += 1.0
    metrics.collected(ends(1.0, 1.0, 2.0, 1.0))
    metrics.staleness = 1
    clock.now += 3.0
    session.agent.updates = 8
    metrics.log()
    assert logged["samples_per_sec"] == [20.0]
    assert logged["updates_per_sec"] == [2.0]
    assert logged["learner_waiting"] == [0.25]
    assert logged["staleness"] == [1]
    assert logged["actors_waiting"] == [1 - 5 / 8], "the actors of a worker take turns"
    assert [logged[f"actor_{actor}_playing"] for actor in range(4)] == [[0.25], [0.25], [0.5], [0.25]]
    assert [logged[f"actor_{actor}_samples_per_sec"] for actor in range(4)] == [[20.0], [20.0], [10.0], [20.0]]


def test_two_rounds_before_the_first_log_count_as_two_and_none_after_the_last_as_none(
    clock: Clock, session: Any, crew: Any, logged: dict[str, list[float]]
) -> None:
    metrics = RoundMetrics(session, crew)
    metrics.collected(ends(1.0, 1.0, 1.0, 1.0))
    metrics.collected(ends(3.0, 1.0, 1.0, 1.0))
    clock.now += 8.0
    metrics.log()
    clock.now += 1.0
    metrics.log()
    assert logged["actor_0_samples_per_sec"] == [10.0]
    assert logged["actor_0_playing"] == [0.5]
    assert len(logged["actors_waiting"]) == 1
    assert len(logged["samples_per_sec"]) == 2


def test_restarts_are_logged_for_those_actors_that_had_one(
    clock: Clock, session: Any, crew: Any, logged: dict[str, list[float]]
) -> None:
    metrics = RoundMetrics(session, crew)
    metrics.log()
    crew.restarts, crew.worker_restarts = [0, 0, 1, 1], 1
    metrics.log()
    clock.now += 1.0
    metrics.log()
    assert logged["actor_restarts"] == [0, 1, 0]
    assert logged["actor_2_restarts"] == logged["actor_3_restarts"] == [1, 1]
    assert "actor_0_restarts" not in logged


def test_a_chunk_is_compared_with_the_time_since_the_last_one_of_its_worker(
    clock: Clock, session: Any, crew: Any, logged: dict[str, list[float]]
) -> None:
    metrics = ChunkMetrics(session, crew)
    clock.now += 4.0
    metrics.received(0, range(2), ends(1.0, 2.0))
    clock.now += 4.0
    metrics.received(0, range(2), ends(1.0, 1.0))
    metrics.received(1, range(2, 4), ends(4.0, 4.0))
    metrics.log(range(2), 3, 2)
    assert logged["samples_per_sec"] == [5.0]
    assert logged["staleness"] == [3]
    assert logged["actor_queue"] == [2]
    assert logged["actors_waiting"] == [0.25, 0.5, 0.0]
    assert logged["actor_1_playing"] == [0.5, 0.25]
    assert logged["actor_1_samples_per_sec"] == [10.0, 20.0]
    assert logged["actor_3_playing"] == [0.5]

"""Calls of many streams in one record, as a server makes them."""

import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.session.journal_hosts import Learning, copied, digest, tree_of

from rekindle import TrainingSession
from rekindle.agents import Tabular
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.session.ticks import Tick, Ticks
from rekindle.training import replay_run
from rekindle.verification import verify

STREAMS = 6


class Notes:
    """A ledger that remembers everything."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def state(self) -> dict[str, Any]:
        return {"taken": list(self.taken)}

    def load_state(self, state: dict[str, Any]) -> None:
        self.taken = list(state["taken"])

    def took(self, note: bytes, actions: Array) -> None:
        self.taken.append([note.decode(), actions.tolist()])


def opened(root: Path, **options: Any) -> tuple[TrainingSession, Ticks, Notes]:
    agent = Tabular(gym.spaces.Discrete(10), gym.spaces.Discrete(3), seed=0)
    settings: dict[str, Any] = {"journal": True, "checkpoint_every": 70, "metrics_every": 20, "journal_keep": "all"}
    session = TrainingSession.open("served", agent, root=root, **(settings | options))
    notes = Notes()
    return session, session.serve(notes), notes


def drive(ticks: Ticks, first: int, last: int, *, actions: int = 3) -> None:
    """Make the ticks from `first` to `last`; what is in each depends on nothing but its number."""
    for number in range(first, last):
        rng = np.random.default_rng(number)
        slots = np.array([ticks.slot(f"client/{stream}") for stream in range(STREAMS)], np.int64)
        fresh = np.array([slot for slot in slots.tolist() if not ticks.is_open(slot)], np.int64)
        if len(fresh):
            ticks.make(Tick(begins=fresh, first=[rng.integers(0, 10, len(fresh))]), b"begin %d" % number)
            continue
        statuses = rng.choice(np.array([0, 0, 0, 0, 0, 1, 2], np.uint8), STREAMS)
        ended = slots[statuses > 0]
        tick = Tick(
            steps=slots,
            after=[rng.integers(0, 10, STREAMS)],
            rewards=rng.random(STREAMS),
            statuses=statuses,
            executed=rng.integers(0, actions, STREAMS) if number % 5 == 0 else None,
            extras={int(np.argmax(statuses > 0)): {"hits": 3.0}} if len(ended) else {},
            begins=ended[:2],
            first=[rng.integers(0, 10, len(ended[:2]))],
        )
        ticks.make(tick, b"step %d" % number)
        if number % 7 == 0:
            ticks.make(Tick(abandon=slots[2:3], close=slots[:1]), b"close %d" % number)


@pytest.mark.parametrize("stop_at", [1, 9, 30, 43])
def test_after_a_kill_ticks_notes_and_pending_actions_are_where_they_were(tmp_path: Path, stop_at: int) -> None:
    whole, ticks, notes = opened(tmp_path / "whole")
    drive(ticks, 0, 60)
    whole.close()
    killed, ticks, _ = opened(tmp_path / "killed")
    drive(ticks, 0, stop_at)
    killed.flush()
    copied(tmp_path / "killed", tmp_path / "found")
    killed.close()
    found, ticks, again = opened(tmp_path / "found")
    streams = ticks.streams()
    assert [note[0] for note in again.taken][-1].endswith(f" {stop_at - 1}")
    assert again.taken == notes.taken[: len(again.taken)]
    assert streams
    drive(ticks, stop_at, 60)
    found.close()
    assert again.taken == notes.taken
    expected, made = (verify(tmp_path / name / "served").digests for name in ("whole", "found"))
    assert made == expected


class Spaced(Learning):
    """An agent that learns in the background, with spaces."""

    observation_space = gym.spaces.Discrete(10)
    action_space = gym.spaces.Discrete(2)


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_after_a_kill_a_learner_of_any_kind_is_where_it_was(tmp_path: Path, learner: str) -> None:
    options: dict[str, Any] = {"journal": True, "checkpoint_every": 40, "metrics_every": 10, "learner": learner}
    session = TrainingSession.open("served", Spaced(), root=tmp_path / "live", **options)
    notes = Notes()
    ticks = session.serve(notes)
    stood: list[tuple[Path, str]] = []
    for number in range(0, 40, 4):
        drive(ticks, number, number + 4, actions=2)
        session.flush()
        time.sleep(0.002)  # let the learner make some updates
        copy = copied(tmp_path / "live", tmp_path / str(number))
        stood.append((copy, digest(tree_of(session))))
    session.close()
    for root, expected in stood:
        again = TrainingSession.open("served", Spaced(), root=root, **options)
        ledger = Notes()
        assert again.serve(ledger).streams()
        again.flush()
        assert again.resumed is not None
        assert again.resumed.grade == "exact"
        assert digest(tree_of(again)) == expected
        assert ledger.taken == notes.taken[: len(ledger.taken)]
        again.close()


def test_a_run_of_ticks_can_be_made_again_from_its_journal(tmp_path: Path) -> None:
    session, ticks, _ = opened(tmp_path)
    drive(ticks, 0, 40)
    session.close()
    again = replay_run(tmp_path / "served")
    assert again.ok
    assert again.first_other_action is None


def test_the_action_of_an_ended_episode_is_a_row_of_zeros(tmp_path: Path) -> None:
    session, ticks, notes = opened(tmp_path)
    slots = np.array([ticks.slot("a"), ticks.slot("b")], np.int64)
    ticks.make(Tick(begins=slots, first=[np.array([1, 2])]), b"")
    statuses = np.array([1, 0], np.uint8)
    rows = ticks.make(Tick(steps=slots, after=[np.array([3, 4])], rewards=np.ones(2), statuses=statuses), b"")
    assert rows[0] == 0
    assert rows[1] == ticks.standing(int(slots[1]))[2][0]
    assert not ticks.is_open(int(slots[0]))
    assert session.episodes == 1
    assert len(notes.taken) == 2
    session.close()


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_one_stream_alone_goes_on_after_a_kill_too(tmp_path: Path, learner: str) -> None:
    options: dict[str, Any] = {"journal": True, "checkpoint_every": 15, "metrics_every": 10, "learner": learner}
    session = TrainingSession.open("served", Spaced(), root=tmp_path / "live", **options)
    ticks = session.serve(Notes())
    slot = np.array([ticks.slot("alone/0")], np.int64)
    for number in range(40):
        rng = np.random.default_rng(number)
        observation = rng.integers(0, 10, 1)
        if not ticks.is_open(int(slot[0])):
            ticks.make(Tick(begins=slot, first=[observation]), b"begin")
            continue
        statuses = np.array([number % 7 == 6], np.uint8)
        extras = {0: {"hits": 1.0}} if statuses[0] else {}
        tick = Tick(steps=slot, after=[observation], rewards=rng.random(1), statuses=statuses, extras=extras)
        assert tick.is_one_step
        ticks.make(tick, b"step")
    session.flush()
    root, expected = copied(tmp_path / "live", tmp_path / "found"), digest(tree_of(session))
    session.close()
    again = TrainingSession.open("served", Spaced(), root=root, **options)
    again.serve(Notes()).streams()
    again.flush()
    assert again.resumed is not None
    assert again.resumed.replayed > 0
    assert digest(tree_of(again)) == expected
    again.close()


def test_a_session_is_served_before_its_first_call(tmp_path: Path) -> None:
    session, ticks, _ = opened(tmp_path)
    drive(ticks, 0, 3)
    session.close()
    agent = Tabular(gym.spaces.Discrete(10), gym.spaces.Discrete(3), seed=0)
    with TrainingSession.open("served", agent, root=tmp_path, journal=True, metrics_every=20) as again:
        assert again.total_steps == 12
        with pytest.raises(ConfigError, match="before its first call"):
            again.serve(Notes())


def test_a_session_that_converts_or_drops_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="drop"):
        opened(tmp_path, bad_values="drop")

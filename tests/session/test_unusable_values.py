"""A value of any type that cannot be used is refused before anything changes, and the session goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from toys import ToyAgent

from rekindle import EpisodeStatus, Experience, RunReader, TrainingSession, Transitions, verify
from rekindle.errors import ConfigError, InputError
from rekindle.experience import Array
from rekindle.stats import EpisodeRecord

OBSERVATION = np.zeros(2, np.float32)
UNUSABLE = [3, 3.5, None, np.array(3.0), object(), {1, 2}, {"a": 1}, {"a": [1, 2], "b": 3}, lambda: 0]


class Pusher(ToyAgent):
    """Has a continuous action, and spaces."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def act(self, observations: Any, mode: Any, streams: Array) -> Array:
        return np.zeros((len(streams), 2), np.float32)


def transitions(**changes: Any) -> Transitions:
    given: dict[str, Any] = {
        "observations": np.zeros((2, 2), np.float32),
        "actions": np.zeros(2, np.int64),
        "rewards": np.zeros(2),
        "next_observations": np.ones((2, 2), np.float32),
        "statuses": np.zeros(2, np.uint8),
    }
    return Transitions(**{**given, **changes})


CALLS: dict[str, Callable[[TrainingSession, Any], object]] = {
    "act_many": lambda session, value: session.act_many(value),
    "act_many greedily": lambda session, value: session.act_many(value, "exploit"),
    "observe": lambda session, value: session.observe(value),
    "observe_many": lambda session, value: session.observe_many(value),
    "observations": lambda session, value: session.observe_many(transitions(observations=value)),
    "actions": lambda session, value: session.observe_many(transitions(actions=value)),
    "rewards": lambda session, value: session.observe_many(transitions(rewards=value)),
    "extras": lambda session, value: session.stream().step(OBSERVATION, 0.0, extras=value),
    "extras of many": lambda session, value: session.on_episodes({0: value}),
    "announced": lambda session, value: session.on_episodes(value),
}


@pytest.mark.parametrize("value", UNUSABLE, ids=[type(value).__name__ for value in UNUSABLE])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("agent", [ToyAgent, Pusher])
def test_a_value_of_any_type_is_refused_and_the_agent_is_sound(
    tmp_path: Path, agent: type[ToyAgent], call: str, value: Any
) -> None:
    with TrainingSession.open("run", agent(), root=tmp_path) as session:
        with pytest.raises(InputError):
            CALLS[call](session, value)
        stream = session.stream("another")
        stream.begin(OBSERVATION)
        stream.step(OBSERVATION + 1, 1.0, True)
    assert RunReader(tmp_path / "run").status == "stopped"
    assert [row["length"] for row in RunReader(tmp_path / "run").train_episodes()] == [1]


def test_streams_that_are_no_sequence_are_refused() -> None:
    streams: Any = 3
    session = TrainingSession(ToyAgent())
    with pytest.raises(InputError, match="streams must be a sequence of their names, got 3"):
        session.act_many(np.zeros((2, 2)), streams=streams)
    session.act_many(np.zeros((2, 2)), streams=["a", "b"])


def test_an_error_of_the_hosts_encoder_or_mapper_leaves_the_agent_sound() -> None:
    class Encoder:
        def encode(self, observation: Any) -> Array:
            return np.array([observation["x"], observation["y"]], np.float32)

    class Mapper:
        def to_host(self, action: Any) -> str:
            return "left" if action else "right"

        def to_agent(self, action: str) -> int:
            return ("right", "left").index(action)

    session = TrainingSession(ToyAgent(), observation_encoder=Encoder(), action_mapper=Mapper())
    with pytest.raises(InputError, match="observation cannot be used: KeyError: 'y'"):
        session.act({"x": 1.0})
    here, there = {"x": 1.0, "y": 2.0}, {"x": 2.0, "y": 3.0}
    session.act(here)
    with pytest.raises(InputError, match="action cannot be used: ValueError"):
        session.observe(Experience(here, "up", 0.0, there))
    session.observe(Experience(here, "left", 0.0, there))
    assert session.total_steps == 1


def test_a_refused_call_does_not_set_the_layout() -> None:
    ragged, other = [[1, 2], [1]], Experience(np.zeros(3), 0, 0.0, np.zeros(2))
    session = TrainingSession(ToyAgent())
    with pytest.raises(InputError):
        session.act_many(ragged)
    with pytest.raises(InputError, match="shape"):
        session.observe(other)
    with pytest.raises(InputError, match="not finite"):
        session.observe(Experience(np.zeros(3), [0], np.nan, np.zeros(3)))
    action = session.act(OBSERVATION)
    session.observe(Experience(OBSERVATION, action, 0.0, OBSERVATION))
    with pytest.raises(InputError, match="shape"):
        session.act(np.zeros(3))
    assert session.total_steps == 1


@pytest.mark.parametrize("number", [np.nan, np.inf])
class TestActionsThatAreNotFinite:
    def test_one_is_refused(self, number: float) -> None:
        session = TrainingSession(Pusher())
        session.act(OBSERVATION)
        with pytest.raises(InputError, match=r"the action .* is not finite"):
            session.observe(Experience(OBSERVATION, np.array([0, number], np.float32), 0.0, OBSERVATION))
        assert (session.total_steps, session.agent.env_steps) == (0, 0)

    def test_one_of_a_batch_is_refused(self, number: float) -> None:
        session = TrainingSession(Pusher())
        actions = np.array([[0, 0], [number, 0]], np.float32)
        with pytest.raises(InputError, match=r"stream 1: the action .* is not finite"):
            session.observe_many(transitions(actions=actions))
        assert (session.total_steps, session.agent.env_steps) == (0, 0)

    def test_one_is_dropped(self, number: float) -> None:
        session = TrainingSession(Pusher(), bad_values="drop")
        session.act(OBSERVATION)
        session.observe(Experience(OBSERVATION, np.array([0, number], np.float32), 0.0, OBSERVATION))
        session.observe_many(transitions(actions=np.array([[0, 0], [number, 0]], np.float32)), streams=[1, 2])
        assert (session.total_steps, session.dropped) == (1, 2)


class Remembering(ToyAgent):
    """Keeps which reward came from which stream."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards: list[tuple[int, float]] = []

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        self.rewards += zip(streams.tolist(), transitions.rewards.tolist(), strict=True)


@pytest.mark.parametrize("keep_data", [False, True])
def test_a_row_of_a_batch_is_dropped_and_the_others_stay_with_their_streams(keep_data: bool, tmp_path: Path) -> None:
    agent = Remembering()
    with TrainingSession.open("run", agent, root=tmp_path, bad_values="drop", keep_data=keep_data) as session:
        session.observe_many(transitions(rewards=np.array([1.0, 2.0])))
        seen = np.ones((2, 2), np.float32)
        session.observe_many(transitions(observations=seen, rewards=np.array([np.nan, 4.0]), next_observations=seen))
        assert session.dropped == 1
    assert agent.rewards == [(0, 1.0), (1, 2.0), (1, 4.0)]


@pytest.mark.parametrize("journal", [False, True])
def test_episodes_that_are_announced_together_are_all_refused_or_none(tmp_path: Path, journal: bool) -> None:
    with TrainingSession.open("run", ToyAgent(), root=tmp_path, journal=journal) as session:
        session.act_many(np.zeros((2, 2), np.float32))
        ended = np.full(2, EpisodeStatus.TERMINATED, np.uint8)
        session.observe_many(transitions(statuses=ended))
        wrong: Any = {"goal": "yes"}
        with pytest.raises(InputError, match="the extra 'goal' is not a number"):
            session.on_episodes({0: {"goal": 1.0}, 1: wrong})
        assert session.episodes == 0
        session.on_episodes({0: {"goal": 1.0}, 1: {"goal": 0.0}})
        assert session.episodes == 2


ENDED = Experience(OBSERVATION, 0, 1.0, OBSERVATION, EpisodeStatus.TERMINATED)
WRONG: dict[str, Callable[[TrainingSession], object]] = {
    "total_reward": lambda session: session.on_episode("much"),  # pyright: ignore[reportArgumentType]
    "steps": lambda session: session.on_episode(steps=1.5),  # pyright: ignore[reportArgumentType]
    "status": lambda session: session.on_episode(status="over"),  # pyright: ignore[reportArgumentType]
    "name of an extra": lambda session: session.on_episode(extras={"\udcff": 1.0}),
    "name of a metric": lambda session: session.log("\udcff", 1.0),
    "metric": lambda session: session.log("large", 10**400),
    "name of a stream": lambda session: session.act(OBSERVATION, stream="\udcff"),
    "best": lambda session: session.maybe_save_best("high"),  # pyright: ignore[reportArgumentType]
    "record": lambda session: session.on_eval_episode({"length": 3}),  # pyright: ignore[reportArgumentType]
    "length": lambda session: session.on_eval_episode(EpisodeRecord(1.0, 1.5, EpisodeStatus.TERMINATED)),  # pyright: ignore[reportArgumentType]
    "time": lambda session: session.learn(milliseconds="some"),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("journal", [False, True])
@pytest.mark.parametrize("call", WRONG)
def test_a_value_that_no_file_can_hold_is_refused_at_once(call: str, journal: bool, tmp_path: Path) -> None:
    with TrainingSession.open("run", ToyAgent(), root=tmp_path, journal=journal, learner="manual") as session:
        session.observe(ENDED)
        with pytest.raises(InputError):
            WRONG[call](session)
        session.on_episode()
        session.checkpoint(wait=True)
    assert verify(tmp_path / "run").ok


@pytest.mark.parametrize("journal", [False, True])
def test_numbers_of_numpy_are_recorded_as_plain_ones(journal: bool, tmp_path: Path) -> None:
    def opened() -> TrainingSession:
        return TrainingSession.open("run", ToyAgent(), root=tmp_path, journal=journal)

    with opened() as session:
        session.observe(ENDED)
        session.on_episode(np.float32(1), np.int64(1), np.int64(1), {"won": np.float16(1)})  # pyright: ignore[reportArgumentType]
        record = EpisodeRecord(np.float32(2), np.int64(3), np.int64(1), {"won": np.bool_(True)})  # pyright: ignore[reportArgumentType]
        session.on_eval_episode(record)
        session.maybe_save_best(np.float32(2))  # pyright: ignore[reportArgumentType]
    with opened() as again:
        assert again.eval_report(1).n_episodes == 1
        assert again.best_score == 2.0


@pytest.mark.parametrize("reason", [42, ValueError("too hot"), None])
def test_a_reason_of_any_type_leaves_a_run_that_can_be_resumed(reason: Any, tmp_path: Path) -> None:
    with TrainingSession.open("run", ToyAgent(), root=tmp_path) as session:
        session.warn(reason)
        session.mark_inexact(reason)
        session.stop(reason)
    assert RunReader(tmp_path / "run").metadata.stop_reason == str(reason)
    TrainingSession.open("run", ToyAgent(), root=tmp_path).close()


@pytest.mark.parametrize(
    "option",
    [
        {"journal": "yes"},
        {"journal": 1},
        {"strict": "no"},
        {"keep_data": 1},
        {"journal_sync": "often"},
        {"journal_sync": None},
        {"journal_sync": -1},
        {"journal_sync": 1e30},
        {"journal_sync": True},
        {"journal_limit": 1.5},
    ],
)
def test_an_option_of_the_wrong_type_is_refused(option: dict[str, Any], tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal": True, **option}
    with pytest.raises(ConfigError, match=next(iter(option))):
        TrainingSession.open("run", ToyAgent(), root=tmp_path, **options)


def test_options_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "journal": np.bool_(True),
        "journal_sync": np.float32(0.01),
        "journal_limit": np.int64(999),
    }
    with TrainingSession.open("run", ToyAgent(), root=tmp_path, **options) as session:
        session.observe(ENDED)
        session.on_episode()
        names = {thread.name for thread in threading.enumerate()}
        time.sleep(0.1)
        assert "rekindle-journal" in names & {thread.name for thread in threading.enumerate()}
    assert verify(tmp_path / "run").ok

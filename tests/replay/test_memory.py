"""The memory gives back every transition that it holds, as windows of any length, exactly as it came."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Text, Tuple
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import (
    KINDS,
    Kind,
    Model,
    Step,
    World,
    assert_batch_is,
    assert_same_batch,
    events,
    remembered,
    transitions,
    walk,
)

from rekindle.agent import Replay
from rekindle.checkpoint import decode, encode
from rekindle.checkpoint.replay_journal import ReplayJournal
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Transitions
from rekindle.replay import Memory

GAMMA = 0.5  # small rewards and halves: every sum is exact

room = st.one_of(st.integers(0, 6), st.integers(0, 40))
kinds = st.sampled_from(sorted(KINDS)).map(KINDS.__getitem__)


def assert_holds(memory: Memory, kind: Kind, model: Model, n_step: int) -> None:
    """Everything that can be sampled is what the model says, and nothing else can."""
    numbers = np.arange(memory.end)
    can_sample = memory.can_sample(numbers)
    assert numbers[can_sample].tolist() == sorted(model.numbers())
    assert len(memory) == len(model.numbers())
    assert memory.broken_chains == model.broken_chains
    if model.numbers():
        batch = memory.gather(numbers[can_sample], n_step=n_step, gamma=GAMMA)
        assert_batch_is(batch, kind, [model.window(number, n_step) for number in sorted(model.numbers())], GAMMA)


def reloaded(memory: Memory, kind: Kind, journal: ReplayJournal) -> Memory:
    """What a new process would make of a checkpoint."""
    state = decode(b"".join(map(bytes, encode(memory.state()))), name="state")
    manifest = journal.write(journal.collect(memory))
    fresh = kind.memory(memory.capacity)
    fresh.load_state(state)
    fresh.restore(manifest.first, journal.read(manifest))
    return fresh


@settings(max_examples=150, deadline=None)
@given(kind=kinds, extra=room, n_step=st.integers(1, 5), data=st.data())
def test_it_gives_back_what_a_list_of_all_transitions_would(
    kind: Kind, extra: int, n_step: int, data: st.DataObject
) -> None:
    memory, world = kind.memory(2 * kind.stack + extra), World(kind.stack)
    model = Model(memory.capacity, kind.stack)
    for _ in range(data.draw(st.integers(1, 10))):
        if data.draw(st.sampled_from([False] * 4 + [True])):
            stream = data.draw(st.integers(0, 5))
            world.cut(stream)
            model.cut(stream)
            memory.cut(np.array([stream]))
        steps = world.steps(data.draw(events()))
        if steps:
            assert memory.append(*transitions(kind, steps)).rows == model.append(steps)
        assert_holds(memory, kind, model, n_step)


@settings(max_examples=60, deadline=None)
@given(kind=kinds, extra=room, n_step=st.integers(1, 4), data=st.data())
def test_after_a_restore_at_any_point_it_goes_on_to_the_last_bit(
    kind: Kind, extra: int, n_step: int, data: st.DataObject
) -> None:
    memory, world = kind.memory(2 * kind.stack + extra), World(kind.stack)
    model = Model(memory.capacity, kind.stack)
    others: list[Memory] = []
    with tempfile.TemporaryDirectory() as directory:
        journal = ReplayJournal(Path(directory), resume_count=0)
        for _ in range(data.draw(st.integers(2, 8))):
            if data.draw(st.booleans()):
                others.append(reloaded(memory, kind, journal))
            steps = world.steps(data.draw(events()))
            if not steps:
                continue
            model.append(steps)
            appended = memory.append(*transitions(kind, steps))
            assert all(other.append(*transitions(kind, steps)) == appended for other in others)
            assert_holds(memory, kind, model, n_step)
            for other in others:
                assert other.state() == memory.state()
                assert len(other) == len(memory)
                if len(memory):
                    one, two = np.random.default_rng(0), np.random.default_rng(0)
                    assert_same_batch(memory.sample(one, 40, n_step=n_step), other.sample(two, 40, n_step=n_step))
                    assert one.bit_generator.state == two.bit_generator.state


@settings(max_examples=40, deadline=None)
@given(kind=kinds, batches=st.lists(events(), max_size=6))
def test_a_batch_is_remembered_like_its_transitions_one_by_one(kind: Kind, batches: list[Any]) -> None:
    whole, single, world = kind.memory(300), kind.memory(300), World(kind.stack)
    for batch in batches:
        steps = world.steps(batch)
        if steps:
            rows = whole.append(*transitions(kind, steps)).rows
            assert rows == [single.append(*transitions(kind, [step])).rows[0] for step in steps]
    assert whole.state() == single.state()
    for name, column in whole.read(whole.first, whole.end).items():
        np.testing.assert_array_equal(column, single.read(single.first, single.end)[name])


def test_an_episode_that_starts_where_the_last_one_ended_is_not_linked_to_it() -> None:
    kind = KINDS["vector"]
    there, back = Step(0, (0,), 1, 1, (1,), 0), Step(0, (1,), 2, 2, (0,), 0)
    for status in (1, 2, 0):
        memory = remembered(kind, 10, [there._replace(status=status)])
        if not status:
            memory.cut(np.array([0]))
        memory.append(*transitions(kind, [back]))
        batch = memory.gather(np.array([1]), n_step=2, gamma=GAMMA)
        assert_batch_is(batch, kind, [[there._replace(status=status)]], GAMMA)


def test_of_a_batch_larger_than_the_memory_the_last_transitions_remain() -> None:
    kind = KINDS["vector"]
    steps = [walk(1, stream=stream)[0]._replace(action=stream) for stream in range(20)]
    memory = kind.memory(6)
    memory.append(*transitions(kind, steps))
    assert_batch_is(memory.gather(np.array([35, 37, 39])), kind, [[step] for step in steps[17:]], 0.99)
    assert len(memory) == 3


def test_a_step_whose_start_is_overwritten_by_its_own_batch_cannot_be_sampled() -> None:
    kind, model = KINDS["vector"], Model(8, 1)
    early = [*walk(2), *walk(5, stream=1)]
    memory = remembered(kind, 8, early)
    for step in early:
        model.append([step])
    batch = [*walk(1, stream=2), *walk(1, stream=3), walk(3)[2]]
    assert memory.append(*transitions(kind, batch)).rows == model.append(batch) == [10, 12, 13]
    assert_holds(memory, kind, model, n_step=2)
    assert not memory.can_sample(np.array([13])).any()


def test_every_observation_is_stored_once() -> None:
    assert remembered(KINDS["vector"], 100, walk(20, last=1), walk(20)).end == 42
    assert remembered(KINDS["stacks of 4"], 100, walk(20, stack=4, last=1), walk(20, stack=4)).end == 48


def test_what_was_given_may_be_reused_by_the_host() -> None:
    kind = KINDS["vector"]
    given, streams = transitions(kind, walk(1))
    memory = kind.memory(10)
    memory.append(given, streams)
    for array in (given.observations, given.actions, given.rewards, given.next_observations):
        np.asarray(array)[...] = 77
    assert_batch_is(memory.gather(np.array([1])), kind, [walk(1)], 0.99)


def test_observations_are_compared_bit_by_bit() -> None:
    space = Box(-1, 1, (1,), np.float32)
    memory = Memory(10, space, Discrete(2))
    for before, after in ((0.0, 0.0), (-0.0, 0.5)):
        observations, next_observations = np.array([[[before]], [[after]]], np.float32)
        memory.append(
            Transitions(observations, np.array([0]), np.zeros(1), next_observations, np.zeros(1, np.uint8)),
            np.array([0]),
        )
    assert memory.broken_chains == 1
    assert np.signbit(np.asarray(memory.gather(np.array([3])).observations)).all()


def test_a_stack_that_does_not_continue_is_stored_whole_counted_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kind = KINDS["pairs of frames"]
    torn = [
        Step(0, (0, 0), 0, 1, (0, 1), 0),
        Step(0, (0, 1), 1, 1, (8, 9), 0),
        Step(0, (8, 9), 2, 1, (9, 10), 0),
        Step(0, (9, 10), 3, 1, (6, 7), 0),
    ]
    with caplog.at_level(logging.WARNING, logger="rekindle"):
        memory = remembered(kind, 100, torn)
    assert (memory.whole_stacks, memory.broken_chains) == (2, 0)
    assert len(caplog.records) == 1
    batch = memory.gather(np.array([2, 4, 5, 7]), n_step=3, gamma=GAMMA)
    assert_batch_is(batch, kind, [torn[:3], torn[1:], torn[2:], torn[3:]], GAMMA)


# Size


def test_a_row_takes_its_observation_its_action_and_22_bytes() -> None:
    memory = Memory(1000, Box(-1, 1, (17,), np.float32), Box(-1, 1, (6,), np.float32))
    assert memory.nbytes == 1000 * (17 * 4 + 6 * 4 + 22)


def test_a_million_stacked_frames_take_little_more_than_the_frames() -> None:
    memory = Memory(1_000_000, Box(0, 255, (4, 84, 84), np.uint8), Discrete(18), frame_stack=4)
    assert memory.nbytes == 1_000_000 * (84 * 84 + 8 + 38)
    frames = 1_000_000 * 84 * 84
    rows_for_a_million = 1_000_000 // 100 * 104  # episodes of 100 steps
    assert memory.nbytes / memory.capacity * rows_for_a_million <= 1.1 * frames


# Bad settings, input and state


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((1, Discrete(2), Discrete(2)), {}, "capacity is 1: one transition can take 2 rows"),
        ((7, Box(0, 1, (4,)), Discrete(2)), {"frame_stack": 4}, "capacity is 7: one transition can take 8 rows"),
        ((9, Text(3), Discrete(2)), {}, "the space of observation is Text"),
        ((9, Dict({"a": Dict({"b": Text(2)})}), Discrete(2)), {}, "the space of observation.a/b is Text"),
        ((9, Discrete(2), Tuple([Text(2)])), {}, "the space of action is Tuple"),
        ((9, Discrete(2), Dict({"a": Text(2)})), {}, "the space of action is Dict"),
        ((9, Discrete(2), Discrete(2)), {"frame_stack": 4}, r"the shape of an observation is \(\)"),
        ((9, Box(0, 1, (4,)), Discrete(2)), {"frame_stack": 3}, r"frame_stack is 3, but the shape"),
        ((9, Box(0, 1, (0,)), Discrete(2)), {"frame_stack": 0}, r"frame_stack is 0, but the shape"),
        ((9, Dict({"a": Box(0, 1, (4,))}), Discrete(2)), {"frame_stack": 4}, "only observations of a single array"),
    ],
)
def test_what_cannot_be_stored_is_refused(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Memory(*arguments, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observations": np.zeros((2, 3), np.float32)}, r"observation has the shape \(2, 3\), not \(2, 2\)"),
        ({"next_observations": np.zeros((2, 2), np.complex64)}, "next_observation is complex64, not float32"),
        ({"actions": np.zeros(2)}, "action is float64, not int64"),
        ({"rewards": np.array([1.0, 1e39])}, "the reward 1e[+]39 is not a finite float32"),
        ({"rewards": np.array([1.0, np.nan])}, "the reward nan is not a finite float32"),
        ({"statuses": np.array([0, 3], np.uint8)}, "the status 3 is not one of"),
        ({"streams": np.array([0])}, r"there are 2 transitions, but the streams have the shape \(1,\)"),
    ],
)
def test_transitions_that_do_not_fit_are_refused_and_change_nothing(wrong: dict[str, Any], message: str) -> None:
    kind = KINDS["vector"]
    memory = remembered(kind, 10, walk(3))
    state, batch = memory.state(), memory.sample(np.random.default_rng(0), 9)
    given, streams = transitions(kind, [*walk(1), *walk(1, stream=1)])
    fields = {name: getattr(given, name) for name in Transitions.__struct_fields__}
    with pytest.raises(InputError, match=message):
        memory.append(
            Transitions(**{**fields, **{name: value for name, value in wrong.items() if name != "streams"}}),
            wrong.get("streams", streams),
        )
    assert memory.state() == state
    assert_same_batch(memory.sample(np.random.default_rng(0), 9), batch)


def test_a_dict_observation_must_have_its_keys() -> None:
    memory, kind = KINDS["dict"].memory(10), KINDS["dict"]
    given, streams = transitions(kind, walk(1))
    for wrong in (np.zeros((1, 2)), {"wheel": np.zeros(1)}):
        with pytest.raises(InputError, match=r"observation must be a dict with the keys \['camera', 'wheel'\]"):
            memory.append(
                Transitions(wrong, given.actions, given.rewards, given.next_observations, given.statuses), streams
            )


def test_an_observation_of_one_array_must_be_one() -> None:
    memory, kind = KINDS["vector"].memory(10), KINDS["vector"]
    given, streams = transitions(kind, walk(1))
    named = {"observation": np.asarray(given.observations)}
    with pytest.raises(InputError, match="observation must be an array, not a dict"):
        memory.append(
            Transitions(named, given.actions, given.rewards, given.next_observations, given.statuses), streams
        )


def test_without_its_rows_a_loaded_memory_is_empty_and_goes_on() -> None:
    kind = KINDS["vector"]
    memory = remembered(kind, 10, walk(5)[:4])
    fresh = remembered(kind, 10, walk(7))
    fresh.load_state(memory.state())
    assert (len(fresh), fresh.first, fresh.end) == (0, 5, 5)
    fresh.append(*transitions(kind, walk(5)[4:]))
    assert_batch_is(fresh.sample(np.random.default_rng(0), 1, gamma=GAMMA), kind, [walk(5)[4:]], GAMMA)
    assert fresh.broken_chains == 0


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"end": -1, "heads": [], "broken_chains": 0, "whole_stacks": 0},
        {"end": 3, "heads": [[0, 3]], "broken_chains": 0, "whole_stacks": 0},
        {"end": 3, "heads": [[0, -1]], "broken_chains": 0, "whole_stacks": 0},
        {"end": 3, "heads": [], "broken_chains": 0, "whole_stacks": 0, "more": 1},
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(state: dict[str, Any]) -> None:
    memory = remembered(KINDS["vector"], 10, walk(3))
    with pytest.raises(StateError):
        memory.load_state(state)
    assert len(memory) == 3


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [
        ("previous", 2, 2),
        ("previous", 2, -2),
        ("previous", 3, 1),  # two steps from one row
        ("previous", 6, 3),  # a step that goes on from an ending
        ("previous", 0, 0),
        ("status", 0, 0),
        ("status", 2, 3),
        ("status", 2, 4),
    ],
)
def test_rows_that_are_not_linked_properly_are_refused(column: str, row: int, value: int) -> None:
    kind = KINDS["vector"]
    memory = remembered(kind, 10, walk(3, last=1), walk(2))
    rows = memory.read(0, 7)
    kind.memory(10).restore(0, rows)
    rows[column][row] = value
    with pytest.raises(StateError, match="cannot be restored"):
        kind.memory(10).restore(0, rows)


def test_rows_that_end_before_a_stream_are_refused() -> None:
    kind = KINDS["vector"]
    memory = remembered(kind, 10, walk(3))
    fresh = kind.memory(10)
    fresh.load_state(memory.state())
    with pytest.raises(StateError, match="a stream is at row 3, but the rows end at 3"):
        fresh.restore(0, memory.read(0, 3))


def test_it_is_a_replay() -> None:
    replay: Replay = KINDS["vector"].memory(10)
    assert list(replay.columns) == ["observation", "action", "reward", "status", "previous"]
    assert list(KINDS["stacks of 4"].memory(10).columns)[-1] == "older"
    assert list(KINDS["dict"].memory(10).columns)[:2] == ["observation.camera", "observation.wheel"]

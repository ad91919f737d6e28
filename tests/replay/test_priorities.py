"""Slots and transitions are drawn by priority, and a saved memory goes on drawing the same."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import KINDS, Kind, Model, World, assert_batch_is, assert_same_batch, events, plain, transitions

from rekindle.agent import Replay
from rekindle.checkpoint import decode, encode
from rekindle.checkpoint.replay_journal import ReplayJournal
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Array
from rekindle.replay import Priorities, PrioritizedMemory

kinds = st.sampled_from(sorted(KINDS)).map(KINDS.__getitem__)
numbers = st.one_of(st.just(0.0), st.floats(2**-20, 2**20, width=32))


class Tree:
    """The numbers of all slots in a list."""

    def __init__(self, values: list[float]) -> None:
        self.values = values
        size = 1
        while size < len(values):
            size *= 2
        self._padded = values + [0.0] * (size - len(values))

    def total(self) -> float:
        level = self._padded
        while len(level) > 1:
            level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
        return level[0]


@settings(max_examples=80, deadline=None)
@given(capacity=st.one_of(st.integers(1, 40), st.sampled_from([1023, 1025, 5000])), data=st.data())
def test_the_total_is_that_of_a_tree_built_anew_whatever_was_set_before(capacity: int, data: st.DataObject) -> None:
    priorities, model = Priorities(capacity), [0.0] * capacity
    for _ in range(data.draw(st.integers(1, 6))):
        changes = data.draw(st.lists(st.tuples(st.integers(0, capacity - 1), numbers), max_size=12))
        slots, values = [slot for slot, _ in changes], [value for _, value in changes]
        priorities.set(np.array(slots, np.int64), values)
        for slot, value in changes:
            model[slot] = value  # the last one counts
        if data.draw(st.booleans()):
            assert priorities.total == Tree(model).total()
    assert priorities.get(np.arange(capacity)).tolist() == model
    assert priorities.total == Tree(model).total()
    if priorities.total > 0:
        anew = Priorities(capacity)
        anew.set(np.arange(capacity), model)
        drawn = priorities.sample(np.random.default_rng(0), 50)
        np.testing.assert_array_equal(drawn, anew.sample(np.random.default_rng(0), 50))
        assert all(model[slot] > 0 for slot in drawn.tolist())


@settings(max_examples=80, deadline=None)
@given(
    capacity=st.one_of(st.integers(1, 40), st.sampled_from([1100, 9000])),
    batches=st.integers(1, 4),
    size=st.integers(1, 16),
    seed=st.integers(0, 99),
)
def test_each_draw_is_the_slot_at_its_share_of_the_total(capacity: int, batches: int, size: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 9, capacity).astype(float)
    values[-1] += 1
    priorities = Priorities(capacity)
    priorities.set(np.arange(capacity), values)
    drawn = priorities.sample(np.random.default_rng(seed), batches * size, batches=batches).reshape(batches, size)
    shares = (np.arange(size) + np.random.default_rng(seed).random((batches, size))) / size * values.sum()
    upto = values.cumsum()[drawn]
    assert (values[drawn] > 0).all()
    assert (upto - values[drawn] <= shares + 1e-9).all()
    assert (shares <= upto + 1e-9).all()


def test_rounding_never_leads_to_a_slot_without_priority() -> None:
    class Last:
        """A generator that draws as high as it can."""

        def random(self, shape: tuple[int, int]) -> Array:
            return np.full(shape, 1 - 2**-53)

    # The sum of the two is rounded up, and so is what is left of the largest draw when the first is taken off.
    small, large = 384.0, 2.0**60 + 2.0**40
    assert np.nextafter(small + large, 0) - small == large
    priorities = Priorities(4096)
    priorities.set(np.arange(4), [small, 0.0, large, 0.0])
    generator: Any = Last()
    assert priorities.sample(generator, 1).tolist() == [2]


def test_there_must_be_something_to_draw_and_batches_of_one_size() -> None:
    priorities = Priorities(4)
    with pytest.raises(InputError, match="no priority above 0"):
        priorities.sample(np.random.default_rng(0), 1)
    with pytest.raises(InputError, match="5 draws cannot be divided into 2 equal batches"):
        priorities.sample(np.random.default_rng(0), 5, batches=2)
    with pytest.raises(ConfigError, match="capacity is 0"):
        Priorities(0)


# The memory


def prioritized(kind: Kind, capacity: int, alpha: float = 1.0) -> PrioritizedMemory:
    return PrioritizedMemory(kind.memory(capacity), alpha=alpha)


def by_row(memory: PrioritizedMemory) -> dict[int, float]:
    """The priorities above 0."""
    saved = memory.state()["priorities"].tolist()
    return {memory.first + index: priority for index, priority in enumerate(saved) if priority > 0}


@settings(max_examples=80, deadline=None)
@given(kind=kinds, extra=st.one_of(st.integers(0, 6), st.integers(0, 40)), data=st.data())
def test_priorities_follow_their_transitions_through_restores(kind: Kind, extra: int, data: st.DataObject) -> None:
    memory, world = prioritized(kind, 2 * kind.stack + extra), World(kind.stack)
    model, expected, largest = Model(2 * kind.stack + extra, kind.stack), dict[int, float](), 1.0
    others: list[PrioritizedMemory] = []
    with tempfile.TemporaryDirectory() as directory:
        journal = ReplayJournal(Path(directory), resume_count=0)
        for _ in range(data.draw(st.integers(1, 8))):
            if data.draw(st.booleans()):
                others.append(reloaded(memory, kind, journal))
            steps = world.steps(data.draw(events()))
            if steps:
                for each in (memory, *others):
                    each.append(*transitions(kind, steps))
                expected |= dict.fromkeys(model.append(steps), largest)
                expected = {row: expected[row] for row in model.numbers()}
            if expected:
                # Rows that are gone, or never were, are passed over.
                rows = data.draw(st.lists(st.integers(0, memory.end + 3), max_size=6))
                values = [data.draw(st.integers(1, 40)) / 8 for _ in rows]
                for each in (memory, *others):
                    each.update(np.array(rows, np.int64), values)
                known = [(row, value) for row, value in zip(rows, values, strict=True) if row in expected]
                expected |= dict(known)
                largest = max([largest, *(value for _, value in known)])
            assert by_row(memory) == expected
            for other in others:
                assert encode(other.state()) == encode(memory.state())
                if expected:
                    assert_same_draws(memory, other, kind, model)


def reloaded(memory: PrioritizedMemory, kind: Kind, journal: ReplayJournal) -> PrioritizedMemory:
    state = decode(b"".join(map(bytes, encode(memory.state()))), name="state")
    manifest = journal.write(journal.collect(memory))
    fresh = prioritized(kind, memory.memory.capacity)
    fresh.load_state(state)
    fresh.restore(manifest.first, journal.read(manifest))
    return fresh


def assert_same_draws(one: PrioritizedMemory, two: PrioritizedMemory, kind: Kind, model: Model) -> None:
    (batch, weights), (same, same_weights) = (
        memory.sample(np.random.default_rng(3), 12, beta=0.4, batches=3, n_step=2, gamma=0.5) for memory in (one, two)
    )
    assert_same_batch(batch, same)
    np.testing.assert_array_equal(weights, same_weights)
    assert_batch_is(batch, kind, [model.window(row, 2) for row in batch.rows.tolist()], 0.5)


def filled(alpha: float = 1.0) -> PrioritizedMemory:
    """Rows 1 to 8 and 10 to 12 can be sampled."""
    kind = KINDS["vector"]
    memory = prioritized(kind, 20, alpha)
    for step in World(1).steps(plain(status=int(index in {7, 10})) for index in range(11)):
        memory.append(*transitions(kind, [step]))
    return memory


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_those_of_the_paper_within_each_batch(alpha: float, beta: float) -> None:
    memory = filled(alpha)
    rows = np.array([*range(1, 9), *range(10, 13)])
    given_priorities = np.random.default_rng(0).random(11) * 3 + 0.1
    memory.update(rows, given_priorities)
    batch, weights = memory.sample(np.random.default_rng(1), 24, beta=beta, batches=2)
    powers = {row: float(value) ** alpha for row, value in zip(rows.tolist(), given_priorities, strict=True)}
    total = sum(powers.values())
    for half in (slice(0, 12), slice(12, 24)):
        raw = [(len(memory) * powers[row] / total) ** -beta for row in batch.rows[half].tolist()]
        np.testing.assert_allclose(weights[half], np.array(raw) / max(raw), rtol=1e-5)
        assert weights[half].max() == 1


def test_transitions_are_drawn_in_proportion_to_the_power_of_their_priorities() -> None:
    memory = filled(alpha=0.5)
    rows = np.array([*range(1, 9), *range(10, 13)])
    memory.update(rows, np.arange(11.0) ** 2 + 1)
    batch, _ = memory.sample(np.random.default_rng(0), 20_000, beta=1.0, batches=1000)
    drawn, times = np.unique(batch.rows, return_counts=True)
    expected = np.sqrt(np.arange(11.0) ** 2 + 1)
    assert drawn.tolist() == rows.tolist()
    np.testing.assert_allclose(times / 20_000, expected / expected.sum(), rtol=0.1)


def test_a_transition_without_error_can_still_be_drawn() -> None:
    memory = filled()
    memory.update(np.arange(1, 9), np.zeros(8))
    assert sorted(by_row(memory)) == [*range(1, 9), *range(10, 13)]


@pytest.mark.parametrize("priorities", [[np.nan], [np.inf], [1e39], [1.0, 2.0]])
def test_bad_priorities_are_refused_and_change_nothing(priorities: list[float]) -> None:
    memory = filled()
    before = by_row(memory)
    with pytest.raises(InputError):
        memory.update(np.array([1]), priorities)
    assert by_row(memory) == before


def test_alpha_must_be_from_0_to_1() -> None:
    for alpha in (-0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="alpha is"):
            prioritized(KINDS["vector"], 10, alpha)


def test_without_its_rows_a_loaded_memory_is_empty_and_goes_on() -> None:
    memory, fresh = filled(), filled()
    memory.update(np.array([1]), [5.0])
    fresh.load_state(memory.state())
    assert (len(fresh), by_row(fresh)) == (0, {})
    with pytest.raises(InputError, match="no priority above 0"):
        fresh.sample(np.random.default_rng(0), 1, beta=1.0)
    fresh.append(*transitions(KINDS["vector"], World(1).steps([plain()])))
    assert by_row(fresh) == {14: 5.0}


def test_rows_without_a_state_are_all_new() -> None:
    memory, fresh = filled(), prioritized(KINDS["vector"], 20)
    fresh.restore(0, memory.read(0, memory.end))
    assert by_row(fresh) == dict.fromkeys([*range(1, 9), *range(10, 13)], 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priorities": None},
        {"priorities": np.zeros(13)},
        {"priorities": np.full(13, np.nan, np.float32)},
        {"largest": 0.0},
        {"largest": float("inf")},
        {"memory": {}},
        {"more": 1},
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(wrong: dict[str, Any]) -> None:
    memory = filled()
    before = by_row(memory)
    with pytest.raises(StateError):
        memory.load_state({**memory.state(), **wrong})
    assert by_row(memory) == before


@pytest.mark.parametrize("priorities", [np.ones(13, np.float32), np.ones(3, np.float32), np.ones((1, 13), np.float32)])
def test_priorities_of_other_rows_are_refused(priorities: Array) -> None:
    memory, fresh = filled(), prioritized(KINDS["vector"], 20)
    fresh.load_state({**memory.state(), "priorities": priorities})
    with pytest.raises(StateError, match="do not belong to these rows"):
        fresh.restore(0, memory.read(0, memory.end))


def test_it_is_a_replay() -> None:
    replay: Replay = prioritized(KINDS["vector"], 10)
    assert list(replay.columns) == ["observation", "action", "reward", "status", "previous"]
    assert prioritized(KINDS["vector"], 10).nbytes == 10 * (8 + 8 + 22) + 16 * 16

"""The ring holds the newest rows, whatever came before, and can be restored at any number."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.agent import Replay
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import Transitions, row
from rekindle.replay import Ring
from rekindle.spaces import ArraySpec

NUMBER = ArraySpec(np.dtype(np.int64))
PAIR = ArraySpec(np.dtype(np.float32), (2,))


def ring(capacity: int) -> Ring:
    return Ring(capacity, observation=PAIR, action=NUMBER, weight=ArraySpec(np.dtype(np.float64)))


def batch(first: int, count: int) -> tuple[Transitions, np.ndarray]:
    """Rows that say their own number in every column."""
    numbers = np.arange(first, first + count)
    pairs = np.stack([numbers, numbers + 0.5], axis=1).astype(np.float32)
    rewards = numbers.astype(np.float64) * 2
    return Transitions(pairs, numbers, rewards, pairs + 1, (numbers % 3).astype(np.uint8)), numbers / 4


def expected(numbers: list[int]) -> dict[str, np.ndarray]:
    parts = [batch(number, 1) for number in numbers]
    rows = {
        "observation": [row(part.observations, 0) for part, _ in parts],
        "action": [part.actions[0] for part, _ in parts],
        "reward": [part.rewards[0] for part, _ in parts],
        "next_observation": [row(part.next_observations, 0) for part, _ in parts],
        "status": [part.statuses[0] for part, _ in parts],
        "weight": [weight[0] for _, weight in parts],
    }
    columns = ring(1).columns
    return {name: np.array(rows[name], column.dtype).reshape(-1, *column.shape) for name, column in columns.items()}


def assert_same(rows: Mapping[str, np.ndarray], numbers: list[int]) -> None:
    wanted = expected(numbers)
    assert rows.keys() == wanted.keys()
    for name, values in wanted.items():
        assert rows[name].dtype == values.dtype
        np.testing.assert_array_equal(rows[name], values)


@given(capacity=st.integers(1, 9), data=st.data())
def test_it_behaves_like_a_list_of_the_newest_rows(capacity: int, data: st.DataObject) -> None:
    memory, model = ring(capacity), list[int]()
    end = 0
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            count = data.draw(st.integers(0, 2 * capacity + 1))
            transitions, weight = batch(end, count)
            memory.append(transitions, weight=weight)
            model, end = [*model, *range(end, end + count)][-capacity:], end + count
        else:
            first, count = data.draw(st.integers(0, 3 * capacity)), data.draw(st.integers(0, capacity))
            model, end = list(range(first, first + count)), first + count
            memory.restore(first, expected(model))
        assert (memory.first, memory.end, len(memory)) == (end - len(model), end, len(model))
        assert_same(memory.read(memory.first, memory.end), model)
        part = sorted(data.draw(st.tuples(st.integers(memory.first, end), st.integers(memory.first, end))))
        assert_same(memory.read(*part), list(range(*part)))
        if model:
            wanted = data.draw(st.lists(st.sampled_from(model)))
            assert_same(memory.take(wanted), wanted)


@given(capacity=st.integers(1, 9), appended=st.integers(0, 30), larger=st.integers(0, 5))
def test_what_is_read_can_be_restored_to_another_ring(capacity: int, appended: int, larger: int) -> None:
    memory, other = ring(capacity), ring(capacity + larger)
    transitions, weight = batch(0, appended)
    memory.append(transitions, weight=weight)
    other.restore(memory.first, memory.read(memory.first, memory.end))
    for each in (memory, other):
        transitions, weight = batch(appended, 3)
        each.append(transitions, weight=weight)
    held = list(range(memory.first, memory.end))
    assert_same(other.take(held), held)


def test_it_is_a_replay_memory() -> None:
    memory: Replay = ring(4)
    assert memory.columns["observation"] == PAIR
    assert list(memory.columns) == ["observation", "action", "reward", "next_observation", "status", "weight"]


def test_it_keeps_copies() -> None:
    memory = ring(4)
    transitions, weight = batch(0, 3)
    memory.append(transitions, weight=weight)
    transitions.rewards[:] = weight[:] = -1
    memory.read(0, 3)["reward"][:] = memory.take([0, 1, 2])["reward"][:] = -1
    assert_same(memory.read(0, 3), [0, 1, 2])


def test_a_dict_observation_has_a_column_for_each_part() -> None:
    memory = Ring(4, observation={"camera": PAIR, "speed": NUMBER}, action=NUMBER)
    observations = {"camera": np.ones((1, 2), np.float32), "speed": np.array([7])}
    memory.append(
        Transitions(observations, np.array([1]), np.array([0.5]), observations, np.array([2], np.uint8)),
    )
    assert memory.take([0])["observation.speed"].tolist() == [7]
    assert memory.take([0])["next_observation.camera"].tolist() == [[1.0, 1.0]]


def test_numbers_become_narrower_only_where_they_are_floats() -> None:
    memory = Ring(4, observation=PAIR, action=ArraySpec(np.dtype(np.int8)))
    wide = Transitions(np.ones((1, 2)), np.array([1], np.int8), np.ones(1), np.ones((1, 2)), np.zeros(1, np.uint8))
    memory.append(wide)
    assert memory.take([0])["observation"].dtype == np.float32
    with pytest.raises(InputError, match="action is int64, not int8"):
        memory.append(Transitions(np.ones((1, 2)), np.array([300]), np.ones(1), np.ones((1, 2)), np.zeros(1, np.uint8)))


def test_clearing_leaves_nothing_and_goes_on_at_a_number() -> None:
    memory = ring(4)
    transitions, weight = batch(0, 3)
    memory.append(transitions, weight=weight)
    memory.clear(10)
    assert (memory.first, memory.end) == (10, 10)
    with pytest.raises(InputError, match="none are stored"):
        memory.take([2])


def test_a_ring_without_room_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity is 0"):
        ring(0)


def test_rows_that_are_not_held_are_refused() -> None:
    memory = ring(3)
    transitions, weight = batch(0, 5)
    memory.append(transitions, weight=weight)
    for outside in ([1], [5], [2, -1]):
        with pytest.raises(InputError, match="2 to 4 are stored"):
            memory.take(outside)
    for first, end in ((1, 3), (3, 6), (4, 3)):
        with pytest.raises(InputError, match="2 to 4 are stored"):
            memory.read(first, end)


def appended(memory: Ring, **wrong: Any) -> None:
    transitions, weight = batch(0, 2)
    columns: dict[str, Any] = {
        "observations": transitions.observations,
        "actions": transitions.actions,
        "rewards": transitions.rewards,
        "next_observations": transitions.next_observations,
        "statuses": transitions.statuses,
    }
    more = {"weight": weight} if "more" not in wrong else wrong.pop("more")
    memory.append(Transitions(**{**columns, **wrong}), **more)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"observations": np.zeros((2, 3), np.float32)}, r"observation has the shape \(2, 3\), not \(2, 2\)"),
        ({"actions": np.zeros(3, np.int64)}, r"action has the shape \(3,\), not \(2,\)"),
        ({"actions": np.zeros(2)}, "action is float64, not int64"),
        ({"statuses": np.zeros(2, np.int64)}, "status is int64, not uint8"),
        ({"more": {}}, "they have the columns"),
        ({"more": {"weight": np.zeros(2), "height": np.zeros(2)}}, "they have the columns"),
    ],
)
def test_transitions_that_do_not_fit_are_refused_and_change_nothing(wrong: dict[str, Any], message: str) -> None:
    memory = ring(3)
    appended(memory)
    with pytest.raises(InputError, match=message):
        appended(memory, **wrong)
    assert memory.end == 2
    assert_same(memory.read(0, 2), [0, 1])


@pytest.mark.parametrize(
    ("first", "rows", "message"),
    [
        (-1, expected([1]), "the first row is numbered -1"),
        (0, expected([1, 2, 3, 4]), "4 rows do not fit a capacity of 3"),
        (0, {}, "they have the columns"),
        (0, {**expected([1, 2]), "weight": np.zeros(1)}, "observation has the shape"),
        (0, {**expected([1]), "weight": np.float64(1)}, "has the shape"),
        (0, {**expected([1]), "action": np.zeros(1)}, "action is float64"),
    ],
)
def test_rows_that_do_not_fit_are_not_restored(first: int, rows: dict[str, Any], message: str) -> None:
    memory = ring(3)
    appended(memory)
    with pytest.raises(StateError, match=message):
        memory.restore(first, rows)
    assert_same(memory.read(0, 2), [0, 1])

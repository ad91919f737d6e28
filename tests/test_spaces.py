"""What a host may give: values take the layout that is expected, or are refused by name."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rekindle.checks import checked_choice, checked_count, checked_extras, checked_reward, checked_status
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import EpisodeStatus
from rekindle.spaces import ArraySpec, Layout, SpaceParts, discrete_values


def layout(dtype: str, *shape: int) -> ArraySpec:
    return ArraySpec(np.dtype(dtype), shape)


# One array


def test_an_array_of_the_layout_is_passed_on_without_a_copy() -> None:
    array = np.zeros(3, np.float32)
    assert layout("f4", 3).conform(array, "observation") is array


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("f4", [0.5, 1.5]),
        ("f4", np.array([0.5, 1.5])),
        ("f4", [1, 2]),
        ("f8", np.array([0.5, 1.5], np.float32)),
        ("f4", [True, False]),
        ("i8", np.array([1, 2], np.int8)),
        ("u1", [0, 255]),
        ("u1", np.array([0, 255], np.int64)),
        ("i8", [True, False]),
        ("b1", [0, 1]),
    ],
)
def test_a_value_becomes_the_expected_dtype(dtype: str, value: Any) -> None:
    array = layout(dtype, 2).conform(value, "observation")
    assert array.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("u1", [0, 256]),
        ("u1", [-1, 0]),
        ("i8", [0.5, 1.0]),
        ("i8", [1.0, 2.0]),
        ("b1", [0, 2]),
        ("f4", [1j, 0]),
        ("b1", [0.0, 1.0]),
    ],
)
def test_a_value_that_would_lose_something_is_refused(dtype: str, value: Any) -> None:
    with pytest.raises(InputError, match=r"observation is .*cannot become"):
        layout(dtype, 2).conform(value, "observation")


def test_a_number_too_large_for_the_dtype_is_infinite_and_no_warning() -> None:
    assert layout("f4", 2).conform([1e300, 1.0], "observation").tolist() == [np.inf, 1.0]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "is missing"),
        ("left", "not numbers"),
        ([object(), 1], "not numbers"),
        ([[1], [1, 2]], "not an array|not numbers"),
        ([2**70, 1], "not numbers"),
        (np.array(["a", "b"]), "not numbers"),
        ([1.0, 2.0, 3.0], r"has the shape \(3,\), expected \(2,\)"),
        (1.0, r"has the shape \(\), expected \(2,\)"),
        ([[1.0, 2.0]], r"has the shape \(1, 2\), expected \(2,\)"),
    ],
)
def test_what_is_no_array_of_that_shape_is_refused(value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        layout("f4", 2).conform(value, "observation")


def test_a_batch_has_its_rows_in_front() -> None:
    assert layout("f4", 2).conform(np.zeros((5, 2)), "observations", rows=5).shape == (5, 2)
    with pytest.raises(InputError, match=r"has the shape \(4, 2\), expected \(5, 2\)"):
        layout("f4", 2).conform(np.zeros((4, 2)), "observations", rows=5)


# Observations


def test_a_layout_follows_from_a_space() -> None:
    known = Layout.of_space(gym.spaces.Box(-1, 1, (4,), np.float32))
    assert known is not None
    assert (known.leaves, known.is_dict) == ({"": layout("f4", 4)}, False)


def test_a_layout_follows_from_a_dict_space() -> None:
    space = gym.spaces.Dict({"speed": gym.spaces.Box(-1, 1, (2,)), "gear": gym.spaces.Discrete(5)})
    known = Layout.of_space(space)
    assert known is not None
    assert known.is_dict
    assert known.leaves == {"speed": layout("f4", 2), "gear": layout("i8")}


@pytest.mark.parametrize("space", [None, gym.spaces.Text(5), gym.spaces.Dict({"name": gym.spaces.Text(5)})])
def test_other_spaces_say_nothing_of_a_layout(space: Any) -> None:
    assert Layout.of_space(space) is None


def test_a_layout_follows_from_the_first_value() -> None:
    assert Layout.of_value(np.zeros(3, np.uint8)).leaves == {"": layout("u1", 3)}
    assert Layout.of_value(3).leaves == {"": layout("i8")}


def test_named_arrays_take_the_order_of_the_layout() -> None:
    known = Layout.of_value({"a": np.zeros(1), "b": np.zeros(2)})
    arrays = known.conform(OrderedDict(b=[3.0, 4.0], a=[5.0]), "observation")
    assert [array.tolist() for array in arrays] == [[5.0], [3.0, 4.0]]
    assert list(known.observations(arrays)) == ["a", "b"]


@pytest.mark.parametrize("value", [{"a": [1.0]}, {"a": [1.0], "b": [1.0], "c": [1.0]}, [1.0], None])
def test_named_arrays_must_have_the_names_of_the_layout(value: Any) -> None:
    known = Layout.of_value({"a": np.zeros(1), "b": np.zeros(1)})
    with pytest.raises(InputError, match=r"a dict with the keys \['a', 'b'\]"):
        known.conform(value, "observation")


def test_a_wrong_part_is_named() -> None:
    known = Layout.of_value({"a": np.zeros(1), "b": np.zeros(1)})
    with pytest.raises(InputError, match="observation 'b' has the shape"):
        known.conform({"a": [1.0], "b": [1.0, 2.0]}, "observation")


@pytest.mark.parametrize("value", [np.zeros((2, 3), np.uint8), {"a": np.zeros(1), "b": np.int64(2)}])
def test_a_layout_survives_being_saved(value: Any) -> None:
    known = Layout.of_value(value)
    loaded = Layout.of_state(known.state())
    assert (loaded.leaves, loaded.is_dict) == (known.leaves, known.is_dict)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("<f4", [-1]), ("O", [2]), ("f4,f4", []), ("(", []), ("U3", [1]), ("<f4", [2**40]), ("<f4", "ab"), (None, None)],
)
def test_a_file_that_describes_no_array_is_refused(dtype: Any, shape: Any) -> None:
    with pytest.raises(StateError, match="cannot have the dtype"):
        ArraySpec.parse(dtype, shape)


@pytest.mark.parametrize("state", [None, [], ["<f4"], ["<f4", [1], 2], {"dtype": "<f4", "shape": []}, "f4"])
def test_a_state_that_describes_no_array_is_refused(state: Any) -> None:
    with pytest.raises(StateError):
        ArraySpec.of_state(state)


def test_what_a_file_says_of_an_array_is_read_back() -> None:
    spec = ArraySpec(np.dtype(">f4"), (2, 3))
    assert ArraySpec.parse(spec.dtype.str, list(spec.shape)) == ArraySpec.of_state([spec.dtype.str, [2, 3]]) == spec
    assert spec.nbytes == 24
    assert str(layout("u1", 2)) == "uint8 (2,)"


# Spaces


def test_a_space_is_one_part_and_a_dict_has_one_for_each_key() -> None:
    gear = gym.spaces.Discrete(5, start=-1)
    single, named = SpaceParts.of(gear), SpaceParts.of(gym.spaces.Dict({"": gear, "seen": gym.spaces.MultiBinary(3)}))
    assert (list(single.parts), single.is_dict) == ([""], False)
    assert (list(named.parts), named.is_dict) == (["", "seen"], True)
    assert single.parts[""] == named.parts[""]
    assert [part.kind for part in named.parts.values()] == ["discrete", "box"]
    assert named.parts["seen"].spec == layout("i1", 3)


@pytest.mark.parametrize("space", [None, gym.spaces.Text(5), gym.spaces.OneOf([gym.spaces.Discrete(2)]), object()])
def test_a_space_without_arrays_is_a_part_without_a_spec(space: Any) -> None:
    (part,) = SpaceParts.of(space).parts.values()
    assert (part.space, part.spec, part.kind) == (space, None, "other")


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (gym.spaces.Discrete(5, start=-1), ([5], [-1])),
        (gym.spaces.MultiDiscrete([2, 3]), ([2, 3], [0, 0])),
        (
            gym.spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 2], [3, 4]])),
            ([2, 3, 4, 5], [1, 2, 3, 4]),
        ),
    ],
)
def test_a_discrete_space_has_a_count_and_a_start_for_each_element(space: Any, values: Any) -> None:
    assert discrete_values(space) == values


# Everything else


def test_a_reward_is_anything_that_float_takes() -> None:
    assert [checked_reward(value, "stream 0") for value in (1, np.float32(0.5), True)] == [1.0, 0.5, 1.0]
    for value in ("much", None, [1.0]):
        with pytest.raises(InputError, match="stream 0: the reward"):
            checked_reward(value, "stream 0")


def test_a_status_may_be_its_number() -> None:
    assert checked_status(2) is EpisodeStatus.TRUNCATED
    for value in (3, -1, "terminated", None):
        with pytest.raises(InputError, match="is not one of"):
            checked_status(value)


def test_extras_are_numbers() -> None:
    assert checked_extras({"hits": 3, "share": np.float32(0.5)}) == {"hits": 3.0, "share": 0.5}
    assert checked_extras(None) == {}
    with pytest.raises(InputError, match="the extra 'name' is not a number: 'x'"):
        checked_extras({"name": "x"})


def test_a_count_is_none_or_a_whole_number_that_is_large_enough() -> None:
    for value in (None, 1, 10**9):
        checked_count("max_steps", value, 1)
    for value in (0, -1, 1.5, True, "10"):
        with pytest.raises(ConfigError, match="max_steps is"):
            checked_count("max_steps", value, 1)


def test_a_choice_is_one_of_its_words() -> None:
    checked_choice("learner", "inline", ("inline", "manual"))
    with pytest.raises(ConfigError, match="learner is 'thread': use one of 'inline', 'manual'"):
        checked_choice("learner", "thread", ("inline", "manual"))

"""Nested values: taken apart by the names of their arrays, and put together again."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import ConfigError, InputError, StateError
from rekindle.nesting import Nesting
from rekindle.spaces import ActionStructure, Layout, SpaceParts

TREES = st.recursive(
    st.none(),
    lambda inner: (
        st.dictionaries(st.text("ab", min_size=1), inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
).filter(lambda tree: tree is not None)
PARTS = st.sampled_from(
    [
        Discrete(3),
        Discrete(2, start=-1),
        MultiDiscrete([2, 3]),
        MultiBinary(2),
        Box(-1, 1, (2, 2)),
        Box(0, 9, (1,), np.int32),
    ]
)
SPACES = st.recursive(
    PARTS,
    lambda inner: (
        st.dictionaries(st.text("ab", min_size=1), inner, min_size=1, max_size=3).map(Dict)
        | st.lists(inner, min_size=1, max_size=3).map(Tuple)
    ),
    max_leaves=6,
)
ARM = Dict({"arm": Tuple([Box(-1, 1, (2,)), Discrete(3)]), "camera": Dict({"x": Box(-1, 1, ())})})


@given(TREES)
def test_what_is_taken_apart_is_put_together_again(tree: Any) -> None:
    nesting = Nesting(tree)
    count = len(nesting.names)
    value = nesting.build(range(count))
    assert nesting.leaves(value, "value") == list(range(count))
    assert nesting.leaves(dict(zip(nesting.names, range(count), strict=True)), "value") == list(range(count))
    assert Nesting.of_state(nesting.state()).tree == tree


@given(SPACES, st.integers(0, 99))
def test_an_observation_of_any_space_comes_back_in_its_structure(space: gym.Space[Any], seed: int) -> None:
    layout = Layout.of_space(space)
    assert layout is not None
    space.seed(seed)
    singles = [space.sample() for _ in range(3)]
    for single in singles:
        arrays = layout.conform(single, "observation")
        assert space.contains(layout.nested([array if array.ndim else array[()] for array in arrays]))
        # The trainer passes on what an agent sees.
        again = layout.conform(layout.observations(arrays), "observation")
        assert all(one is other for one, other in zip(arrays, again, strict=True))
    batch = concatenate(space, singles, create_empty_array(space, 3))
    for row, single in enumerate(singles):
        for column, array in zip(
            layout.conform(batch, "observations", rows=3), layout.conform(single, "observation"), strict=True
        ):
            np.testing.assert_array_equal(column[row], array)
    again = Layout.of_state(layout.state())
    assert (again.leaves, again.is_dict, again.state()) == (layout.leaves, layout.is_dict, layout.state())


def test_a_part_is_named_by_what_leads_to_it() -> None:
    assert list(SpaceParts.of(ARM).parts) == ["arm/0", "arm/1", "camera/x"]


def test_a_flat_dict_keeps_its_keys_and_its_saved_form() -> None:
    layout = Layout.of_space(Dict({"a/b": Discrete(2), "c": Discrete(3)}))
    assert layout is not None
    assert (list(layout.leaves), layout.nesting) == (["a/b", "c"], None)
    assert layout.state() == {"is_dict": True, "leaves": {"a/b": ["<i8", []], "c": ["<i8", []]}}


def test_two_parts_of_the_same_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two parts have the name 'a/b'"):
        SpaceParts.of(Dict({"a/b": Discrete(2), "a": Dict({"b": Discrete(2)})}))
    with pytest.raises(InputError, match="two parts have the name 'a/b'"):
        Layout.of_value({"a/b": 1, "a": {"b": 2}})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3), r"observation must be a dict with the keys \['arm', 'camera'\], got array"),
        ({"arm": (0, 0)}, r"observation must be a dict with the keys \['arm', 'camera'\]"),
        ({"arm": {"0": 0}, "camera": {"x": 0}}, r"observation 'arm' must be a tuple of 2, got \{'0': 0\}"),
        ({"arm": (1, 2, 3), "camera": {"x": 0}}, r"observation 'arm' must be a tuple of 2"),
        ({"arm": ([0, 0], 1), "camera": {"y": 0}}, r"observation 'camera' must be a dict with the keys \['x'\]"),
        ({"arm": ([0, 0], 1), "camera": {"x": [1]}}, r"observation 'camera/x' has the shape \(1,\), expected \(\)"),
        ({"arm": ([0, 0], 0.5), "camera": {"x": 0}}, r"observation 'arm/1' is float64, which cannot become int64"),
    ],
)
def test_another_structure_is_refused_by_the_path_to_it(value: Any, message: str) -> None:
    layout = Layout.of_space(ARM)
    assert layout is not None
    with pytest.raises(InputError, match=message):
        layout.conform(value, "observation")


@pytest.mark.parametrize("state", [None, 3, "a", [3], {"a": "b"}, {1: None}, [["x"]]])
def test_a_file_with_another_structure_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="is not a nesting"):
        Nesting.of_state(state)


def test_a_file_cannot_nest_without_end() -> None:
    state: Any = None
    for _ in range(500):
        state = [state]
    with pytest.raises(StateError, match="more than 32 levels"):
        Nesting.of_state(state)
    with pytest.raises(StateError, match=r"the nesting has the parts \['0'\], but the arrays are \['a'\]"):
        Layout.of_state({"is_dict": True, "leaves": {"a": ["<f4", []]}, "nesting": [None]})


def test_without_a_space_dicts_in_dicts_are_found_in_the_first_observation() -> None:
    layout = Layout.of_value({"a": {"b": [1.0], "c": 2}, "d": (1, 2)})
    assert {name: spec.shape for name, spec in layout.leaves.items()} == {"a/b": (1,), "a/c": (), "d": (2,)}


def test_a_row_of_a_batch_may_be_an_object_in_an_array() -> None:
    nesting = Nesting({"a": (None, None), "b": None})
    pairs = np.empty(2, object)
    pairs[:] = [(1, 2), (3, 4)]
    assert nesting.row({"a": pairs, "b": np.array([5, 6])}, 1) == {"a": (3, 4), "b": 6}
    assert nesting.row({"a": (np.array([1, 3]), np.array([2, 4])), "b": np.array([5, 6])}, 1) == {"a": (3, 4), "b": 6}


# Composite actions


@given(SPACES.filter(lambda space: isinstance(space, Dict | Tuple)), st.integers(0, 99))
def test_an_action_of_any_composite_space_comes_back_from_its_row(space: Any, seed: int) -> None:
    structure = ActionStructure.of(space)
    assert structure is not None
    space.seed(seed)
    actions = [space.sample() for _ in range(3)]
    rows = np.stack([structure.flat(action, "action") for action in actions])
    assert (rows.dtype, rows.shape[1:]) == (structure.spec.dtype, structure.spec.shape)
    for action, row in zip(actions, rows, strict=True):
        assert space.contains(structure.nested(row))
        np.testing.assert_equal(structure.nested(row), action)
        np.testing.assert_array_equal(structure.flat(row, "action"), row)
    batch = concatenate(space, actions, create_empty_array(space, 3))
    np.testing.assert_array_equal(structure.flat(batch, "actions", rows=3), rows)
    np.testing.assert_equal(structure.nested(rows), batch)
    assert structure.flat(structure.nested(structure.idle), "action").tolist() == structure.idle.tolist()


@pytest.mark.parametrize(
    ("space", "dtype"),
    [
        (Tuple([Discrete(3), MultiBinary(2)]), np.int64),
        (Tuple([Discrete(3), Box(-1, 1, (2,), np.float32)]), np.float32),
        (Tuple([Discrete(3), Box(-1, 1, (2,), np.float64)]), np.float64),
        (Tuple([Discrete(3, start=10**9), Box(-1, 1, (2,), np.float32)]), np.float64),
    ],
)
def test_a_row_holds_every_part_exactly(space: Any, dtype: Any) -> None:
    structure = ActionStructure.of(space)
    assert structure is not None
    assert structure.spec.dtype == dtype


@pytest.mark.parametrize("space", [None, Discrete(2), Box(-1, 1), Text(3), Tuple([Text(3)]), Tuple([])])
def test_other_spaces_have_no_structure(space: Any) -> None:
    assert ActionStructure.of(space) is None

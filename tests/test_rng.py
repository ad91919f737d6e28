"""A generator goes on from its saved state number for number; an episode has one seed for ever."""

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import StateError
from rekindle.rng import episode_seed, generator_from_state, generator_state

KINDS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]

DRAWS: dict[str, Callable[[np.random.Generator], Any]] = {
    "half a word": lambda generator: generator.integers(0, 1000, dtype=np.uint32),
    "a word": lambda generator: generator.integers(0, 2**63, dtype=np.uint64),
    "a float": lambda generator: generator.random(),
    "a normal": lambda generator: generator.standard_normal(),
    "a permutation": lambda generator: generator.permutation(5).tolist(),
}


def generator_of(kind: str, seed: int = 7) -> np.random.Generator:
    """A numpy generator by the name of its bit generator."""
    return np.random.Generator(getattr(np.random, kind)(seed))


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**64),
    before=st.lists(st.sampled_from(sorted(DRAWS)), max_size=12),
    after=st.lists(st.sampled_from(sorted(DRAWS)), min_size=1, max_size=12),
)
def test_a_restored_generator_goes_on_number_for_number(
    kind: str, seed: int, before: list[str], after: list[str]
) -> None:
    straight = generator_of(kind, seed)
    for draw in before:
        DRAWS[draw](straight)
    resumed = generator_from_state(generator_state(straight))
    assert [DRAWS[draw](resumed) for draw in after] == [DRAWS[draw](straight) for draw in after]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "MT19937"])
def test_the_unused_half_of_a_word_is_saved(kind: str) -> None:
    straight = generator_of(kind)
    straight.integers(0, 1000, dtype=np.uint32)
    state = generator_state(straight)
    assert state["has_uint32"] == 1
    resumed = generator_from_state(state)
    assert resumed.integers(0, 1000, 9, np.uint32).tolist() == straight.integers(0, 1000, 9, np.uint32).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_does_not_follow_the_generator(kind: str) -> None:
    generator = generator_of(kind)
    state = generator_state(generator)
    expected = generator.random(1000).tolist()
    assert generator_from_state(state).random(1000).tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
def test_two_generators_from_one_state_are_independent(kind: str) -> None:
    state = generator_state(generator_of(kind))
    first, second = generator_from_state(state), generator_from_state(state)
    assert first.random(1000).tolist() == second.random(1000).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_with_read_only_arrays_can_be_loaded(kind: str) -> None:
    generator = generator_of(kind)
    state = generator_state(generator)
    for array in arrays_in(state):
        array.flags.writeable = False
    assert generator_from_state(state).random() == generator.random()


def arrays_in(tree: Any) -> list[Any]:
    """Every array of a state."""
    if isinstance(tree, dict):
        return [array for value in tree.values() for array in arrays_in(value)]
    return [tree] if isinstance(tree, np.ndarray) else []


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_state_is_a_plain_tree_of_small_integers(kind: str) -> None:
    def check(tree: Any) -> None:
        if isinstance(tree, dict):
            assert all(type(key) is str for key in tree)
            for value in tree.values():
                check(value)
        elif not isinstance(tree, np.ndarray):
            assert type(tree) in (int, str)
            assert isinstance(tree, str) or 0 <= tree < 2**63

    check(generator_state(generator_of(kind)))


@pytest.mark.parametrize("name", ["RandomState", "BitGenerator", "Generator", "seed", "__name__", "", None, 3, []])
def test_a_name_that_is_no_bit_generator_is_refused(name: Any) -> None:
    with pytest.raises(StateError, match="bit generator"):
        generator_from_state({**generator_state(generator_of("PCG64")), "bit_generator": name})


@pytest.mark.parametrize("state", [{}, [], None, "PCG64", {"bit_generator": "PCG64"}])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(StateError):
        generator_from_state(state)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("MT19937", ("state", "pos"), 625),
        ("MT19937", ("state", "pos"), -1),
        ("MT19937", ("state", "pos"), 10**6),
        ("MT19937", ("state", "pos"), 1.0),
        ("MT19937", ("state", "key"), np.zeros(3, np.uint32)),
        ("MT19937", ("state", "key"), None),
        ("PCG64", ("state",), None),
        ("PCG64", ("state",), [1, 2]),
        ("PCG64", ("state", "state"), -1),
        ("PCG64", ("state", "state"), "1"),
        ("PCG64", ("state", "inc"), {"integer": np.full(32, 255, np.uint8)}),
        ("PCG64", ("state", "inc"), {"integer": ["a"]}),
        ("PCG64", ("has_uint32",), 2),
        ("PCG64", ("uinteger",), -1),
        ("PCG64", ("uinteger",), 2**40),
        ("Philox", ("buffer_pos",), -1),
        ("Philox", ("buffer_pos",), 5),
        ("Philox", ("buffer",), np.zeros(2, np.uint64)),
        ("Philox", ("buffer",), "text"),
        ("SFC64", ("state", "state"), np.zeros(2, np.uint64)),
    ],
)
def test_a_hostile_state_is_refused(kind: str, path: tuple[str, ...], value: Any) -> None:
    state = generator_state(generator_of(kind))
    *parents, last = path
    place = state
    for parent in parents:
        place = place[parent]
    place[last] = value
    with pytest.raises(StateError, match=kind):
        generator_from_state(state)


def test_a_position_cannot_hide_behind_one_of_the_same_name() -> None:
    state = generator_state(generator_of("Philox"))
    state["state"]["buffer_pos"] = 0
    state["buffer_pos"] = -1000
    with pytest.raises(StateError, match="buffer_pos"):
        generator_from_state(state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_lacks_a_field_is_refused(kind: str) -> None:
    complete = generator_state(generator_of(kind))
    paths = [(name,) for name in complete] + [("state", name) for name in complete["state"]]
    for *parents, last in paths:
        state = copy.deepcopy(complete)
        del (state["state"] if parents else state)[last]
        with pytest.raises(StateError):
            generator_from_state(state)


def test_refusing_a_state_leaves_it_as_it_was() -> None:
    state = generator_state(generator_of("PCG64"))
    state["has_uint32"] = 2
    before = copy.deepcopy(state)
    with pytest.raises(StateError):
        generator_from_state(state)
    assert repr(state) == repr(before)


SEEDS = {
    (0, 0, 0): 2968811710,
    (0, 0, 1): 3317235285,
    (0, 1, 0): 3831201730,
    (1, 0, 0): 1835504127,
    (0, "left", 0): 2771151809,
    (0, "", 0): 2226772956,
    (2**63 - 1, "größe", 10**6): 1816466077,
}


@pytest.mark.parametrize(("key", "seed"), SEEDS.items())
def test_the_seed_of_an_episode_never_changes(key: tuple[int, int | str, int], seed: int) -> None:
    assert episode_seed(*key) == seed


def test_run_stream_and_episode_each_change_the_seed() -> None:
    streams = [0, 1, 2, 3, "0", "1", "left", "right", ""]
    keys = list(itertools.product(range(8), streams, range(32)))
    assert len({episode_seed(*key) for key in keys}) == len(keys)


def test_the_name_of_a_stream_never_stands_for_its_number() -> None:
    assert episode_seed(0, 1, 0) != episode_seed(0, "1", 0)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**31) | st.text(), st.integers(0, 2**40))
def test_a_seed_fits_32_bits_and_is_a_plain_integer(run_seed: int, stream: int | str, episode: int) -> None:
    seed = episode_seed(run_seed, stream, episode)
    assert type(seed) is int
    assert 0 <= seed < 2**32

"""How an episode ends, transitions one by one and as arrays, and host types to arrays and back."""

from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import ConfigError, InputError
from rekindle.experience import (
    ActionMapper,
    AttributeEncoder,
    ClipMapper,
    DictEncoder,
    EnumMapper,
    EpisodeStatus,
    Experience,
    ObservationEncoder,
    Transitions,
)

STATUSES = list(EpisodeStatus)


class Move(Enum):
    """Actions of a host, whose values are not indices."""

    LEFT = "left"
    RIGHT = "right"
    JUMP = 40


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        (False, False, EpisodeStatus.CONTINUING),
        (True, False, EpisodeStatus.TERMINATED),
        (False, True, EpisodeStatus.TRUNCATED),
        (True, True, EpisodeStatus.TERMINATED),
    ],
)
def test_a_status_follows_from_the_two_flags(terminated: bool, truncated: bool, expected: EpisodeStatus) -> None:
    assert EpisodeStatus.of(terminated, truncated) is expected


def test_only_a_continuing_episode_is_not_done() -> None:
    assert [status.is_done for status in STATUSES] == [False, True, True]


def test_a_label_is_the_name_in_lower_case() -> None:
    assert [status.label for status in STATUSES] == ["continuing", "terminated", "truncated"]


def test_the_numbers_of_the_statuses_are_those_on_disk() -> None:
    assert [int(status) for status in STATUSES] == [0, 1, 2]


@pytest.mark.parametrize(("status", "mask"), [(0, 1.0), (1, 0.0), (2, 1.0)])
def test_only_a_termination_stops_the_bootstrap(status: int, mask: float) -> None:
    assert Experience(0, 0, 0.0, 0, EpisodeStatus(status)).bootstrap_mask == mask


def test_a_status_given_as_a_bare_number_has_the_same_mask() -> None:
    experience = Experience(0, 0, 0.0, 0, 1)  # pyright: ignore[reportArgumentType]
    assert experience.bootstrap_mask == 0.0


def test_an_experience_continues_unless_told_otherwise() -> None:
    assert Experience(0, 0, 0.0, 0).status is EpisodeStatus.CONTINUING


def test_an_experience_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Experience(0, 0, 0.0, 0).reward = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def experiences_of(statuses: list[EpisodeStatus]) -> list[Experience]:
    """One experience for each status, each with numbers of its own."""
    return [
        Experience(
            observation=np.array([index, index + 0.5], np.float32),
            action=np.int64(index),
            reward=index / 3,
            next_observation=np.array([index + 1, index + 1.5], np.float32),
            status=status,
        )
        for index, status in enumerate(statuses)
    ]


@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=10))
def test_experiences_survive_being_stacked(statuses: list[EpisodeStatus]) -> None:
    originals = experiences_of(statuses)
    transitions = Transitions.of(iter(originals))
    assert len(transitions) == len(originals)
    for original, restored in zip(originals, transitions.experiences(), strict=True):
        np.testing.assert_array_equal(restored.observation, original.observation, strict=True)
        np.testing.assert_array_equal(restored.next_observation, original.next_observation, strict=True)
        assert restored.action == original.action
        assert restored.action.dtype == np.int64
        assert restored.reward == original.reward
        assert restored.status is original.status


@given(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=10))
def test_the_mask_of_many_is_that_of_each(statuses: list[EpisodeStatus]) -> None:
    transitions = Transitions.of(experiences_of(statuses))
    assert transitions.bootstrap_mask.dtype == np.float32
    assert transitions.bootstrap_mask.tolist() == [item.bootstrap_mask for item in transitions.experiences()]


def test_stacked_columns_have_fixed_types() -> None:
    transitions = Transitions.of(experiences_of(STATUSES))
    assert transitions.rewards.dtype == np.float64
    assert transitions.statuses.dtype == np.uint8
    assert isinstance(transitions.observations, np.ndarray)
    assert transitions.observations.shape == (3, 2)


def test_dict_observations_are_stacked_by_name_and_come_back() -> None:
    def observation(number: int) -> dict[str, Any]:
        return {"image": np.full((2, 2), number, np.uint8), "speed": np.float32(number)}

    originals = [Experience(observation(n), [0.5, n], 1.0, observation(n + 1)) for n in range(3)]
    transitions = Transitions.of(originals)
    assert isinstance(transitions.observations, dict)
    assert transitions.observations["image"].shape == (3, 2, 2)
    assert transitions.observations["speed"].shape == (3,)
    for original, restored in zip(originals, transitions.experiences(), strict=True):
        for before, after in [
            (original.observation, restored.observation),
            (original.next_observation, restored.next_observation),
        ]:
            assert list(after) == ["image", "speed"]
            np.testing.assert_array_equal(after["image"], before["image"], strict=True)
            assert after["speed"] == before["speed"]
        assert restored.action.tolist() == original.action


def test_a_part_has_the_rows_asked_for() -> None:
    arrays = np.arange(4.0)
    whole = Transitions({"a": arrays, "b": arrays[:, None]}, arrays, arrays, {"a": arrays}, arrays.astype(np.uint8))
    part = whole.part(slice(1, 3))
    assert len(part) == 2
    for column in (part.actions, part.rewards, part.statuses, part.observations["a"], part.next_observations["a"]):
        assert column.tolist() == [1, 2]
    assert part.observations["b"].tolist() == [[1], [2]]


def test_stacking_copies_what_the_host_may_overwrite() -> None:
    buffer = np.zeros(2)
    transitions = Transitions.of([Experience(buffer, 0, 0.0, buffer)])
    buffer[:] = 9
    assert np.asarray(transitions.observations).tolist() == [[0, 0]]
    assert np.asarray(transitions.next_observations).tolist() == [[0, 0]]


def test_discrete_observations_stack_to_one_number_a_row() -> None:
    transitions = Transitions.of([Experience(3, 1, 0.0, 4), Experience(4, 0, 0.0, 5)])
    assert np.asarray(transitions.observations).tolist() == [3, 4]
    assert transitions.actions.tolist() == [1, 0]


def test_nothing_cannot_be_stacked() -> None:
    with pytest.raises(InputError, match="at least one"):
        Transitions.of([])


def test_different_shapes_cannot_be_stacked() -> None:
    with pytest.raises(ValueError, match="shape"):
        Transitions.of([Experience(np.zeros(2), 0, 0.0, 0), Experience(np.zeros(3), 0, 0.0, 0)])


@pytest.mark.parametrize("encoder", [AttributeEncoder("x"), DictEncoder("x")])
def test_the_encoders_are_observation_encoders(encoder: object) -> None:
    assert isinstance(encoder, ObservationEncoder)


@pytest.mark.parametrize("mapper", [EnumMapper(Move), ClipMapper(0, 1)])
def test_the_mappers_are_action_mappers(mapper: object) -> None:
    assert isinstance(mapper, ActionMapper)


def test_attributes_are_flattened_in_the_order_of_their_names() -> None:
    host = SimpleNamespace(grid=np.arange(4).reshape(2, 2), alive=True, ignored="text")
    encoded = AttributeEncoder("alive", "grid").encode(host)
    assert encoded.dtype == np.float32
    assert encoded.tolist() == [1, 0, 1, 2, 3]


def test_dict_values_are_flattened_in_the_order_of_the_keys_given() -> None:
    encoded = DictEncoder("b", "a").encode({"a": [[1], [2]], "b": 3, "ignored": "text"})
    assert encoded.dtype == np.float32
    assert encoded.tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("encoder", "observation"),
    [
        (AttributeEncoder("x", "speed"), SimpleNamespace(x=1)),
        (DictEncoder("x", "speed"), {"x": 1}),
    ],
)
def test_an_observation_that_lacks_a_name_is_refused_by_that_name(
    encoder: ObservationEncoder, observation: object
) -> None:
    with pytest.raises(InputError, match="has no 'speed'"):
        encoder.encode(observation)


@pytest.mark.parametrize("make", [AttributeEncoder, DictEncoder])
def test_an_encoder_of_nothing_is_refused(make: type[AttributeEncoder | DictEncoder]) -> None:
    with pytest.raises(ConfigError, match=make.__name__):
        make()


def test_enum_members_are_numbered_in_order_of_definition() -> None:
    mapper = EnumMapper(Move)
    assert [mapper.to_host(index) for index in range(3)] == [Move.LEFT, Move.RIGHT, Move.JUMP]
    assert [int(mapper.to_agent(member)) for member in Move] == [0, 1, 2]


def test_an_action_of_an_agent_may_be_an_array_of_no_dimension() -> None:
    assert EnumMapper(Move).to_host(np.array(2)) is Move.JUMP


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_without_a_member_is_refused(action: int) -> None:
    with pytest.raises(InputError, match=str(action)):
        EnumMapper(Move).to_host(action)


@pytest.mark.parametrize("action", ["left", 0, None])
def test_what_is_no_member_is_refused(action: object) -> None:
    with pytest.raises(InputError, match="not one of"):
        EnumMapper(Move).to_agent(action)


def test_a_clipped_action_keeps_its_type_and_the_original() -> None:
    action = np.array([-2.0, 0.5, 2.0], np.float32)
    clipped = ClipMapper(-1.0, 1.0).to_host(action)
    assert clipped.dtype == np.float32
    assert clipped.tolist() == [-1.0, 0.5, 1.0]
    assert action.tolist() == [-2.0, 0.5, 2.0]


def test_bounds_may_differ_by_dimension() -> None:
    assert ClipMapper([0, -1], [1, 0]).to_host(np.array([5.0, 5.0])).tolist() == [1.0, 0.0]


def test_an_executed_action_comes_back_unclipped() -> None:
    assert np.asarray(ClipMapper(-1, 1).to_agent([3.0])).tolist() == [3.0]


def test_crossed_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="above"):
        ClipMapper([0, 2], [1, 1])

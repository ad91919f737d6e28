"""Aggregators agree with numpy and survive a restore to the bit; trackers skip what an episode lacks."""

import itertools
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.agent import Stateful
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import EpisodeStatus
from rekindle.stats import (
    Aggregator,
    EpisodeRecord,
    EvalReport,
    Extra,
    Last,
    Length,
    Max,
    Mean,
    Min,
    RollingMean,
    StatsTracker,
    Std,
    TotalReward,
)

MAKERS: dict[str, Callable[[], Aggregator]] = {
    "mean": Mean,
    "max": Max,
    "min": Min,
    "last": Last,
    "rolling_mean": lambda: RollingMean(4),
    "std": Std,
}

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)
every_aggregator = pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))


def fed(aggregator: Aggregator, values: list[float]) -> Aggregator:
    """The aggregator after these values."""
    for value in values:
        aggregator.update(value)
    return aggregator


def bits(tree: Any) -> Any:
    """A state in which two numbers are equal only if all their bits are, and NaN equals itself."""
    if isinstance(tree, dict):
        return {name: bits(value) for name, value in tree.items()}
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape, tree.tobytes()
    return struct.pack("<d", tree) if isinstance(tree, float) else tree


def record(total_reward: float = 1.0, length: int = 10, **extras: float) -> EpisodeRecord:
    """A terminated episode."""
    return EpisodeRecord(total_reward, length, EpisodeStatus.TERMINATED, extras)


@given(numbers)
def test_mean_is_that_of_numpy(values: list[float]) -> None:
    assert fed(Mean(), values).value == pytest.approx(np.mean(values), rel=1e-12, abs=1e-6)


@given(numbers)
def test_std_is_the_population_deviation_of_numpy(values: list[float]) -> None:
    assert fed(Std(), values).value == pytest.approx(np.std(values), rel=1e-9, abs=1e-6)


@given(numbers)
def test_max_is_the_greatest(values: list[float]) -> None:
    assert fed(Max(), values).value == max(values)


@given(numbers)
def test_min_is_the_least(values: list[float]) -> None:
    assert fed(Min(), values).value == min(values)


@given(numbers)
def test_last_is_the_newest(values: list[float]) -> None:
    assert fed(Last(), values).value == values[-1]


@given(numbers, st.integers(1, 50))
def test_rolling_mean_is_that_of_the_newest_values(values: list[float], window: int) -> None:
    expected = np.mean(values[-window:])
    assert fed(RollingMean(window), values).value == pytest.approx(expected, rel=1e-12, abs=1e-6)


def test_std_keeps_its_precision_far_from_zero() -> None:
    assert fed(Std(), [1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16]).value == pytest.approx(math.sqrt(22.5))


def test_std_beyond_the_range_of_floats_is_infinite() -> None:
    assert fed(Std(), [-1.7e308, 1.7e308]).value == math.inf


def test_rolling_mean_forgets_a_huge_value_wholly() -> None:
    assert fed(RollingMean(2), [1e300, 0.1, 0.3]).value == 0.2


@every_aggregator
def test_an_empty_aggregator_is_nan(make: Callable[[], Aggregator]) -> None:
    assert math.isnan(make().value)


@every_aggregator
def test_reset_makes_an_aggregator_as_new(make: Callable[[], Aggregator]) -> None:
    aggregator = fed(make(), [3.0, -1.0])
    aggregator.reset()
    assert bits(aggregator.state()) == bits(make().state())


@every_aggregator
def test_numpy_scalars_of_low_precision_are_taken_as_doubles(make: Callable[[], Aggregator]) -> None:
    values = [np.float32(0.1), np.float32(2.0), np.float32(16777217.0)]
    aggregator = fed(make(), values)  # pyright: ignore[reportArgumentType]
    assert type(aggregator.value) is float
    assert bits(aggregator.state()) == bits(fed(make(), [float(value) for value in values]).state())


@every_aggregator
@given(values=st.lists(st.floats(), max_size=20), data=st.data())
def test_an_aggregator_restored_at_any_point_goes_on_bit_for_bit(
    make: Callable[[], Aggregator], values: list[float], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(values)))
    straight, resumed = fed(make(), values[:cut]), fed(make(), [7.0, -7.0])
    resumed.load_state(straight.state())
    assert bits(resumed.value) == bits(straight.value)
    for value in values[cut:]:
        straight.update(value)
        resumed.update(value)
        assert bits(resumed.value) == bits(straight.value)
    assert bits(resumed.state()) == bits(straight.state())


@every_aggregator
def test_a_state_does_not_change_afterwards(make: Callable[[], Aggregator]) -> None:
    aggregator = fed(make(), [1.0])
    state = aggregator.state()
    before = bits(state)
    fed(aggregator, [2.0, 3.0])
    assert bits(state) == before


@every_aggregator
def test_an_aggregator_can_join_a_checkpoint(make: Callable[[], Aggregator]) -> None:
    assert isinstance(make(), Aggregator)
    assert isinstance(make(), Stateful)


@pytest.mark.parametrize(("kind", "other"), list(itertools.permutations(MAKERS, 2)))
def test_a_state_of_another_kind_is_refused_by_name(kind: str, other: str) -> None:
    aggregator = fed(MAKERS[kind](), [1.0, 2.0])
    before = bits(aggregator.state())
    with pytest.raises(StateError, match=f"'{kind}'.*'{other}'"):
        aggregator.load_state(MAKERS[other]().state())
    assert bits(aggregator.state()) == before


@pytest.mark.parametrize(
    ("aggregator", "change", "named"),
    [
        (Mean(), {"count": -1}, "count"),
        (Mean(), {"count": 1.0}, "count"),
        (Mean(), {"count": True}, "count"),
        (Mean(), {"total": "1"}, "total"),
        (Mean(), {"surplus": 1}, "surplus"),
        (Mean(), {"kind": np.array(["mean", "mean"])}, "mean"),
        (Max(), {"value": None}, "value"),
        (Min(), {"value": 1}, "value"),
        (Last(), {"value": [1.0]}, "value"),
        (Std(), {"squares": -1.0}, "squares"),
        (RollingMean(3), {"window": 4}, "4.*3"),
        (RollingMean(3), {"values": [1.0]}, "values"),
        (RollingMean(3), {"values": np.zeros(4)}, "values"),
        (RollingMean(3), {"values": np.zeros((1, 1))}, "values"),
        (RollingMean(3), {"values": np.zeros(2, np.float32)}, "values"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(
    aggregator: Aggregator, change: dict[str, Any], named: str
) -> None:
    fed(aggregator, [1.0, 2.0])
    before = aggregator.state()
    with pytest.raises(StateError, match=named):
        aggregator.load_state({**before, **change})
    assert bits(aggregator.state()) == bits(before)


@every_aggregator
def test_a_state_that_lacks_a_field_is_refused(make: Callable[[], Aggregator]) -> None:
    for name in make().state():
        state = make().state()
        del state[name]
        with pytest.raises(StateError):
            make().load_state(state)


@pytest.mark.parametrize("state", [None, [], "mean", 3])
def test_a_state_that_is_no_dict_is_refused(state: Any) -> None:
    with pytest.raises(StateError, match="dict"):
        Mean().load_state(state)
    with pytest.raises(StateError, match="dict"):
        StatsTracker().load_state(state)


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_without_room_is_refused(window: int) -> None:
    with pytest.raises(ConfigError, match=str(window)):
        RollingMean(window)


def test_a_tracker_starts_with_mean_return_and_mean_length() -> None:
    tracker = StatsTracker()
    tracker.update(record(1.0, 10))
    tracker.update(record(4.0, 20))
    assert tracker.summary() == {"episode_reward": 2.5, "episode_length": 15.0}


def test_an_empty_tracker_tracks_nothing() -> None:
    tracker = StatsTracker.empty()
    tracker.update(record())
    assert tracker.summary() == {}


def test_a_summary_has_the_stats_in_order_of_addition() -> None:
    tracker = StatsTracker.empty().add("z", TotalReward(), Max()).add("a", Length(), Last())
    tracker.update(record(3.0, 7))
    assert list(tracker.summary().items()) == [("z", 3.0), ("a", 7.0)]


def test_any_function_of_a_record_is_a_source() -> None:
    tracker = StatsTracker.empty().add("pace", lambda episode: episode.total_reward / episode.length, Last())
    tracker.update(record(5.0, 10))
    assert tracker.summary() == {"pace": 0.5}


def test_an_episode_without_the_extra_is_skipped() -> None:
    tracker = StatsTracker.empty().add("loss", Extra("loss"), Mean())
    for episode in [record(loss=1.0), record(), record(loss=3.0)]:
        tracker.update(episode)
    assert tracker.summary() == {"loss": 2.0}


@pytest.mark.parametrize("make", [Mean, Std, Max, Min, Last, lambda: RollingMean(9)])
def test_a_nan_counts_as_no_value(make: Callable[[], Aggregator]) -> None:
    tracker = StatsTracker.empty().add("loss", Extra("loss"), make())
    for loss in [math.nan, 2.0, math.nan]:
        tracker.update(record(loss=loss))
    assert tracker.summary()["loss"] == fed(make(), [2.0]).value


def test_a_source_that_gives_none_is_skipped() -> None:
    tracker = StatsTracker.empty().add("never", lambda _: None, Mean())
    tracker.update(record())
    assert math.isnan(tracker.summary()["never"])


def test_a_source_that_raises_leaves_every_stat_as_it_was() -> None:
    tracker = StatsTracker().add("missing", lambda episode: episode.extras["missing"], Mean())
    before = bits(tracker.state())
    with pytest.raises(KeyError):
        tracker.update(record())
    assert bits(tracker.state()) == before


def test_a_name_can_be_added_once() -> None:
    with pytest.raises(ConfigError, match="episode_reward"):
        StatsTracker().add("episode_reward", TotalReward(), Max())


def test_a_reset_tracker_keeps_its_stats_and_forgets_their_values() -> None:
    tracker = StatsTracker().add("best", TotalReward(), Max())
    tracker.update(record())
    tracker.reset()
    assert list(tracker.summary()) == ["episode_reward", "episode_length", "best"]
    assert all(math.isnan(value) for value in tracker.summary().values())


def full_tracker() -> StatsTracker:
    """The defaults and one stat of every kind."""
    tracker = StatsTracker()
    for name, make in MAKERS.items():
        tracker.add(name, Extra("loss") if name == "mean" else TotalReward(), make())
    return tracker


@given(rewards=st.lists(st.floats(), max_size=12), data=st.data())
def test_a_tracker_restored_at_any_point_goes_on_bit_for_bit(rewards: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(rewards)))
    straight, resumed = full_tracker(), full_tracker()
    for reward in rewards[:cut]:
        straight.update(record(reward, loss=reward / 3))
    resumed.load_state(straight.state())
    for reward in rewards[cut:]:
        straight.update(record(reward, loss=reward / 3))
        resumed.update(record(reward, loss=reward / 3))
    assert bits(resumed.summary()) == bits(straight.summary())
    assert bits(resumed.state()) == bits(straight.state())


def test_a_tracker_refuses_other_stats_and_names_the_difference() -> None:
    saved = StatsTracker().add("old", TotalReward(), Max()).state()
    tracker = StatsTracker().add("new", TotalReward(), Max())
    with pytest.raises(StateError, match=r"'old'.*'new'"):
        tracker.load_state(saved)


def test_a_tracker_that_refuses_one_stat_keeps_all_as_they_were() -> None:
    saved = StatsTracker().add("reward", TotalReward(), Max()).state()
    tracker = StatsTracker().add("reward", TotalReward(), Min())
    tracker.update(record(5.0))
    before = bits(tracker.state())
    with pytest.raises(StateError, match=r"'reward'.*'min'.*'max'"):
        tracker.load_state(saved)
    assert bits(tracker.state()) == before


def test_a_row_is_json_with_the_status_as_a_word() -> None:
    episode = EpisodeRecord(2.5, 7, EpisodeStatus.TRUNCATED, {"epsilon": 0.5})
    assert json.loads(json.dumps(episode.row(), allow_nan=False)) == {
        "total_reward": 2.5,
        "length": 7,
        "status": "truncated",
        "extras": {"epsilon": 0.5},
    }


def test_numpy_numbers_become_plain_in_a_row() -> None:
    row = record(np.float32(0.5), np.int64(3), loss=np.float32(0.25)).row()  # pyright: ignore[reportArgumentType]
    assert json.loads(json.dumps(row)) == record(0.5, 3, loss=0.25).row()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_becomes_none_in_a_row(value: float) -> None:
    row = record(value, loss=value).row()
    assert (row["total_reward"], row["extras"]) == (None, {"loss": None})


def test_none_in_a_row_becomes_nan() -> None:
    episode = EpisodeRecord.from_row(record(math.nan, loss=math.inf).row())
    assert math.isnan(episode.total_reward)
    assert math.isnan(episode.extras["loss"])


@given(
    reward=st.floats(allow_nan=False, allow_infinity=False),
    length=st.integers(0, 2**53),
    status=st.sampled_from(EpisodeStatus),
    extras=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
)
def test_a_finite_record_survives_its_row_as_json(
    reward: float, length: int, status: EpisodeStatus, extras: dict[str, float]
) -> None:
    episode = EpisodeRecord(reward, length, status, extras)
    restored = EpisodeRecord.from_row(json.loads(json.dumps(episode.row())))
    assert restored == episode
    assert restored.status is status


def test_a_row_may_have_more_keys_and_no_extras() -> None:
    row = {"total_reward": 1.0, "length": 2, "status": "terminated", "total_steps": 9}
    assert EpisodeRecord.from_row(row) == record(1.0, 2)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"status": "finished"}, "status"),
        ({"length": "7"}, "length"),
        ({"length": 7.5}, "length"),
        ({"total_reward": "1"}, "total_reward"),
        ({"extras": {"loss": "low"}}, "extras"),
        ({"extras": None}, "extras"),
    ],
)
def test_a_row_that_is_no_record_is_refused_by_field(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=named):
        EpisodeRecord.from_row({**record().row(), **change})


def test_a_row_without_a_length_is_refused() -> None:
    with pytest.raises(InputError, match="length"):
        EpisodeRecord.from_row({"total_reward": 1.0, "status": "terminated"})


def test_records_do_not_share_their_default_extras() -> None:
    first = EpisodeRecord(1.0, 1, EpisodeStatus.TERMINATED)
    first.extras["loss"] = 1.0
    assert EpisodeRecord(1.0, 1, EpisodeStatus.TERMINATED).extras == {}


def test_a_report_has_the_spread_of_return_and_length_and_the_endings() -> None:
    records = [record(1.0, 10), record(3.0, 20), EpisodeRecord(5.0, 30, EpisodeStatus.TRUNCATED)]
    report = EvalReport.of(iter(records), 1000)
    assert (report.total_steps, report.n_episodes) == (1000, 3)
    assert report.stats == {
        "episode_reward_mean": 3.0,
        "episode_reward_std": pytest.approx(np.std([1, 3, 5])),
        "episode_reward_min": 1.0,
        "episode_reward_max": 5.0,
        "episode_length_mean": 20.0,
        "episode_length_std": pytest.approx(np.std([10, 20, 30])),
        "episode_length_min": 10.0,
        "episode_length_max": 30.0,
        "continuing": 0.0,
        "terminated": 2.0,
        "truncated": 1.0,
    }


def test_a_report_of_no_episodes_has_nan_for_every_spread() -> None:
    report = EvalReport.of([], 0)
    assert report.n_episodes == 0
    assert math.isnan(report.stats["episode_reward_mean"])
    assert report.stats["terminated"] == 0.0


def test_a_report_prints_as_an_aligned_table() -> None:
    report = EvalReport(total_steps=1200, n_episodes=2, stats={"mean": 195.25, "longest_name": -3.0})
    assert str(report).splitlines() == [
        "evaluation at step 1200, episodes: 2",
        "  mean          195.25",
        "  longest_name      -3",
    ]


def test_a_report_without_stats_prints_its_first_line() -> None:
    assert str(EvalReport(total_steps=5, n_episodes=1, stats={})) == "evaluation at step 5, episodes: 1"

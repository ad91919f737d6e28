"""Windows of metrics that end at step counts, and the store that looks up their values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import InputError, StateError
from rekindle.events import MetricsFlushed, Stamp, Summary
from rekindle.run.metrics import EventStore, MetricWindow, restore_store
from rekindle.run.processor import EventProcessor
from rekindle.storage import logs
from rekindle.storage.logs import JsonLines

nan = math.nan


def stamp(env_steps: int = 10) -> Stamp:
    return Stamp(env_steps=env_steps, updates=5, episodes=2, wall_time=0.5)


def flushed(env_steps: int = 10, **values: float) -> MetricsFlushed:
    window = MetricWindow()
    for name, value in values.items():
        window.add(name, value)
    return MetricsFlushed(stamp(env_steps), window.flush())


# Windows


def test_a_window_sums_up_each_metric() -> None:
    window = MetricWindow()
    for value in (3.0, 1.0, 2.0):
        window.add("loss", value)
    window.add("epsilon", 1)
    assert window.flush() == {
        "epsilon": Summary(mean=1.0, min=1.0, max=1.0, last=1.0, count=1),
        "loss": Summary(mean=2.0, min=1.0, max=3.0, last=2.0, count=3),
    }


def test_a_flushed_window_is_empty() -> None:
    window = MetricWindow()
    assert window.is_empty
    window.add("loss", 1.0)
    assert not window.is_empty
    window.flush()
    assert window.is_empty
    assert window.flush() == {}


def test_the_summary_is_in_order_of_names() -> None:
    window = MetricWindow()
    for name in ("b", "a", "c"):
        window.add(name, 1.0)
    assert list(window.flush()) == ["a", "b", "c"]


@pytest.mark.parametrize("values", [[nan, 1.0, 2.0], [1.0, nan, 2.0], [1.0, 2.0, nan]])
def test_a_nan_shows_in_every_aggregate_wherever_it_stood(values: list[float]) -> None:
    window = MetricWindow()
    for value in values:
        window.add("loss", value)
    summary = window.flush()["loss"]
    assert all(math.isnan(value) for value in (summary.mean, summary.min, summary.max))
    assert summary.count == 3


def test_infinities_are_the_least_and_the_greatest() -> None:
    window = MetricWindow()
    for value in (0.0, math.inf, -math.inf):
        window.add("x", value)
    summary = window.flush()["x"]
    assert (summary.min, summary.max) == (-math.inf, math.inf)


def test_an_array_counts_as_its_elements() -> None:
    window = MetricWindow()
    window.add("loss", np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    assert window.flush()["loss"] == Summary(mean=2.5, min=1.0, max=4.0, last=4.0, count=4)


class OnDevice:
    """A value that takes time to fetch, as one still being computed does."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.fetched = False

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        self.fetched = True
        return np.array(self.value, dtype)


def test_a_value_on_a_device_is_fetched_only_when_the_result_is_needed() -> None:
    window, value = MetricWindow(), OnDevice(2.0)
    window.add("loss", value)
    assert not value.fetched
    assert not window.is_empty
    assert window.flush()["loss"].mean == 2.0


def test_many_plain_numbers_are_counted_before_the_result_is_needed_but_no_device_is_waited_for() -> None:
    window, value = MetricWindow(), OnDevice(2.0)
    for number in range(100):
        window.add("loss", float(number))
        assert len(window._unread) < 20  # pyright: ignore[reportPrivateUsage]
    window.add("loss", value)
    for number in range(100):
        window.add("loss", float(number))
    assert not value.fetched
    assert window.flush()["loss"].count == 201


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.booleans(), st.booleans()), min_size=1))
def test_values_count_in_the_order_given_whatever_their_kind(values: list[tuple[float, bool, bool]]) -> None:
    plain, mixed = MetricWindow(), MetricWindow()
    for value, is_lazy, reads in values:
        plain.add("x", value)
        mixed.add("x", np.float64(value) if is_lazy else value)
        if reads:
            mixed.read()
    assert mixed.flush() == plain.flush()


def test_values_of_many_names_are_those_given_one_by_one() -> None:
    one_by_one, together = MetricWindow(), MetricWindow()
    for value in (1.0, 2.5, 4.0):
        one_by_one.add("agent/loss", value)
        one_by_one.add("agent/updates", int(value))
        together.add_all("agent/", {"loss": value, "updates": int(value)})
    assert together.flush() == one_by_one.flush()


def test_a_value_that_is_no_number_takes_no_other_with_it() -> None:
    window = MetricWindow()
    window.add("before", 1.0)
    window.add("name", "no number")
    window.add("after", 2.0)
    with pytest.raises(InputError, match="'name'"):
        window.read()
    assert window.means() == {"before": 1.0, "after": 2.0}


def test_a_value_that_is_no_number_is_named() -> None:
    window = MetricWindow()
    window.add("note", "hello")
    with pytest.raises(InputError, match="'note' is not a number: 'hello'"):
        window.flush()


@pytest.mark.parametrize("value", [nan, math.inf, np.float32(nan), np.array([1.0, nan])])
def test_a_loss_that_is_not_finite_is_found(value: Any) -> None:
    window = MetricWindow()
    window.add("agent/critic_loss", 1.0)
    window.add("agent/actor_loss", value)
    window.add("agent/reward_scale", nan)
    window.read()
    assert window.non_finite_loss() == "agent/actor_loss"


def test_other_metrics_may_be_nan() -> None:
    window = MetricWindow()
    window.add("agent/loss", 1.0)
    window.add("eval/success", nan)
    assert window.non_finite_loss() is None


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.lists(st.floats(allow_nan=False), min_size=1))
def test_a_half_filled_window_goes_on_from_its_state(before: list[float], after: list[float]) -> None:
    straight, resumed = MetricWindow(), MetricWindow()
    for value in before:
        straight.add("x", value)
    resumed.load_state(straight.state())
    for value in after:
        straight.add("x", value)
        resumed.add("x", value)
    assert repr(resumed.flush()) == repr(straight.flush())


def test_the_state_of_a_window_holds_what_was_still_unread() -> None:
    window, resumed = MetricWindow(), MetricWindow()
    window.add("x", np.float32(3.0))
    resumed.load_state(window.state())
    assert resumed.flush()["x"].mean == 3.0


def test_loading_a_state_forgets_what_was_there() -> None:
    window = MetricWindow()
    window.add("x", 1.0)
    window.add("y", np.float32(1.0))
    window.load_state({})
    assert window.is_empty


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(StateError, match="5 numbers"):
        MetricWindow().load_state({"x": np.zeros(4)})


# The store


def test_the_store_knows_the_latest_the_best_and_the_history() -> None:
    store = EventStore()
    for step, value in ((10, 2.0), (20, 5.0), (30, 1.0)):
        store.add(step, {"return": value})
    assert store.names == ["return"]
    assert store.latest("return") == 1.0
    assert store.best("return") == (20, 5.0)
    assert store.best("return", mode="min") == (30, 1.0)
    steps, values = store.history("return")
    assert (steps.tolist(), values.tolist()) == ([10, 20, 30], [2.0, 5.0, 1.0])


def test_the_store_knows_nothing_of_a_metric_it_never_saw() -> None:
    store = EventStore()
    assert store.latest("return") is None
    assert store.best("return") is None
    assert [array.tolist() for array in store.history("return")] == [[], []]


def test_the_first_of_two_equals_is_the_best() -> None:
    store = EventStore()
    for step in (10, 20):
        store.add(step, {"return": 1.0})
    assert store.best("return") == store.best("return", mode="min") == (10, 1.0)


def test_the_store_leaves_out_nan() -> None:
    store = EventStore()
    store.add(10, {"return": nan})
    assert store.names == []


def test_the_best_is_remembered_longer_than_the_history() -> None:
    store = EventStore(remembered=2)
    for step, value in ((10, 9.0), (20, 1.0), (30, 2.0)):
        store.add(step, {"return": value})
    assert store.history("return")[0].tolist() == [20, 30]
    assert store.best("return") == (10, 9.0)


def test_a_store_is_filled_again_from_the_log(tmp_path: Path) -> None:
    straight, restored = EventStore(), EventStore()
    log = JsonLines(tmp_path / "log")
    processor = EventProcessor(log=log, store=straight, report=[].append)
    for step in (10, 20):
        processor.submit(flushed(step, loss=1.0 / step, diverged=nan))
    processor.close("finished")
    log.close()
    restore_store(restored, logs.read_rows(tmp_path / "log"))
    assert restored.names == straight.names == ["loss"]
    assert restored.history("loss")[1].tolist() == straight.history("loss")[1].tolist()

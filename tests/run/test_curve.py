"""A curve keeps its shape, however long it gets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.run.curve import Curve, Extreme

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


def curve_of(values: list[float], capacity: int = 8) -> Curve:
    curve = Curve(capacity)
    for step, value in enumerate(values):
        curve.add(10 * step, value)
    return curve


@given(VALUES)
def test_least_and_greatest_survive_every_merge(values: list[float]) -> None:
    points = curve_of(values).points()
    assert len(points.steps) <= 8
    assert (points.least.min(), points.greatest.max()) == (min(values), max(values))
    assert points.steps[-1] == 10 * (len(values) - 1)
    assert list(points.steps) == sorted(set(points.steps))


@given(VALUES)
def test_the_means_keep_their_weight(values: list[float]) -> None:
    curve = curve_of(values)
    points = curve.points()
    counts = np.diff(points.steps / 10, prepend=-1)
    assert counts.sum() == len(values)
    assert (points.means * counts).sum() == pytest.approx(math.fsum(values), abs=1e-3)


@given(VALUES)
def test_what_is_asked_about_the_whole_curve_is_exact(values: list[float]) -> None:
    curve = curve_of(values)
    assert (curve.last, curve.step) == (values[-1], 10 * (len(values) - 1))
    assert curve.greatest == Extreme(max(values), 10 * values.index(max(values)))
    assert curve.least == Extreme(min(values), 10 * values.index(min(values)))
    assert curve.recent_mean == pytest.approx(np.mean(values[-100:]))


def test_values_at_one_step_are_one_point() -> None:
    curve = Curve()
    for step, value in [(5, 1.0), (5, 3.0), (9, 10.0)]:
        curve.add(step, value)
    points = curve.points()
    assert (points.steps.tolist(), points.means.tolist()) == ([5.0, 9.0], [2.0, 10.0])
    assert (points.least.tolist(), points.greatest.tolist()) == ([1.0, 10.0], [3.0, 10.0])
    assert curve.least == Extreme(2.0, 5)


def test_an_empty_curve_has_nothing() -> None:
    curve = Curve()
    assert math.isnan(curve.last)
    assert math.isnan(curve.recent_mean)
    assert (curve.step, curve.least, curve.greatest, len(curve)) == (None, None, None, 0)
    assert len(curve.points().steps) == 0


def test_a_range_has_the_neighbours_that_lines_come_from() -> None:
    points = curve_of([1.0, 2.0, 3.0, 4.0, 5.0]).points()
    assert points.between(15, 25).steps.tolist() == [10.0, 20.0, 30.0]
    assert points.between(0, 40).steps.tolist() == [0.0, 10.0, 20.0, 30.0, 40.0]


def test_smoothing_blends_neighbours_without_moving_the_curve() -> None:
    assert curve_of([4.0] * 5).points().smoothed(0.2).tolist() == pytest.approx([4.0] * 5)
    noisy = curve_of([0.0, 10.0] * 20, capacity=64).points()
    assert noisy.smoothed(0).tolist() == [0.0, 10.0] * 20
    assert np.ptp(noisy.smoothed(0.1)[10:-10]) < 0.1
    ramp = curve_of([float(step) for step in range(40)], capacity=64).points()
    assert ramp.smoothed(0.05)[10:-10].tolist() == pytest.approx(list(range(10, 30)))


@given(VALUES, st.floats(0, 1))
def test_smoothing_stays_within_the_values(values: list[float], share: float) -> None:
    smooth = curve_of(values, capacity=256).points().smoothed(share)
    assert len(smooth) == len(values)
    assert min(values) - 1e-3 <= smooth.min() <= smooth.max() <= max(values) + 1e-3


@given(VALUES, st.integers(1, 50))
def test_fewer_points_keep_least_and_greatest(values: list[float], most: int) -> None:
    thin = curve_of(values, capacity=256).points().thinned(most)
    assert len(thin.steps) == min(most, len(values))
    assert (thin.least.min(), thin.greatest.max()) == (min(values), max(values))
    assert thin.steps[-1] == 10 * (len(values) - 1)

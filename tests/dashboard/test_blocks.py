"""Blocks hold a log of any length in bounded memory, and no least or greatest value is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

from rekindle.ui.dashboard.blocks import Blocks
from rekindle.ui.dashboard.rows import Columns, Series

VALUES = st.lists(st.floats(-1e6, 1e6, width=32) | st.just(np.nan), min_size=1, max_size=200)


def columns(values: list[float], *, first: int = 0, steps: list[float] | None = None) -> Columns:
    column = np.array(values, np.float64)
    numbers = np.arange(first, first + len(values), dtype=np.float64)
    return Columns(np.array(steps) if steps else numbers, 100 + numbers, {"value": Series(column, column, column)})


def filled(values: list[float], *, most: int, pieces: int = 1) -> Blocks:
    blocks = Blocks(most=most)
    first = 0
    for piece in np.array_split(np.array(values), pieces):
        blocks.append(columns(list(piece), first=first))
        first += len(piece)
    return blocks


@settings(deadline=None)
@given(VALUES, st.integers(1, 7), st.integers(2, 20), st.integers(1, 30))
def test_points_keep_the_extremes_the_mean_and_the_end(values: list[float], pieces: int, most: int, few: int) -> None:
    blocks = filled(values, most=most, pieces=pieces)
    assert (blocks.rows, len(blocks) <= most) == (len(values), True)
    points = blocks.points(few)
    assert len(points.rows) <= few + 1
    assert points.rows[0] == 0
    assert (points.steps[-1], points.times[-1]) == (len(values) - 1, 100 + len(values) - 1)
    ends = [*points.rows[1:], len(values)]
    for index, (start, end) in enumerate(zip(points.rows, ends, strict=True)):
        seen = [value for value in values[start:end] if not np.isnan(value)]
        if seen:
            assert (points.least["value"][index], points.most["value"][index]) == (min(seen), max(seen))
            assert points.mean["value"][index] == pytest.approx(np.mean(seen), abs=1e-6)
        elif "value" in points.mean:
            assert np.isnan(points.mean["value"][index])


@settings(deadline=None)
@given(VALUES, VALUES, st.integers(2, 20))
def test_how_rows_were_cut_into_pieces_does_not_matter(values: list[float], more: list[float], most: int) -> None:
    whole, parts = filled(values + more, most=most), filled(values, most=most)
    parts.append(columns(more, first=len(values)))
    assert (whole.level, whole.rows) == (parts.level, parts.rows)
    for one, other in ((whole.points(1000), parts.points(1000)),):
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.steps, other.steps)
        for name, mean in one.mean.items():
            np.testing.assert_allclose(mean, other.mean[name], atol=1e-6)


@settings(deadline=None)
@given(VALUES, st.integers(2, 20), st.data())
def test_what_is_added_after_a_cut_takes_the_place_of_what_was_cut(
    values: list[float], most: int, data: st.DataObject
) -> None:
    blocks = filled(values, most=most)
    kept = data.draw(st.integers(0, len(blocks)))
    blocks.cut(kept)
    first = blocks.rows
    assert first == min(len(values), kept << blocks.level)
    again = [7.0] * (len(values) - first)
    blocks.append(columns(again, first=first))
    expected = filled(values[:first] + again, most=most)
    one, other = blocks.points(1000), expected.points(1000)
    for name, mean in other.mean.items():
        np.testing.assert_allclose(one.mean[name], mean, atol=1e-6)


def test_rows_at_the_same_step_are_one_point() -> None:
    blocks = Blocks()
    blocks.append(columns([1.0, 3.0, 10.0, 30.0], steps=[5.0, 5.0, 9.0, 9.0]))
    points = blocks.points(100)
    assert points.steps.tolist() == [5.0, 9.0]
    assert points.mean["value"].tolist() == [2.0, 20.0]
    assert (points.least["value"].tolist(), points.most["value"].tolist()) == ([1.0, 10.0], [3.0, 30.0])


def test_a_series_that_comes_late_or_pauses_has_gaps() -> None:
    blocks = Blocks()
    blocks.append(Columns(np.array([0.0]), np.array([0.0]), {}))
    blocks.append(columns([4.0], first=1))
    blocks.append(Columns(np.array([2.0]), np.array([2.0]), {}))
    assert np.isnan(blocks.points(100).mean["value"]).tolist() == [True, False, True]


def test_steps_never_go_back_whatever_stands_in_a_file() -> None:
    blocks = Blocks()
    blocks.append(columns([1.0] * 5, steps=[3.0, np.nan, 1.0, 4.0, 2.0]))
    blocks.append(columns([1.0], steps=[0.0]))
    assert blocks.steps.tolist() == [3.0, 3.0, 3.0, 4.0, 4.0, 4.0]


def test_memory_does_not_grow_with_the_rows() -> None:
    blocks = Blocks(most=1024)
    sizes: set[int] = set()
    for piece in range(40):
        blocks.append(columns([0.0] * 1000, first=1000 * piece))
        if blocks.rows > 2048:
            sizes.add(blocks.nbytes)
    assert len(sizes) == 1

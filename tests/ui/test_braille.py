"""A chart in characters shows what the curve does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.run.curve import Curve, Points
from rekindle.run.scale import labelled, step_label, ticks, value_label, value_range
from rekindle.ui.braille import Chart, Line, draw


def line_of(values: list[float], *, smoothing: float = 0.0, every: int = 1) -> Line:
    curve = Curve()
    for index, value in enumerate(values):
        curve.add(index * every, value)
    return Line(curve.points(), smoothing)


def picture(chart: Chart) -> list[str]:
    return ["".join(run.text for run in row) for row in chart.rows]


def dots(text: str) -> int:
    return sum((ord(character) - 0x2800).bit_count() for character in text if 0x2800 <= ord(character) < 0x2900)


def test_a_rising_line_rises() -> None:
    shown = picture(draw([line_of([0.0, 1.0, 2.0, 3.0])], 20, 8, first=0, last=3))
    assert shown == [
        "  │             ⢀⣠⠖⠋",
        "  │           ⣠⠴⠋   ",
        " 2┤┈┈┈┈┈┈┈┈⣠⠴⠋⠁┈┈┈┈┈",
        "  │     ⣀⡴⠚⠁        ",
        "  │  ⢀⡴⠚⠁           ",
        " 0┤⡤⠞⠉┈┈┈┈┈┈┈┈┈┈┈┈┈┈",
        "  └┬──────────┬─────",
        "   0          2     ",
    ]


@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60),
    st.integers(1, 120),
    st.integers(1, 50),
    st.sampled_from([0.0, 0.05]),
)
def test_every_chart_has_the_size_that_was_asked_for(
    values: list[float], width: int, height: int, smoothing: float
) -> None:
    chart = draw([line_of(values, smoothing=smoothing)], width, height, first=0, last=len(values))
    rows = picture(chart)
    assert len(rows) == max(3, height)
    assert len({len(row) for row in rows}) == 1
    if width > 20:
        assert {len(row) for row in rows} == {width}
        assert dots("".join(rows)) > 0


def test_one_high_value_among_many_is_seen() -> None:
    curve = Curve(capacity=64)
    for step in range(10_000):
        curve.add(step, 100.0 if step == 5000 else float(step % 2))
    shown = picture(draw([Line(curve.points())], 60, 20, first=0, last=10_000))
    assert dots(shown[0]) > 0
    assert sum(dots(row) > 0 for row in shown) > 10


def test_a_curve_that_never_changes_is_a_level_line() -> None:
    shown = picture(draw([line_of([5.0] * 30)], 40, 12, first=0, last=29))
    assert [dots(row) > 0 for row in shown].count(True) == 1


def test_smoothing_draws_the_raw_curve_behind_the_smooth_one() -> None:
    chart = draw([line_of([0.0, 1.0] * 30, smoothing=0.05)], 60, 12, first=0, last=59)
    styles = {run.style for row in chart.rows for run in row}
    assert {"line 0", "band 0"} <= styles


def test_each_curve_has_a_colour_and_the_cursor_a_column() -> None:
    lines = [line_of([0.0] * 10), line_of([1.0] * 10)]
    chart = draw(lines, 50, 10, first=0, last=9, cursor=4.5)
    assert {run.style for row in chart.rows for run in row} >= {"line 0", "line 1", "cursor"}
    assert sum(run.style == "cursor" for run in itertools.chain(*chart.rows)) >= 5


def test_a_part_of_a_curve_is_connected_to_what_lies_outside() -> None:
    shown = picture(draw([line_of([0.0, 10.0], every=100)], 60, 12, first=40, last=60))
    assert dots("".join(shown)) > 50


def test_no_curve_is_an_empty_chart() -> None:
    nothing = Points(*(np.empty(0) for _ in range(4)))
    for lines in ([], [Line(nothing)]):
        shown = picture(draw(lines, 40, 10, first=0, last=1))
        assert dots("".join(shown)) == 0
        assert len(shown) == 10


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 20))
def test_ticks_are_few_in_order_and_in_range(low: float, width: float, most: int) -> None:
    high = low + width
    found = ticks(low, high, most)
    assert len(found) <= most
    assert found == sorted(set(found)) or width < 1e-9 * abs(low)
    assert all(low - width * 1e-6 <= value <= high + width * 1e-6 for value in found) or width < 1e-6 * abs(low)


@pytest.mark.parametrize(
    ("value", "label"),
    [(0.0, "0"), (0.25, "0.25"), (-3.0, "-3"), (1500.0, "1500"), (12_500.0, "12.5k"), (1.2e-5, "1.2e-5"), (3e9, "3e9")],
)
def test_values_are_written_in_few_characters(value: float, label: str) -> None:
    assert value_label(value) == label


def test_steps_are_written_in_few_characters() -> None:
    assert [step_label(value) for value in (0, 950, 12_500, 1_500_000)] == ["0", "950", "12.5k", "1.5M"]


@pytest.mark.parametrize("label", [value_label, step_label])
@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(2, 20))
def test_two_ticks_never_have_the_same_label(
    label: Callable[[float, float], str], low: float, width: float, most: int
) -> None:
    found = [text for _, text in labelled(ticks(low, low + width, most), label)]
    assert len(set(found)) == len(found)


def test_values_close_to_each_other_have_the_digits_that_differ() -> None:
    assert [text for _, text in labelled([360.25, 360.5, 360.75], value_label)] == ["360.25", "360.5", "360.75"]
    assert [text for _, text in labelled([2e6, 2_000_050.0], step_label)] == ["2M", "2.00005M"]


def test_single_values_far_outside_do_not_press_the_curve_flat() -> None:
    curve = Curve()
    for step, value in [(0, 0.9), (0, 1.1), (1, 2.0), (1, 0.0), (1, 1000.0), (1, -994.0)]:
        curve.add(step, value)
    assert value_range([curve.points()]) == (0.5, 2.5)

"""Text for terminals and programs says what is meant, and nothing in it is anything but text."""

from __future__ import annotations

import doctest
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rekindle.run.settings
from rekindle.text import bytes_text, compact, decimal, moment, printable, seconds_since, time_text, whole


@given(st.text())
def test_text_is_printable_whatever_it_was(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable() or len(text) > 300


def test_text_that_is_too_long_is_cut() -> None:
    assert printable("x" * 1000, most=10) == "xxxxxxxxxx..."


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (9_999, "9,999"),
        (12_345, "12.3k"),
        (999_999, "1M"),
        (1_234_567, "1.23M"),
        (10**40, "1.00e+40"),
    ],
)
def test_counts_are_short(value: int | None, shown: str) -> None:
    assert compact(value) == shown


def test_a_count_that_is_no_count_is_still_short() -> None:
    assert compact(10**1000) == ">1e300"
    assert whole(1_234_567) == "1,234,567"


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "-"), (0, "0 B"), (999, "999 B"), (1_234, "1.23 kB"), (10**9, "1 GB")]
)
def test_sizes_have_units(value: int | None, shown: str) -> None:
    assert bytes_text(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (math.nan, "-"),
        (0.0, "0.00"),
        (-1.5, "-1.50"),
        (12_345.678, "12,345.68"),
        (1e7, "1e+07"),
        (0.00012345, "0.000123"),
        (math.inf, "inf"),
    ],
)
def test_numbers_have_the_digits_that_matter(value: float | None, shown: str) -> None:
    assert decimal(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.25, "0.2 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (303, "5 min 3 s"),
        (3600, "1 h"),
        (12_000, "3 h 20 min"),
        (367_200, "4 d 6 h"),
        (86_400 * 400 + 7200, "400 d"),
    ],
)
def test_times_have_the_two_units_that_matter(seconds: float | None, shown: str) -> None:
    assert time_text(seconds) == shown


@pytest.mark.parametrize(
    "text", [None, "", "yesterday", "2026-13-01", "\x1b", "9" * 400, "0001-01-01", "9999-12-31T23:59:59-14:00"]
)
def test_text_that_is_no_moment_is_none(text: str | None) -> None:
    assert moment(text) is None


def test_a_moment_without_a_zone_is_utc_and_ages_are_never_negative() -> None:
    assert moment("2026-01-02T03:04:05") == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    now = datetime.now(UTC)
    assert seconds_since(now, now + timedelta(seconds=90)) == 90
    assert seconds_since(now + timedelta(hours=1)) == 0
    assert seconds_since(None) is None


def test_the_examples_in_the_docstrings_are_right() -> None:
    results = doctest.testmod(rekindle.run.settings)
    assert results.attempted > 0
    assert results.failed == 0

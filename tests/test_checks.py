"""What a user passes in: counts of any library's integers and nothing else, and streams that occur once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rekindle.checks import are_distinct, checked_count, required_count
from rekindle.errors import ConfigError


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_integers_of_any_library_become_plain_ones(value: Any) -> None:
    assert type(required_count("steps", value, 0)) is int
    assert checked_count("steps", value, 0) == 3


@pytest.mark.parametrize("value", [True, np.True_, 3.0, np.float64(3), "3", -1, np.int8(-1), [3], object])
def test_whatever_else_is_refused_by_name_and_value(value: Any) -> None:
    for check in (required_count, checked_count):
        with pytest.raises(ConfigError, match="steps is ") as caught:
            check("steps", value, 0)
        assert repr(value) in str(caught.value)


def test_none_is_refused_where_a_number_is_required() -> None:
    assert checked_count("steps", None, 0) is None
    with pytest.raises(ConfigError, match=r"steps is None: use a whole number of at least 0$"):
        required_count("steps", None, 0)


@pytest.mark.parametrize("numbers", [[], [4], [0, 1, 2], [2, 7, 9], [5, 0, 3]])
def test_numbers_are_distinct_in_any_order(numbers: list[int]) -> None:
    assert are_distinct(np.array(numbers, np.int64))


@pytest.mark.parametrize("numbers", [[1, 1], [0, 2, 0], [3, 1, 2, 3]])
def test_a_number_that_occurs_twice_is_found_wherever_it_is(numbers: list[int]) -> None:
    assert not are_distinct(np.array(numbers, np.int64))

"""A verdict on groups of runs finds a large difference, and seldom one that is not there."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rekindle.stats import compare_groups

Draw = Callable[[np.random.Generator], NDArray[np.float64]]

SHAPES: dict[str, Draw] = {
    "normal": lambda rng: rng.normal(200, 30, 10),
    "mostly solved": lambda rng: np.where(rng.random(10) < 0.8, 500 - rng.exponential(2, 10), rng.uniform(20, 200, 10)),
}
"""Scores of ten runs of one training."""


@pytest.mark.parametrize("shape", SHAPES)
def test_two_groups_of_one_training_differ_in_at_most_10_of_100_draws(shape: str) -> None:
    rng = np.random.default_rng(1)
    found = [compare_groups({"a": SHAPES[shape](rng), "b": SHAPES[shape](rng)})[0].differs for _ in range(100)]
    assert sum(found) <= 10


def test_a_difference_of_two_standard_deviations_is_found_in_at_least_90_of_100_draws() -> None:
    rng = np.random.default_rng(2)
    draws = [(rng.normal(200, 30, 10), rng.normal(260, 30, 10)) for _ in range(100)]
    found = [compare_groups({"a": old, "b": new})[0].verdict for old, new in draws]
    assert found.count("better") >= 90
    assert "worse" not in found


def test_many_groups_of_one_training_have_no_pair_that_differs() -> None:
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(20):
        groups = {str(number): rng.normal(size=6) for number in range(5)}
        wrong += any(difference.differs for difference in compare_groups(groups))
    assert wrong <= 3


def test_many_groups_are_each_compared_with_the_best() -> None:
    differences = compare_groups({str(number): [float(number), number + 0.5] for number in range(10)})
    assert [(difference.first, difference.second) for difference in differences] == [(str(n), "9") for n in range(9)]


def test_the_best_of_many_groups_is_adjusted_for_all_pairs_because_its_scores_chose_it() -> None:
    groups = {str(number): [100.0 * number + place for place in range(7)] for number in range(12)}
    found = compare_groups(groups)
    all_pairs = 12 * 11 / 2
    alone = 2 / 3432  # of the 3,432 ways to divide 14 runs, two separate the groups
    assert [difference.p_value for difference in found] == pytest.approx([all_pairs * alone] * 11)
    assert {difference.verdict for difference in found} == {"better"}


def test_single_runs_beside_groups_of_seeds_hide_no_difference() -> None:
    seeds = {"low": np.arange(4.0), "high": np.arange(10.0, 14.0)}
    singles = {f"once {number}": [20.0 + number] for number in range(8)}
    (alone,) = compare_groups(seeds)
    for groups in (seeds | dict(list(singles.items())[:4]), seeds | singles):
        found = {(pair.first, pair.second): pair for pair in compare_groups(groups)}
        assert found["low", "high"].verdict == alone.verdict == "better"
        assert found["low", "high"].p_value == alone.p_value


@pytest.mark.parametrize(("runs", "verdict"), [(1, "too few runs"), (3, "too few runs"), (4, "worse")])
def test_few_runs_cannot_differ(runs: int, verdict: str) -> None:
    (difference,) = compare_groups({"a": np.arange(100.0, 100 + runs), "b": np.arange(0.0, runs)})
    assert difference.verdict == verdict


def test_one_group_or_none_has_no_differences() -> None:
    assert compare_groups({}) == compare_groups({"a": [1.0]}) == compare_groups({"a": [1.0], "b": []}) == []

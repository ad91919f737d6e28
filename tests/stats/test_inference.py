"""Statistics of runs agree with closed forms and with references that count every case."""

from __future__ import annotations

import itertools
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.errors import InputError
from rekindle.stats import (
    difference_interval,
    holm,
    improvement_interval,
    iqm,
    iqm_interval,
    mean_interval,
    performance_profile,
    permutation_test,
    probability_of_improvement,
    profile_band,
)

FEW = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=6)
"""Small whole numbers, so that there are ties and sums are exact."""


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 5.0, 9.0], 5.0),
        ([0.0, 1.0, 2.0, 99.0], 1.5),
        ([9.0, -50.0, 1.0, 2.0, 3.0, 4.0, 5.0, 400.0], 3.5),
        ([[1.0, 2.0], [3.0, 1000.0]], 2.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side(scores: list[float], expected: float) -> None:
    assert iqm(scores) == expected


def test_the_interquartile_mean_is_the_trimmed_mean_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for count in range(1, 40):
        scores = rng.normal(size=count)
        assert iqm(scores) == pytest.approx(stats.trim_mean(scores, 0.25), abs=1e-12)


@given(FEW, FEW)
def test_the_probability_of_improvement_counts_all_pairs(first: list[float], second: list[float]) -> None:
    pairs = [1.0 if new > old else 0.5 if new == old else 0.0 for old, new in itertools.product(first, second)]
    assert probability_of_improvement(first, second) == pytest.approx(sum(pairs) / len(pairs))
    assert probability_of_improvement(second, first) == pytest.approx(1 - sum(pairs) / len(pairs))


def test_each_task_counts_the_same_in_the_probability_of_improvement() -> None:
    assert probability_of_improvement([[0.0] * 9, [5.0]], [[1.0] * 3, [4.0]]) == 0.5


@given(FEW)
def test_a_profile_is_the_share_of_runs_above_each_threshold(scores: list[float]) -> None:
    thresholds = [-6.0, -1.0, 0.0, 0.5, 3.0, 6.0]
    expected = [sum(score > threshold for score in scores) / len(scores) for threshold in thresholds]
    assert performance_profile(scores, thresholds) == pytest.approx(expected)


@given(FEW, FEW)
@settings(deadline=None)
def test_a_permutation_test_counts_every_split(first: list[float], second: list[float]) -> None:
    scores = [*first, *second]
    total = sum(scores)

    def difference(chosen: tuple[int, ...]) -> float:
        part = sum(scores[place] for place in chosen)
        return abs(part / len(chosen) - (total - part) / (len(scores) - len(chosen)))

    splits = list(itertools.combinations(range(len(scores)), len(first)))
    observed = difference(splits[0])
    expected = sum(difference(split) >= observed - 1e-9 for split in splits) / len(splits)
    assert permutation_test(first, second) == pytest.approx(expected)


def test_the_p_value_of_groups_that_do_not_overlap_is_known() -> None:
    # Of the 184,756 splits of 10 and 10, only the observed one and its mirror image differ as much.
    first, second = np.arange(10.0), np.arange(20.0, 30.0)
    assert permutation_test(first, second) == pytest.approx(2 / 184_756)


def test_more_runs_than_can_be_counted_are_split_at_random() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=30), rng.normal(0.5, size=30)
    # The normal approximation: the variance of the difference over all splits is known.
    pooled = np.concatenate([first, second])
    deviation = np.sqrt(pooled.var(ddof=1) * (1 / 30 + 1 / 30))
    expected = 2 * (1 - NormalDist().cdf(abs(second.mean() - first.mean()) / deviation))
    assert permutation_test(first, second) == pytest.approx(expected, abs=0.01)
    assert permutation_test(first, second) == permutation_test(first, second)
    assert permutation_test(first, first + 100) == 1 / 20_001


def test_tasks_are_split_apart() -> None:
    # The tasks are on different scales; within each, the second group is clearly better.
    rng = np.random.default_rng(2)
    first = [rng.normal(size=8), rng.normal(1000, 1, size=8)]
    second = [task + 3 for task in first]
    assert permutation_test(first, second) < 0.001
    assert permutation_test(np.concatenate(first), np.concatenate(second)) > 0.5


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution() -> None:
    scores = np.random.default_rng(3).normal(10, 2, size=200)
    interval = mean_interval(scores)
    error = 1.96 * scores.std() / np.sqrt(len(scores))
    assert interval.value == pytest.approx(scores.mean())
    assert (interval.low, interval.high) == pytest.approx((scores.mean() - error, scores.mean() + error), abs=0.02)
    narrow = mean_interval(scores, confidence=0.5)
    assert interval.low < narrow.low < narrow.high < interval.high


def test_a_bootstrap_of_two_scores_has_the_quantiles_of_its_four_outcomes() -> None:
    interval = mean_interval([0.0, 1.0])  # a mean of 0, of 1/2 twice, or of 1
    assert (interval.low, interval.value, interval.high) == (0.0, 0.5, 1.0)
    assert mean_interval([0.0, 1.0], confidence=0.4).low == 0.5
    assert mean_interval([3.0, 3.0]).low == mean_interval([3.0, 3.0]).high == 3.0


def test_an_interval_of_95_percent_covers_the_truth_about_as_often() -> None:
    rng = np.random.default_rng(4)
    covered = {"mean": 0, "iqm": 0, "difference": 0, "improvement": 0}
    draws = 60
    for _ in range(draws):
        first, second = rng.normal(size=25), rng.normal(1, size=25)
        truths = (
            ("mean", mean_interval(first), 0.0),
            ("iqm", iqm_interval(first), 0.0),
            ("difference", difference_interval(first, second), 1.0),
            ("improvement", improvement_interval(first, second), 0.7602),  # the normal cdf at 1/sqrt(2)
        )
        for name, interval, truth in truths:
            covered[name] += interval.low <= truth <= interval.high
    assert all(0.85 <= count / draws <= 1 for count in covered.values()), covered


def test_the_band_of_a_profile_encloses_it() -> None:
    scores = np.random.default_rng(5).normal(size=20)
    band = profile_band(scores, np.linspace(-3, 3, 13))
    assert band.share == performance_profile(scores, band.thresholds).tolist()
    assert all(low <= share <= high for low, share, high in zip(band.low, band.share, band.high, strict=True))
    middle = 6
    error = 1.96 * np.sqrt(band.share[middle] * (1 - band.share[middle]) / 20)
    assert band.high[middle] - band.share[middle] == pytest.approx(error, abs=0.06)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holms_adjustment_keeps_the_order_and_raises_every_p_value(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= raised <= 1 for p, raised in zip(p_values, adjusted, strict=True))
    assert min(adjusted) == pytest.approx(min(1, len(p_values) * min(p_values)))
    places = sorted(range(len(p_values)), key=lambda place: p_values[place])
    assert [adjusted[place] for place in places] == sorted(adjusted)


@pytest.mark.parametrize("scores", [[], [float("nan")], [1.0, float("inf")], [[1.0], []], ["high"], 3.0])
def test_what_are_no_scores_is_refused(scores: Any) -> None:
    with pytest.raises(InputError):
        iqm(scores)


def test_groups_must_have_the_same_tasks() -> None:
    with pytest.raises(InputError, match="the same tasks"):
        permutation_test([[1.0], [2.0]], [[1.0]])

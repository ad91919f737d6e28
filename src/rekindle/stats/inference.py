"""Statistics of the scores of many runs: interquartile mean, intervals, profiles and tests.

Scores are those of one task, one number per run, or a list of such lists: one for each task. Intervals are percentile
intervals of a bootstrap that draws runs within each task (stratified). All random numbers have a fixed seed, so the
same scores always have the same interval and the same p-value.

The interquartile mean, the probability of improvement and the profiles are those of Agarwal et al., "Deep Reinforcement
Learning at the Edge of the Statistical Precipice" (2021).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.errors import InputError

__all__ = [
    "Interval",
    "ProfileBand",
    "Scores",
    "difference_interval",
    "holm",
    "improvement_interval",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "performance_profile",
    "permutation_test",
    "probability_of_improvement",
    "profile_band",
]

Floats: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Sequence[float] | Sequence[Sequence[float] | Floats] | Floats
"""The scores of one task, one per run, or a list of the scores of each task."""

_CONFIDENCE = 0.95
_REPETITIONS = 5_000
"""Bootstrap samples of an interval."""
_MOST_EXACT = 200_000
"""Up to this many ways to split the runs, a permutation test goes through all of them: 10 and 10 runs have 184,756."""
_MOST_EXACT_RUNS = 10
"""There are more splits if both groups have more runs."""
_PERMUTATIONS = 20_000
"""Random splits for more runs."""
_PIECE = 2**22
"""The most numbers in an intermediate array."""


class Interval(msgspec.Struct, frozen=True):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float


class ProfileBand(msgspec.Struct, frozen=True):
    """A performance profile with a pointwise confidence band."""

    thresholds: list[float]
    share: list[float]
    """The share of runs above each threshold."""
    low: list[float]
    high: list[float]


def iqm(scores: Scores) -> float:
    """The interquartile mean: the mean without the lowest and the highest quarter of all scores.

    A quarter is rounded down, as in `scipy.stats.trim_mean`: below 4 scores, it is the mean of all.
    """
    return float(_trimmed(np.concatenate(_tasks(scores))))


def probability_of_improvement(first: Scores, second: Scores) -> float:
    """How likely a run of `second` is better than a run of `first`, the mean over tasks; a tie counts as half.

    >>> probability_of_improvement([1.0, 2.0], [2.0, 3.0])
    0.875
    """
    old, new = _paired(first, second)
    return float(_improvement([scores[None] for scores in old], [scores[None] for scores in new])[0])


def performance_profile(scores: Scores, thresholds: Sequence[float] | Floats) -> Floats:
    """The share of runs whose score is above each threshold, the mean over tasks."""
    edges = np.asarray(thresholds, np.float64)
    return np.mean([_above(task, edges) for task in _tasks(scores)], axis=0)


def iqm_interval(scores: Scores, *, confidence: float = _CONFIDENCE) -> Interval:
    """The interquartile mean, and its bootstrap interval."""
    (draws,) = _resampled(_tasks(scores))
    return _interval(iqm(scores), _trimmed(np.concatenate(draws, axis=1)), confidence)


def mean_interval(scores: Scores, *, confidence: float = _CONFIDENCE) -> Interval:
    """The mean over tasks of the mean score, and its bootstrap interval."""
    tasks = _tasks(scores)
    (draws,) = _resampled(tasks)
    return _interval(float(_mean_of(tasks)), _mean_of(draws), confidence)


def difference_interval(first: Scores, second: Scores, *, confidence: float = _CONFIDENCE) -> Interval:
    """By how much the mean score of `second` exceeds that of `first`, and its bootstrap interval."""
    old, new = _paired(first, second)
    old_draws, new_draws = _resampled(old, new)
    return _interval(float(_mean_of(new) - _mean_of(old)), _mean_of(new_draws) - _mean_of(old_draws), confidence)


def improvement_interval(first: Scores, second: Scores, *, confidence: float = _CONFIDENCE) -> Interval:
    """The probability of improvement from `first` to `second`, and its bootstrap interval."""
    old, new = _paired(first, second)
    old_draws, new_draws = _resampled(old, new)
    value = probability_of_improvement(first, second)
    return _interval(value, _improvement(old_draws, new_draws), confidence)


def profile_band(
    scores: Scores, thresholds: Sequence[float] | Floats, *, confidence: float = _CONFIDENCE
) -> ProfileBand:
    """The performance profile, and its bootstrap band."""
    edges = np.asarray(thresholds, np.float64)
    (draws,) = _resampled(_tasks(scores))
    shares = np.mean(
        [np.stack([np.mean(task > edge, axis=1) for edge in edges], axis=1) for task in draws], axis=0
    )  # repetitions x thresholds
    low, high = _percentiles(shares, confidence)
    share = performance_profile(scores, edges)
    return ProfileBand(edges.tolist(), share.tolist(), low.tolist(), high.tolist())


def permutation_test(first: Scores, second: Scores) -> float:
    """The p-value of the difference of two means: how often a random split of the same runs differs as much.

    It makes no assumption about the distribution of scores: if both groups are from one training, the p-value is at
    most 0.05 in at most 5 % of comparisons. With one task and at most 200,000 splits, as of 10 and 10 runs, all of them
    are counted; otherwise 20,000 random ones, split within each task.
    """
    old, new = _paired(first, second)
    observed = float(_mean_of(new) - _mean_of(old))
    pooled = [np.concatenate(pair) for pair in zip(old, new, strict=True)]
    sizes = [len(scores) for scores in old]
    # Equal differences may differ in their last bits, depending on the order of the sum.
    least = abs(observed) - 1e-9 * max(float(np.max(np.abs(scores))) for scores in pooled)
    if len(pooled) == 1 and _can_count_splits(len(pooled[0]), sizes[0]):
        differences = _all_differences(pooled[0], sizes[0])
        return float(np.mean(np.abs(differences) >= least))
    rng = np.random.default_rng(0)
    total = np.zeros(_PERMUTATIONS)
    for scores, size in zip(pooled, sizes, strict=True):
        total += _random_differences(scores, size, rng)
    as_large = int(np.count_nonzero(np.abs(total / len(pooled)) >= least))
    return (as_large + 1) / (_PERMUTATIONS + 1)  # the observed split is one of them


def holm(p_values: Sequence[float], *, tests: int | None = None) -> list[float]:
    """P-values of several tests, adjusted so that all of them together keep their level (Holm, 1979).

    If these are only some of the tests, because the results chose them, pass the number of all `tests`.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    tests = len(p_values) if tests is None else tests
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, p_values[place] * (tests - rank)))
        adjusted[place] = largest
    return adjusted


def _tasks(scores: Scores) -> list[Floats]:
    """The scores of each task."""
    rows: Sequence[Any] = cast("Sequence[Any]", scores)
    try:
        is_nested = len(rows) > 0 and np.ndim(rows[0]) == 1
        tasks = [np.asarray(task, np.float64) for task in (rows if is_nested else [rows])]
    except (TypeError, ValueError) as error:
        raise InputError(f"scores are one number per run, or a list of these for each task: {error}") from None
    if any(task.ndim != 1 or not len(task) for task in tasks):
        raise InputError("scores are one number per run, or a list of these for each task; a task has no scores")
    if not all(np.isfinite(task).all() for task in tasks):
        raise InputError("a score is not finite: leave that run out, or give it the lowest possible score")
    return tasks


def _paired(first: Scores, second: Scores) -> tuple[list[Floats], list[Floats]]:
    old, new = _tasks(first), _tasks(second)
    if len(old) != len(new):
        raise InputError(f"the groups have scores of {len(old)} and {len(new)} tasks: they must be the same tasks")
    return old, new


def _trimmed(scores: Floats) -> Floats:
    count = scores.shape[-1]
    cut = count // 4
    return np.sort(scores, axis=-1)[..., cut : count - cut].mean(axis=-1)


def _mean_of(tasks: Sequence[Floats]) -> Floats:
    return np.mean([task.mean(axis=-1) for task in tasks], axis=0)


def _above(task: Floats, edges: Floats) -> Floats:
    return 1 - np.searchsorted(np.sort(task), edges, side="right") / len(task)


def _improvement(old: Sequence[Floats], new: Sequence[Floats]) -> Floats:
    """For each row, the share of pairs in which `new` is better, the mean over tasks."""
    total = np.zeros(len(old[0]))
    for before, after in zip(old, new, strict=True):
        piece = max(1, _PIECE // (before.shape[1] * after.shape[1]))
        for start in range(0, len(total), piece):
            rows = slice(start, start + piece)
            difference = after[rows, :, None] - before[rows, None, :]
            total[rows] += (difference > 0).mean(axis=(1, 2)) + 0.5 * (difference == 0).mean(axis=(1, 2))
    return total / len(old)


def _resampled(*groups: Sequence[Floats]) -> list[list[Floats]]:
    """For each group and task, samples of its runs with replacement: one row for each repetition."""
    rng = np.random.default_rng(0)
    return [[task[rng.integers(len(task), size=(_REPETITIONS, len(task)))] for task in tasks] for tasks in groups]


def _interval(value: float, draws: Floats, confidence: float) -> Interval:
    low, high = _percentiles(draws, confidence)
    return Interval(value, float(low), float(high))


def _percentiles(draws: Floats, confidence: float) -> Floats:
    if not 0 < confidence < 1:
        raise InputError(f"confidence is {confidence}: use a number between 0 and 1")
    return np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)


def _can_count_splits(count: int, size: int) -> bool:
    """Whether all splits of this many runs are counted; large binomials are not computed."""
    fewer = min(size, count - size)
    return count <= _MOST_EXACT and fewer <= _MOST_EXACT_RUNS and math.comb(count, fewer) <= _MOST_EXACT


def _all_differences(scores: Floats, size: int) -> Floats:
    """The difference of means, except for its sign, of every split into `size` scores and the rest."""
    fewer = min(size, len(scores) - size)
    return _differences(scores, scores[_splits(len(scores), fewer)].sum(axis=1), fewer)


@functools.lru_cache(maxsize=1)  # the same for all pairs of groups of equal sizes
def _splits(count: int, size: int) -> NDArray[np.uint32]:
    rows = math.comb(count, size)
    flat = itertools.chain.from_iterable(itertools.combinations(range(count), size))
    return np.fromiter(flat, np.uint32, count=rows * size).reshape(rows, size)


def _random_differences(scores: Floats, size: int, rng: np.random.Generator) -> Floats:
    sums: list[Floats] = []
    piece = max(1, _PIECE // len(scores))
    for start in range(0, _PERMUTATIONS, piece):
        rows = min(piece, _PERMUTATIONS - start)
        order: Callable[..., Floats] = rng.permuted
        sums.append(order(np.broadcast_to(scores, (rows, len(scores))), axis=1)[:, :size].sum(axis=1))
    return _differences(scores, np.concatenate(sums), size)


def _differences(scores: Floats, sums: Floats, size: int) -> Floats:
    return (scores.sum() - sums) / (len(scores) - size) - sums / size

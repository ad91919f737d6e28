"""Whether groups of runs differ by more than noise."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from rekindle.stats.inference import Floats, Interval, difference_interval, holm, improvement_interval, permutation_test

__all__ = ["Difference", "LEVEL", "compare_groups", "count_comparisons"]

LEVEL = 0.05
"""The share of comparisons of equal trainings in which a difference may be found."""
_MOST_GROUPS = 8
"""Up to this many groups, all pairs are compared; of more, each with the best."""
_ENOUGH_RUNS = 4
"""From this many runs on, two groups of equal size can differ by more than noise."""


class Difference(msgspec.Struct, frozen=True):
    """The difference of the scores of two groups of runs."""

    first: str
    second: str
    difference: Interval
    """The mean score of the second group minus that of the first."""
    improvement: Interval
    """How likely a run of the second group is better than one of the first."""
    p_value: float
    """Of a permutation test, adjusted for the number of pairs that have enough runs (Holm)."""
    verdict: Literal["better", "worse", "noise", "too few runs"]
    """Whether the second group is better or worse by more than noise."""

    @property
    def differs(self) -> bool:
        """Whether the difference is more than noise."""
        return self.verdict in ("better", "worse")


def compare_groups(groups: Mapping[str, Sequence[float] | Floats]) -> list[Difference]:
    """Compare the scores of each pair of groups; all verdicts together are wrong about equal groups in 5 % of cases.

    More than 8 groups are each compared with the one of the highest mean, among those of at least 4 runs if there are
    any.

    >>> (found,) = compare_groups({"a": [1.0, 2.0, 3.0, 4.0], "b": [7.0, 8.0, 9.0, 11.0]})
    >>> found.verdict, round(found.p_value, 3)
    ('better', 0.029)
    """
    known = {label: [float(score) for score in scores] for label, scores in groups.items() if len(scores)}
    pairs = list(itertools.combinations(known, 2))
    if len(known) > _MOST_GROUPS:
        best = _best(known)
        pairs = [(label, best) for label in known if label != best]
    p_values = {pair: permutation_test(known[pair[0]], known[pair[1]]) for pair in pairs}
    able = [pair for pair in pairs if _can_differ(len(known[pair[0]]), len(known[pair[1]]))]
    # The best group was chosen by its scores, so all pairs count, also those that are not compared.
    tests = count_comparisons(known)
    p_values |= zip(able, holm([p_values[pair] for pair in able], tests=tests), strict=True)
    return [
        _difference(first, second, known[first], known[second], p_values[first, second], tests)
        for first, second in pairs
    ]


def count_comparisons(groups: Mapping[str, Sequence[float] | Floats]) -> int:
    """The number of comparisons that p-values are adjusted for: the pairs of groups that have enough runs to differ.

    >>> count_comparisons({"a": [1.0] * 5, "b": [2.0] * 5, "c": [3.0] * 5, "one run": [4.0]})
    3
    """
    sizes = sorted(Counter(len(scores) for scores in groups.values() if len(scores)).items())
    same = sum(math.comb(count, 2) for size, count in sizes if _can_differ(size, size))
    pairs = itertools.combinations(sizes, 2)
    return same + sum(count * more for (size, count), (other, more) in pairs if _can_differ(size, other))


def _best(groups: Mapping[str, Sequence[float]]) -> str:
    """The group of the highest mean; a group of few runs only if all are, because nothing can differ from it."""
    enough = [label for label, scores in groups.items() if len(scores) >= _ENOUGH_RUNS] or list(groups)
    return max(enough, key=lambda label: math.fsum(groups[label]) / len(groups[label]))


def _difference(first: str, second: str, old: list[float], new: list[float], p_value: float, tests: int) -> Difference:
    difference = difference_interval(old, new)
    verdict = "noise"
    if not _can_differ(len(old), len(new)):
        verdict = "too few runs"
    elif p_value <= LEVEL:
        verdict = "better" if difference.value > 0 else "worse"
    elif _least_p_value(len(old), len(new)) * tests > LEVEL:
        verdict = "too few runs"
    return Difference(first, second, difference, improvement_interval(old, new), p_value, verdict)


def _can_differ(first: int, second: int) -> bool:
    """Whether any difference between groups of this many runs could be more than noise."""
    return _least_p_value(first, second) <= LEVEL


def _least_p_value(first: int, second: int) -> float:
    """The p-value of groups that do not overlap at all; the mirror image of a split into halves is as extreme."""
    return (2 if first == second else 1) / math.comb(first + second, first)

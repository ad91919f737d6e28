"""Whether groups of runs differ by more than noise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from rekindle.stats.inference import Floats, Interval, difference_interval, holm, improvement_interval, permutation_test

__all__ = ["Difference", "LEVEL", "compare_groups"]

LEVEL = 0.05
"""The share of comparisons of equal trainings in which a difference may be found."""
_MOST_GROUPS = 8
"""Up to this many groups, all pairs are compared; of more, each with the one of the highest mean."""


class Difference(msgspec.Struct, frozen=True):
    """The difference of the scores of two groups of runs."""

    first: str
    second: str
    difference: Interval
    """The mean score of the second group minus that of the first."""
    improvement: Interval
    """How likely a run of the second group is better than one of the first."""
    p_value: float
    """Of a permutation test, adjusted for the number of pairs (Holm)."""
    verdict: Literal["better", "worse", "noise", "too few runs"]
    """Whether the second group is better or worse by more than noise."""

    @property
    def differs(self) -> bool:
        """Whether the difference is more than noise."""
        return self.verdict in ("better", "worse")


def compare_groups(groups: Mapping[str, Sequence[float] | Floats]) -> list[Difference]:
    """Compare the scores of each pair of groups; all verdicts together are wrong about equal groups in 5 % of cases.

    >>> (found,) = compare_groups({"a": [1.0, 2.0, 3.0, 4.0], "b": [7.0, 8.0, 9.0, 11.0]})
    >>> found.verdict, round(found.p_value, 3)
    ('better', 0.029)
    """
    known = {label: [float(score) for score in scores] for label, scores in groups.items() if len(scores)}
    pairs = list(itertools.combinations(known, 2))
    if len(known) > _MOST_GROUPS:
        best = max(known, key=lambda label: math.fsum(known[label]) / len(known[label]))
        pairs = [(label, best) for label in known if label != best]
    p_values = holm([permutation_test(known[first], known[second]) for first, second in pairs])
    return [
        _difference(first, second, known[first], known[second], p_value, len(pairs))
        for (first, second), p_value in zip(pairs, p_values, strict=True)
    ]


def _difference(first: str, second: str, old: list[float], new: list[float], p_value: float, pairs: int) -> Difference:
    difference = difference_interval(old, new)
    verdict = "noise"
    if p_value <= LEVEL:
        verdict = "better" if difference.value > 0 else "worse"
    elif _least_p_value(len(old), len(new)) * pairs > LEVEL:
        verdict = "too few runs"
    return Difference(first, second, difference, improvement_interval(old, new), p_value, verdict)


def _least_p_value(first: int, second: int) -> float:
    """The p-value of groups that do not overlap at all; the mirror image of a split into halves is as extreme."""
    return (2 if first == second else 1) / math.comb(first + second, first)

"""Trials: their results, which are better, and when one is worse than the median."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

__all__ = ["Trial", "TrialStatus", "best_trial", "medians", "ranked"]

TrialStatus = Literal["running", "complete", "pruned", "failed"]
_LEAST_TRIALS = 4
"""Trials that a median needs."""


class Trial(msgspec.Struct, frozen=True):
    """One proposal of settings, and the results of its runs."""

    number: int
    settings: dict[str, Any]
    status: TrialStatus = "running"
    value: float | None = None
    """The mean score over seeds of a complete trial; None for others."""
    scores: tuple[float, ...] = ()
    """The score for each seed: at the end, or where it was pruned."""
    rungs: tuple[float, ...] = ()
    """The mean score over seeds at each evaluation where it could be pruned."""
    reason: str | None = None
    """Why it failed or was pruned."""


def ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Ended trials, the best first: complete ones by value, then pruned ones by how far they came, then failed ones."""
    return sorted((trial for trial in trials if trial.status != "running"), key=_rank)


def _rank(trial: Trial) -> tuple[float, ...]:
    if trial.value is not None:
        return (0, 0, -trial.value, trial.number)
    if trial.status == "pruned" and trial.rungs:
        return (1, -len(trial.rungs), -trial.rungs[-1], trial.number)
    return (2, 0, 0, trial.number)


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """The complete trial of the highest value; the first of equal ones."""
    complete = [trial for trial in trials if trial.value is not None]
    return min(complete, key=_rank) if complete else None


def medians(trials: Sequence[Trial], rungs: int) -> Mapping[int, float]:
    """The median of the trials at each rung that enough of them have reached."""
    found: dict[int, float] = {}
    for rung in range(rungs):
        scores = [trial.rungs[rung] for trial in trials if len(trial.rungs) > rung]
        if len(scores) >= _LEAST_TRIALS:
            found[rung] = statistics.median(scores)
    return found

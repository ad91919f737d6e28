"""How much each setting of a study matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.sweep.space import Choice, Parameter, Space
from rekindle.sweep.trials import Trial

__all__ = ["importance"]

_LEAST_TRIALS = 8
_IN_BIN = 4
"""Trials in a bin of a number, at least."""
_MOST_BINS = 6


def importance(space: Space, trials: Sequence[Trial]) -> dict[str, float]:
    """The share of the differences between complete trials that each setting explains by itself, from 0 to 1.

    It is epsilon squared of a one-way analysis of variance over the ranks of the trials: the variance between the
    values of a choice, or between bins of a number, without what chance alone explains. Interactions are not seen.
    Empty if there are fewer than 8 complete trials.
    """
    complete = [trial for trial in trials if trial.value is not None and _fits(space, trial)]
    if len(complete) < _LEAST_TRIALS:
        return {}
    ranks = _ranks(np.array([trial.value for trial in complete], np.float64))
    return {
        name: _explained(ranks, _groups(parameter, [trial.settings.get(name) for trial in complete]))
        for name, parameter in space.items()
    }


def _fits(space: Space, trial: Trial) -> bool:
    """Whether a trial has a valid value of each setting; the log may have been edited."""
    try:
        for name, parameter in space.items():
            value = trial.settings[name]
            parameter.index(value) if isinstance(parameter, Choice) else parameter.unit(value)
    except (LookupError, TypeError, ValueError, OverflowError):
        return False
    return True


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 0; equal values share the mean of theirs."""
    ordered = np.sort(values)
    return (np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") - 1) / 2


def _groups(parameter: Parameter, values: Sequence[Any]) -> NDArray[np.intp]:
    if isinstance(parameter, Choice):
        return np.array([parameter.index(value) for value in values])
    places = np.argsort(np.argsort([parameter.unit(value) for value in values], kind="stable"))
    bins = max(2, min(_MOST_BINS, len(values) // _IN_BIN))
    return places * bins // len(values)


def _explained(ranks: NDArray[np.float64], groups: NDArray[np.intp]) -> float:
    total = float(np.sum((ranks - ranks.mean()) ** 2))
    members = [ranks[groups == group] for group in np.unique(groups)]
    rest = len(ranks) - len(members)
    if total == 0 or rest < 1:
        return 0.0
    within = sum(float(np.sum((member - member.mean()) ** 2)) for member in members)
    chance = (len(members) - 1) * within / rest
    return max(0.0, (total - within - chance) / total)

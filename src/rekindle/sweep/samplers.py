"""Samplers propose the settings of a trial: at random, or from the results of earlier trials (TPE).

A proposal depends only on the seed of the study, the number of the trial and the earlier trials that are passed, so
it is the same whenever it is made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rekindle.sweep.space import Choice, Parameter, Space

__all__ = ["SAMPLERS", "SamplerName", "propose"]

SamplerName = Literal["tpe", "random"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
Settings = Mapping[str, Any]
Floats = NDArray[np.float64]

_FIRST = 10
"""Trials at random, before TPE begins."""
_GOOD = 0.15
"""The share of trials that count as good."""
_CANDIDATES = 32
_WIDTH = 0.2
"""The width of a kernel around one trial, as a share of the range; more trials make it narrower."""
_KINDS_WIDTH = 0.6
"""Likewise for choices: how likely a kernel draws another value."""
_NORMAL = NormalDist()


def propose(
    sampler: SamplerName,
    space: Space,
    number: int,
    *,
    seed: int,
    ranked: Sequence[Settings],
    pending: Sequence[Settings],
) -> dict[str, Any]:
    """The settings of a trial.

    Args:
        sampler: how to draw them.
        space: what is varied.
        number: the number of the trial.
        seed: the seed of the study.
        ranked: the settings of earlier trials, the best first.
        pending: the settings of trials whose results are not known yet; TPE stays away from them.
    """
    rng = np.random.default_rng([seed, number])
    if sampler == "random" or len(ranked) < _FIRST:
        units = rng.random(len(space))
        return {name: _drawn(parameter, unit) for (name, parameter), unit in zip(space.items(), units, strict=True)}
    good = math.ceil(_GOOD * len(ranked))
    better = _Density(space, ranked[:good])
    worse = _Density(space, [*ranked[good:], *pending])
    candidates = better.sample(rng, _CANDIDATES)
    best = int(np.argmax(better.log(candidates) - worse.log(candidates)))
    row = candidates[best]
    return {
        name: parameter.choice[int(place)] if isinstance(parameter, Choice) else parameter.value(float(place))
        for (name, parameter), place in zip(space.items(), row, strict=True)
    }


def _drawn(parameter: Parameter, unit: float) -> Any:
    if isinstance(parameter, Choice):
        return parameter.choice[min(int(unit * len(parameter.choice)), len(parameter.choice) - 1)]
    return parameter.value(float(unit))


class _Density:
    """A mixture over the space: one kernel around each trial, and a uniform one."""

    def __init__(self, space: Space, trials: Sequence[Settings]) -> None:
        self._parameters = list(space.values())
        self._centres = np.array(
            [[_place(parameter, trial[name]) for name, parameter in space.items()] for trial in trials], np.float64
        ).reshape(len(trials), len(space))
        # Scott's rule for the number of trials and dimensions.
        self._shrink = max(1, len(trials)) ** (-1 / (len(space) + 4))

    def sample(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw rows: the place of a number from 0 to 1, and the index of a choice."""
        rows = np.empty((count, len(self._parameters)))
        for row in rows:
            which = int(rng.integers(len(self._centres) + 1))
            for column, parameter in enumerate(self._parameters):
                unit = float(rng.random())
                centre = None if which == len(self._centres) else float(self._centres[which, column])
                row[column] = self._draw(parameter, centre, unit)
        return rows

    def _draw(self, parameter: Parameter, centre: float | None, unit: float) -> float:
        if isinstance(parameter, Choice):
            shares = self._shares(len(parameter.choice), centre)
            place = int(np.count_nonzero(np.cumsum(shares) <= unit * shares.sum()))
            return float(min(place, len(shares) - 1))
        if centre is None:
            return unit
        # The inverse of the distribution function of a normal distribution, cut to 0 and 1.
        width = _WIDTH * self._shrink
        low, high = _NORMAL.cdf(-centre / width), _NORMAL.cdf((1 - centre) / width)
        probability = min(max(low + unit * (high - low), 1e-12), 1 - 1e-12)
        return min(max(centre + width * _NORMAL.inv_cdf(probability), 0.0), 1.0)

    def _shares(self, count: int, centre: float | None) -> Floats:
        if centre is None:
            return np.full(count, 1 / count)
        other = _KINDS_WIDTH * self._shrink / count
        shares = np.full(count, other)
        shares[int(centre)] = 1 - (count - 1) * other
        return shares

    def log(self, rows: Floats) -> Floats:
        """The logarithm of the density at each row."""
        total = np.zeros((len(rows), len(self._centres) + 1))
        width = _WIDTH * self._shrink
        for column, parameter in enumerate(self._parameters):
            places, centres = rows[:, column], self._centres[:, column]
            if isinstance(parameter, Choice):
                count = len(parameter.choice)
                table = np.array([self._shares(count, centre) for centre in range(count)])
                total[:, :-1] += np.log(table[centres.astype(int)][:, places.astype(int)].T)
                total[:, -1] += math.log(1 / count)
                continue
            inside = np.array([_NORMAL.cdf((1 - centre) / width) - _NORMAL.cdf(-centre / width) for centre in centres])
            distance = (places[:, None] - centres[None]) / width
            total[:, :-1] += -0.5 * distance**2 - np.log(math.sqrt(2 * math.pi) * width * inside)
        highest = total.max(axis=1, keepdims=True)
        return highest[:, 0] + np.log(np.exp(total - highest).sum(axis=1)) - math.log(total.shape[1])


def _place(parameter: Parameter, value: Any) -> float:
    return float(parameter.index(value)) if isinstance(parameter, Choice) else parameter.unit(value)

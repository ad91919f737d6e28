"""The scale of an axis: its ticks and their labels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from rekindle.run.curve import Points

__all__ = ["labelled", "step_label", "ticks", "value_label", "value_range"]

_BAND_SHARE = 0.5
"""How much of the height single extreme values may add on each side."""


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values between two limits, at most `most` of them.

    >>> ticks(0, 1.04, 5)
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    if most < 1 or not low < high:
        return []
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    for step in (unit, 2 * unit, 2.5 * unit, 5 * unit, 10 * unit, 20 * unit):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            return [number * step for number in range(first, last + 1)]
    return []


def labelled(values: list[float], label: Callable[[float, float], str]) -> list[tuple[float, str]]:
    """The ticks of an axis with their labels, which have enough digits to differ.

    >>> labelled([1_000_000.0, 1_000_100.0], step_label)
    [(1000000.0, '1M'), (1000100.0, '1.0001M')]
    """
    spacing = values[1] - values[0] if len(values) > 1 else 0.0
    return [(value, label(value, spacing)) for value in values]


def value_label(value: float, spacing: float = 0.0) -> str:
    """A value in a few characters: 0.25, 1500, 12.5k, 1.2e-05."""
    size = abs(value)
    if not value:
        return "0"
    digits = _digits(value, spacing)
    if size >= 1e9 or size < 1e-3:
        mantissa, _, exponent = f"{value:.{max(2, digits - 1)}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1e4:
        return step_label(value, spacing)
    return f"{value:.{max(digits, 6 if size >= 1000 else 4)}g}"


def step_label(value: float, spacing: float = 0.0) -> str:
    """A number of env steps in a few characters: 950, 12.5k, 1.5M."""
    digits = max(4, _digits(value, spacing))
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{unit}"
    return f"{value:.{digits}g}"


def _digits(value: float, spacing: float) -> int:
    """How many digits tell a value from the next tick: up to the second digit of the spacing, as in 2.5."""
    if not value or spacing <= 0:
        return 0
    return min(15, math.floor(math.log10(abs(value))) - math.floor(math.log10(spacing)) + 2)


def value_range(lines: list[Points]) -> tuple[float, float]:
    """The range of an axis: every mean, and single values that are not too far outside."""
    lines = [points for points in lines if len(points.steps)]
    if not lines:
        return 0.0, 1.0
    low, high = min(points.means.min() for points in lines), max(points.means.max() for points in lines)
    room = _BAND_SHARE * (high - low) if high > low else math.inf
    low, high = (
        max(low - room, min(points.least.min() for points in lines)),
        min(high + room, max(points.greatest.max() for points in lines)),
    )
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = 0.1 * abs(high) or 1.0
        low, high = low - margin, high + margin
    return float(np.clip(low, -1e300, 1e300)), float(np.clip(high, -1e300, 1e300))

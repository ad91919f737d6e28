"""The scale of an axis: its ticks and their labels."""

from __future__ import annotations

import math

import numpy as np

from rekindle.run.curve import Points

__all__ = ["step_label", "ticks", "value_label", "value_range"]

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


def value_label(value: float) -> str:
    """A value in a few characters: 0.25, 1500, 12.5k, 1.2e-05."""
    size = abs(value)
    if size < 1e-12:
        return "0"
    if size >= 1e9 or size < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    if size >= 1e4:
        return step_label(value)
    return f"{value:.6g}" if size >= 1000 else f"{value:.4g}"


def step_label(value: float) -> str:
    """A number of env steps in a few characters: 950, 12.5k, 1.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


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

"""The network of the MinAtar paper (Young 2019), for images of few pixels: less than half the time of the usual one."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from rekindle.agents.encoders import Conv, Flatten, Rectified
from rekindle.agents.networks import Activation, Dense, Sequential, uniform_fan_in

__all__ = ["small_network"]

_FILTERS, _SIZE, _UNITS = 16, 3, 128


def small_network(shape: tuple[int, int, int], *, key: Any) -> Sequential:
    """16 convolutions of 3 x 3, and a hidden layer of 128 units; `shape` is channels, rows and columns."""
    channels, rows, columns = shape
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    numbers = _FILTERS * (rows - _SIZE + 1) * (columns - _SIZE + 1)
    return Sequential(
        [
            Conv(channels, _FILTERS, _SIZE, 1, rng=rng, weight=uniform_fan_in, is_first=True),
            Rectified(),
            Flatten(),
            Dense(numbers, _UNITS, rng=rng),
            Activation("relu"),
        ]
    )

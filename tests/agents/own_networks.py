"""A network as users write their own."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np


class Wide(eqx.Module):
    """One linear layer."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], *, key: Any) -> None:
        self.layer = eqx.nn.Linear(int(np.prod(shape)), 16, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.layer(x.ravel()))

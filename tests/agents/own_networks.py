"""A network as users write their own."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np

from rekindle.agents import equinox_layers
from rekindle.policy import Layer


class Wide(eqx.Module):
    """One linear layer."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], *, key: Any) -> None:
        self.layer = eqx.nn.Linear(int(np.prod(shape)), 16, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.layer(x.ravel()))


class WithLayers(eqx.Module):
    """Two parts, which it says how to run without JAX."""

    first: eqx.nn.Linear
    second: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], *, key: Any) -> None:
        keys = jax.random.split(key)
        self.first = eqx.nn.Linear(shape[0], 16, key=keys[0])
        self.second = eqx.nn.Linear(16, 8, key=keys[1])

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.tanh(self.second(jax.nn.relu(self.first(x))))

    def layers(self) -> list[Layer]:
        relu, tanh = (Layer("activation", name=name) for name in ("relu", "tanh"))
        return [*equinox_layers(self.first), relu, *equinox_layers(self.second), tanh]

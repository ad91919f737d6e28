"""Running means and variances, which change only when an agent learns."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State
from rekindle.agents.counting import saved_count
from rekindle.errors import StateError
from rekindle.experience import Array
from rekindle.policy import Normaliser

__all__ = ["Moments", "RunningMoments", "moments_of", "normalise"]

Moments = tuple[Any, Any, Any]
"""Mean, variance, and where to clip."""


class RunningMoments:
    """The mean and variance of everything added, ready for use from the next `publish` on."""

    def __init__(self, size: int, *, clip: float) -> None:
        self.clip = clip
        self._count = 0
        self._mean: NDArray[np.float64] = np.zeros(size)
        self._squares: NDArray[np.float64] = np.zeros(size)
        """The sum of squared distances from the mean."""
        self.published = Normaliser(np.zeros(size, np.float32), np.ones(size, np.float32), clip)
        """What to normalise with."""

    def add(self, values: Array) -> None:
        """Count rows in; nothing changes for those who normalise until `publish`."""
        rows = values.astype(np.float64)
        count, mean = len(rows), rows.mean(axis=0)
        total, shift = self._count + count, mean - self._mean
        self._squares += np.square(rows - mean).sum(axis=0) + np.square(shift) * (self._count * count / total)
        self._mean = self._mean + shift * (count / total)
        self._count = total

    def publish(self) -> None:
        """Normalise with all that was added so far."""
        if self._count:
            variance = (self._squares / self._count).astype(np.float32)
            self.published = Normaliser(self._mean.astype(np.float32), variance, self.clip)

    def weights(self) -> State:
        """What a policy needs."""
        return {"mean": self.published.mean, "variance": self.published.variance}

    def state(self) -> State:
        """What is counted."""
        return {"count": self._count, "mean": self._mean.copy(), "squares": self._squares.copy()}

    def load_weights(self, weights: Any) -> None:
        """Normalise with what was published elsewhere, until the next `publish` that has counted anything."""
        self.published = self._checked(weights)

    def loaded(self, state: Any, weights: Any) -> RunningMoments:
        """One that goes on with what was counted and what was published; raises `StateError` if it does not fit."""
        size = len(self._mean)
        loaded = RunningMoments(size, clip=self.clip)
        loaded._mean, loaded._squares = (_vector(state, name, size, np.float64) for name in ("mean", "squares"))
        loaded._count = saved_count(state, "count")
        loaded.published = self._checked(weights)
        return loaded

    def _checked(self, weights: Any) -> Normaliser:
        mean, variance = (_vector(weights, name, len(self._mean), np.float32) for name in ("mean", "variance"))
        return Normaliser(mean, variance, self.clip)


def _vector(state: Any, name: str, size: int, dtype: Any) -> Array:
    value = cast("State", state).get(name) if isinstance(state, dict) else None
    if not isinstance(value, np.ndarray) or value.shape != (size,) or value.dtype != dtype:
        raise StateError(f"the normaliser's {name} is not a vector of {size} numbers")
    if not np.isfinite(value).all():
        raise StateError(f"the normaliser's {name} holds NaN or infinity")
    return value.copy()


def normalise(encoded: jax.Array, moments: Moments | None) -> jax.Array:
    """`Normaliser.apply`, for use inside a compiled function."""
    if moments is None:
        return encoded
    mean, variance, clip = moments
    return jnp.clip((encoded - mean) / jnp.sqrt(variance + 1e-8), -clip, clip)


def moments_of(normaliser: Normaliser | None) -> Moments | None:
    """A normaliser in the form that a compiled function takes."""
    return None if normaliser is None else (normaliser.mean, normaliser.variance, np.float32(normaliser.clip))

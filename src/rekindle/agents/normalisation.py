"""Running statistics for normalising observations and rewards; normalisation changes only when the agent learns."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from typing import Annotated, Any, cast

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State, StreamSlots
from rekindle.agents.configs import AgentConfig
from rekindle.agents.counting import saved_count
from rekindle.checks import refuses_misfits
from rekindle.errors import StateError
from rekindle.experience import Array
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Normaliser

__all__ = ["Moments", "ReturnScale", "RunningMoments", "moments_of", "normalise", "observation_moments"]

Moments = tuple[Any, Any, Any]
"""Mean, variance, and the clipping bound."""


class RunningMoments:
    """The running mean and variance of the rows added. Normalisation uses them from the next `publish` on."""

    def __init__(self, size: int, *, clip: float) -> None:
        self.clip = clip
        self._count = 0
        self._mean: NDArray[np.float64] = np.zeros(size)
        self._squares: NDArray[np.float64] = np.zeros(size)
        """The sum of squared deviations from the mean."""
        self.published = Normaliser(np.zeros(size, np.float32), np.ones(size, np.float32), clip)
        """The normaliser in use."""

    @property
    def count(self) -> int:
        """The number of rows added."""
        return self._count

    def add(self, values: Array) -> None:
        """Add rows to the statistics; the published normaliser does not change."""
        rows = values.astype(np.float64)
        count, mean = len(rows), rows.mean(axis=0)
        total, shift = self._count + count, mean - self._mean
        self._squares += np.square(rows - mean).sum(axis=0) + np.square(shift) * (self._count * count / total)
        self._mean = self._mean + shift * (count / total)
        self._count = total

    def publish(self) -> None:
        """Normalise with the statistics so far from now on."""
        if self._count:
            variance = (self._squares / self._count).astype(np.float32)
            self.published = Normaliser(self._mean.astype(np.float32), variance, self.clip)

    def preview(self, rows: Array) -> bool:
        """Normalise with these rows for now, if none were added yet and these would be clipped; returns whether."""
        if self._count or np.abs(rows).max(initial=0) <= self.clip:
            return False
        first = RunningMoments(len(self._mean), clip=self.clip)
        first.add(rows)
        first.publish()
        self.published = first.published
        return True

    def weights(self) -> State:
        """The published mean and variance, for a policy."""
        return {"mean": self.published.mean, "variance": self.published.variance}

    def state(self) -> State:
        """The statistics, as saved."""
        return {"count": self._count, "mean": self._mean.copy(), "squares": self._squares.copy()}

    def load_weights(self, weights: Any) -> None:
        """Normalise with another agent's published values, until the next `publish` with rows of its own."""
        self.published = self.normaliser(weights)

    def loaded(self, state: Any, weights: Any) -> RunningMoments:
        """Moments that continue from a saved state and published values; raises `StateError` if they do not fit."""
        size = len(self._mean)
        loaded = RunningMoments(size, clip=self.clip)
        loaded._mean, loaded._squares = (_vector(state, name, size, np.float64) for name in ("mean", "squares"))
        loaded._count = saved_count(state, "count")
        loaded.published = self.normaliser(weights)
        return loaded

    def normaliser(self, weights: Any) -> Normaliser:
        """The normaliser with published values; raises `StateError` if they do not fit."""
        mean, variance = (_vector(weights, name, len(self._mean), np.float32) for name in ("mean", "variance"))
        return Normaliser(mean, variance, self.clip)


def observation_moments(encoding: Encoding, config: AgentConfig) -> RunningMoments | None:
    """Moments for the vector part of encoded observations; None unless `normalise_observations` is set."""
    return RunningMoments(encoding.vector_size, clip=config.observation_clip) if config.normalise_observations else None


class ReturnScale:
    """The running standard deviation of the discounted return. `apply` uses it from the next `publish` on.

    Rewards are divided by it; no mean is subtracted, so that rewards keep their sign.
    """

    def __init__(self, gamma: float, *, clip: float) -> None:
        self._gamma, self._clip = gamma, clip
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._open: dict[int, float] = {}
        """The discounted return of each stream's open episode so far."""
        self.published = 1.0

    def add(self, rewards: Array, statuses: Array, streams: StreamSlots) -> None:
        """Add transitions; the discounted return restarts at 0 after every end of an episode."""
        for reward, status, stream in zip(rewards.tolist(), statuses.tolist(), streams.tolist(), strict=True):
            total = self._gamma * self._open.pop(stream, 0.0) + reward
            if not status:
                self._open[stream] = total
            self._count += 1
            shift = total - self._mean
            self._mean += shift / self._count
            self._squares += shift * (total - self._mean)

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams."""
        for stream in streams.tolist():
            self._open.pop(stream, None)

    def publish(self) -> None:
        """Scale with the statistics so far from now on."""
        if self._count:
            self.published = math.sqrt(self._squares / self._count + 1e-8)

    def apply(self, rewards: Array) -> Array:
        """Scale and clip rewards."""
        return np.clip(rewards / self.published, -self._clip, self._clip)

    def state(self) -> State:
        """The statistics and the published scale, as saved."""
        return {
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
            "published": self.published,
            "open": [[stream, total] for stream, total in sorted(self._open.items())],
        }

    @refuses_misfits
    def loaded(self, state: Any) -> ReturnScale:
        """A scale that continues from a saved state; raises `StateError`."""
        try:
            saved = msgspec.convert(state, _SavedScale)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a reward normaliser: {error}") from None
        loaded = ReturnScale(self._gamma, clip=self._clip)
        loaded._count, loaded._mean, loaded._squares = saved.count, saved.mean, saved.squares
        loaded.published, loaded._open = saved.published, dict(saved.open)
        return loaded


class _SavedScale(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=0)]
    mean: float
    squares: Annotated[float, msgspec.Meta(ge=0)]
    published: Annotated[float, msgspec.Meta(gt=0)]
    open: list[tuple[int, float]]


def _vector(state: Any, name: str, size: int, dtype: Any) -> Array:
    value = cast("State", state).get(name) if isinstance(state, dict) else None
    if not isinstance(value, np.ndarray) or value.shape != (size,) or value.dtype != dtype:
        raise StateError(f"the normaliser's {name} is not a vector of {size} numbers")
    if not np.isfinite(value).all():
        raise StateError(f"the normaliser's {name} contains NaN or infinity")
    return value.copy()


def normalise(encoded: Any, moments: Moments | None) -> Any:
    """`Normaliser.apply`, for use inside a compiled function."""
    if moments is None:
        return encoded
    if isinstance(encoded, tuple):
        *images, vector = cast("tuple[jax.Array, ...]", encoded)
        return (*images, normalise(vector, moments))
    mean, variance, clip = moments
    return jnp.clip((encoded - mean) / jnp.sqrt(variance + 1e-8), -clip, clip)


def moments_of(normaliser: Normaliser | None) -> Moments | None:
    """A normaliser in the form that a compiled function takes."""
    return None if normaliser is None else (normaliser.mean, normaliser.variance, np.float32(normaliser.clip))

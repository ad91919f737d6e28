"""Running means and variances, which change only when an agent learns."""

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

    @property
    def count(self) -> int:
        """How many rows were added."""
        return self._count

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

    def preview(self, rows: Array) -> bool:
        """Normalise by these rows for now, if nothing was counted yet and they would be clipped; returns whether."""
        if self._count or np.abs(rows).max(initial=0) <= self.clip:
            return False
        first = RunningMoments(len(self._mean), clip=self.clip)
        first.add(rows)
        first.publish()
        self.published = first.published
        return True

    def weights(self) -> State:
        """What a policy needs."""
        return {"mean": self.published.mean, "variance": self.published.variance}

    def state(self) -> State:
        """What is counted."""
        return {"count": self._count, "mean": self._mean.copy(), "squares": self._squares.copy()}

    def load_weights(self, weights: Any) -> None:
        """Normalise with what was published elsewhere, until the next `publish` that has counted anything."""
        self.published = self.normaliser(weights)

    def loaded(self, state: Any, weights: Any) -> RunningMoments:
        """One that goes on with what was counted and what was published; raises `StateError` if it does not fit."""
        size = len(self._mean)
        loaded = RunningMoments(size, clip=self.clip)
        loaded._mean, loaded._squares = (_vector(state, name, size, np.float64) for name in ("mean", "squares"))
        loaded._count = saved_count(state, "count")
        loaded.published = self.normaliser(weights)
        return loaded

    def normaliser(self, weights: Any) -> Normaliser:
        """What was published elsewhere; raises `StateError` if it does not fit."""
        mean, variance = (_vector(weights, name, len(self._mean), np.float32) for name in ("mean", "variance"))
        return Normaliser(mean, variance, self.clip)


def observation_moments(encoding: Encoding, config: AgentConfig) -> RunningMoments | None:
    """For the vector in encoded observations; None if the settings do not ask for it."""
    return RunningMoments(encoding.vector_size, clip=config.observation_clip) if config.normalise_observations else None


class ReturnScale:
    """The standard deviation of the discounted return so far, ready for use from the next `publish` on.

    Rewards are divided by it and nothing is subtracted, so that good stays good and bad stays bad.
    """

    def __init__(self, gamma: float, *, clip: float) -> None:
        self._gamma, self._clip = gamma, clip
        self._count, self._mean, self._squares = 0, 0.0, 0.0
        self._open: dict[int, float] = {}
        """By stream, the discounted return of its open episode so far."""
        self.published = 1.0

    def add(self, rewards: Array, statuses: Array, streams: StreamSlots) -> None:
        """Count transitions in; an episode that ends, for whatever reason, leaves nothing to the next."""
        for reward, status, stream in zip(rewards.tolist(), statuses.tolist(), streams.tolist(), strict=True):
            total = self._gamma * self._open.pop(stream, 0.0) + reward
            if not status:
                self._open[stream] = total
            self._count += 1
            shift = total - self._mean
            self._mean += shift / self._count
            self._squares += shift * (total - self._mean)

    def cut(self, streams: StreamSlots) -> None:
        """The episodes of these streams are over."""
        for stream in streams.tolist():
            self._open.pop(stream, None)

    def publish(self) -> None:
        """Scale with all that was added so far."""
        if self._count:
            self.published = math.sqrt(self._squares / self._count + 1e-8)

    def apply(self, rewards: Array) -> Array:
        """Rewards, scaled and clipped."""
        return np.clip(rewards / self.published, -self._clip, self._clip)

    def state(self) -> State:
        """What is counted, and what is published."""
        return {
            "count": self._count,
            "mean": self._mean,
            "squares": self._squares,
            "published": self.published,
            "open": [[stream, total] for stream, total in sorted(self._open.items())],
        }

    @refuses_misfits
    def loaded(self, state: Any) -> ReturnScale:
        """One that goes on from there; raises `StateError`."""
        try:
            saved = msgspec.convert(state, _SavedScale)
        except msgspec.ValidationError as error:
            raise StateError(f"not a normaliser of rewards: {error}") from None
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
        raise StateError(f"the normaliser's {name} holds NaN or infinity")
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

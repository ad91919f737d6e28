"""Score a rollout with the policies that chose its actions, and track the rollout that is being learned from."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.agents.collecting import Minibatches
from rekindle.agents.counting import saved_count
from rekindle.agents.dispatch import each_array, padded
from rekindle.agents.distributions import Distribution
from rekindle.agents.trees import tree_state
from rekindle.agents.weights import Parts
from rekindle.errors import Interrupted, StateError
from rekindle.experience import Array, EpisodeStatus
from rekindle.interrupt import ShouldStop, never
from rekindle.policy.encoding import Encoded, Encoding, row_count
from rekindle.policy.network import Normaliser
from rekindle.replay.rollout import Steps

__all__ = ["Learning", "Scored", "Scorer", "Version", "explained_variance"]

_MOST, _MOST_IMAGES = 1024, 128
"""Rows of a rollout scored in one dispatch."""
_FEW, _FEW_IMAGES = 64, 16
"""Rows for which there is a smaller dispatch: usually those after the last step of each stream."""


class Version(NamedTuple):
    """A version of the policy: its weights and its normalisation."""

    params: Parts
    normaliser: Normaliser | None

    def seen(self, encoded: Encoded) -> Encoded:
        """Encoded observations, normalised as its network sees them."""
        return encoded if self.normaliser is None else self.normaliser.apply(encoded)


class Scored(NamedTuple):
    """A rollout with log-probabilities and values."""

    encoded: Encoded
    observations: Encoded
    """Normalised as the newest policy sees them."""
    mask: Array | None
    actions: Array
    log_probs: Array
    values: Array
    last_values: Array
    """The value after the last step of each stream; 0 if that step terminated its episode."""


class Scorer:
    """Computes log-probabilities and values of rows, many in one dispatch."""

    def __init__(
        self,
        score: Callable[..., tuple[jax.Array, jax.Array, jax.Array]],
        encoding: Encoding,
        distribution: Distribution,
        *,
        rollout_steps: int,
        device: Any,
    ) -> None:
        """`score` takes parameters and columns of observations, masks and actions, as an `OnPolicyUpdate` does."""
        self._score = jax.jit(score)
        self._encoding, self._distribution, self._device = encoding, distribution, device
        self._most = min(_MOST_IMAGES if encoding.images else _MOST, rollout_steps)
        self._few = min(_FEW_IMAGES if encoding.images else _FEW, self._most)
        self._rollout_steps = rollout_steps

    def warm_up(self, version: Version) -> None:
        """Compile for every number of rows."""
        for rows in (1, self._rollout_steps):
            self.rows(version, self.zeros(rows)["observations"], None, None)

    def rollout(
        self, steps: Steps, acting: Version, previous: Version, version: int, should_stop: ShouldStop
    ) -> Scored:
        """Score a rollout whose actions were chosen by the acting policy, of this version, or by the previous one."""
        encoded, mask = self._encoding.encode(steps.observations), self._encoding.mask(steps.observations)
        actions, observations = self._distribution.flat(steps.actions), acting.seen(encoded)
        log_probs, values = self.rows(acting, observations, mask, actions, should_stop)
        older = np.flatnonzero(steps.versions < version)
        if len(older):
            some, masks, chosen = each_array((encoded, mask, actions), lambda column: column[older])
            log_probs[older], values[older] = self.rows(previous, previous.seen(some), masks, chosen, should_stop)
        last_values = np.zeros(len(steps.last_steps), np.float32)
        continuing = np.flatnonzero(steps.statuses[steps.last_steps] != EpisodeStatus.TERMINATED)
        if len(continuing):
            last = self._encoding.encode(each_array(steps.last_observations, lambda column: column[continuing]))
            _, last_values[continuing] = self.rows(acting, acting.seen(last), None, None, should_stop)
        return Scored(encoded, observations, mask, actions, log_probs, values, last_values)

    def rows(
        self,
        version: Version,
        observations: Encoded,
        mask: Array | None,
        actions: Array | None,
        should_stop: ShouldStop = never,
    ) -> tuple[Array, Array]:
        """Log-probabilities and values of rows; without actions, only the values are valid."""
        count = row_count(observations)
        zeros = self.zeros(count)
        columns = (
            observations,
            zeros["mask"] if mask is None else mask,
            zeros["actions"] if actions is None else actions,
        )
        params = self._on_device(version.params)
        pieces: list[tuple[Array, Array]] = []
        for start in range(0, count, self._most):
            if should_stop():
                raise Interrupted("stopped before the first update of a rollout")
            size = self._few if count - start <= self._few else self._most
            piece = each_array(columns, lambda column: padded(column[start : start + size], size))  # noqa: B023
            log_probs, _, values = self._score(params, *self._on_device(piece))
            pieces.append((np.asarray(log_probs), np.asarray(values)))
        log_probs, values = (np.concatenate(parts)[:count] for parts in zip(*pieces, strict=True))
        return log_probs, values

    def zeros(self, rows: int) -> dict[str, Any]:
        """The columns of a rollout with this many rows, all zero."""
        encoding = self._encoding
        return {
            "observations": encoding.zeros(rows),
            "mask": np.zeros((rows, encoding.mask_size), np.bool_) if encoding.mask_size else None,
            "actions": self._distribution.zeros(rows),
            "numbers": np.zeros((rows, 4), np.float32),
        }

    def _on_device(self, arrays: Any) -> Any:
        """Move arrays to the device of the setting; without one, the compiled function moves them, which is faster."""
        return arrays if self._device is None else jax.device_put(arrays, self._device)


class Learning(msgspec.Struct, eq=False):
    """A rollout that is being learned from."""

    columns: dict[str, Any]
    """On the device: encoded observations, actions, masks, and numbers (log-probability, value, advantage, return)."""
    seed: int
    """The seed of the order of its minibatches."""
    began_at: int
    """Env steps when it began; schedules keep their values of that step."""
    explained_variance: float
    order: Array
    """The rows of every minibatch of every epoch, one after the other."""
    made: int = 0

    def state(self, network: State) -> State:
        """The state for a checkpoint, with the weights that are being learned."""
        return {
            "network": network,
            "columns": tree_state(self.columns),
            "seed": self.seed,
            "began_at": self.began_at,
            "explained_variance": self.explained_variance,
            "made": self.made,
        }

    @classmethod
    def of_state(cls, saved: State, minibatches: Minibatches) -> Learning:
        """Restore a saved state, except for the columns; raises `StateError`."""
        seed, began_at, made = (saved_count(saved, name) for name in ("seed", "began_at", "made"))
        explained = saved.get("explained_variance")
        if not isinstance(explained, float):
            raise StateError(f"a rollout explained {explained!r:.40} of its variance")
        return cls({}, seed, began_at, explained, minibatches.order(seed), made)


def explained_variance(values: Array, returns: Array) -> float:
    """The share of the variance of returns that the values explain: at most 1, and 0 if the returns are equal."""
    spread = float(np.var(returns))
    return 1 - float(np.var(returns - values)) / spread if spread > 0 else 0.0

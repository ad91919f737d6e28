"""Act with a network: numpy for few rows of a small network, compiled code for everything else.

Which of the two it is follows from sizes alone. A compiled network runs on rows padded to one of a few sizes, so that
the number of streams can change without a compilation.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
import jax
import numpy as np

from rekindle.agents.dispatch import each_array, padded
from rekindle.agents.normalisation import moments_of, normalise
from rekindle.agents.weights import Parts, Weights
from rekindle.errors import AgentError, ConfigError
from rekindle.experience import ActMode, Array, Observations
from rekindle.policy.actions import ActionHead
from rekindle.policy.batching import Batching
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Forward, Layer, Normaliser, draw_noise, forward
from rekindle.policy.policy import NetworkPolicy, exploring
from rekindle.spaces import Layout

__all__ = ["Actor", "CompiledPolicy", "device_of", "is_on_cpu"]

Network = TypeVar("Network", bound=eqx.Module)

_MOST_MULTIPLICATIONS = 1 << 20
"""Rows times weights up to which numpy is faster than a dispatch."""
_MOST_NUMPY_ROWS = 128
_SIZES, _IMAGE_SIZES = (*(1 << power for power in range(9)), 1024), tuple(1 << power for power in range(7))
"""Rows in one dispatch."""


def device_of(setting: str | None, name: str) -> Any:
    """The device of a setting such as `cpu` or `gpu:1`; None for JAX's own choice."""
    if setting is None:
        return None
    platform, _, index = setting.partition(":")
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        raise ConfigError(f"{name} is {setting!r}: {error}; use a platform such as 'cpu' or 'gpu:1'") from None


def is_on_cpu(setting: str | None) -> bool:
    """Whether the device of such a setting is a CPU."""
    return jax.default_backend() == "cpu" if setting is None else setting.partition(":")[0] == "cpu"


class Actor(Generic[Network]):
    """Runs the newest weights on observations.

    `output(network, x, noise)` is the network's output for one encoded observation; `network.layers()`, if the network
    supports it, is the same as data. Weights that have diverged raise `AgentError` before they choose an action.
    """

    owner = "the agent"
    """Whose weights they are, for messages."""

    def __init__(
        self,
        weights: Weights[Network],
        encoding: Encoding,
        output: Callable[[Network, jax.Array, jax.Array | None], jax.Array],
        *,
        noise_size: int = 0,
        passes: int = 1,
        device: Any = None,
    ) -> None:
        """`passes` is the number of forward passes for one row."""
        self._weights, self._encoding, self._output = weights, encoding, output
        self._noise_size = noise_size
        self._device = device
        self._normaliser: Normaliser | None = None
        self._here: Parts = jax.tree_util.tree_map(np.zeros_like, weights.initial)
        """The weights that numpy acts with."""
        self._arrays_here = jax.tree_util.tree_leaves(self._here)
        self._flat_here = [array.reshape(-1) for array in self._arrays_here]
        self._encode = encoding.encoder()
        layers = self._layers(self._here)
        self._forward: Forward | None = None if layers is None else forward(layers)
        small = layers is not None and not encoding.images
        rows = _MOST_MULTIPLICATIONS // (weights.size * passes)
        self._numpy_rows = min(max(rows, 1 if passes == 1 else 0), _MOST_NUMPY_ROWS) if small else 0
        """The most rows that numpy computes."""
        self._sizes = [size for size in (_IMAGE_SIZES if encoding.images else _SIZES) if size > self._numpy_rows]
        self._run = jax.jit(self._batch)
        self.use(weights.initial, None)

    def use(self, parts: Parts, normaliser: Normaliser | None) -> None:
        """Act with these weights from now on; they are fetched when they are needed."""
        self._newest, self._normaliser = parts, normaliser
        self._is_stale_here = self._is_stale_there = True

    def output(self, observations: Observations, rng: np.random.Generator | None) -> Array:
        """The network's output for each row; noisy layers have noise only with a generator."""
        rows = _rows(observations)
        if rows <= self._numpy_rows and self._forward is not None:
            is_first = self._is_stale_here
            if is_first:
                self._fetch()
            encoded = self._encode(observations)
            if self._normaliser is not None:
                encoded = self._normaliser.apply(encoded)
            output = self._forward(encoded, draw_noise(rng, rows, self._noise_size))
            return self._checked(output) if is_first else output
        is_first = self._is_stale_there
        noise = draw_noise(rng, rows, self._noise_size)
        output = self._dispatch(self._on_device(), self._normaliser, observations, noise)
        return self._checked(output) if is_first else output

    def _fetch(self) -> None:
        """Copy the newest weights to numpy's arrays."""
        for here, newest in zip(self._arrays_here, jax.tree_util.tree_leaves(self._newest), strict=True):
            here[...] = newest
        for flat in self._flat_here:
            if not math.isfinite(flat.dot(flat)):  # the fastest way to check every number
                self._check(self._here)
        self._is_stale_here = False

    def _check(self, parts: Parts) -> None:
        if (reason := self._weights.diverged(parts)) is not None:
            raise self._diverged(reason)

    def _checked(self, output: Array) -> Array:
        """Check the first output of new weights, which may be finite and still overflow."""
        # Minus infinity is valid, as the logit of an action that is never chosen.
        if not math.isfinite(np.vdot(output, output)) and not (output < np.inf).all():
            self._is_stale_here = self._is_stale_there = True
            raise self._diverged(self._weights.diverged(self._newest) or "the output of its network is not finite")
        return output

    def _diverged(self, reason: str) -> AgentError:
        return AgentError(f"{self.owner}: {reason}: training has diverged; the last good checkpoint is kept")

    def policy(self, head: ActionHead, algorithm: str) -> NetworkPolicy | CompiledPolicy:
        """A policy with a copy of the newest weights and this head."""
        parts = jax.tree_util.tree_map(np.array, self._newest)
        self._check(parts)
        layers = self._layers(parts)
        if layers is not None:
            return NetworkPolicy(self._encoding, layers, head, normaliser=self._normaliser, algorithm=algorithm)
        there, normaliser = jax.device_put(parts, self._device), self._normaliser

        def output(observations: Observations, rng: np.random.Generator | None) -> Array:
            noise = draw_noise(rng, _rows(observations), self._noise_size)
            return self._dispatch(there, normaliser, observations, noise)

        return CompiledPolicy(output, self._encoding, head)

    @property
    def vector_paths(self) -> list[str]:
        """The paths of the weights in the vector of weights, in order."""
        return self._weights.vector_paths

    def computation(self, observations: Observations) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The output for observations, without noise, as a pure function, and its arguments."""
        noise = np.zeros((_rows(observations), self._noise_size), np.float32)
        return self._batch, {
            "parts": self._newest,
            "moments": moments_of(self._normaliser),
            "observations": self._encoding.narrow(observations),
            "noise": noise,
        }

    def warm_up(self, observation_space: Any) -> None:
        """Compile for every number of rows that numpy does not compute."""
        for rows in self._sizes:
            self._dispatch(self._on_device(), self._normaliser, zero_observations(observation_space, rows), None)

    def _on_device(self) -> Parts:
        if self._is_stale_there:
            self._there = jax.device_put(self._newest, self._device)
            self._is_stale_there = False
        return self._there

    def _layers(self, parts: Parts) -> list[Layer] | None:
        try:
            return self._weights.layers(parts)
        except ConfigError:
            return None

    def _dispatch(
        self,
        parts: Parts,
        normaliser: Normaliser | None,
        observations: Observations,
        noise: Array | None,
    ) -> Array:
        moments, rows = moments_of(normaliser), _rows(observations)
        observations = self._encoding.narrow(observations)
        if noise is None:  # zeros have the same effect, without another compilation
            noise = np.zeros((rows, self._noise_size), np.float32)
        outputs: list[Array] = []
        most = self._sizes[-1]
        for start in range(0, rows, most):
            piece = slice(start, start + most)
            size = next((size for size in self._sizes if size >= rows - start), most)
            part, random = each_array((observations, noise), lambda array: padded(array[piece], size))  # noqa: B023
            outputs.append(np.asarray(self._run(parts, moments, part, random))[: rows - start])
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)

    def _batch(self, parts: Parts, moments: Any, observations: Any, noise: jax.Array) -> jax.Array:
        network = self._weights.network(parts)
        encoded = normalise(self._encoding.encode(observations, jax.numpy), moments)
        return jax.vmap(lambda x, random: self._output(network, x, random))(
            encoded, noise if self._noise_size else None
        )


class CompiledPolicy:
    """A policy of a network that numpy cannot run; it cannot be exported."""

    def __init__(
        self,
        output: Callable[[Observations, np.random.Generator | None], Array],
        encoding: Encoding,
        head: ActionHead,
    ) -> None:
        self._output, self._encoding, self.head = output, encoding, head
        self._batching = Batching(encoding)

    def act(
        self, observations: Any, mode: ActMode | str = ActMode.EXPLOIT, rng: np.random.Generator | None = None
    ) -> Any:
        """An action for one observation, or an action for each row of a batch; EXPLOIT draws no random number."""
        batch, is_single = self._batching(observations)
        rng = exploring(mode, rng)
        actions = self.head.choose(self._output(batch, rng), self._encoding.mask(batch), rng)
        chosen = actions[0] if is_single else actions
        return chosen if self.head.structure is None else self.head.structure.nested(chosen)


def zero_observations(space: Any, rows: int) -> Observations:
    """A batch of observations of a space, all zero."""
    layout = cast("Layout", Layout.of_space(space))
    return layout.observations([np.zeros((rows, *spec.shape), spec.dtype) for spec in layout.leaves.values()])


def _rows(observations: Observations) -> int:
    if isinstance(observations, np.ndarray):  # checked first, because checking for a mapping is slower
        return len(observations)
    return len(next(iter(observations.values())))

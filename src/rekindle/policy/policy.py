"""A trained policy on its own: small, immutable, and run with numpy alone.

policy = rekindle.policy.load("policy.mpk")
action = policy.act(observation)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.checks import checked_mode
from rekindle.errors import ConfigError, FileRefused, InputError
from rekindle.experience import ActMode, Array, Observations
from rekindle.policy.actions import ActionHead
from rekindle.policy.batching import Batching
from rekindle.policy.checking import check_policy
from rekindle.policy.encoding import Encoding, row_count
from rekindle.policy.network import Layer, Normaliser, draw_noise, forward, noise_size
from rekindle.storage import codec, files

__all__ = ["NetworkPolicy", "exploring", "exportable", "load", "save"]

_EXPLOIT, _EXPLORE = ActMode.EXPLOIT, ActMode.EXPLORE


# Policies


class _Saved(msgspec.Struct, frozen=True, eq=False):
    """A policy as data."""

    algorithm: str
    encoding: Encoding
    layers: list[Layer]
    head: ActionHead
    normaliser: Normaliser | None = None

    def policy(self) -> NetworkPolicy:
        check_policy(self.encoding, self.layers, self.head, self.normaliser)
        return NetworkPolicy(
            self.encoding, self.layers, self.head, normaliser=self.normaliser, algorithm=self.algorithm
        )


class NetworkPolicy:
    """A policy made of an observation encoding, a normaliser, network layers and an action head."""

    def __init__(
        self,
        encoding: Encoding,
        layers: Sequence[Layer],
        head: ActionHead,
        *,
        normaliser: Normaliser | None = None,
        algorithm: str = "",
    ) -> None:
        self.encoding = encoding
        self.layers = list(layers)
        self.head = head
        self.normaliser = normaliser
        self.algorithm = algorithm
        """The algorithm that trained it."""
        self._batching = Batching(encoding)
        self._encode = encoding.encoder()
        self._forward = forward(self.layers)
        self._noise_size = noise_size(self.layers)
        self._structure = head.structure

    def act(self, observations: Any, mode: ActMode | str = _EXPLOIT, rng: np.random.Generator | None = None) -> Any:
        """Return an action for one observation, or for each row of a batch; EXPLOIT draws no random numbers.

        Composite actions have the structure of their space; for a batch, each leaf is an array of rows.
        """
        batch, is_single = self._batching(observations)
        rng = exploring(mode, rng)
        actions = self.head.choose(self._outputs(batch, rng), self.encoding.mask(batch), rng)
        chosen = actions[0] if is_single else actions
        return chosen if self._structure is None else self._structure.nested(chosen)

    def output(self, observations: Any, rng: np.random.Generator | None = None) -> Array:
        """The output of the network for one observation or each row of a batch, such as the value of each action.

        With a generator, a noisy network adds its noise.
        """
        batch, is_single = self._batching(observations)
        outputs = self._outputs(batch, rng)
        return outputs[0] if is_single else outputs

    def state(self) -> State:
        """The policy as a tree of plain data and arrays; the arrays are not copied."""
        saved = _Saved(self.algorithm, self.encoding, self.layers, self.head, self.normaliser)
        return msgspec.to_builtins(saved, builtin_types=(np.ndarray,), enc_hook=_keep)

    @classmethod
    def from_state(cls, state: State) -> NetworkPolicy:
        """Make a policy from `state`; raises `ValueError` if it cannot be run."""
        return msgspec.convert(state, _Saved, dec_hook=_array).policy()

    def _outputs(self, observations: Observations, rng: np.random.Generator | None) -> Array:
        encoded = self._encode(observations)
        if self.normaliser is not None:
            encoded = self.normaliser.apply(encoded)
        return self._forward(encoded, draw_noise(rng, row_count(encoded), self._noise_size))


def exploring(mode: ActMode | str, rng: np.random.Generator | None) -> np.random.Generator | None:
    """The generator for exploration; None if the mode does not explore. Raises `InputError`."""
    if mode is not _EXPLORE and (mode is _EXPLOIT or checked_mode(mode) is _EXPLOIT):
        return None
    if rng is None:
        raise InputError("exploring needs a random generator: act(observations, mode, rng)")
    return rng


def save(policy: NetworkPolicy, path: str | Path) -> None:
    """Write a policy to a file that `load` can read with numpy alone; raises `ConfigError` if it cannot be exported."""
    files.write_output(Path(path), *codec.encode({"kind": "policy", "policy": exportable(policy).state()}))


def exportable(policy: Any) -> NetworkPolicy:
    """Return the policy; raises `ConfigError` unless it can be exported to a file."""
    if not isinstance(policy, NetworkPolicy):
        raise ConfigError(
            f"a {type(policy).__name__} cannot be exported: only networks of known layers can be exported, not tables "
            "or a network of your own without a method layers()"
        )
    return policy


def load(path: str | Path) -> NetworkPolicy:
    """Load a policy from a file; raises `FileRefused` if the file is not an exported policy."""
    tree = codec.read_file(path)
    if tree.get("kind") != "policy":
        raise FileRefused(f"{path}: not an exported policy")
    try:
        saved = msgspec.convert(tree.get("policy"), _Saved, dec_hook=_array)
        return saved.policy()
    except (msgspec.ValidationError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileRefused(f"{path}: not a policy that this version of rekindle can run: {error}") from None


def _keep(value: Any) -> Any:
    return value


def _array(kind: type, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    raise TypeError(f"{kind} expected, got {type(value).__name__}")

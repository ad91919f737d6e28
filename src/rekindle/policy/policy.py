"""A trained policy alone: small, immutable, and run by numpy with no other library installed.

policy = rekindle.policy.load("policy.mpk")
action = policy.act(observation[None])[0]
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.errors import FileRefused, InputError
from rekindle.experience import ActMode, Array, Observations
from rekindle.policy.actions import ActionHead
from rekindle.policy.checking import check_policy
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, Normaliser, draw_noise, forward, noise_size
from rekindle.storage import codec, files

__all__ = ["NetworkPolicy", "load", "save"]

_EXPLORE = ActMode.EXPLORE


# Policies


class _Saved(msgspec.Struct, frozen=True, eq=False):
    """A policy as data."""

    algorithm: str
    encoding: Encoding
    layers: list[Layer]
    head: ActionHead
    normaliser: Normaliser | None = None


class NetworkPolicy:
    """Encoding, normaliser, layers and head: all it takes to act."""

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
        """What trained it."""
        self._encode = encoding.encoder()
        self._forward = forward(self.layers)
        self._noise_size = noise_size(self.layers)

    def act(
        self, observations: Observations, mode: ActMode = ActMode.EXPLOIT, rng: np.random.Generator | None = None
    ) -> Array:
        """An action for each row; EXPLOIT draws no random number."""
        if mode is not _EXPLORE:
            rng = None
        elif rng is None:
            raise InputError("exploring needs a random generator: act(observations, mode, rng)")
        return self.head.choose(self.output(observations, rng), self.encoding.mask(observations), rng)

    def output(self, observations: Observations, rng: np.random.Generator | None = None) -> Array:
        """What the network says of each observation, such as the value of each action; noisy with a generator."""
        encoded = self._encode(observations)
        if self.normaliser is not None:
            encoded = self.normaliser.apply(encoded)
        return self._forward(encoded, draw_noise(rng, len(encoded), self._noise_size))


def save(policy: NetworkPolicy, path: str | Path) -> None:
    """Write a policy to a file that `load` reads with numpy alone."""
    saved = _Saved(policy.algorithm, policy.encoding, policy.layers, policy.head, policy.normaliser)
    tree: State = {"kind": "policy", "policy": msgspec.to_builtins(saved, builtin_types=(np.ndarray,), enc_hook=_keep)}
    files.write_output(Path(path), *codec.encode(tree))


def load(path: str | Path) -> NetworkPolicy:
    """Read a policy; raises `FileRefused` for anything else."""
    tree = codec.read_file(path)
    if tree.get("kind") != "policy":
        raise FileRefused(f"{path}: not an exported policy")
    try:
        saved = msgspec.convert(tree.get("policy"), _Saved, dec_hook=_array)
        check_policy(saved.encoding, saved.layers, saved.head, saved.normaliser)
        return NetworkPolicy(
            saved.encoding, saved.layers, saved.head, normaliser=saved.normaliser, algorithm=saved.algorithm
        )
    except (msgspec.ValidationError, AttributeError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise FileRefused(f"{path}: not a policy this rekindle can run: {error}") from None


def _keep(value: Any) -> Any:
    return value


def _array(kind: type, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("Array", value)
    raise TypeError(f"{kind} expected, got {type(value).__name__}")

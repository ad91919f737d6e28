"""Distinguish a single observation from a batch, by the shape of the observation space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rekindle.errors import InputError
from rekindle.experience import Array, Observations
from rekindle.nesting import Nesting
from rekindle.policy.encoding import Encoding

__all__ = ["Batching"]


class Batching:
    """Converts the input of a policy to a batch."""

    def __init__(self, encoding: Encoding) -> None:
        self._shapes = {part.name: tuple(part.shape) for part in encoding.parts}
        self._plain = None if encoding.is_dict else tuple(encoding.parts[0].shape)
        self._nesting = None if encoding.nesting is None else Nesting.of_state(encoding.nesting)

    def __call__(self, observations: Any) -> tuple[Observations, bool]:
        """Return a batch, and whether the input was a single observation.

        Raises `InputError` if it is neither an observation nor a batch.
        """
        if self._plain is not None:
            array = _array(observations, "the observation")
            if array.shape[1:] == self._plain and array.ndim > len(self._plain):  # the common case, at once
                return array, False
            is_single = _is_single(array.shape, self._plain, "the observation")
            return (array[None], True) if is_single else (array, False)
        if self._nesting is not None:
            leaves = self._nesting.leaves(observations, "the observation")
            observations = dict(zip(self._nesting.names, leaves, strict=True))
        if not isinstance(observations, Mapping):
            raise InputError(f"the observation must be a dict with the keys {sorted(self._shapes)}")
        named = {
            name: _array(value, f"the observation {name!r}")
            for name, value in cast("Mapping[str, Any]", observations).items()
        }
        if missing := sorted(self._shapes.keys() - named.keys()):
            raise InputError(f"the observation has no {', '.join(map(repr, missing))}")
        singles = {
            name: _is_single(named[name].shape, shape, f"the observation {name!r}")
            for name, shape in self._shapes.items()
        }
        if len(set(singles.values())) > 1:
            single = ", ".join(repr(name) for name, is_single in singles.items() if is_single)
            raise InputError(f"{single} is a single observation, but the rest is a batch")
        if not any(singles.values()):
            return named, False
        return {name: array[None] for name, array in named.items()}, True


def _array(value: Any, what: str) -> Array:
    try:
        return np.asarray(value)
    except ValueError as error:
        advice = "; env.reset() returns an observation and an info: pass the first" if isinstance(value, tuple) else ""
        raise InputError(f"{what} is not an array: {error}{advice}") from None


def _is_single(shape: tuple[int, ...], known: tuple[int, ...], what: str) -> bool:
    if shape == known:
        return True
    if len(shape) == len(known) + 1 and shape[1:] == known:
        return False
    raise InputError(
        f"{what} has the shape {shape}: a single one has {known}, and a batch ({', '.join(['rows', *map(str, known)])})"
    )

"""One observation or a batch of them: told apart by the shape that the policy was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rekindle.errors import InputError
from rekindle.experience import Observations
from rekindle.policy.encoding import Encoding

__all__ = ["Batching"]


class Batching:
    """Makes a batch of whatever a policy is asked about."""

    def __init__(self, encoding: Encoding) -> None:
        self._shapes = {part.name: tuple(part.shape) for part in encoding.parts}
        self._plain = None if encoding.is_dict else tuple(encoding.parts[0].shape)

    def __call__(self, observations: Any) -> tuple[Observations, bool]:
        """A batch, and whether it is of a single observation that has none of its own.

        Raises `InputError` for what is neither.
        """
        if self._plain is not None:
            array = np.asarray(observations)
            if array.shape[1:] == self._plain and array.ndim > len(self._plain):  # a batch, without another call
                return array, False
            is_single = _is_single(array.shape, self._plain, "the observation")
            return (array[None], True) if is_single else (array, False)
        if not isinstance(observations, Mapping):
            raise InputError(f"the observation must be a dict with the keys {sorted(self._shapes)}")
        named = {name: np.asarray(value) for name, value in cast("Mapping[str, Any]", observations).items()}
        if missing := sorted(self._shapes.keys() - named.keys()):
            raise InputError(f"the observation has no {', '.join(map(repr, missing))}")
        singles = {
            name: _is_single(named[name].shape, shape, f"the observation {name!r}")
            for name, shape in self._shapes.items()
        }
        if len(set(singles.values())) > 1:
            single = ", ".join(repr(name) for name, is_single in singles.items() if is_single)
            raise InputError(f"{single} is of one observation, and the rest of a batch")
        if not any(singles.values()):
            return named, False
        return {name: array[None] for name, array in named.items()}, True


def _is_single(shape: tuple[int, ...], known: tuple[int, ...], what: str) -> bool:
    if shape == known:
        return True
    if len(shape) == len(known) + 1 and shape[1:] == known:
        return False
    raise InputError(
        f"{what} has the shape {shape}: one has {known}, and a batch ({', '.join(['rows', *map(str, known)])})"
    )

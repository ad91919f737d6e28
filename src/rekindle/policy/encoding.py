"""Encode observations as the input of a network: a vector, or an image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle.errors import ConfigError
from rekindle.experience import Array, Observations
from rekindle.nesting import Nesting
from rekindle.spaces import Layout, SpacePart, SpaceParts, discrete_values

__all__ = ["ACTION_MASK", "Encoding", "Part"]

ACTION_MASK = "action_mask"
"""The key of a Dict observation with the mask of allowed actions."""

_LEAST_IMAGE = 36
"""The minimum number of rows and columns of an image; smaller arrays become part of a vector."""
_MOST_CHANNELS = 4
"""The most channels that an image may have in its last axis, as colours."""


class Part(msgspec.Struct, frozen=True):
    """One part of an observation space."""

    name: str
    """The keys and positions in Dict and Tuple spaces, such as `camera` or `arm/0`; empty for other spaces."""
    kind: Literal["box", "discrete"]
    shape: list[int]
    """The shape of one value."""
    counts: list[int] = []
    """For `discrete`: the number of values of each element, which becomes a one-hot vector."""
    starts: list[int] = []
    """For `discrete`: the first value of each element."""

    @property
    def size(self) -> int:
        """The number of encoded numbers."""
        return sum(self.counts) if self.kind == "discrete" else math.prod(self.shape)


class Encoding(msgspec.Struct, frozen=True):
    """The parts concatenated in the order of the space, or a single image with channels, rows and columns.

    `action_mask` is not one of the parts. Images inside a Dict become part of the vector.
    """

    parts: list[Part]
    is_dict: bool = False
    image: Literal["", "channels_first", "channels_last", "one_channel"] = ""
    """The memory layout of an image; empty for a vector."""
    is_bytes: bool = False
    """Whether an image is uint8, which a network scales to 0..1."""
    mask_size: int = 0
    """The number of actions in an `action_mask`; 0 if there is none."""
    nesting: Any = None
    """How the parts lie in dicts and tuples, as `Nesting.state`; None for one array, or a flat dict."""
    masks: list[Part] = []
    """The parts of an `action_mask` that is a Dict or Tuple, in the order of the actions; empty if it is one array."""

    @classmethod
    def of(cls, space: Any) -> Encoding:
        """The encoding of a Gymnasium space; raises `ConfigError` for a space that cannot be encoded."""
        read = SpaceParts.of(space)
        if read.is_dict:
            mask = read.parts.pop(ACTION_MASK, None)
            named = [_part(name, part) for name, part in read.parts.items()]
            tree = cast("Nesting", read.nesting).tree
            has_masks = isinstance(tree, dict) and cast("dict[str, Any]", tree).get(ACTION_MASK) is not None
            masks = [part for part in named if has_masks and part.name.startswith(f"{ACTION_MASK}/")]
            parts = [part for part in named if part not in masks]
            if not parts:
                raise ConfigError(f"{space!r} has no part to learn from")
            layout = cast("Layout", Layout.of_space(space))
            return cls(
                parts,
                is_dict=True,
                mask_size=sum(math.prod(part.shape) for part in masks) if mask is None else math.prod(mask.space.shape),
                masks=masks,
                nesting=None if layout.nesting is None else layout.nesting.state(),
            )
        part = _part("", read.parts[""])
        image = _image(part)
        return cls([part], image=image, is_bytes=bool(image) and space.dtype == np.uint8)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one encoded observation: (size,), or (channels, rows, columns)."""
        if not self.image:
            return (sum(part.size for part in self.parts),)
        shape = tuple(self.parts[0].shape)
        match self.image:
            case "one_channel":
                return (1, *shape)
            case "channels_last":
                return (shape[2], shape[0], shape[1])
            case _:
                return shape

    def encode(self, observations: Observations, xp: Any = np) -> Any:
        """Encode a batch of observations, with numpy or a library with the same interface."""
        if self.image:
            images = cast("Array", observations)
            match self.image:
                case "one_channel":
                    return images[:, None]
                case "channels_last":
                    return xp.transpose(images, (0, 3, 1, 2))
                case _:
                    return images
        encoded = [_encode(part, self._get(observations, part.name), xp) for part in self.parts]
        return encoded[0] if len(encoded) == 1 else xp.concatenate(encoded, axis=1)

    def encoder(self) -> Callable[[Observations], Array]:
        """`encode` with numpy, as fast as possible for one observation."""
        if self.image or self.is_dict or self.parts[0].kind != "box" or len(self.parts[0].shape) != 1:
            return self.encode
        return _as_float32

    def mask(self, observations: Observations, xp: Any = np) -> Any:
        """The allowed actions, row by row; None if all are allowed."""
        if not self.mask_size:
            return None
        if self.masks:
            parts = [xp.asarray(self._get(observations, part.name)) for part in self.masks]
            return xp.concatenate([part.reshape(len(part), -1) for part in parts], axis=1).astype(bool)
        values = self._get(observations, ACTION_MASK)
        return xp.asarray(values).reshape(len(values), -1).astype(bool)

    def _get(self, observations: Observations, name: str) -> Any:
        return cast("Mapping[str, Any]", observations)[name] if self.is_dict else observations


_FLOAT32 = np.dtype(np.float32)


def _as_float32(observations: Any) -> Array:
    return observations if observations.dtype is _FLOAT32 else observations.astype(_FLOAT32)


def _image(part: Part) -> Literal["", "channels_first", "channels_last", "one_channel"]:
    match part.shape if part.kind == "box" else []:
        case [rows, columns] if min(rows, columns) >= _LEAST_IMAGE:
            return "one_channel"
        case [rows, columns, channels] if channels <= _MOST_CHANNELS and min(rows, columns) >= _LEAST_IMAGE:
            return "channels_last"
        case [_, rows, columns] if min(rows, columns) >= _LEAST_IMAGE:
            return "channels_first"
        case _:
            return ""


def _part(name: str, part: SpacePart) -> Part:
    shape = [] if part.spec is None else list(part.spec.shape)
    match part.kind:
        case "box":
            return Part(name, "box", shape)
        case "discrete":
            return Part(name, "discrete", shape, *discrete_values(part.space))
        case _:
            where = f" (the part {name!r})" if name else ""
            raise ConfigError(
                f"the observation space {part.space!r}{where} is not supported: use Box, Discrete, MultiDiscrete, "
                "MultiBinary, or a Dict or Tuple of those"
            )


def _encode(part: Part, values: Any, xp: Any) -> Any:
    rows = len(values)
    flat = xp.asarray(values).reshape(rows, -1)
    if part.kind == "box":
        return flat.astype(np.float32)
    hot = [
        flat[:, index, None] == xp.arange(start, start + count)
        for index, (count, start) in enumerate(zip(part.counts, part.starts, strict=True))
    ]
    return xp.concatenate(hot, axis=1).astype(np.float32)

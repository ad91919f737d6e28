"""Encode observations as the input of a network: a vector, an image, or several images and a vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, cast

import msgspec
import numpy as np

from rekindle.errors import ConfigError
from rekindle.experience import Array, Observations
from rekindle.nesting import Nesting
from rekindle.policy.images import Channels, Convolutions, image_channels, image_shape
from rekindle.spaces import Layout, SpacePart, SpaceParts, discrete_values

__all__ = ["ACTION_MASK", "Encoded", "Encoding", "Input", "Part", "row_count", "vector_of"]

ACTION_MASK = "action_mask"
"""The key of a Dict observation with the mask of allowed actions."""

Encoded = Any
"""A batch of encoded observations: one array for each input of the network, in a tuple if there are several."""


class Input(NamedTuple):
    """One input of a network: an image, or the vector of everything else."""

    shape: tuple[int, ...]
    """Channels, rows and columns of an image, or the size of the vector."""
    dtype: np.dtype[Any]
    """uint8 for an image of bytes, which a network scales to 0..1; otherwise float32."""


class Part(msgspec.Struct, frozen=True):
    """One part of an observation space."""

    name: str
    """The keys and positions in Dict and Tuple spaces, such as `camera` or `arm/0`; empty for other spaces."""
    kind: Literal["box", "discrete", "image"]
    shape: list[int]
    """The shape of one value."""
    counts: list[int] = []
    """For `discrete`: the number of values of each element, which becomes a one-hot vector."""
    starts: list[int] = []
    """For `discrete`: the first value of each element."""
    channels: Channels = "none"
    """For `image`: where the channels are."""
    is_bytes: bool = False
    """Whether values are uint8 and scaled to 0..1."""

    @property
    def size(self) -> int:
        """The number of encoded numbers."""
        return sum(self.counts) if self.kind == "discrete" else math.prod(self.shape)

    @property
    def is_wide(self) -> bool:
        """Whether values of a discrete part may need more than 32 bits."""
        return any(not -_WIDE <= start < _WIDE - count for start, count in zip(self.starts, self.counts, strict=True))


_WIDE = 2**31


class Encoding(msgspec.Struct, frozen=True):
    """The inputs of a network: each image, then one vector of all other parts, in the order of the space.

    `action_mask` is not one of the parts.
    """

    parts: list[Part]
    is_dict: bool = False
    mask_size: int = 0
    """The number of actions in an `action_mask`; 0 if there is none."""
    nesting: Any = None
    """How the parts lie in dicts and tuples, as `Nesting.state`; None for one array, or a flat dict."""
    masks: list[Part] = []
    """The parts of an `action_mask` that is a Dict or Tuple, in the order of the actions; empty if it is one array."""

    @classmethod
    def of(cls, space: Any, convolutions: Convolutions = "auto") -> Encoding:
        """The encoding of a Gymnasium space; raises `ConfigError` for a space that cannot be encoded.

        `convolutions` chooses which arrays are images; `rekindle.policy.images.image_channels` has the rule of `auto`.
        """
        read = SpaceParts.of(space)
        if not read.is_dict:
            part = _part("", read.parts[""], convolutions)
            if 0 in part.shape:
                raise ConfigError(f"{space!r} has no number to learn from")
            return cls([part])
        mask = read.parts.pop(ACTION_MASK, None)
        tree = cast("Nesting", read.nesting).tree
        has_masks = isinstance(tree, dict) and cast("dict[str, Any]", tree).get(ACTION_MASK) is not None
        parts: list[Part] = []
        masks: list[Part] = []
        for name, part in read.parts.items():
            is_mask = has_masks and name.startswith(f"{ACTION_MASK}/")
            (masks if is_mask else parts).append(_part(name, part, "never" if is_mask else convolutions))
        if all(0 in part.shape for part in parts):
            raise ConfigError(f"{space!r} has no part to learn from")
        layout = cast("Layout", Layout.of_space(space))
        return cls(
            parts,
            is_dict=True,
            mask_size=sum(math.prod(part.shape) for part in masks) if mask is None else math.prod(mask.space.shape),
            masks=masks,
            nesting=None if layout.nesting is None else layout.nesting.state(),
        )

    @property
    def images(self) -> list[Part]:
        """The parts that are images."""
        return [part for part in self.parts if part.kind == "image"]

    @property
    def vector_size(self) -> int:
        """The number of encoded numbers of all other parts; 0 if there are none."""
        return sum(part.size for part in self.parts if part.kind != "image")

    @property
    def is_image(self) -> bool:
        """Whether the only input is an image."""
        return len(self.parts) == 1 and self.parts[0].kind == "image"

    @property
    def inputs(self) -> list[Input]:
        """The images, then the vector, if there are other parts."""
        images = self.images
        found = [
            Input(image_shape(part.shape, part.channels), _UINT8 if part.is_bytes else _FLOAT32) for part in images
        ]
        return found if len(images) == len(self.parts) else [*found, Input((self.vector_size,), _FLOAT32)]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the input for one observation; if there are several inputs, a tuple with the shape of each."""
        shapes = tuple(given.shape for given in self.inputs)
        return shapes[0] if len(shapes) == 1 else shapes

    def zeros(self, rows: int) -> Encoded:
        """A batch of encoded observations, all zero."""
        arrays = tuple(np.zeros((rows, *given.shape), given.dtype) for given in self.inputs)
        return arrays[0] if len(arrays) == 1 else arrays

    def encode(self, observations: Observations, xp: Any = np) -> Encoded:
        """Encode a batch of observations, with numpy or a library with the same interface.

        For a library that computes with 32 bits, such as JAX, pass the observations through `narrow` first.
        """
        images: list[Any] = []
        flat: list[Any] = []
        for part in self.parts:
            values = self._get(observations, part.name)
            if part.kind == "image":
                images.append(_image(part, values, xp))
            else:
                flat.append(_flat(part, values, xp))
        if not flat:
            return images[0] if len(images) == 1 else tuple(images)
        vector = flat[0] if len(flat) == 1 else xp.concatenate(flat, axis=1)
        return (*images, vector) if images else vector

    def encoder(self) -> Callable[[Observations], Encoded]:
        """`encode` with numpy, as fast as possible for one observation."""
        (part, *others) = self.parts
        is_vector = part.kind == "box" and len(part.shape) == 1 and not part.is_bytes
        return _as_float32 if is_vector and not others and not self.is_dict else self.encode

    def narrow(self, observations: Observations) -> Observations:
        """Convert 64-bit numbers, so that compiled 32-bit code computes the same as `encode` with numpy.

        Numbers become float32, and masks bool. Discrete values that may need more than 32 bits become indices from 0.
        """
        if not self.is_dict:
            return _narrow(self.parts[0], observations)
        parts = {part.name: part for part in self.parts}
        values = cast("Mapping[str, Array]", observations)
        return {name: _narrow(parts.get(name), value) for name, value in values.items()}

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


def row_count(encoded: Encoded) -> int:
    """The number of encoded observations in a batch."""
    return len(cast("tuple[Array, ...]", encoded)[0]) if isinstance(encoded, tuple) else len(encoded)


def vector_of(encoded: Encoded) -> Any:
    """The vector in a batch of encoded observations that has one."""
    return cast("tuple[Array, ...]", encoded)[-1] if isinstance(encoded, tuple) else encoded


_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_SCALE = np.float32(1 / 255)
"""XLA replaces a division by a constant with this product, so numpy multiplies too: the results are bit-identical."""


def _as_float32(observations: Any) -> Array:
    return observations if observations.dtype is _FLOAT32 else observations.astype(_FLOAT32)


def _part(name: str, part: SpacePart, convolutions: Convolutions) -> Part:
    shape = [] if part.spec is None else list(part.spec.shape)
    match part.kind:
        case "box":
            low, high = part.bounds
            are_bytes = part.spec is not None and part.spec.dtype == _UINT8
            channels = image_channels(part, convolutions)
            if channels is None:
                return Part(name, "box", shape, is_bytes=are_bytes and (low, high) == (0, 255))
            return Part(name, "image", shape, channels=channels, is_bytes=are_bytes and high > 1)
        case "discrete":
            return Part(name, "discrete", shape, *discrete_values(part.space))
        case _:
            where = f" (the part {name!r})" if name else ""
            raise ConfigError(
                f"the observation space {part.space!r}{where} is not supported: use Box, Discrete, MultiDiscrete, "
                "MultiBinary, or a Dict or Tuple of those"
            )


def _flat(part: Part, values: Any, xp: Any) -> Any:
    """The numbers of a part that is not an image."""
    rows = len(values)
    flat = xp.asarray(values).reshape(rows, -1)
    if part.kind == "box":
        return flat.astype(_FLOAT32) * _SCALE if part.is_bytes else flat.astype(_FLOAT32)
    starts = [0] * len(part.starts) if part.is_wide and xp is not np else part.starts
    hot = [
        flat[:, index, None] == xp.arange(start, start + count)
        for index, (count, start) in enumerate(zip(part.counts, starts, strict=True))
    ]
    return xp.concatenate(hot, axis=1).astype(_FLOAT32)


def _image(part: Part, values: Any, xp: Any) -> Any:
    """Images with channels, rows and columns; bytes stay bytes."""
    images = values if part.is_bytes or values.dtype == _FLOAT32 else values.astype(_FLOAT32)
    if part.channels == "last":
        images = xp.moveaxis(images, -1, -3)
    return images.reshape(len(images), *image_shape(part.shape, part.channels))


def _narrow(part: Part | None, values: Any) -> Any:
    """The values of a part, or of a mask if it is None."""
    if part is not None and part.kind == "discrete":
        return (values - np.array(part.starts).reshape(part.shape)).astype(np.int32) if part.is_wide else values
    if values.dtype.itemsize <= _FLOAT32.itemsize:
        return values
    return values.astype(np.bool_ if part is None else _FLOAT32)

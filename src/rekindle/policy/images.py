"""The rule for images: which arrays of an observation go through convolutions, and which axis has the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from rekindle.spaces import SpacePart

__all__ = ["Channels", "Convolutions", "image_channels", "image_shape"]

Channels = Literal["none", "first", "last"]
"""Where the channels are: (rows, columns), (channels, rows, columns) or (rows, columns, channels).

With channels, an axis of frames may come before these three.
"""
Convolutions = Literal["auto", "always", "never"]
"""Which arrays are images: those that `image_channels` decides, all with the shape of an image, or none."""

_LEAST_SIDE = 7
"""The smallest number of rows and columns of an image."""
_CERTAIN_SIDE = 36
"""An array with at least this many rows and columns is an image, whatever its values."""


def image_channels(part: SpacePart, convolutions: Convolutions = "auto") -> Channels | None:
    """Where the channels of an image are; None if the array is not an image.

    With `auto`, an array is an image if it has 2 axes, or 3 or 4 with channels, at least 7 rows and 7 columns, and

    - uint8 values with the bounds 0 and 255, or
    - values from 0 to 1, and an axis for channels, or
    - at least 36 rows and 36 columns.
    """
    if part.spec is None or part.kind != "box" or convolutions == "never":
        return None
    shape = part.spec.shape
    channels = _channels(shape)
    if channels is None:
        return None
    side = min(image_shape(shape, channels)[1:])
    if side < _LEAST_SIDE:
        return None
    low, high = part.bounds
    are_bytes = part.spec.dtype == np.uint8 and (low, high) == (0, 255)
    are_flags = channels != "none" and low >= 0 and high <= 1
    return channels if convolutions == "always" or are_bytes or are_flags or side >= _CERTAIN_SIDE else None


def image_shape(shape: Sequence[int], channels: Channels) -> tuple[int, int, int]:
    """Channels, rows and columns of an array; stacked frames become channels, the oldest first."""
    frames, inner = (shape[0], shape[1:]) if len(shape) == 4 else (1, shape)
    match channels:
        case "none":
            rows, columns = inner
            return 1, rows, columns
        case "first":
            count, rows, columns = inner
        case "last":
            rows, columns, count = inner
    return frames * count, rows, columns


def _channels(shape: tuple[int, ...]) -> Channels | None:
    """Two equal adjacent axes are rows and columns; otherwise the channels are the shorter of the outer axes."""
    if len(shape) == 2:
        return "none"
    if len(shape) not in (3, 4):
        return None
    first, middle, last = shape[-3:]
    if (first == middle) != (middle == last):
        return "last" if first == middle else "first"
    return "last" if last <= first else "first"

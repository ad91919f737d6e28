"""Trees of data as bytes, for actors elsewhere: arrays lie behind a short message, so that reading them copies nothing.

Only a process and those that it started exchange these bytes, so they carry no checksum; files use `rekindle.storage`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.experience import Array

__all__ = ["aligned", "pack", "packed_size", "unpack", "write"]

_HEAD = struct.Struct("<QQ")
_ALIGNMENT = 64
"""Every array begins at a multiple of it, so that it is computed with in the same way everywhere."""
_ARRAY = 1
_MESSAGES = msgspec.msgpack.Decoder(tuple[msgspec.Raw, list[tuple[str, list[int], int]]])


class Packed(msgspec.Struct, frozen=True, eq=False):
    """A tree in parts."""

    message: bytes
    arrays: Sequence[Array]
    size: int


class _Message(msgspec.Struct, array_like=True, frozen=True):
    tree: Any
    arrays: list[tuple[str, list[int], int]]
    """The dtype and shape of each array, and where it begins."""


def pack(tree: Any) -> Packed:
    """Prepare a tree of dict, list, str, int, float, bool, None, bytes and arrays for `write`."""
    arrays: list[Array] = []

    def place(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            raise TypeError(f"{type(value).__name__} cannot be packed: {value!r:.80}")
        arrays.append(np.asarray(cast("Array", value), order="C"))  # unlike ascontiguousarray, it keeps 0 axes
        return msgspec.msgpack.Ext(_ARRAY, (len(arrays) - 1).to_bytes(4, "little"))

    body = msgspec.msgpack.encode(tree, enc_hook=place)
    places: list[tuple[str, list[int], int]] = []
    end = 0
    for array in arrays:
        places.append((array.dtype.str, list(array.shape), end))
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    message = msgspec.msgpack.encode(_Message(msgspec.Raw(body), places))
    return Packed(message, arrays, _begin(len(message)) + end)


def packed_size(packed: Packed) -> int:
    """How many bytes `write` needs."""
    return packed.size


def write(packed: Packed, into: Array) -> None:
    """Write a packed tree to the beginning of an array of bytes, which must be aligned."""
    message = packed.message
    head = _HEAD.pack(len(message), packed.size) + message
    into[: len(head)] = np.frombuffer(head, np.uint8)
    begin = _begin(len(message))
    for array in packed.arrays:
        if array.nbytes:
            into[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
        begin += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT


def unpack(data: Array) -> Any:
    """The tree at the beginning of an array of bytes; its arrays are read-only views of it."""
    length, _ = _HEAD.unpack_from(data.data)
    begin = _begin(length)
    # The places come after the tree, so decode them first.
    body, places = _MESSAGES.decode(data[_HEAD.size : _HEAD.size + length].tobytes())
    arrays: list[Array] = []
    for dtype, shape, start in places:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        first = begin + start
        array = data[first : first + count * kind.itemsize].view(kind).reshape(shape)
        array.flags.writeable = False
        arrays.append(array)

    def find(code: int, index: memoryview) -> Array:
        if code != _ARRAY:
            raise ValueError(f"an extension of type {code}")
        return arrays[int.from_bytes(index, "little")]

    return msgspec.msgpack.decode(body, ext_hook=find)


def aligned(size: int) -> Array:
    """An array of this many bytes in which arrays can be aligned."""
    data = np.empty(size + _ALIGNMENT, np.uint8)
    # Not `data.ctypes`: that runs much code for a number that is needed several times in a round.
    skip = -data.__array_interface__["data"][0] % _ALIGNMENT
    return data[skip : skip + size]


def _begin(message: int) -> int:
    """Where the first array begins."""
    return -(-(_HEAD.size + message) // _ALIGNMENT) * _ALIGNMENT

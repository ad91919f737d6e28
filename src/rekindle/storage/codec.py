r"""The `.mpk` format: a fixed header, then one msgpack document with typed arrays.

    header   8 bytes  b"\x89RKNDL\r\n"
             u32      format version
             u64      length of the payload: the file ends with it
             32 bytes SHA-256 of the header up to here and of the payload
    payload  a msgpack map of str to nil, bool, int, float64, str, array, map, or ext 32 of type 1
    ext 1    u8 dtype code, u8 number of axes, u8 padding, u64 per axis, zeros, elements in C order

Integers outside msgpack itself are little-endian, and so are elements. The padding aligns the first element to
a multiple of 16 in the file, so that arrays can be used without a copy. Reading runs no code, and every length is
checked against the number of bytes that are left.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import math
import os
import struct
from collections.abc import Callable
from types import NoneType
from typing import Any, Final, NoReturn, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import State
from rekindle.errors import FileRefused, StateError, StorageError
from rekindle.storage.advice import advice_on, type_name
from rekindle.storage.refusing import opened_file

__all__ = [
    "FORMAT_VERSION",
    "MAX_DEPTH",
    "MAX_FILE",
    "MAX_NODES",
    "check_header",
    "decode",
    "encode",
    "read_file",
    "stored_checksum",
    "time_dependent",
    "tree_digest",
]

FORMAT_VERSION: Final = 2
MAX_FILE: Final = 16 << 30
"""Bytes in a file, at most."""
MAX_NODES: Final = 1_000_000
"""Values in a tree, at most; an array counts as one. A million empty dicts take about 70 MB."""
MAX_DEPTH: Final = 64
"""Levels of nested dicts and lists, at most."""

_MAGIC: Final = b"\x89RKNDL\r\n"
_PREFIX: Final = struct.Struct("<8sIQ")
_HEADER_SIZE: Final = _PREFIX.size + 32

_EXT: Final = 0xC9
_ARRAY: Final = 1
_ARRAY_HEAD: Final = struct.Struct(">BIb3B")
_ALIGNMENT: Final = 16
_MAX_EXT: Final = 2**32 - 1
# The limit of numpy 1.
_MAX_AXES: Final = 32
# Below this size, a copy is cheaper than a separate buffer.
_INLINE: Final = 4096

_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    code: np.dtype("<" + name)
    for code, name in enumerate(
        ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"), start=1
    )
}
_CODES: Final = {(dtype.kind, dtype.itemsize): code for code, dtype in _DTYPES.items()}

# The number after a msgpack tag: a value, or the length of a str, list or dict.
_NUMBERS: Final = {0xCB + index: struct.Struct(">" + code) for index, code in enumerate("dBHIQbhiq")}
_LENGTHS: Final = {0xD9 + index: struct.Struct(">" + code) for index, code in enumerate("BHIHIHI")}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}

_SCALARS: Final = frozenset({NoneType, bool, int, float, str})
_NUMERIC: Final = frozenset({bool, int, float})


def encode(tree: State) -> list[bytes | memoryview]:
    """Encode `tree` as a file: a list of pieces to write one after the other.

    Large arrays are not copied: a piece shares the memory of its array, which must not change before it is written.
    Raises `StateError` with the name of the first value that cannot be saved.
    """
    pieces = _Writer().document(tree)
    length = sum(map(len, pieces))
    if _HEADER_SIZE + length > MAX_FILE:
        raise StateError(f"the tree takes {length} bytes, and a file holds at most {MAX_FILE}: save less")
    prefix = _PREFIX.pack(_MAGIC, FORMAT_VERSION, length)
    return [prefix + _checksum(prefix, *pieces), *pieces]


def decode(data: bytes | bytearray | memoryview, *, name: str) -> State:
    """Decode the bytes of a file to a tree; arrays are read-only views of `data`.

    Raises `FileRefused`, with `name` and the reason, if any byte differs from what `encode` could have written.
    """
    view = memoryview(data).cast("B").toreadonly()
    _check_prefix(view, len(view), name)
    if bytes(view[_PREFIX.size : _HEADER_SIZE]) != _checksum(view[: _PREFIX.size], view[_HEADER_SIZE:]):
        raise FileRefused(f"{name}: the checksum does not match: the file is damaged")
    return _Reader(view, name).document()


def stored_checksum(head: bytes | memoryview) -> str:
    """The checksum in the header of a file."""
    return bytes(head[_PREFIX.size : _HEADER_SIZE]).hex()


def read_file(path: str | os.PathLike[str], *, checksum: str | None = None) -> State:
    """Read the tree in a file. Raises `FileRefused`, or `StorageError` if the file could not be read at all.

    With a `checksum`, the file must have this checksum in its header.
    """
    name = os.fspath(path)
    try:
        data = _read(name)
        if checksum is not None and stored_checksum(data) != checksum:
            raise FileRefused(f"{name}: not the file that was written under this name")
        return decode(data, name=name)
    except MemoryError:
        raise StorageError(errno.ENOMEM, f"{name}: not enough memory to load it") from None


def check_header(path: str | os.PathLike[str], *, checksum: str) -> None:
    """Raise `FileRefused` unless a file has the length that its header says, and this checksum in it.

    The content is not read: damage inside of it is found only by `read_file`.
    """
    name = os.fspath(path)
    with opened_file(name, most=MAX_FILE) as (file, size):
        head = memoryview(file.read(_HEADER_SIZE))
        _check_prefix(head, size, name)
        if stored_checksum(head) != checksum:
            raise FileRefused(f"{name}: not the file that was written under this name")


def time_dependent(key: str) -> bool:
    """Whether a value under this key depends on the clock, and so differs between equal runs."""
    return key == "wall_time" or key.startswith("time/")


def tree_digest(tree: State, *, skip: Callable[[str], bool] = time_dependent) -> str:
    """A digest of the contents of a tree: equal for two trees if and only if they hold the same bits.

    It ignores the order of a dict, the memory layout of an array, and everything under a key that `skip` selects.
    Raises `StateError` like `encode`.
    """
    return _checksum(*_Writer(skip).document(tree)).hex()


def _checksum(*pieces: bytes | memoryview) -> bytes:
    # Twice as fast as BLAKE2b if the processor has instructions for it.
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


class _Writer:
    """Writes one tree; with `skip` it also sorts dicts, so that the pieces are canonical."""

    def __init__(self, skip: Callable[[str], bool] | None = None) -> None:
        self._skip = skip
        self._scalar = msgspec.msgpack.Encoder().encode_into
        self._pieces: list[bytes | memoryview] = []
        self._open = bytearray()
        self._offset = _HEADER_SIZE
        self._nodes = 0
        self._path: list[Any] = []

    def document(self, tree: State) -> list[bytes | memoryview]:
        if type(tree) is not dict:
            self._refuse(f"is a {type_name(tree)}", "the root of a tree is a dict")
        self._value(tree)
        self._close()
        return self._pieces

    def _value(self, value: Any) -> None:
        kind = cast("type[Any]", type(value))
        if kind in _SCALARS:
            try:
                self._scalar(value, self._open, -1)
            except OverflowError:
                self._refuse("is an int beyond 64 bits", "make it an array of bytes, or float()")
            except UnicodeEncodeError:
                self._refuse("is a str that UTF-8 cannot hold", "remove its lone surrogates")
            except ValueError:
                self._refuse("is a str of 4 GiB or more", "split it")
        elif kind is np.ndarray:
            self._array(value)
        elif kind is dict:
            self._dict(value)
        elif kind is list:
            self._list(value)
        else:
            self._refuse(f"is a {type_name(value)}", advice_on(value))

    def _list(self, value: list[Any]) -> None:
        count = _numbers_in(value)
        if count is not None and len(self._path) < MAX_DEPTH - 1 and self._nodes + count <= MAX_NODES:
            start = len(self._open)
            try:
                self._scalar(value, self._open, -1)  # the same bytes as below, many times as fast
                self._nodes += count
                return
            except OverflowError:  # below it is found out where
                del self._open[start:]
        self._count(len(value), 0x90, 0xDC)
        self._path.append(None)
        for self._path[-1], item in enumerate(value):
            self._value(item)
        self._path.pop()

    def _dict(self, value: dict[Any, Any]) -> None:
        for key in value:
            if type(key) is not str:
                self._refuse(f"has the key {key!r}, a {type_name(key)}", "make it str()")
        if self._skip is not None:
            value = {key: value[key] for key in sorted(value) if not self._skip(key)}
        self._count(len(value), 0x80, 0xDE)
        self._path.append(None)
        for self._path[-1], item in value.items():
            self._value(self._path[-1])
            self._value(item)
        self._path.pop()

    def _count(self, count: int, short: int, long: int) -> None:
        if len(self._path) >= MAX_DEPTH:
            self._refuse(f"is more than {MAX_DEPTH} levels deep", "flatten it, and look for a cycle")
        self._nodes += count
        if self._nodes > MAX_NODES:
            self._refuse(f"brings the tree over {MAX_NODES} values", "make lists of numbers arrays")
        if count < 16:
            self._open.append(short | count)
        elif count < 1 << 16:
            self._open += struct.pack(">BH", long, count)
        else:
            self._open += struct.pack(">BI", long + 1, count)

    def _array(self, value: NDArray[Any]) -> None:
        code = _CODES.get((value.dtype.kind, value.dtype.itemsize))
        if code is None:
            self._refuse(f"is an array of {value.dtype}", "convert it with .astype() to numbers or bool")
        if value.ndim > _MAX_AXES:
            self._refuse(f"is an array of {value.ndim} axes", f"reshape it to at most {_MAX_AXES}")
        start = self._offset + len(self._open) + _ARRAY_HEAD.size + 8 * value.ndim
        padding = -start % _ALIGNMENT
        length = 3 + 8 * value.ndim + padding + value.nbytes
        if length > _MAX_EXT:
            self._refuse(f"is an array of {value.nbytes} bytes", "split it into arrays below 4 GiB")
        raw = np.asarray(value, _DTYPES[code], order="C").reshape(-1).view(np.uint8)
        if value.dtype.kind == "b" and raw.max(initial=0) > 1:
            self._refuse("is a bool array with bytes other than 0 and 1", "make it array.view(np.uint8) != 0")
        self._open += _ARRAY_HEAD.pack(_EXT, length, _ARRAY, code, value.ndim, padding)
        self._open += struct.pack(f"<{value.ndim}Q", *value.shape) + bytes(padding)
        if raw.size < _INLINE:
            self._open += raw.data
        else:
            self._close()
            self._pieces.append(raw.data)
            self._offset += raw.size

    def _close(self) -> None:
        if self._open:
            self._pieces.append(bytes(self._open))
            self._offset += len(self._open)
            self._open.clear()

    def _refuse(self, what: str, advice: str) -> NoReturn:
        path = ""
        for step in self._path:
            plain = isinstance(step, str) and step.isidentifier()
            path += f"{'.' if path else ''}{step}" if plain else f"[{step!r}]"
        raise StateError(f"{path or 'the tree'} {what}, which cannot be saved: {advice}")


def _numbers_in(items: list[Any]) -> int | None:
    """How many values there are in a list of numbers, or of lists of numbers; None for any other list."""
    kinds, count = set(map(type, items)), len(items)
    if kinds == {list}:
        inner = list(itertools.chain.from_iterable(items))
        kinds, count = set(map(type, inner)), count + len(inner)
    return count if kinds <= _NUMERIC else None


class _Reader:
    """Reads one payload; it checks everything, although the checksum is right."""

    def __init__(self, data: memoryview, name: str) -> None:
        self._data = data
        self._name = name
        self._position = _HEADER_SIZE
        self._nodes = 0

    def document(self) -> State:
        tree = self._value(0)
        if type(tree) is not dict:
            self._refuse(f"the root is a {type(tree).__name__}, not a dict")
        if self._position != len(self._data):
            self._refuse(f"{len(self._data) - self._position} bytes follow the end of the tree")
        return cast("State", tree)

    def _value(self, depth: int) -> Any:  # noqa: PLR0911 - one return for each msgpack type
        tag = self._data[self._take(1)]
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self._dict(tag & 0x0F, depth)
        if tag < 0xA0:
            return self._list(tag & 0x0F, depth)
        if tag < 0xC0:
            return self._str(tag & 0x1F)
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _NUMBERS:
            return self._number(_NUMBERS[tag])
        if tag in _LENGTHS:
            length = self._number(_LENGTHS[tag])
            if tag <= 0xDB:
                return self._str(length)
            return self._list(length, depth) if tag <= 0xDD else self._dict(length, depth)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        if tag != _EXT:
            self._refuse(f"msgpack type 0x{tag:02x} is not part of the format")
        return self._array()

    def _number(self, form: struct.Struct) -> Any:
        return form.unpack_from(self._data, self._take(form.size))[0]

    def _str(self, length: int) -> str:
        start = self._take(length)
        try:
            return str(self._data[start : self._position], "utf-8")
        except UnicodeDecodeError:
            self._refuse("a str is not UTF-8")

    def _list(self, count: int, depth: int) -> list[Any]:
        self._count(count, count, depth)
        return [self._value(depth + 1) for _ in range(count)]

    def _dict(self, count: int, depth: int) -> State:
        self._count(count, 2 * count, depth)
        tree: State = {}
        for _ in range(count):
            # A key may not have levels of its own, so a container as a key is refused at once.
            key = self._value(MAX_DEPTH)
            if type(key) is not str:
                self._refuse(f"a key is a {type(key).__name__}, not a str")
            if key in tree:
                self._refuse(f"the key {key!r} occurs twice in a dict")
            tree[key] = self._value(depth + 1)
        return tree

    def _count(self, count: int, least: int, depth: int) -> None:
        if depth >= MAX_DEPTH:
            self._refuse(f"the tree is more than {MAX_DEPTH} levels deep")
        if least > len(self._data) - self._position:
            self._refuse(f"{count} values cannot be in the {len(self._data) - self._position} bytes left")
        self._nodes += count
        if self._nodes > MAX_NODES:
            self._refuse(f"the tree has more than {MAX_NODES} values")

    def _array(self) -> NDArray[Any]:
        head = self._take(_ARRAY_HEAD.size - 1) - 1
        _, length, kind, code, axes, padding = _ARRAY_HEAD.unpack_from(self._data, head)
        if kind != _ARRAY:
            self._refuse(f"msgpack extension {kind} is not part of the format")
        dtype = _DTYPES.get(code)
        if dtype is None:
            self._refuse(f"dtype code {code} is not part of the format")
        if axes > _MAX_AXES or padding >= _ALIGNMENT:
            self._refuse(f"an array has {axes} axes and {padding} bytes of padding")
        shape = struct.unpack_from(f"<{axes}Q", self._data, self._take(8 * axes))
        size = math.prod(shape) * dtype.itemsize
        if 3 + 8 * axes + padding + size != length:
            self._refuse(f"an array of {dtype} and shape {shape} is not {length} bytes long")
        start = self._take(padding)
        if any(self._data[start : start + padding]):
            self._refuse("the padding of an array is not zero")
        start = self._take(size)
        try:
            array: NDArray[Any] = np.ndarray(shape, dtype, self._data, start)
        except (ValueError, OverflowError):
            # Only an array without elements gets here: its other axes may be longer than numpy supports.
            self._refuse(f"an array cannot have the shape {shape}")
        if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
            self._refuse("a bool array has bytes other than 0 and 1")
        return array

    def _take(self, count: int) -> int:
        start = self._position
        if count > len(self._data) - start:
            self._refuse(f"{count} bytes cannot be in the {len(self._data) - start} left")
        self._position = start + count
        return start

    def _refuse(self, reason: str) -> NoReturn:
        raise FileRefused(f"{self._name}: at byte {self._position}: {reason}")


def _check_prefix(head: memoryview, size: int, name: str) -> None:
    if len(head) < _HEADER_SIZE:
        raise FileRefused(f"{name}: {size} bytes are too few for a rekindle file")
    magic, version, length = _PREFIX.unpack_from(head)
    if magic != _MAGIC:
        raise FileRefused(f"{name}: not a rekindle file")
    if version > FORMAT_VERSION:
        newest = f"this version reads formats up to {FORMAT_VERSION}: upgrade rekindle to load it"
        raise FileRefused(f"{name}: written in rekindle format {version}, and {newest}")
    if version < 1:
        raise FileRefused(f"{name}: there is no rekindle format {version}")
    if _HEADER_SIZE + length != size:
        raise FileRefused(f"{name}: {size} bytes long, and its header says {_HEADER_SIZE + length}")


def _read(name: str) -> memoryview:
    with opened_file(name, most=MAX_FILE) as (file, size):
        _check_prefix(memoryview(file.read(_HEADER_SIZE)), size, name)
        file.seek(0)
        # Unlike a bytearray, np.empty does not fill the memory with zeros first.
        data = np.empty(size, np.uint8).data
        done = 0
        while done < len(data):
            count = file.readinto(data[done:])
            if not count:
                raise FileRefused(f"{name}: ended after {done} of {len(data)} bytes while it was read")
            done += count
        return data

"""Read arrays of an npz file piece by piece; nothing in it is unpickled."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from rekindle.errors import DataError
from rekindle.experience import Array
from rekindle.storage import npy

__all__ = ["Npz"]

_MOST_COMPRESSED = 1_100
_EMPTY = 2**26
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression of `np.savez` and `np.savez_compressed`."""
_MOST_AXES = 32


class Npz:
    """An npz file that is open for reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            raise DataError(f"{path} is not an npz file, or is damaged: {error}") from None
        self._members: list[IO[bytes]] = []
        self._names: dict[str, str] = {}
        for member in self._zip.namelist():
            name = member.removesuffix(".npy")
            if name in self._names:
                self._zip.close()
                raise DataError(f"{path}: it has two arrays {name}: remove one")
            self._names[name] = member

    def close(self) -> None:
        """Close the file, and what is still being read."""
        for member in self._members:
            member.close()
        self._zip.close()

    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._names)

    def spec(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """The shape and dtype of an array; raises `DataError` for anything but numbers, or text."""
        with self._opened(name) as file:
            return self._header(name, file)

    def text(self, name: str) -> str:
        """An array that is one text."""
        shape, dtype = self.spec(name)
        if dtype.kind != "U" or shape:
            raise DataError(f"{self.path}: {name} is {dtype} {shape}, not a text")
        return str(self._read(name, (), dtype, 1).reshape(())[()])

    def pieces(self, name: str, rows: int) -> Iterator[Array]:
        """The rows of an array in order, at most `rows` at a time."""
        with self._opened(name) as file:
            shape, dtype = self._header(name, file)
            size = math.prod(shape[1:]) * dtype.itemsize
            for first in range(0, shape[0], rows):
                count = min(rows, shape[0] - first)
                data = self._bytes(name, file, count * size)
                yield np.frombuffer(data, dtype).reshape(count, *shape[1:])
            if self._bytes(name, file, 1, least=0):  # this also compares the checksum
                raise DataError(f"{self.path}: {name} has more bytes than its shape {shape} needs")

    def _read(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], count: int) -> Array:
        with self._opened(name) as file:
            self._header(name, file)
            return np.frombuffer(self._bytes(name, file, count * dtype.itemsize), dtype).reshape(shape)

    def _opened(self, name: str) -> IO[bytes]:
        try:
            info = self._zip.getinfo(self._names[name])
            if info.file_size > _EMPTY + _MOST_COMPRESSED * info.compress_size:
                raise DataError(f"{self.path}: {name} declares {info.file_size} bytes in {info.compress_size}")
            if info.compress_type not in _METHODS:
                raise DataError(f"{self.path}: {name} has another compression than np.savez_compressed: use that")
            member = self._zip.open(info)
        except (zipfile.BadZipFile, OSError, RuntimeError, NotImplementedError) as error:
            raise self._damaged(name, error) from None
        self._members.append(member)
        return member

    def _header(self, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        try:
            shape, is_fortran, dtype = npy.read_header(file)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise self._damaged(name, error) from None
        if dtype.kind not in "biufU" or not dtype.itemsize:
            raise DataError(f"{self.path}: {name} has the dtype {dtype}, not numbers; objects are never unpickled")
        if is_fortran and len(shape) > 1:
            raise DataError(f"{self.path}: {name} is in Fortran order: save it as np.ascontiguousarray(array)")
        if len(shape) > _MOST_AXES or min(shape, default=0) < 0:
            raise DataError(f"{self.path}: {name} has the shape {shape!r:.80}, which no array has")
        stored = self._zip.getinfo(self._names[name]).file_size - file.tell()
        if math.prod(shape) * dtype.itemsize > stored:
            raise DataError(f"{self.path}: {name} declares the shape {shape!r:.80}, but {stored} bytes are stored")
        return tuple(shape), dtype

    def _bytes(self, name: str, file: IO[bytes], size: int, *, least: int | None = None) -> bytes:
        try:
            data = file.read(size)
        except (zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
            raise self._damaged(name, error) from None
        if len(data) < (size if least is None else least):
            raise DataError(f"{self.path}: {name} ends {size - len(data)} bytes too early: the file is damaged")
        return data

    def _damaged(self, name: str, error: Exception) -> DataError:
        return DataError(f"{self.path}: {name} cannot be read, the file may be damaged: {error}")

"""Arrays in `.npy` files: written in place, then memory-mapped."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from pathlib import Path
from typing import IO, Any

import numpy as np

from rekindle.errors import FileRefused
from rekindle.experience import Array
from rekindle.spaces import ArraySpec
from rekindle.storage.files import CREATE, PRIVATE, open_regular, reporting

__all__ = ["create", "data_digest", "open_mapped", "read_header", "sync"]

_PIECE = 2**24


def create(path: Path, column: ArraySpec, rows: int) -> Array:
    """Create a file for `rows` values, and map it to write them; raises `StorageError` if they do not fit the disk.

    The space is reserved at once: writing to a mapped file on a full disk would end the process.
    """
    dtype, shape = column.dtype.newbyteorder("<"), (rows, *column.shape)
    with reporting("write", path), open(os.open(path, CREATE, PRIVATE), "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        start = file.tell()
        file.flush()
        _reserve(file.fileno(), start, math.prod(shape) * dtype.itemsize)
    return _mapped(path, dtype, shape, start, "r+")


def _reserve(descriptor: int, start: int, size: int) -> None:
    if size and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
        return
    os.lseek(descriptor, start, os.SEEK_SET)
    for offset in range(0, size, _PIECE):
        os.write(descriptor, bytes(min(_PIECE, size - offset)))


def _mapped(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], start: int, mode: Any) -> Array:
    if not math.prod(shape):  # nothing can be mapped
        return np.zeros(shape, dtype)
    with reporting("map", path):
        # A plain array, as every operation on a memmap would make another memmap.
        return np.asarray(np.memmap(path, dtype, mode, start, shape))


def sync(path: Path) -> None:
    """Make a file durable that was written through its mapping."""
    with reporting("sync", path):
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def open_mapped(path: Path, column: ArraySpec, rows: int) -> Array:
    """Map a file of `rows` values for reading; raises `FileRefused` if it is not that."""
    wanted = (rows, *column.shape)
    try:
        with reporting("read", path), open(open_regular(path), "rb") as file:
            shape, is_fortran, dtype = read_header(file)
            start, size = file.tell(), os.fstat(file.fileno()).st_size
    except ValueError as error:
        raise FileRefused(f"{path}: not an array: {error}") from None
    if shape != wanted or dtype != column.dtype or is_fortran:
        raise FileRefused(f"{path}: it is {dtype} {shape}, not {column.dtype} {wanted}")
    if size != start + math.prod(shape) * dtype.itemsize:
        raise FileRefused(f"{path}: {size} bytes are not {dtype} {shape}")
    return _mapped(path, dtype, shape, start, "r")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the shape, whether the order is Fortran's, and the dtype; raises `ValueError` if it is not such a file."""
    is_first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    try:
        shape, is_fortran, dtype = read(file)
    except (TypeError, RecursionError, MemoryError) as error:  # of Python's parser
        raise ValueError(f"its header cannot be read ({type(error).__name__})") from None
    if max(shape, default=0) > sys.maxsize:
        raise ValueError("its header has a shape that no array has")
    return shape, is_fortran, dtype


def data_digest(path: Path) -> str:
    """The SHA-256 of the elements in a file."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_PIECE // 8))
    with reporting("read", path), open(open_regular(path), "rb", buffering=0) as file:
        read_header(file)
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
    return digest.hexdigest()

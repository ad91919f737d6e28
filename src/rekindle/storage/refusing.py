"""Open files that someone else may have written: what is not a regular file of a bounded size is refused."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Generator

from rekindle.errors import FileRefused, StorageError
from rekindle.storage.files import WITHOUT_WAITING

__all__ = ["opened_file"]


@contextlib.contextmanager
def opened_file(name: str, *, most: int) -> Generator[tuple[io.FileIO, int]]:
    """A regular file opened for reading, and its size; converts the errors of the system."""
    try:
        descriptor = os.open(name, os.O_RDONLY | WITHOUT_WAITING)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise FileRefused(f"{name}: not a regular file")
            if status.st_size > most:
                raise FileRefused(f"{name}: {status.st_size} bytes long, and a file holds at most {most}")
            with open(descriptor, "rb", buffering=0, closefd=False) as file:
                yield file, status.st_size
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise FileRefused(f"{name}: missing") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileRefused(f"{name}: a symbolic link, which is not followed") from None
        if error.errno in {errno.ENXIO, errno.ENODEV}:
            raise FileRefused(f"{name}: not a regular file") from None
        raise StorageError(error.errno, f"{name}: cannot be read: {error.strerror}") from error

"""Files that survive a crash: atomic replacement, directories, hard links, safe reads."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import stat
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from rekindle.errors import StorageError

__all__ = [
    "absolute",
    "create_empty",
    "entries",
    "link",
    "make_directory",
    "move",
    "open_regular",
    "opened",
    "read_all",
    "read_bytes",
    "read_start",
    "regular_names",
    "remove",
    "remove_directory",
    "remove_temporaries",
    "rename",
    "require_directory",
    "share",
    "sync_directory",
    "write_atomic",
    "write_output",
]

T = TypeVar("T")


def _flags(*names: str) -> int:
    """Combine the flags that the system has; exported policies are also read and written on Windows."""
    flags = 0
    for name in (*names, "O_BINARY"):
        flags |= getattr(os, name, 0)
    return flags


WITHOUT_WAITING = _flags("O_NOFOLLOW", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY")
"""Flags for opening files; without them, opening a named pipe instead of a file would block the process."""
CREATE = _flags("O_WRONLY", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_CLOEXEC")
PRIVATE = 0o600
_PUBLIC = 0o666
_TEMPORARY = ".tmp"
LARGE = 2**16
_NO_HARD_LINKS = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""The errors of file systems without hard links, or with too many of them."""


@contextlib.contextmanager
def reporting(action: str, path: str | Path) -> Generator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot {action} {path}: {error.strerror or error}") from error


def absolute(path: Path) -> Path:
    """An absolute path, which stays valid when the working directory changes; symbolic links are not resolved."""
    with reporting("find the working directory, which is needed for", path):
        return path.absolute()


def write_all(descriptor: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _coalesced(chunks: Iterable[Any]) -> Iterator[Any]:
    """The same bytes in fewer pieces: small chunks are joined, large ones are not copied."""
    gathered = bytearray()
    for chunk in chunks:
        if len(chunk) < LARGE:
            gathered += chunk
            if len(gathered) < LARGE:
                continue
        if gathered:
            yield bytes(gathered)
            gathered.clear()
        if len(chunk) >= LARGE:
            yield chunk
    if gathered:
        yield gathered


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{_TEMPORARY}")


def _anew(temporary: Path, create: Callable[[], T]) -> T:
    """Create a file with a temporary name; if a failed write left one of that name, replace it."""
    try:
        return create()
    except FileExistsError:
        os.unlink(temporary)
        return create()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable; does nothing on Windows, where no runs are written."""
    if os.name == "nt":
        return
    with reporting("sync", path):
        descriptor = os.open(path, _flags("O_RDONLY", "O_DIRECTORY", "O_CLOEXEC"))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, *chunks: Any, sync_name: bool = True) -> None:
    """Write a file completely or not at all, durably.

    With `sync_name=False` the name becomes durable with a later sync of the directory; the data are durable at once.
    """
    temporary = _temporary(path)
    with reporting("write", path):
        _put(_anew(temporary, lambda: os.open(temporary, CREATE, PRIVATE)), temporary, path, chunks)
    if sync_name:
        sync_directory(path.parent)


def write_output(path: Path, *chunks: Any) -> None:
    """Write a file for the user at any place: completely or not at all, durably, with the permissions of the umask.

    Other users may be able to write to that directory, so nothing in it is trusted: the temporary name cannot be
    guessed, and a symbolic link at the path is replaced, not followed.
    """
    if path.name in ("", ".."):
        raise StorageError(f"cannot write {path}: it is a directory")
    temporary = path.with_name(f".{secrets.token_hex(8)}{_TEMPORARY}")
    with reporting("write", path):
        _put(os.open(temporary, CREATE, _PUBLIC), temporary, path, chunks)
    sync_directory(path.parent)


def _put(descriptor: int, temporary: Path, path: Path, chunks: Iterable[Any]) -> None:
    """Write to a new file, and rename it to its final name once it is durable."""
    try:
        try:
            for chunk in _coalesced(chunks):
                write_all(descriptor, chunk)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        # A second fsync after a failed one reports success, so drop the file instead of retrying.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; never blocks, and never follows a symbolic link.

    Raises `StorageError` for anything that is not a regular file, and `OSError` like `os.open`.
    """
    descriptor = os.open(path, flags | WITHOUT_WAITING, PRIVATE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        action = "read" if flags == os.O_RDONLY else "write"
        raise StorageError(f"cannot {action} {path}: it is not a regular file")
    return descriptor


@contextlib.contextmanager
def opened(path: Path) -> Generator[BinaryIO | None]:
    """A regular file opened for reading, or None if it does not exist; raises `StorageError` if it cannot be read."""
    with reporting("read", path):
        try:
            descriptor = open_regular(path)
        except FileNotFoundError:
            yield None
            return
        with open(descriptor, "rb") as file:
            yield file


def read_all(path: Path, file: BinaryIO) -> bytes:
    """The rest of a file; raises `StorageError` if it does not fit into memory."""
    try:
        return file.read()
    except MemoryError:
        size = os.fstat(file.fileno()).st_size
        raise StorageError(f"cannot read {path}: its {size} bytes do not fit into memory") from None


def read_bytes(path: Path, *, most: int | None = None) -> bytes:
    """The content of a regular file; raises for a symbolic link, or if the file has more than `most` bytes."""
    with reporting("read", path), open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if most is not None and size > most:
            raise StorageError(f"cannot read {path}: it has {size} bytes, and at most {most} are expected")
        return read_all(path, file) if most is None else file.read(most)


def read_start(path: Path, size: int) -> bytes:
    """The first bytes of a regular file; fewer if it is shorter."""
    with reporting("read", path), open(open_regular(path), "rb") as file:
        return file.read(size)


def size(path: Path) -> int:
    """Bytes of a file; 0 if it does not exist, as another process may remove it at any time."""
    with reporting("read", path), contextlib.suppress(FileNotFoundError):
        return os.stat(path, follow_symlinks=False).st_size
    return 0


def make_directory(path: Path, *, sync_name: bool = True) -> None:
    """Create a directory and its missing parents, durably.

    With `sync_name=False` the last name becomes durable with a later sync of the parent directory.
    """
    if os.path.isdir(path):  # False, not an error, for a name that is too long
        return
    make_directory(path.parent)
    with reporting("make the directory", path), contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if sync_name:
        sync_directory(path.parent)


def entries(path: Path) -> list[Path]:
    """The entries of a directory."""
    with reporting("list", path):
        return list(path.iterdir())


def regular_names(path: Path, *, most: int) -> list[str]:
    """The names of regular files in a directory, among its first `most` entries."""
    with reporting("list", path), os.scandir(path) as found:
        return [entry.name for entry in itertools.islice(found, most) if entry.is_file(follow_symlinks=False)]


def create_empty(paths: Iterable[Path]) -> None:
    """Create empty files in a directory, durably; those that exist are left alone."""
    directories: set[Path] = set()
    for path in paths:
        with reporting("write", path), contextlib.suppress(FileExistsError):
            os.close(os.open(path, CREATE, PRIVATE))
        directories.add(path.parent)
    for directory in directories:
        sync_directory(directory)


def require_directory(path: Path) -> None:
    """Raise for a symbolic link, or anything else that is not a real directory."""
    with reporting("use", path):
        mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
        raise StorageError(f"cannot use {path}: it is {kind}")


def link(source: Path, target: Path) -> None:
    """Give a file a second name, replacing any file of that name; makes a copy if there are no hard links.

    Nothing is synced: the link is a convenience and may be outdated after a power cut.
    """
    temporary = _temporary(target)
    with reporting("link", target):
        try:
            _anew(temporary, lambda: os.link(source, temporary, follow_symlinks=False))
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            write_atomic(target, read_bytes(source), sync_name=False)
            return
        try:
            os.replace(temporary, target)
        finally:
            # A rename between two names of the same file does nothing, and leaves the temporary name.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def share(source: Path, target: Path) -> None:
    """Give a file that is never changed a name in another directory; makes a copy if there are no hard links.

    The name becomes durable with a later sync of the directory.
    """
    with reporting("link", source):
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in {*_NO_HARD_LINKS, errno.EXDEV}:
                raise
            write_atomic(target, read_bytes(source), sync_name=False)


def move(source: Path, directory: Path) -> None:
    """Move a file into a directory, which is created if it is missing."""
    make_directory(directory)
    require_directory(directory)
    with reporting("move", source), contextlib.suppress(FileNotFoundError):
        os.replace(source, directory / source.name)


def rename(source: Path, target: Path) -> None:
    """Rename a file, replacing any file of that name; nothing is synced."""
    with reporting("rename", source):
        os.replace(source, target)


def remove(paths: Iterable[Path], *, sync: Path | None = None) -> None:
    """Remove files; with `sync`, make the removal durable in their directory if anything was removed."""
    removed = False
    for path in paths:
        with reporting("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed = True
    if removed and sync is not None:
        sync_directory(sync)


def remove_directory(path: Path) -> None:
    """Remove a directory and everything in it."""
    with reporting("remove", path):
        for directory, _, names in os.walk(path, topdown=False):
            for name in names:
                os.unlink(os.path.join(directory, name))
            os.rmdir(directory)


def remove_temporaries(directory: Path) -> None:
    """Remove incomplete files of a killed writer."""
    remove(path for path in sorted(directory.glob(f".*{_TEMPORARY}")) if not path.is_dir() or path.is_symlink())

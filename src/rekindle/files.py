"""Files that survive: atomic replacement, exclusive directories, hard links, append-only logs, the lock.

Every byte that a run keeps goes through this module, and every `fsync` of rekindle stands in it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import msgspec

from rekindle.errors import LogCorrupt, RunLocked, StorageError

__all__ = [
    "JsonLines",
    "Lock",
    "LogPosition",
    "LogTail",
    "check_rows",
    "cut",
    "entries",
    "link",
    "make_directory",
    "move",
    "read_bytes",
    "read_last_rows",
    "read_rows",
    "remove",
    "remove_directory",
    "remove_temporaries",
    "rename",
    "require_directory",
    "surplus",
    "sync_directory",
    "write_atomic",
]

T = TypeVar("T")

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_PRIVATE = 0o600
_TEMPORARY = ".tmp"
_LARGE = 2**16
_NO_HARD_LINKS = {errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What file systems say that have none, or no more of them."""
_LONGEST_ROW = 2**26
"""Bytes of a row, for a reader that takes a log in parts."""
_UNSYNCED_LIMIT = 8 * 2**20
"""A log that nobody checkpoints is synced when this much of it is held in memory."""


@contextlib.contextmanager
def _reporting(action: str, path: str | Path) -> Generator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"cannot {action} {path}: {error.strerror or error}") from error


def _write_all(descriptor: int, data: Any) -> None:
    view = memoryview(data).cast("B")
    while view:
        view = view[os.write(descriptor, view) :]


def _coalesced(chunks: Iterable[Any]) -> Iterator[Any]:
    """The same bytes in few pieces: small chunks are gathered, large ones are not copied."""
    gathered = bytearray()
    for chunk in chunks:
        if len(chunk) < _LARGE:
            gathered += chunk
            if len(gathered) < _LARGE:
                continue
        if gathered:
            yield bytes(gathered)
            gathered.clear()
        if len(chunk) >= _LARGE:
            yield chunk
    if gathered:
        yield gathered


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}{_TEMPORARY}")


def _anew(temporary: Path, create: Callable[[], T]) -> T:
    """Create a temporary name, in the place of one that a failed write could not clear away."""
    try:
        return create()
    except FileExistsError:
        os.unlink(temporary)
        return create()


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    with _reporting("sync", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_atomic(path: Path, *chunks: Any, sync_name: bool = True) -> None:
    """Put a file there whole or not at all, durably.

    `sync_name=False` leaves the name to a later sync of the directory; the data are durable in either case.
    """
    temporary = _temporary(path)
    with _reporting("write", path):
        descriptor = _anew(temporary, lambda: os.open(temporary, _CREATE, _PRIVATE))
        try:
            try:
                for chunk in _coalesced(chunks):
                    _write_all(descriptor, chunk)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
        except BaseException:
            # A descriptor whose fsync failed says "done" when asked again, so the file is dropped, not retried.
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    if sync_name:
        sync_directory(path.parent)


def read_bytes(path: Path) -> bytes:
    """The content of a regular file; symbolic links are refused."""
    with _reporting("read", path):
        descriptor = os.open(path, _READ | os.O_NONBLOCK)  # a named pipe would hold the process here
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise StorageError(f"cannot read {path}: it is not a regular file")
            return file.read()


def make_directory(path: Path, *, sync_name: bool = True) -> None:
    """Make a directory and the missing ones above it, durably.

    `sync_name=False` leaves the last name to a later sync of the directory above.
    """
    if path.is_dir():
        return
    make_directory(path.parent)
    with _reporting("make the directory", path), contextlib.suppress(FileExistsError):
        os.mkdir(path)
    if sync_name:
        sync_directory(path.parent)


def entries(path: Path) -> list[Path]:
    """What is in a directory."""
    with _reporting("list", path):
        return list(path.iterdir())


def require_directory(path: Path) -> None:
    """Refuse a symbolic link, or anything else that is not a directory of the run's own."""
    with _reporting("use", path):
        mode = os.lstat(path).st_mode
    if not stat.S_ISDIR(mode):
        kind = "a symbolic link" if stat.S_ISLNK(mode) else "not a directory"
        raise StorageError(f"cannot use {path}: it is {kind}")


def link(source: Path, target: Path) -> None:
    """Give a file a second name, replacing what had it; a copy where the file system has no hard links.

    Nothing is synced: the name is a convenience that may lag after a power cut.
    """
    temporary = _temporary(target)
    with _reporting("link", target):
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
            # Renaming onto another name of the same file does nothing and leaves the temporary name.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def move(source: Path, directory: Path) -> None:
    """Move a file into a directory that is made if it is missing."""
    make_directory(directory)
    require_directory(directory)
    with _reporting("move", source), contextlib.suppress(FileNotFoundError):
        os.replace(source, directory / source.name)


def rename(source: Path, target: Path) -> None:
    """Give a file another name, replacing what had it; nothing is synced."""
    with _reporting("rename", source):
        os.replace(source, target)


def remove(paths: Iterable[Path], *, sync: Path | None = None) -> None:
    """Remove files; with `sync`, make that durable in their directory if anything was removed."""
    removed = False
    for path in paths:
        with _reporting("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)
            removed = True
    if removed and sync is not None:
        sync_directory(sync)


def remove_directory(path: Path) -> None:
    """Remove a directory and everything in it."""
    with _reporting("remove", path):
        for directory, _, names in os.walk(path, topdown=False):
            for name in names:
                os.unlink(os.path.join(directory, name))
            os.rmdir(directory)


def remove_temporaries(directory: Path) -> None:
    """Remove what a killed writer left half-written."""
    remove(path for path in sorted(directory.glob(f".*{_TEMPORARY}")) if not path.is_dir() or path.is_symlink())


class LogPosition(NamedTuple):
    """How much of a log there is: rows, bytes, and the CRC-32 of those bytes."""

    rows: int = 0
    size: int = 0
    crc: int = 0

    def after(self, row: bytes) -> LogPosition:
        """The position once a row was added."""
        return LogPosition(self.rows + 1, self.size + len(row), zlib.crc32(row, self.crc))


class JsonLines:
    """An append-only log: one `write` a row, rows numbered from 0, strict JSON (NaN becomes null).

    A row that cannot be written stays in memory and goes first next time, so a full disk loses nothing.
    Appending and syncing may happen on different threads.
    """

    def __init__(self, path: Path, position: LogPosition | None = None) -> None:
        self.path = path
        position = position or LogPosition()
        self._position = position
        self._durable = position.size
        self._tail = bytearray()
        self._written = position.size
        self._suspect = False
        self.is_deferred = False
        """Whether rows wait in memory for `write_out` or `sync`, so that appending does no input or output."""
        self._guard = threading.Lock()
        self._encode = msgspec.json.Encoder().encode
        with _reporting("open", path):
            self._descriptor = os.open(path, _APPEND, _PRIVATE)

    @property
    def position(self) -> LogPosition:
        """Where the next row goes."""
        return self._position

    def append(self, fields: Mapping[str, Any]) -> None:
        """Add a row; raises `StorageError` when it is held in memory only."""
        line = self._encode({"row": self._position.rows, **fields}) + b"\n"
        with self._guard:
            self._tail += line
            self._position = self._position.after(line)
            if not self.is_deferred:
                self._write_out()
        if len(self._tail) > _UNSYNCED_LIMIT:
            self.sync()

    def write_out(self) -> None:
        """Write the rows that wait in memory."""
        with self._guard:
            self._write_out()

    def _write_out(self) -> None:
        view = memoryview(self._tail)[self._written - self._durable :]
        try:
            while view:
                count = os.write(self._descriptor, view)
                if count < len(view):  # a short write is the first sign of a full disk: see what the rest says
                    view = view[count:]
                    continue
                break
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._written)
            held = len(view)
            raise StorageError(
                f"cannot append to {self.path}: {error.strerror}; {held} bytes of rows are held in memory and "
                "are written as soon as there is room"
            ) from error
        finally:
            view.release()
        self._written = self._position.size

    def sync(self) -> None:
        """Make every row so far durable."""
        with self._guard:
            if self._suspect:
                self._replace()
                return
            self._write_out()
            end = self._position.size
            if end == self._durable:
                return
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            with self._guard:
                self._suspect = True
            raise StorageError(f"cannot sync {self.path}: {error.strerror}; it is written anew next time") from error
        with self._guard:
            if end > self._durable:  # another thread may have synced more in the meantime
                del self._tail[: end - self._durable]
                self._durable = end

    def _replace(self) -> None:
        """Write a new file from what was durable and what is in memory: a failed fsync cannot be asked again."""
        piece = 2**20
        durable = (
            os.pread(self._descriptor, min(piece, self._durable - offset), offset)
            for offset in range(0, self._durable, piece)
        )
        # A copy, as a write that fails is kept with its view of the data, and the tail must be able to grow.
        write_atomic(self.path, *durable, bytes(self._tail))
        with _reporting("open", self.path):
            descriptor = os.open(self.path, _APPEND, _PRIVATE)
        os.close(self._descriptor)
        self._descriptor = descriptor
        self._durable = self._written = self._position.size
        self._tail.clear()
        self._suspect = False

    def close(self) -> None:
        """Write what waits and let go of the file; what was not synced is left to the operating system."""
        try:
            self.write_out()
        finally:
            os.close(self._descriptor)


def surplus(path: Path, position: LogPosition) -> bytes:
    """What a log has after a position.

    Raises `LogCorrupt` when the log is shorter than the position, or is not what was written.
    """
    data = read_bytes(path) if path.exists() else b""
    if len(data) < position.size:
        raise LogCorrupt(
            f"{path} has {len(data)} bytes, but the checkpoint was taken when it had {position.size} "
            f"({position.rows} rows): rows are missing from line {data.count(10) + 1} on"
        )
    if zlib.crc32(memoryview(data)[: position.size]) != position.crc:
        check_rows(path, data[: position.size])
        raise LogCorrupt(f"{path}: the first {position.rows} rows are not the ones that were written")
    if position.size == 0:
        check_rows(path, data)
    return data[position.size :]


def cut(path: Path, tail: bytes, rewound: Path) -> int:
    """Move the tail of a log, as `surplus` found it, into `rewound`; returns the rows moved."""
    if not tail:
        return 0
    make_directory(rewound)
    require_directory(rewound)
    remove_temporaries(rewound)  # of a resume that was killed right here, and would be in the way for ever
    write_atomic(rewound / path.name, tail)
    with _reporting("cut", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(tail))
        finally:
            os.close(descriptor)
    return tail.count(b"\n")


def mend(path: Path, rewound: Path) -> LogPosition:
    """Where a log can go on of which no checkpoint tells: after its last sound row. The rest moves into `rewound`."""
    data = read_bytes(path) if path.exists() else b""
    position = LogPosition()
    for line in data.split(b"\n")[:-1]:
        try:
            check_rows(path, line + b"\n", first=position.rows)
        except LogCorrupt:
            break
        position = position.after(line + b"\n")
    cut(path, data[position.size :], rewound)
    return position


def check_rows(path: Path, data: bytes, *, first: int = 0) -> list[dict[str, Any]]:
    """Decode the complete rows of a log; a bad line or number raises `LogCorrupt` with its line number.

    An unterminated last line is a row that is still being written, and is left out.
    """
    complete = data.rfind(b"\n") + 1
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(data[:complete].split(b"\n")[:-1], first):
        try:
            value: Any = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise LogCorrupt(f"{path}: line {number + 1} is not JSON: {error}") from None
        fields = cast("dict[str, Any] | None", value if isinstance(value, dict) else None)
        if fields is None or fields.get("row") != number:
            raise LogCorrupt(f"{path}: line {number + 1} is not row {number}: {line[:60]!r}")
        rows.append(fields)
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Every complete row of a log, live or not; an absent log has none."""
    try:
        data = read_bytes(path)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        raise
    return check_rows(path, data)


def read_last_rows(path: Path, count: int, *, most_bytes: int = 2**24) -> list[dict[str, Any]]:
    """The last complete rows of a log, live or not, read from its end: as many as asked for, are there and fit.

    What comes before them is neither read nor checked. Raises `LogCorrupt` when they are not rows that follow one
    another, or when not one of them fits into `most_bytes`.
    """
    try:
        descriptor = os.open(path, _READ | os.O_NONBLOCK)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    with _reporting("read", path), open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise StorageError(f"cannot read {path}: it is not a regular file")
        end = file.seek(0, os.SEEK_END)
        block = min(_LARGE, most_bytes)
        while True:
            start = max(0, end - block)
            file.seek(start)
            data = file.read(end - start)
            if start == 0 or block == most_bytes or data.count(b"\n") > count:
                break
            block = min(4 * block, most_bytes)
    lines = data.split(b"\n")[1 if start else 0 : -1]
    if start and not lines:
        raise LogCorrupt(f"{path}: the last row takes more than {most_bytes} bytes")
    skipped = max(0, len(lines) - count)
    first = _row_number(path, lines[0]) if start else 0
    return check_rows(path, b"".join(line + b"\n" for line in lines[skipped:]), first=first + skipped)


def _row_number(path: Path, line: bytes) -> int:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        value: Any = msgspec.json.decode(line)
        number = cast("dict[str, Any]", value).get("row") if isinstance(value, dict) else None
        if type(number) is int and number > 0:
            return number
    raise LogCorrupt(f"{path}: a line near its end is not a row: {line[:60]!r}")


class LogTail:
    """Follows a log that another process appends to, without disturbing it or reading anything twice.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> log, tail = JsonLines(path), LogTail(path)
    >>> log.append({"loss": 1.0})
    >>> tail.poll()
    ([{'row': 0, 'loss': 1.0}], False)
    >>> tail.poll()
    ([], False)
    >>> log.close()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._restart()

    def _restart(self) -> None:
        self._offset = self._rows = 0
        self._last = b""

    @property
    def position(self) -> int:
        """Bytes of the log that have been read."""
        return self._offset

    def poll(self, most_bytes: int = -1) -> tuple[list[dict[str, Any]], bool]:
        """New rows, and whether a resume cut the log back, in which case they start again from row 0.

        Of a long log, `most_bytes` takes a part at a time: call until there are no rows. A longer row is read whole.
        """
        try:
            descriptor = os.open(self.path, _READ)
        except FileNotFoundError:
            return [], False
        with open(descriptor, "rb") as file:
            data = self._read(file, most_bytes)
            # The last line seen must still be there, byte for byte (every row carries its own wall time).
            rewound = not data.startswith(self._last)
            if rewound:
                self._restart()
                data = self._read(file, most_bytes)
        new = data[len(self._last) :]
        rows = check_rows(self.path, new, first=self._rows)
        complete = new.rfind(b"\n") + 1
        if rows:
            self._last = new[new.rfind(b"\n", 0, complete - 1) + 1 : complete]
            self._offset += complete
            self._rows += len(rows)
        return rows, rewound

    def _read(self, file: BinaryIO, most_bytes: int) -> bytes:
        file.seek(self._offset - len(self._last))
        if most_bytes < 0:
            return file.read()
        data = file.read(len(self._last) + most_bytes)
        if data.count(b"\n") <= bool(self._last):
            data += file.readline(_LONGEST_ROW)
            if len(data) > _LONGEST_ROW:
                raise LogCorrupt(f"{self.path}: row {self._rows} takes more than {_LONGEST_ROW} bytes")
        return data


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def _release_all() -> None:
    for lock in list(_held):
        lock.release()


# A forked worker shares the locks of its parent, and would keep them after the parent's death.
os.register_at_fork(after_in_child=_release_all)


class Lock:
    """One writer at a time; freed by the kernel when its process dies, however it dies."""

    def __init__(self, path: Path, *, patience: float = 1.0) -> None:
        self.path = path
        with _reporting("open", path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE)
        try:
            with _reporting("lock", path):
                self._take(descriptor, patience)
        except BaseException:
            os.close(descriptor)  # or this process would stand in its own way
            raise
        self._descriptor: int | None = descriptor
        _held.add(self)

    def _take(self, descriptor: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
                    run = self.path.parent
                    raise RunLocked(
                        f"{run} is being written by {holder}; stop it first (rekindle stop {run})"
                    ) from None
                time.sleep(0.01)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        """Let go; the file stays, as unlinking it would let two processes lock two files of one name."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether some process holds the lock; takes it for microseconds to find out."""
        try:
            descriptor = os.open(path, _READ)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

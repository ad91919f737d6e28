"""Faults from inside: wraps the calls of `os` that change files, and lets something happen at the one asked for.

Only the worker is ever wrapped, and only calls below one directory, its disk, count. A fault is said in one text:

    kill 17             SIGKILL before the 17th call
    kill fsync:x.mpk    SIGKILL before the first fsync of a path with "x.mpk" in it
    torn 17             if the 17th call is a write, do half of it; then SIGKILL
    fail 17 EIO         the 17th call raises OSError(EIO)
    always-fail link: EPERM   so does every link
    outage 17-40 EIO    so does every call from the 17th to the 40th
    powercut 17         the file system goes down before the 17th call, without writing anything back; then SIGKILL
    unsynced 17         the same, and until then every fsync does nothing
    record              nothing; every call is listed
    trace [kill ...]    every call is listed in full, for `powercut`; then as above
"""

from __future__ import annotations

import base64
import errno
import fcntl
import json
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "pwrite", "ftruncate", "fsync", "mkdir", "link", "rename", "replace", "unlink", "rmdir")
_BY_DESCRIPTOR = ("write", "pwrite", "ftruncate", "fsync")
_BY_TARGET = ("link", "rename", "replace")

_SHUT_DOWN = 0x8004587D
"""FS_IOC_SHUTDOWN, for root on ext4, xfs and f2fs."""
_WITHOUT_FLUSHING_THE_LOG = 2

_write, _readlink = os.write, os.readlink


def inject(fault: str, disk: str | Path, report: str | Path, acknowledged: str | Path) -> None:
    """Wrap `os` in this process; what is listed goes to `report`."""
    _Injector(fault, disk, report, acknowledged).install()


class _Injector:
    def __init__(self, fault: str, disk: str | Path, report: str | Path, acknowledged: str | Path) -> None:
        words = fault.split()
        self._traces = words[0] == "trace"
        if self._traces:
            words = words[1:] or ["nothing"]
        self._kind = words[0]
        self._at = words[1] if len(words) > 1 else ""
        self._error = words[2] if len(words) > 2 else ""
        self._disk = os.path.abspath(disk)
        self._acknowledged = acknowledged
        self._report = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count = 0
        self._guard = threading.RLock()

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            path = self._changes(name, args)
            if path is None:
                return original(*args, **options)
            with self._guard:
                self._count += 1
                is_it = self._is_it(name, path)
                if not self._traces and (self._kind == "record" or is_it):
                    self._say(f"{name} {path}")
                if is_it:
                    if self._kind not in ("always-fail", "outage"):
                        self._at = ""
                    self._strike(name, original, args)
                if self._kind == "unsynced" and name == "fsync":
                    return None
                if self._traces:  # inside the guard: the order of the list is that of the calls
                    return self._traced(name, path, original, args, options)
            return original(*args, **options)

        return call

    def _changes(self, name: str, args: tuple[Any, ...]) -> str | None:
        """The path that a call changes, if it is on the disk."""
        if name == "open" and not args[1] & os.O_CREAT:
            return None
        if name in _BY_DESCRIPTOR:
            path = _readlink(f"/proc/self/fd/{args[0]}").removesuffix(" (deleted)")
        else:
            path = os.path.abspath(args[1] if name in _BY_TARGET else args[0])
        return path if path == self._disk or path.startswith(self._disk + os.sep) else None

    def _is_it(self, name: str, path: str) -> bool:
        if self._kind == "outage":
            first, _, last = self._at.partition("-")
            return int(first) <= self._count <= int(last)
        if self._at.isdecimal():
            return self._count == int(self._at)
        wanted, _, part = self._at.partition(":")
        return name == wanted and part in path

    def _strike(self, name: str, original: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._error:
            number = getattr(errno, self._error)
            raise OSError(number, os.strerror(number))
        if self._kind == "torn" and name == "write":
            original(args[0], memoryview(args[1])[: len(args[1]) // 2])
        if self._kind in ("powercut", "unsynced"):
            fcntl.ioctl(os.open(self._disk, os.O_RDONLY), _SHUT_DOWN, struct.pack("I", _WITHOUT_FLUSHING_THE_LOG))
        os.kill(os.getpid(), signal.SIGKILL)

    def _traced(
        self, name: str, path: str, original: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        line: dict[str, Any] = {"name": name, "path": os.path.relpath(path, self._disk)}
        line["acknowledged"] = os.stat(self._acknowledged).st_size
        line["stack"] = _stack()
        result = original(*args, **options)  # what fails changes nothing, and is not listed
        if name in _BY_TARGET:
            line["source"] = os.path.relpath(os.path.abspath(args[0]), self._disk)
        elif name == "write":
            line["data"] = base64.b64encode(memoryview(args[1])[:result]).decode()
            line["offset"] = os.lseek(args[0], 0, os.SEEK_CUR) - result
        elif name == "pwrite":
            line["data"], line["offset"] = base64.b64encode(args[1][:result]).decode(), args[2]
        elif name == "ftruncate":
            line["size"] = args[1]
        self._say(json.dumps(line))
        return result

    def _say(self, line: str) -> None:
        _write(self._report, line.encode() + b"\n")


def _stack() -> list[str]:
    """Who asks: the functions of rekindle on the stack, innermost first, as file:function:line."""
    found: list[str] = []
    frame = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if "rekindle" in path.parts:
            found.append(f"{path.name}:{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return found

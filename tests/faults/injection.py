"""Faults from inside: wraps the calls of `os` that change files, and lets something happen at the one asked for.

Only the worker is ever wrapped, and only calls below its own root are counted. A fault is said in one text, so that
it can travel in an environment variable or a message:

    kill 17           SIGKILL before the 17th call
    kill fsync:x.mpk  SIGKILL before the first fsync of a path with "x.mpk" in it
    torn 17           if the 17th call is a write, do half of it; then SIGKILL
    fail 17 EIO       the 17th call raises OSError(EIO)
    skip files.py:98  every fsync whose stack has this line does nothing
    record            nothing; every call is listed
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = ("open", "write", "pwrite", "ftruncate", "fsync", "mkdir", "link", "rename", "replace", "unlink")
_BY_DESCRIPTOR = ("write", "pwrite", "ftruncate", "fsync")

_write, _readlink = os.write, os.readlink


def inject(fault: str, root: str | Path, report: str | Path) -> None:
    """Wrap `os` in this process; what was done, or every call for `record`, is appended to `report`."""
    _Injector(fault, root, report).install()


class _Injector:
    def __init__(self, fault: str, root: str | Path, report: str | Path) -> None:
        self._kind, *self._details = fault.split()
        self._at = self._details[0] if self._kind in ("kill", "torn", "fail") else ""
        self._root = os.path.abspath(root)
        self._report = os.open(report, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count = 0
        self._guard = threading.RLock()

    def install(self) -> None:
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            path = self._target(name, args)
            if path is None:
                return original(*args, **options)
            with self._guard:
                self._count += 1
                is_it = self._is_it(name, path)
                if self._kind == "record" or is_it:
                    self._say(f"{name} {path}")
                if is_it:
                    self._at = ""
                    self._strike(name, original, args)
            if self._kind == "skip" and name == "fsync" and self._comes_from(self._details[0]):
                return None
            return original(*args, **options)

        return call

    def _target(self, name: str, args: tuple[Any, ...]) -> str | None:
        """The path that a call changes, if it is one below the root."""
        if name == "open" and not args[1] & os.O_CREAT:
            return None
        if name in _BY_DESCRIPTOR:
            path = _readlink(f"/proc/self/fd/{args[0]}").removesuffix(" (deleted)")
        else:
            path = os.path.abspath(args[1] if name in ("link", "rename", "replace") else args[0])
        return path if path == self._root or path.startswith(self._root + os.sep) else None

    def _is_it(self, name: str, path: str) -> bool:
        if self._at.isdecimal():
            return self._count == int(self._at)
        wanted, _, part = self._at.partition(":")
        return name == wanted and part in path

    def _strike(self, name: str, original: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if self._kind == "fail":
            number = getattr(errno, self._details[1])
            raise OSError(number, os.strerror(number))
        if self._kind == "torn" and name == "write":
            original(args[0], memoryview(args[1])[: len(args[1]) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    @staticmethod
    def _comes_from(place: str) -> bool:
        return any(f"{Path(frame.filename).name}:{frame.lineno}" == place for frame in traceback.extract_stack())

    def _say(self, line: str) -> None:
        _write(self._report, line.encode() + b"\n")

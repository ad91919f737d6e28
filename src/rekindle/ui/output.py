"""Write to standard output and standard error."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Generator
from contextvars import ContextVar
from functools import partial
from json import dumps
from typing import Any

import msgspec

from rekindle.stages import stage
from rekindle.storage import documents, files
from rekindle.text import printable

__all__ = ["complain", "json_alone", "say", "write_json"]

_write_json: ContextVar[Callable[[str], object] | None] = ContextVar("_write_json", default=None)


def complain(message: str) -> None:
    """Print a message of the command to standard error, as one line."""
    stage("")
    say(f"rekindle: {printable(' '.join(message.split()), most=2000)}")


def say(line: str) -> None:
    """Print one line to standard error, unless nobody can read it: a training whose terminal was closed continues."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def write_json(document: Any) -> None:
    """Write one JSON document to standard output; NaN becomes null, and non-ASCII characters are escaped."""
    text = msgspec.json.format(documents.encode(document), indent=2).decode()
    write = _write_json.get() or sys.stdout.write
    write(re.sub(r"[^ -~\n]", lambda match: dumps(match[0])[1:-1], text) + "\n")


@contextlib.contextmanager
def json_alone() -> Generator[None]:
    """Reserve standard output for `write_json`: output of environments and libraries goes to standard error."""
    with contextlib.ExitStack() as undo:
        if sys.stdout is sys.__stdout__:  # and not replaced by a test
            sys.stdout.flush()
            kept = os.dup(1)
            undo.callback(os.close, kept)
            undo.callback(os.dup2, kept, 1)
            os.dup2(2, 1)
            undo.callback(sys.stdout.flush)
            write = partial(_write, kept)
        else:
            write = sys.stdout.write
            undo.enter_context(contextlib.redirect_stdout(sys.stderr))
        undo.callback(_write_json.reset, _write_json.set(write))
        yield


def _write(descriptor: int, text: str) -> None:
    files.write_all(descriptor, text.encode())

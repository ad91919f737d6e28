"""The stages before a training begins: importing, creating an environment, probing it, compiling.

Code that takes seconds calls `stage` first; the stage is shown if a command or a `Progress` listens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TextIO

from rekindle.terminal import can_rewrite, width_of
from rekindle.text import printable

__all__ = ["StageLine", "listening", "stage"]

_listener: ContextVar[Callable[[str], object] | None] = ContextVar("_listener", default=None)


def stage(text: str) -> None:
    """Announce the next stage, such as `compiling DQN`; an empty text after the last."""
    if (listener := _listener.get()) is not None:
        listener(text)


@contextlib.contextmanager
def listening(listener: Callable[[str], object]) -> Generator[None]:
    """Call a function with every stage inside the context."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


class StageLine:
    """Prints stages: in one line that is replaced on a terminal, and in new lines elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_live = can_rewrite(stream)
        self._is_shown = False

    def __call__(self, text: str) -> None:
        """Replace the last stage; the cursor stays at the start of the line, so that any other text replaces it."""
        with contextlib.suppress(OSError):  # the terminal was closed; the training continues
            if self._is_live and (text or self._is_shown):
                self._stream.write(f"\r\x1b[K{printable(text)[: width_of(self._stream) - 1]}\r")
                self._stream.flush()
            elif text:
                self._stream.write(f"{printable(text)}\n")
                self._stream.flush()
        self._is_shown = bool(text)

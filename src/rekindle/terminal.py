"""What a stream of text is shown on: a terminal, a notebook, or neither."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

__all__ = ["can_rewrite", "in_notebook", "is_terminal", "shown_interactively", "width_of"]

_WIDTH = 80
"""The width of a terminal that does not report its own."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal; without a console it is None, and a log that replaces it may have no `isatty`."""
    return stream is not None and hasattr(stream, "isatty") and stream.isatty()


def can_rewrite(stream: TextIO | None) -> bool:
    """Whether a line on this stream can be replaced: it is a terminal, and not one that a notebook shows as text.

    Jupyter runs `!command` on a terminal of its own, and prints control characters as text.
    """
    return is_terminal(stream) and os.environ.get("TERM") != "dumb" and "JPY_PARENT_PID" not in os.environ


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def shown_interactively() -> bool:
    """Whether someone probably sees what is printed now."""
    return in_notebook() or is_terminal(sys.stderr)


def width_of(stream: TextIO) -> int:
    """The columns of a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or _WIDTH
    except OSError:  # it is not a terminal, or has no file descriptor
        return _WIDTH

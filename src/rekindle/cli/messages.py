"""Warnings of the library, printed as messages of the command."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator

from rekindle.ui.output import complain

__all__ = ["warnings_dropped", "warnings_printed"]


@contextlib.contextmanager
def warnings_printed(clear: Callable[[], None] | None = None) -> Generator[None]:
    """Print warnings of the library as messages of the command; `clear` is called before each of them."""
    handler = _Messages(clear)
    logger = logging.getLogger("rekindle")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def warnings_dropped() -> Generator[None]:
    """Print no warnings of the library."""
    handler, logger = logging.NullHandler(), logging.getLogger("rekindle")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Messages(logging.Handler):
    def __init__(self, clear: Callable[[], None] | None) -> None:
        super().__init__(logging.WARNING)
        self._clear = clear

    def emit(self, record: logging.LogRecord) -> None:
        if self._clear is not None:
            self._clear()
        complain(record.getMessage())

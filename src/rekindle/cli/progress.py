"""The progress line of a training: updated in place on a terminal, printed at intervals elsewhere."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Generator
from typing import TextIO

from rekindle.events import Evaluated, MetricsFlushed, TrainingStarted
from rekindle.text import compact, decimal, printable, time_text, whole
from rekindle.training import Trainer
from rekindle.ui.output import complain

__all__ = ["Progress", "warnings_printed"]

_SECONDS = 2.0
"""Minimum time between two lines without a terminal."""


class Progress:
    """Prints the progress of a trainer, from its events."""

    def __init__(self, trainer: Trainer, stream: TextIO | None = None) -> None:
        self._trainer = trainer
        self._stream = stream or sys.stderr
        self._is_live = self._stream.isatty()
        self._is_paused = False
        self._evaluated: float | None = None
        self._last_line = -_SECONDS
        self._is_stopping = False
        self._last_steps: int = -1
        self._started = (0, 0.0)
        trainer.on(TrainingStarted, self._start)
        trainer.on(MetricsFlushed, self._show)
        trainer.on(Evaluated, self._note)
        trainer.on_stop(self._stop)

    def _start(self, event: TrainingStarted) -> None:
        self._started = (event.stamp.env_steps, time.monotonic())
        if event.resumed_from is not None:
            self._say(f"continues at step {whole(event.resumed_from)}")

    def _stop(self, reason: str) -> None:
        self._is_stopping = True
        self._say(f"stopping ({reason}): taking a checkpoint first")

    def _note(self, event: Evaluated) -> None:
        self._evaluated = event.score

    def _show(self, event: MetricsFlushed) -> None:
        steps, end = event.stamp.env_steps, self._trainer.config.steps
        now = time.monotonic()
        is_last = end is not None and steps >= end
        if self._is_stopping and self._is_live:  # keep the line that says so
            return
        is_early = not (self._is_live or is_last) and now - self._last_line < _SECONDS
        if is_early or steps == self._last_steps:
            return
        self._last_line, self._last_steps = now, steps
        first, started = self._started
        rate = (steps - first) / (now - started) if now > started else 0.0
        parts = [
            f"step {whole(steps)}" + ("" if end is None else f" of {whole(end)} ({100 * steps / max(1, end):.0f} %)")
        ]
        parts.append(f"{compact(round(rate))} {'updates' if self._trainer.config.is_offline else 'steps'}/s")
        if end is not None and rate > 0 and not is_last:
            parts.append(f"{time_text((end - steps) / rate)} left")
        for name, label in (("episode/return", "return"), ("agent/loss", "loss")):
            if name in event.metrics:
                parts.append(f"{label} {decimal(event.metrics[name].mean)}")
        if self._evaluated is not None:
            parts.append(f"evaluation {decimal(self._evaluated)}")
        self._say("  ".join(parts))

    def pause(self) -> None:
        """Stop printing progress."""
        self.clear()
        self._is_paused = True

    def go_on(self) -> None:
        """Print progress again."""
        self._is_paused = False

    def _say(self, line: str) -> None:
        if self._is_paused:
            return
        if self._is_live:
            self._stream.write(f"\r\x1b[K{printable(line)}")
        else:
            self._stream.write(f"{printable(line)}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Clear the line for other text."""
        if self._is_live and not self._is_paused:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


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


class _Messages(logging.Handler):
    def __init__(self, clear: Callable[[], None] | None) -> None:
        super().__init__(logging.WARNING)
        self._clear = clear

    def emit(self, record: logging.LogRecord) -> None:
        if self._clear is not None:
            self._clear()
        complain(record.getMessage())

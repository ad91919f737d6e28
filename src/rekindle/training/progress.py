"""The progress of a training as text: one line that is replaced on a terminal, new lines elsewhere."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, TextIO

from rekindle.events import Evaluated, MetricsFlushed, TrainingStarted
from rekindle.stages import listening, stage
from rekindle.terminal import can_rewrite, in_notebook, width_of
from rekindle.text import compact, decimal, printable, time_text, whole

if TYPE_CHECKING:
    from rich.text import Text

    from rekindle.training.trainer import Trainer

__all__ = ["Progress"]

_SECONDS = 2.0
"""Minimum time between two lines without a terminal."""
_SHARE = 0.05
"""Minimum time between two lines without a terminal, as a share of the time so far."""
_BAR = 20
"""Characters of the bar."""
_NEED = ("step", "return", "evaluation", "left", "rate", "loss", "bar")
"""The parts of a line, the most important first: a narrow terminal gets those that fit."""
_SHOWN = ("bar", "step", "rate", "left", "return", "loss", "evaluation")
"""The same in the order of the line."""


class Progress:
    """Prints the progress of a trainer, from its events."""

    def __init__(self, trainer: Trainer, stream: TextIO | None = None) -> None:
        """The default stream is standard error, or in a notebook standard output."""
        self._trainer = trainer
        stream = stream or (sys.stdout if in_notebook() else sys.stderr)
        self._is_gone = stream is None  # a program without a console has no standard error
        self._stream = stream or io.StringIO()
        self._is_live = can_rewrite(self._stream)
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

    @contextlib.contextmanager
    def shown(self) -> Generator[None]:
        """Print progress inside the context, and not after it; the last line stays."""
        self._is_paused = False
        try:
            with listening(self._note_stage):
                yield
        finally:
            if self._is_live and self._last_steps >= 0:
                self._write("\n")
            self._is_paused = True

    def _note_stage(self, text: str) -> None:
        if text:
            self._say(text)

    def _start(self, event: TrainingStarted) -> None:
        stage("training" if self._is_live else "")
        self._started = (event.stamp.env_steps, time.monotonic())
        self._is_stopping, self._last_steps = False, -1
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
        first, started = self._started
        pause = max(_SECONDS, _SHARE * (now - started))
        is_early = not (self._is_live or is_last) and now - self._last_line < pause
        if is_early or steps == self._last_steps or self._is_paused:
            return
        self._last_line, self._last_steps = now, steps
        rate = (steps - first) / (now - started) if now > started else 0.0
        parts = {
            "step": f"step {whole(steps)}"
            + ("" if end is None else f" of {whole(end)} ({min(100, 100 * steps / max(1, end)):.0f} %)"),
            "rate": f"{compact(round(rate))} {'updates' if self._trainer.config.is_offline else 'steps'}/s",
        }
        if end is not None and rate > 0 and not is_last:
            parts["left"] = f"{time_text((end - steps) / rate)} left"
        for name, part in (("episode/return", "return"), ("agent/loss", "loss")):
            if name in event.metrics:
                parts[part] = f"{part} {decimal(event.metrics[name].mean)}"
        if self._evaluated is not None:
            parts["evaluation"] = f"evaluation {decimal(self._evaluated)}"
        if self._is_live and end is not None:
            can_draw = (self._stream.encoding or "").lower().startswith("utf")
            parts["bar"] = ("━" if can_draw else "-") * _BAR
        self._say("  ".join(self._fitting(parts)), share=steps / max(1, end or 1))

    def _fitting(self, parts: dict[str, str]) -> list[str]:
        """The parts that fit into the line, each of them whole: part of a number would be another number."""
        chosen: dict[str, str] = {}
        # A character in the last column would make some terminals go to the next line.
        left = width_of(self._stream) - 1 if self._is_live else 10_000
        for name in _NEED:
            if name in parts and len(parts[name]) <= left:
                chosen[name] = parts[name]
                left -= len(parts[name]) + 2
        return [chosen[name] for name in _SHOWN if name in chosen]

    def pause(self) -> None:
        """Stop printing progress."""
        self.clear()
        self._is_paused = True

    def go_on(self) -> None:
        """Print progress again."""
        self._is_paused = False

    def _say(self, line: str, *, share: float = 0.0) -> None:
        if self._is_paused:
            return
        if not self._is_live:
            self._write(f"{printable(line)}\n")
            return
        self._write("\r\x1b[K")
        if not self._is_gone:
            self._draw(_coloured(printable(line)[: width_of(self._stream) - 1], share))

    def _draw(self, text: Text) -> None:
        from rich.console import Console

        out = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        with self._unless_gone():
            out.print(text, end="", soft_wrap=True)
            self._stream.flush()

    def _write(self, text: str) -> None:
        if not self._is_gone:
            with self._unless_gone():
                self._stream.write(text)
                self._stream.flush()

    @contextlib.contextmanager
    def _unless_gone(self) -> Generator[None]:
        """If the terminal was closed, print nothing more: the training must still take its last checkpoint."""
        try:
            yield
        except OSError:
            self._is_gone = True

    def clear(self) -> None:
        """Clear the line for other text."""
        if self._is_live and not self._is_paused:
            self._write("\r\x1b[K")


def _coloured(line: str, share: float) -> Text:
    from rich.text import Text

    bar, rest = (line[:_BAR], line[_BAR:]) if line.startswith(("━", "-")) else ("", line)
    done = round(min(1.0, share) * len(bar))
    return Text.assemble((bar[:done], "cyan"), (bar[done:], "bright_black"), rest)

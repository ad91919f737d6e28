"""`rekindle replay`: replay a run from its input journal, and compare both."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rekindle.cli.messages import warnings_printed
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.interrupt import Interrupter
from rekindle.text import time_text, whole
from rekindle.training import ComparedCheckpoint, ReplayedRun, replay_run
from rekindle.ui.output import complain, write_json
from rekindle.ui.tables import Cell, cell, console, facts, number, print_whole, table

__all__ = ["replay_journal"]


def replay_journal(path: Path, output: Path | None, *, agent: str | None, as_json: bool) -> int:
    """Replay the journal of a run; the exit code is 1 if it does not lead to the checkpoints of the run."""
    find_modules_here(module_of(agent))
    interrupter, progress = Interrupter(), _Progress()
    with interrupter.signals(), warnings_printed(progress.clear):
        found = replay_run(path, output, agent=agent, interrupter=interrupter, progress=progress)
        progress.clear()
    if as_json:
        write_json(found)
    else:
        _print(found)
    if not found.ok:
        complain(_difference(found))
    return 0 if found.ok else 1


class _Progress:
    """How far the replay is, on stderr: in place on a terminal, in lines elsewhere."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._is_live = sys.stderr.isatty()

    def __call__(self, made: int, of: int) -> None:
        """Print how many calls have been made."""
        seconds = time.monotonic() - self._started
        left = f", {time_text(seconds * (of - made) / made)} left" if 0 < made < of else ""
        line = f"call {whole(made)} of {whole(of)} ({100 * made / max(1, of):.0f} %){left}"
        sys.stderr.write(f"\r\x1b[K{line}" if self._is_live else f"{line}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        """Clear the line for other text."""
        if self._is_live:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _print(found: ReplayedRun) -> None:
    out = console()
    verdict = cell("the same", "bold green") if found.ok else cell("differs", "bold red")
    print_whole(out, cell(found.path, "bold"))
    items: list[tuple[Cell, Cell]] = [("replay", verdict), ("calls", whole(found.records))]
    if found.output is not None:
        items.append(("new run", found.output))
    if found.versions:
        items.append(("not the same", "; ".join(found.versions)))
    out.print(facts(items))
    out.print(table((number("step"), number("calls"), "weights", "state", "logs"), _rows(found.checkpoints)))


def _rows(checkpoints: list[ComparedCheckpoint]) -> Iterator[list[Cell]]:
    for one in checkpoints:
        parts = [cell("equal", "green") if equal else cell("differ", "red") for equal in one.equal.values()]
        yield [whole(one.step), whole(one.record), *parts]


def _difference(found: ReplayedRun) -> str:
    action = "" if found.first_other_action is None else f"; call {found.first_other_action} chose another action"
    versions = f" ({'; '.join(found.versions)})" if found.versions else ""
    return (
        f"the replay differs from the run: the first checkpoint that differs is step {found.first_difference}"
        f"{action}{versions}"
    )

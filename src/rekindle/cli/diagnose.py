"""`rekindle diagnose`: repeat a failed training, and say which update, layer and row failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rekindle.cli.messages import warnings_dropped
from rekindle.cli.modules import find_modules_here
from rekindle.interrupt import Interrupter
from rekindle.text import NOTHING, decimal, shown_path, whole
from rekindle.training import Diagnosis, Fault, diagnose
from rekindle.ui.output import complain, write_json
from rekindle.ui.tables import Cell, cell, console, facts, headline, number, print_whole, table, words

__all__ = ["diagnose_run"]

_MOST_UPDATES, _MOST_NUMBERS = 5, 6


def diagnose_run(path: Path, *, step: int | None, modules: Sequence[str], files: Sequence[str], as_json: bool) -> int:
    """Diagnose a run, and print what was found; the exit code is 1 if nothing went wrong again."""
    find_modules_here(modules)
    interrupter = Interrupter()
    with interrupter.signals(), warnings_dropped():  # the run has had them already
        found = diagnose(path, step=step, modules=modules, files=files, interrupter=interrupter)
    if as_json:
        write_json(found)
    else:
        _print(found)
    if found.fault is None:
        complain(f"nothing went wrong up to step {whole(found.to_step)}")
        return 1
    return 0


def _print(found: Diagnosis) -> None:
    out = console()
    print_whole(out, cell(shown_path(Path(found.path)), "bold"))
    out.print(facts(_overview(found)))
    for title, fault in (("Before it", found.onset), ("What went wrong", found.fault)):
        if fault is not None:
            out.print(headline(title))
            print_whole(out, cell(fault.message))
            out.print(facts(_about(fault)))
    if found.metrics:
        out.print(headline("Last updates"))
        last = found.metrics[-_MOST_UPDATES:]
        out.print(table((words("metric"), *(number(whole(int(one["update"]))) for one in last)), _rows(last)))


def _overview(found: Diagnosis) -> Iterator[tuple[Cell, Cell]]:
    if found.failure is not None:
        yield "failed", found.failure
    begin = f"the checkpoint of step {whole(found.from_step)}" if found.from_step else "the start"
    made = len(found.metrics)
    updates = f"{whole(made)} update{'s' if made != 1 else ''}" if made else "no update"
    yield "repeated", f"from {begin} to step {whole(found.to_step)}: {updates}"


def _about(fault: Fault) -> Iterator[tuple[Cell, Cell]]:
    yield "update", whole(fault.update)
    yield "step", whole(fault.env_steps)
    yield "layer", fault.layer
    yield "row", NOTHING if fault.row is None else str(fault.row)
    for name, numbers in fault.transition.items():
        yield name, _shown(numbers)


def _shown(numbers: list[Any]) -> str:
    first = numbers[:_MOST_NUMBERS]
    shown = ", ".join(decimal(value) if isinstance(value, float) else str(value) for value in first)
    return f"{shown}, ..." if len(numbers) > _MOST_NUMBERS else shown


def _rows(updates: Sequence[dict[str, float]]) -> Iterator[list[str]]:
    for name in updates[-1]:
        if name != "update":
            yield [name, *(decimal(update.get(name)) for update in updates)]

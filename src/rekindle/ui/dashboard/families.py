"""Families of runs: which run was forked from which, or began with the weights of which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from rekindle.run.metadata import RunMetadata
from rekindle.run.settings import setting_text
from rekindle.text import printable

__all__ = ["Origin", "Relative", "family", "origin_of"]

_MOST_CHANGES, _MOST_RELATIVES = 20, 500


class Origin(msgspec.Struct, frozen=True):
    """The checkpoint that a run comes from."""

    kind: Literal["fork", "weights"]
    """Whether it continues the other run with everything, or began with its weights."""
    run: str
    """The other run, as `name/version/run_id`."""
    step: int | None
    changes: list[str] = []
    """The settings that a fork has changed."""


class Relative(msgspec.Struct, frozen=True):
    """A run of a family."""

    id: str
    name: str
    run_id: str
    status: str
    steps: int | None
    best: float | None
    parent: str | None = None
    """The id of the run that it comes from, if that is below the root directory."""
    origin: Origin | None = None

    @property
    def place(self) -> str:
        """What an origin calls it."""
        return "/".join(self.id.split("/")[-3:])


def origin_of(metadata: RunMetadata) -> Origin | None:
    """Where a run comes from; None if it began with nothing."""
    if (fork := metadata.fork) is not None:
        changes = [
            printable(f"{name}: {setting_text(before)} → {setting_text(after)}", most=200)
            for name, (before, after) in list(fork.changes.items())[:_MOST_CHANGES]
        ]
        return Origin("fork", printable(fork.run), fork.step, changes)
    if metadata.parent is None:
        return None
    path, _, step = metadata.parent.rpartition("@")
    run = "/".join(path.rstrip("/").split("/")[-3:])
    return Origin("weights", printable(run), int(step) if step.isdecimal() else None)


def family(runs: Iterable[Relative], id_: str) -> list[Relative]:
    """The runs that a run comes from, and all that come from these, parents first; empty if it is alone."""
    known = {run.id: run for run in runs}
    places = {run.place: run.id for run in known.values()}
    parents = {
        run.id: parent
        for run in known.values()
        if run.origin is not None and (parent := places.get(run.origin.run)) not in (None, run.id)
    }
    first, seen = id_, {id_}
    while (parent := parents.get(first)) is not None and parent not in seen:  # metadata may say anything
        first = parent
        seen.add(first)
    found: list[Relative] = []
    waiting, done = [first], set[str]()
    while waiting and len(found) < _MOST_RELATIVES:
        current = waiting.pop()
        if current in done or current not in known:
            continue
        done.add(current)
        found.append(msgspec.structs.replace(known[current], parent=parents.get(current) if current != first else None))
        waiting += sorted((child for child, parent in parents.items() if parent == current), reverse=True)
    return found if len(found) > 1 or (found and found[0].origin is not None) else []

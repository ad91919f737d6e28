"""`rekindle tag`: add tags to runs, and remove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from rekindle.errors import RunError
from rekindle.run.finding import find_run, find_runs
from rekindle.run.reader import RunReader
from rekindle.run.tags import checked_tags, tags_text
from rekindle.text import path_text, printable
from rekindle.ui.output import complain, write_json

__all__ = ["TaggedRun", "tag_runs"]


class TaggedRun(msgspec.Struct, frozen=True):
    """A run, and its tags."""

    path: str
    tags: tuple[str, ...]


def tag_runs(path: Path, *, add: Sequence[str], remove: Sequence[str], every: bool, as_json: bool) -> int:
    """Change the tags of the run at a path, or of every run below it, and print them."""
    added, removed = checked_tags(add), checked_tags(remove)
    if both := set(added) & set(removed):
        complain(f"{tags_text(both)} cannot be added and removed at once")
        return 2
    found = find_runs(path) if every else [find_run(path)]
    if not found:
        raise RunError(f"there is no run at {path}")
    readers = [RunReader(run) for run in found]
    known = {tag for reader in readers for tag in reader.tags}
    changed = [TaggedRun(path_text(each.path), each.change_tags(add=added, remove=removed)) for each in readers]
    if as_json:
        write_json(changed)
    else:
        for run in changed:
            print(printable(f"{run.path}: {', '.join(run.tags) or 'no tags'}", most=10_000))
    if missing := set(removed) - known:
        complain(f"{path} does not have {tags_text(missing)}")
        return 1
    return 0

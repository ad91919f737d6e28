"""Tags of a run: words that people give it, to find it again.

Each tag is the name of an empty file in `tags/`. So processes can add and remove tags at the same time, while the run
is training, without a lock and without losing one another's changes. No digest and no resume depends on tags.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection, Iterable
from pathlib import Path

from rekindle.errors import ConfigError, RunError, StorageError
from rekindle.run.finding import find_runs, natural_order, no_run_at
from rekindle.storage import files

__all__ = [
    "MOST_TAGS",
    "add_tags",
    "checked_tag",
    "checked_tags",
    "create_tags",
    "read_tags",
    "readable_tags",
    "remove_tags",
    "runs_below",
    "tagged_runs",
    "tags_text",
]

MOST_TAGS = 50
"""The most tags of a run."""
_LONGEST = 64
_MOST_BYTES = 255
"""The longest name of a file."""
_MOST_ENTRIES = 1000
"""How many files are looked at; a directory that anyone filled may have millions."""
_DIRECTORY = "tags"


def checked_tag(text: str) -> str:
    """The tag, in the composed form of its characters; raises `ConfigError` if it cannot be one.

    >>> checked_tag("baseline")
    'baseline'
    """
    tag = unicodedata.normalize("NFC", text)
    if (
        not 1 <= len(tag) <= _LONGEST
        or not tag.isprintable()
        or tag != tag.strip()
        or tag[0] in ".-+"
        or set(tag) & {"/", ","}
        or len(tag.encode()) > _MOST_BYTES
    ):
        raise ConfigError(
            f"tag {text[: 2 * _LONGEST]!r}: use 1 to {_LONGEST} printable characters without '/' and ',', and no space "
            "at an end or '.', '-' or '+' at the beginning"
        )
    return tag


def checked_tags(texts: Iterable[str]) -> list[str]:
    """Each tag once, checked; raises `ConfigError`."""
    if isinstance(texts, str):
        raise ConfigError(f"tags {texts[: 2 * _LONGEST]!r}: use a list of tags")
    tags = list(dict.fromkeys(checked_tag(text) for text in texts))
    if len(tags) > MOST_TAGS:
        raise ConfigError(f"{len(tags)} tags: a run has at most {MOST_TAGS}")
    return tags


def read_tags(run_path: Path) -> tuple[str, ...]:
    """The tags of a run, sorted; files whose names are not tags are ignored.

    Raises `StorageError` if `tags` is not a directory.
    """
    directory = run_path / _DIRECTORY
    if not os.path.lexists(directory):
        return ()
    files.require_directory(directory)  # a symbolic link could lead out of the run
    names = [name for name in files.regular_names(directory, most=_MOST_ENTRIES) if _is_tag(name)]
    return tuple(sorted(names, key=lambda tag: (natural_order(tag.casefold()), tag))[:MOST_TAGS])


def add_tags(run_path: Path, tags: Iterable[str]) -> None:
    """Give a run tags, durably; those that it has already are left alone.

    Raises `ConfigError`, before anything is written, if one is invalid or there would be too many.
    """
    wanted = checked_tags(tags)
    known = read_tags(run_path)
    count = len({*known, *wanted})
    if count > MOST_TAGS and not set(wanted) <= set(known):
        raise ConfigError(f"{run_path} would have {count} tags, and a run has at most {MOST_TAGS}: remove some")
    create_tags(run_path, wanted)


def create_tags(run_path: Path, tags: Iterable[str]) -> None:
    """Write checked tags."""
    directory = run_path / _DIRECTORY
    wanted = list(tags)
    if wanted:
        files.make_directory(directory)
        files.require_directory(directory)
        files.create_empty(directory / tag for tag in wanted)


def remove_tags(run_path: Path, tags: Iterable[str]) -> None:
    """Take tags from a run, durably; those that it does not have are left alone."""
    wanted, known = checked_tags(tags), read_tags(run_path)
    directory = run_path / _DIRECTORY
    files.remove((directory / tag for tag in wanted if tag in known), sync=directory)


def tagged_runs(runs: Iterable[Path], tags: Iterable[str]) -> list[Path]:
    """The runs that have all of these tags; one whose tags cannot be read has none."""
    wanted = set(tags)
    return [run for run in runs if wanted <= set(readable_tags(run))]


def runs_below(paths: Iterable[Path], tags: Iterable[str] = ()) -> dict[Path, Path]:
    """Every run below the paths that has all of these tags, once, with the path that it was found by.

    Raises `RunError` if there is no run at one of the paths, or none that has the tags.
    """
    wanted = set(checked_tags(tags))
    found: dict[Path, tuple[Path, Path]] = {}
    for path in paths:
        runs = find_runs(path)
        if not runs:
            raise no_run_at(path)
        for run in runs:
            found.setdefault(run.resolve(), (run, path))
    sources = dict(found.values())
    chosen = tagged_runs(sources, wanted) if wanted else list(sources)
    if not chosen:
        count = "the run does not have" if len(sources) == 1 else f"none of the {len(sources)} runs has"
        raise RunError(f"{count} {tags_text(wanted)}")
    return {run: sources[run] for run in chosen}


def tags_text(tags: Collection[str]) -> str:
    """Tags for a message: `the tag 'a'`, or `the tags 'a' and 'b'`."""
    return f"the tag{'s' if len(tags) > 1 else ''} {' and '.join(repr(tag) for tag in sorted(tags))}"


def readable_tags(run_path: Path) -> tuple[str, ...]:
    """The tags of a run; none if they cannot be read."""
    try:
        return read_tags(run_path)
    except StorageError:
        return ()


def _is_tag(name: str) -> bool:
    try:
        return checked_tag(name) == name
    except (ConfigError, UnicodeEncodeError):
        return False

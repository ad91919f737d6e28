"""`rekindle verify`: check that every file of a run is as written."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from rekindle.checkpoint.input_survey import InputSurvey
from rekindle.errors import RekindleError
from rekindle.run.metadata import Grade
from rekindle.run.reader import RunReader
from rekindle.text import NOTHING, path_text
from rekindle.ui.details import journal_text
from rekindle.ui.output import complain, write_json
from rekindle.ui.tables import cell, console, facts, print_problems, print_whole
from rekindle.verification import verify

__all__ = ["DIGESTS", "VerifiedRun", "verification", "verify_run"]

DIGESTS = ("weights", "state", "logs")


class VerifiedRun(msgspec.Struct, frozen=True):
    """The result; the grade is None if not even the metadata can be read."""

    path: str
    ok: bool
    grade: Grade | None
    digests: dict[str, str | None]
    problems: list[str]
    journal: InputSurvey | None = None


def verification(reader: RunReader) -> VerifiedRun:
    """Verify a run; if it cannot be read at all, report that as a problem instead of raising."""
    path = path_text(reader.path)
    try:
        found = verify(reader.path)
    except (RekindleError, OSError, UnicodeDecodeError) as error:
        return VerifiedRun(path, ok=False, grade=None, digests=dict.fromkeys(DIGESTS), problems=[str(error)])
    return VerifiedRun(
        path, ok=found.ok, grade=found.grade, digests=found.digests, problems=found.problems, journal=found.journal
    )


def verify_run(path: Path, *, as_json: bool) -> int:
    """Print the result of verifying a run; the exit code is 1 if there is a problem."""
    reader = RunReader(path)
    if reader.is_live:
        complain(f"{reader.path} is live: files that change during the check may look damaged; stop it to be sure")
    if sys.stderr.isatty():
        with console(stderr=True).status(cell(f"checking {reader.path}")):
            found = verification(reader)
    else:
        found = verification(reader)
    if as_json:
        write_json(found)
    else:
        _print(found)
    return 0 if found.ok else 1


def _print(found: VerifiedRun) -> None:
    out = console()
    verdict = cell("ok", "bold green") if found.ok else cell("damaged", "bold red")
    digests = [(kind, found.digests.get(kind) or NOTHING) for kind in DIGESTS]
    print_whole(out, cell(found.path, "bold"))
    journal = [] if found.journal is None else [("journal", journal_text(found.journal))]
    out.print(facts([("files", verdict), ("grade", found.grade or NOTHING), *digests, *journal]))
    print_problems(out, found.problems)

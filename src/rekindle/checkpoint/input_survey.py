"""An input journal in numbers: how many records it has, and whether all of them can be read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rekindle.checkpoint.input_segments import JournalReader, current_segments, next_record, segments
from rekindle.storage import files

__all__ = ["InputSurvey", "check_inputs", "survey_inputs"]


class InputSurvey(msgspec.Struct, frozen=True):
    """The input journal of a run."""

    segments: int
    """Files with records."""
    size: int
    """Bytes of these files. A journal that is being written reserves up to 4 MiB in advance."""
    first: int
    """The number of the oldest record that is kept; they are counted from the first call of the run."""
    records: int
    """Records that are kept and current."""
    after_checkpoint: int
    """Those after the newest checkpoint: a resume replays these calls."""
    torn: int = 0
    """Bytes at the end that a power cut has damaged before they were durable; the resume drops them."""


def survey_inputs(directory: Path, checkpoint: int | None) -> InputSurvey | None:
    """Count the records of a journal, reading only its last segment; None if there is none.

    `checkpoint` is the number of the first record after the newest checkpoint; None if that cannot be read.
    """
    found = current_segments(directory)
    if not found:
        return None
    end, torn = next_record(found[-1])
    return _survey(directory, found[0].first, end, checkpoint, torn)


def check_inputs(directory: Path, checkpoint: int | None) -> InputSurvey | None:
    """Read all records of a journal, and count them; None if there is none.

    Raises `CheckpointError` for a record that is missing or damaged although it was durable.
    """
    found = current_segments(directory)
    kept = found[0].first if found else checkpoint or 0
    reader = JournalReader(directory, kept if checkpoint is None else min(kept, checkpoint))
    for _ in reader:
        pass
    return _survey(directory, kept, reader.number, checkpoint, reader.lost) if found else None


def _survey(directory: Path, first: int, end: int, checkpoint: int | None, torn: int) -> InputSurvey:
    paths = [segment.path for segment in segments(directory)]
    return InputSurvey(
        segments=len(paths),
        size=sum(files.size(path) for path in paths),
        first=first,
        records=end - first,
        after_checkpoint=max(0, end - max(first, checkpoint or 0)),
        torn=torn,
    )

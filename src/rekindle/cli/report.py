"""`rekindle report`: a page about runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rekindle.cli.text import bytes_text, printable
from rekindle.errors import StorageError
from rekindle.ui.report import report_page

__all__ = ["report_runs"]


def report_runs(paths: Sequence[Path], output: Path) -> int:
    """Write the report, and say where it is."""
    page = report_page(paths).encode(errors="replace")
    building = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        building.write_bytes(page)
        building.replace(output)
    except OSError as error:
        building.unlink(missing_ok=True)
        raise StorageError(f"cannot write {output}: {error.strerror}") from error
    print(printable(f"{output} ({bytes_text(len(page))})", most=1000))
    return 0

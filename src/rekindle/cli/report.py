"""`rekindle report`: write an HTML page about runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rekindle.storage.files import write_output
from rekindle.text import bytes_text, printable
from rekindle.ui.report import report_page

__all__ = ["report_runs"]


def report_runs(paths: Sequence[Path], output: Path, *, tags: Sequence[str]) -> int:
    """Write the report, and print its path."""
    page = report_page(paths, tags).encode(errors="replace")
    write_output(output, page)
    print(printable(f"{output} ({bytes_text(len(page))})", most=1000))
    return 0

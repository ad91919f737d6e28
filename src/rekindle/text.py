"""Numbers, times and untrusted text as readable text; untrusted text cannot contain control characters."""

from __future__ import annotations

import contextlib
import math
import os
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

__all__ = [
    "NOTHING",
    "bytes_text",
    "compact",
    "decimal",
    "encodable",
    "install_command",
    "moment",
    "path_text",
    "printable",
    "seconds_since",
    "shown_path",
    "stored_path",
    "time_text",
    "whole",
]

NOTHING = "-"
"""What a table shows for a missing value."""


def printable(value: object, *, most: int = 300) -> str:
    """A value as one safe line: control characters become visible escapes, and long text is truncated."""
    whole_text = str(value)
    text = whole_text[:most]
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
    return text if len(whole_text) <= most else f"{text}..."


def encodable(text: str) -> str:
    """The text with visible escapes for characters that UTF-8 does not support, such as parts of a file name."""
    return text.encode(errors="backslashreplace").decode()


def install_command(extra: str) -> str:
    """The command that installs an extra of this package, which PyPI has under another name than it is imported by."""
    return f'pip install "rekindle-rl[{extra}]"'


def path_text(path: Path) -> str:
    """A path as text for JSON, even if its bytes are not valid UTF-8."""
    return os.fsencode(path).decode(errors="backslashreplace")


def shown_path(path: Path) -> str:
    """A path as a user would type it: relative if it is below the working directory."""
    with contextlib.suppress(OSError):  # the working directory may not exist any more
        here = Path.cwd()
        return path_text(path.relative_to(here) if path.is_relative_to(here) else path)
    return path_text(path)


def stored_path(path: Path) -> str:
    """An absolute path for a file that is read again: a `file:` URI if it is not valid UTF-8."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return path.as_uri()
    return str(path)


def whole(value: int | None) -> str:
    """A count with all digits: 1,234,567."""
    return NOTHING if value is None else f"{value:,}"


def compact(value: int | None) -> str:
    """A count in about five characters: 950, 12.3k, 1.23M."""
    if value is None or abs(value) < 10_000:
        return whole(value)
    return _scaled(value, 1000, ("", "k", "M", "G", "T", "P", "E"))


def bytes_text(value: int | None) -> str:
    """A size: 950 B, 12.3 kB, 1.23 MB."""
    return NOTHING if value is None else _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB", " PB"))


def _scaled(value: int, base: int, units: tuple[str, ...]) -> str:
    if abs(value) >= base ** len(units):
        return f"{value:.2e}" if abs(value) < 10**300 else ">1e300"
    power = 0
    scaled = float(value)
    while abs(scaled) >= 999.5 and power + 1 < len(units):
        power, scaled = power + 1, scaled / base
    return f"{scaled:.3g}{units[power]}"


def decimal(value: float | None) -> str:
    """A measured number with two decimals, or with three significant digits if it is very small or large."""
    if value is None or math.isnan(value):
        return NOTHING
    if value == 0 or 0.1 <= abs(value) < 1e5:
        return f"{value:,.2f}"
    return f"{value:.3g}"


def moment(stamp: str | None) -> datetime | None:
    """The time that a text in a file stands for; None if it is invalid."""
    try:
        parsed = datetime.fromisoformat(stamp or "")
        then = (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # Near the ends of the calendar, another time zone may give an invalid year.
    return then if 1970 <= then.year < 9999 else None


def seconds_since(then: datetime | None, until: datetime | None = None) -> float | None:
    """Seconds from one time to another, or to now; never negative, although clocks may disagree."""
    return None if then is None else max(0.0, ((until or datetime.now(UTC)) - then).total_seconds())


def time_text(seconds: float | None) -> str:
    """A duration in its two largest units: 0.4 s, 42 s, 5 min 3 s, 3 h 20 min, 4 d 6 h."""
    if seconds is None:
        return NOTHING
    if seconds < 60:
        return f"{int(seconds)} s" if seconds >= 1 else f"{seconds:.1g} s"
    for (unit, length), (smaller, smaller_length) in pairwise((("d", 86400), ("h", 3600), ("min", 60), ("s", 1))):
        count, rest = divmod(int(seconds), length)
        if count:
            part = rest // smaller_length
            return f"{count} {unit} {part} {smaller}" if part and count < 100 else f"{count} {unit}"
    return NOTHING

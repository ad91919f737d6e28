"""What programs and people get to read on standard output and standard error."""

from __future__ import annotations

import re
import sys
from json import dumps
from typing import Any

import msgspec

from rekindle.storage import documents
from rekindle.text import printable

__all__ = ["complain", "write_json"]


def complain(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"rekindle: {printable(' '.join(message.split()), most=2000)}\n")


def write_json(document: Any) -> None:
    """One JSON document on standard output; NaN becomes null, and what is not ASCII is escaped."""
    text = msgspec.json.format(documents.encode(document), indent=2).decode()
    sys.stdout.write(re.sub(r"[^ -~\n]", lambda match: dumps(match[0])[1:-1], text) + "\n")

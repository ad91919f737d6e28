"""The command line: `rekindle COMMAND`, or `python -m rekindle COMMAND`."""

from __future__ import annotations

from rekindle.cli.entry import main

__all__ = ["main"]

"""The command line: `rekindle COMMAND`, or `python -m rekindle COMMAND`."""

from __future__ import annotations

import sys
import typing

if typing.TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130
"""The exit code of a command that was interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; user errors are reported in one line, without a traceback."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        # Handle signals first: the other imports take seconds, during which a training may be stopped too.
        from rekindle.cli.starting import stages_shown
        from rekindle.cli.stopping import stopped_by_signals

        with stopped_by_signals(arguments), stages_shown(arguments if argv is None else ()):
            from rekindle.cli.entry import run

            return run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("rekindle: interrupted\n")
        return INTERRUPTED

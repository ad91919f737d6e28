"""The command line: `rekindle COMMAND`, or `python -m rekindle COMMAND`."""

from __future__ import annotations

import os
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
    _open_missing_streams()
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


def _open_missing_streams() -> None:
    """Open the null device for each standard stream that is closed, as after `2>&-`.

    Otherwise the next file, such as a log of the run, would get the descriptor that libraries write their messages to.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            try:
                os.fstat(descriptor)
            except OSError:
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free descriptor: this one
            setattr(sys, name, open(os.devnull, "w" if descriptor else "r", encoding="utf-8"))  # noqa: SIM115

"""Say what a command does until it has something to show, from its first moment."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Generator, Sequence

from rekindle.stages import StageLine, listening, stage

__all__ = ["stages_shown"]

_SLOW = ("train", "resume", "fork", "sweep", "serve", "eval", "diagnose", "replay")
"""Commands that take seconds before they print anything else."""


@contextlib.contextmanager
def stages_shown(arguments: Sequence[str]) -> Generator[None]:
    """Print to standard error what a slow command does; not for help, with `--json` or with `--ui none`."""
    is_silent = {"-h", "--help", "--json"} & {*arguments} or "none" in _values(arguments, "--ui")
    if not arguments or arguments[0] not in _SLOW or is_silent:
        yield
        return
    with listening(StageLine(sys.stderr)):
        stage("importing")
        try:
            yield
        finally:
            stage("")


def _values(arguments: Sequence[str], option: str) -> list[str]:
    """The values of an option, as `--option value` and as `--option=value`."""
    after = [value for name, value in itertools.pairwise(arguments) if name == option]
    return after + [word.partition("=")[2] for word in arguments if word.startswith(f"{option}=")]

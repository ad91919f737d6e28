"""`rekindle check`: what is wrong with an environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rekindle.envs import EnvFactory, check_env
from rekindle.ui.output import write_json
from rekindle.ui.tables import cell, console, table, words

__all__ = ["check_environment", "look_here_for_modules"]

_STYLES = {"good": "green", "warning": "yellow", "error": "bold red"}


def check_environment(env: str, *, modules: Sequence[str], as_json: bool) -> int:
    """Print what looking at an environment found; the exit code says whether it can be trained on."""
    look_here_for_modules()
    findings = check_env(EnvFactory(env, modules=tuple(modules)))
    if as_json:
        write_json(findings)
    else:
        rows = [[cell(found.level, _STYLES[found.level]), found.what, found.message] for found in findings]
        console().print(table(["", "looked at", words("found")], rows))
    return 1 if any(found.level == "error" for found in findings) else 0


def look_here_for_modules() -> None:
    """Find modules that are named on the command line in the working directory too, as `python -m` does."""
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)

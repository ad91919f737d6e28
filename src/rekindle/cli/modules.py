"""The user's own modules in the working directory: imported only if the command line names them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

__all__ = ["find_modules_here", "module_of"]


def find_modules_here(names: Iterable[str]) -> None:
    """Add the working directory to the end of `sys.path` if only there a module that the user named is found.

    Only pass names from the command line, never from a run's config. A directory inside a run is never searched,
    because a run may come from someone else.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed
        return
    packages = {name.partition(".")[0] for name in names}
    wanted = [package for package in packages if package and package not in sys.modules and find_spec(package) is None]
    if any(PathFinder.find_spec(package, [str(here)]) for package in wanted) and not _is_in_run(here):
        sys.path.append(str(here))


def module_of(source: object) -> list[str]:
    """The module in `module:name`; empty for anything else."""
    module, colon, _ = source.partition(":") if isinstance(source, str) else ("", "", "")
    return [module] if colon else []


def _is_in_run(directory: Path) -> bool:
    return any(
        os.path.isfile(above / "metadata.json") and os.path.isdir(above / "checkpoints")
        for above in (directory, *directory.parents)
    )

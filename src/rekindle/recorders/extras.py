"""The optional libraries of recorders, checked and imported when a recorder is created."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

from rekindle.errors import MissingExtra
from rekindle.text import install_command

__all__ = ["load", "require"]


def require(recorder: str, *modules: str, extra: str, parts: Sequence[str] = ()) -> None:
    """Import these modules, and parts of them; raises `MissingExtra` if a module is not installed.

    They are imported on the thread that creates the recorder. Python 3.11 can fail to compile a module
    (`AST constructor recursion depth mismatch`) if another thread imports at the same time, as the thread of a recorder
    and that of the training would.
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"{recorder} needs {name}: {install_command(extra)}", name=name)
    for name in modules:
        load(name)
    for name in parts:
        with contextlib.suppress(ModuleNotFoundError):  # another version may not have it
            load(name)


def load(module: str) -> Any:
    """Import a module of an optional library."""
    return importlib.import_module(module)

"""The optional libraries of recorders: checked when a recorder is created, imported on its thread."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from rekindle.errors import MissingExtra
from rekindle.text import install_command

__all__ = ["load", "require"]


def require(recorder: str, *modules: str, extra: str) -> None:
    """Raise `MissingExtra` unless all these modules can be imported."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"{recorder} needs {name}: {install_command(extra)}", name=name)


def load(module: str) -> Any:
    """Import a module of an optional library."""
    return importlib.import_module(module)

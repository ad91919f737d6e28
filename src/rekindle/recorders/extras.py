"""The libraries that recorders need: looked for when a recorder is made, loaded on its thread."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from rekindle.errors import MissingExtra

__all__ = ["load", "require"]


def require(recorder: str, *modules: str, extra: str) -> None:
    """Raise `MissingExtra` unless all these modules can be imported."""
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"{recorder} needs {name}: pip install rekindle[{extra}]", name=name)


def load(module: str) -> Any:
    """A module of a library that this package does not depend on."""
    return importlib.import_module(module)

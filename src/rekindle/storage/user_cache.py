"""Where to keep what can be recreated: converted data sets and compiled code."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache"]


def user_cache() -> Path:
    """`$REKINDLE_CACHE`, or `rekindle` in the user's cache directory."""
    chosen = os.environ.get("REKINDLE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rekindle"

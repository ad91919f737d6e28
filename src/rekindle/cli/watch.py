"""`rekindle watch`: follow a run in the terminal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

from rekindle.errors import ConfigError
from rekindle.ui.watching import watch

__all__ = ["watch_run"]


def watch_run(path: Path, *, plain: bool, interval: float, stay: bool, theme: Literal["auto", "dark", "light"]) -> int:
    """Show a run until it ends or the user leaves."""
    if not 0 < interval < math.inf:
        raise ConfigError(f"--interval is {interval}: use a number of seconds above 0")
    ended = watch(path, plain=plain or None, interval=interval, stay=stay, theme=None if theme == "auto" else theme)
    return 1 if ended == "failed" else 0

"""Looking at runs: in a terminal, in a report, in a notebook. All of it reads run directories only."""

from __future__ import annotations

from rekindle.ui.feed import RunFeed
from rekindle.ui.watching import watch

__all__ = ["RunFeed", "watch"]

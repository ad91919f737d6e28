"""A web page for run directories: all runs, live charts, comparisons. Needs `pip install "rekindle-rl[dashboard]"`."""

from __future__ import annotations

from rekindle.ui.dashboard.app import Dashboard
from rekindle.ui.dashboard.server import serve

__all__ = ["Dashboard", "serve"]

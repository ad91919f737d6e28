"""Agents that learn, each in a module that reads from top to bottom."""

from rekindle.agents.tabular import Tabular, TabularConfig, TabularPolicy

__all__ = ["Tabular", "TabularConfig", "TabularPolicy"]

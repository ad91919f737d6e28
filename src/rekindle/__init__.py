"""Reinforcement-learning training sessions that resume exactly where they stopped."""

__version__ = "0.1.0"

__all__ = ["__version__"]

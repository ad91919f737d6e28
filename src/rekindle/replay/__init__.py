"""Replay memories: what an agent remembers of past transitions."""

from rekindle.replay.ring import Ring

__all__ = ["Ring"]

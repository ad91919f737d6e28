"""The game of `rekindle game`: creatures in a browser learn from a session server that is killed and comes back."""

from rekindle.game.hosting import play

__all__ = ["play"]

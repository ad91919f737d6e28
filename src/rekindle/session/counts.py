"""The counters of a session."""

from __future__ import annotations

import time

from rekindle.events import Stamp

__all__ = ["Counts"]


class Counts:
    """Env steps, updates and episodes so far, over all resumes.

    If the agent learns from data alone, there are no env steps: `env_steps` counts updates.
    """

    def __init__(self, *, env_steps: int, updates: int) -> None:
        self.env_steps = int(env_steps)
        self.updates = int(updates)
        self.episodes = 0

    def stamp(self) -> Stamp:
        """All counters and the wall time, for an event or a row."""
        return Stamp(self.env_steps, self.updates, self.episodes, time.time())

"""The best agent so far, by the scores of evaluations."""

from __future__ import annotations

import math

from rekindle.checkpoint.store import Best

__all__ = ["BestAgent"]


class BestAgent:
    """Knows the best score, and the file that holds the agent that had it."""

    def __init__(self) -> None:
        self.score = -math.inf
        self.kept: Best | None = None
        """The best agent that is kept; None without a run."""

    def beats(self, score: float, env_steps: int) -> Best | None:
        """Take a score; returns what to keep of this moment if it beats every earlier one."""
        if not score > self.score:
            return None
        self.score = score
        self.kept = Best(self._file(env_steps), score, env_steps)
        return self.kept

    def _file(self, env_steps: int) -> str:
        """A name of its own for each best, as a checkpoint may name an earlier one of the same step."""
        if self.kept is None or self.kept.step != env_steps:
            return f"best_{env_steps}.mpk"
        count = int(self.kept.file.removesuffix(".mpk").partition(f"best_{env_steps}_")[2] or 1)
        return f"best_{env_steps}_{count + 1}.mpk"

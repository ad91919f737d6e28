"""The best agent so far, by evaluation score."""

from __future__ import annotations

import math

from rekindle.checkpoint.store import Best

__all__ = ["BestAgent"]


class BestAgent:
    """Tracks the best score and the file with the agent that reached it."""

    def __init__(self) -> None:
        self.score = -math.inf
        self.kept: Best | None = None
        """The best agent that was saved; None without a run."""

    def beats(self, score: float, env_steps: int) -> Best | None:
        """Add a score; if it beats every earlier one, returns the `Best` to save."""
        if not score > self.score:
            return None
        self.score = score
        self.kept = Best(self._file(env_steps), score, env_steps)
        return self.kept

    def _file(self, env_steps: int) -> str:
        """A unique file name: a checkpoint may refer to an earlier best agent of the same step."""
        if self.kept is None or self.kept.step != env_steps:
            return f"best_{env_steps}.mpk"
        count = int(self.kept.file.removesuffix(".mpk").partition(f"best_{env_steps}_")[2] or 1)
        return f"best_{env_steps}_{count + 1}.mpk"

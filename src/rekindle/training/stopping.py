"""Early stopping, based on evaluations."""

from __future__ import annotations

import math

from rekindle.agent import State
from rekindle.errors import StateError

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Stops when a target is reached, or when evaluations stop improving; part of the checkpoint."""

    def __init__(self, *, target: float | None, patience: int | None) -> None:
        self._target, self._patience = target, patience
        self._best, self._without = -math.inf, 0
        self.reason: str | None = None
        """Why to stop; None to continue."""

    @property
    def has_scores(self) -> bool:
        """Whether there was an evaluation."""
        return self._best > -math.inf or self._without > 0

    def update(self, score: float) -> None:
        """Add the score of an evaluation."""
        if score > self._best:
            self._best, self._without = score, 0
        else:
            self._without += 1
        if self._target is not None and score >= self._target:
            self.reason = f"target reached: the score is {score:g}"
        elif self._patience is not None and self._without >= self._patience:
            self.reason = f"no improvement in {self._without} evaluations"

    def go_on(self) -> None:
        """Continue after a stop, because more steps were requested."""
        self.reason, self._without = None, 0

    def state(self) -> State:
        """The best score, evaluations since, and the reason."""
        return {"best": self._best, "without": self._without, "reason": self.reason}

    def load_state(self, state: State) -> None:
        """Restore the state."""
        best, without, reason = (state.get(name) for name in ("best", "without", "reason"))
        if type(best) is not float or type(without) is not int or not isinstance(reason, str | None):
            raise StateError(f"not the state of early stopping: {state!r:.80}")
        self._best, self._without, self.reason = best, without, reason

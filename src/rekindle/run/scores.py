"""The scores of a run over its training, and one score of the whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.checks import checked_choice
from rekindle.run.frames import log_columns

__all__ = ["MEASURES", "Measure", "ScoreCurve", "score_curve"]

Measure = Literal["final", "best", "mean"]
"""The score of a run: of its last evaluation, of its best one, or the mean over the training."""
MEASURES: tuple[Measure, ...] = get_args(Measure)
_EPISODES = 100
"""Training episodes that are averaged, if there are no evaluations."""
_LARGEST = 1e100


class ScoreCurve(msgspec.Struct, frozen=True):
    """Scores of a run by step: the mean return of each evaluation, or of each 100 training episodes."""

    steps: list[int]
    scores: list[float]

    def at(self, step: int) -> float | None:
        """The score at exactly this step; None if there is none."""
        return self.scores[self.steps.index(step)] if step in self.steps else None

    def score(self, measure: Measure) -> float | None:
        """One number for the run; None if there are no scores."""
        checked_choice("measure", measure, MEASURES)
        if not self.scores:
            return None
        if measure == "final":
            return self.scores[-1]
        return max(self.scores) if measure == "best" else float(np.mean(self.scores))


def score_curve(run_path: Path, *, of: Literal["evaluations", "episodes"] = "evaluations") -> ScoreCurve:
    """The evaluations of a run, or its training episodes in blocks of 100, counted from the last one."""
    if of == "evaluations":
        steps, returns = _columns(run_path / "eval_episodes.jsonl", "total_steps_at_eval")
        unique, where = np.unique(steps, return_inverse=True)
        sums = np.bincount(where, weights=returns, minlength=len(unique))
        return ScoreCurve(unique.tolist(), (sums / np.bincount(where, minlength=len(unique))).tolist())
    steps, returns = _columns(run_path / "train_episodes.jsonl", "env_steps")
    ends = range(len(returns), 0, -_EPISODES)
    blocks = [(int(steps[end - 1]), float(np.mean(returns[max(0, end - _EPISODES) : end]))) for end in ends][::-1]
    return ScoreCurve([step for step, _ in blocks], [score for _, score in blocks])


def _columns(path: Path, step: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The step and the return of each row; rows whose numbers are not finite are skipped."""
    columns = log_columns(path)
    if step not in columns or "total_reward" not in columns:
        return np.empty(0, np.int64), np.empty(0)
    is_there = (np.abs(columns[step]) < 2**53) & (np.abs(columns["total_reward"]) < _LARGEST)
    return columns[step][is_there].astype(np.int64), columns["total_reward"][is_there].astype(np.float64)

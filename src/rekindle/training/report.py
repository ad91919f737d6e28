"""The report at the end of a training."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import is_offline
from rekindle.markup import escaped, table
from rekindle.run.frames import log_columns
from rekindle.run.metrics import EventStore
from rekindle.run.notebook import run_html
from rekindle.run.reader import RunReader
from rekindle.session.session import TrainingSession
from rekindle.text import decimal, whole

__all__ = ["Extremes", "TrainingReport"]


class Extremes(msgspec.Struct, frozen=True):
    """A metric over the training: its last value, and its minimum and maximum with their env steps."""

    last: float
    min: float
    min_step: int
    max: float
    max_step: int

    def __str__(self) -> str:
        """One row of a table."""
        return f"{self.last:11.5g}  {self.min:11.5g} {self.min_step:11,}  {self.max:11.5g} {self.max_step:11,}"


class TrainingReport(msgspec.Struct, frozen=True):
    """The result of a training; it is shown as a table, and in a notebook with its learning curve."""

    status: str
    reason: str | None
    path: Path | None
    """The run; None if it was temporary."""
    env_steps: int
    """0 if the agent learned from data alone."""
    episodes: int
    updates: int
    seconds: float
    """Wall time of this process."""
    best_score: float | None
    """The best score of all evaluations."""
    metrics: dict[str, Extremes]

    @classmethod
    def of(cls, session: TrainingSession, reader: RunReader, seconds: float, *, is_kept: bool) -> TrainingReport:
        """The report of a session that has ended."""
        metadata = reader.metadata
        return cls(
            status=metadata.status,
            reason=metadata.stop_reason,
            path=reader.path if is_kept else None,
            env_steps=0 if is_offline(session.agent) else session.total_steps,
            episodes=session.episodes,
            updates=session.updates,
            seconds=seconds,
            best_score=session.best_score if math.isfinite(session.best_score) else None,
            metrics={**cls.extremes(session.store), **_evaluated(reader)},
        )

    @staticmethod
    def extremes(store: EventStore) -> dict[str, Extremes]:
        """The extremes of every metric that does not depend on the clock."""
        found: dict[str, Extremes] = {}
        for name in store.names:
            last, least, most = store.latest(name), store.best(name, mode="min"), store.best(name)
            if last is not None and least is not None and most is not None and not name.startswith("time/"):
                found[name] = Extremes(last, least[1], least[0], most[1], most[0])
        return found

    @property
    def is_offline(self) -> bool:
        """Whether the agent learned from data alone."""
        return self.updates > 0 and not self.env_steps

    def __str__(self) -> str:
        """A table: the result, then each metric with its minimum and maximum."""
        best = "" if self.best_score is None else f", best score {self.best_score:.6g}"
        steps = "" if self.is_offline else f"{self.env_steps:,} env steps, {self.episodes:,} episodes, "
        lines = [f"{self.status} ({self.reason}) after {steps}{self.updates:,} updates, {self.seconds:.1f} s{best}"]
        if self.metrics:
            width = max(map(len, self.metrics))
            lines.append(f"{'metric':{width}}  {'last':>11}  {'min':>11} {'at step':>11}  {'max':>11} {'at step':>11}")
            lines += [f"{name:{width}}  {item}" for name, item in self.metrics.items()]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows for this report."""
        heads = ("metric", "last", "min", "at step", "max", "at step")
        rows = [
            (name, decimal(item.last), decimal(item.min), whole(item.min_step), decimal(item.max), whole(item.max_step))
            for name, item in self.metrics.items()
        ]
        metrics = table(heads, rows) if rows else ""
        headline = f"<p>{escaped(str(self).partition(chr(10))[0])}</p>"
        is_there = self.path is not None and self.path.is_dir()
        return f"{run_html(self.path)}{metrics}" if self.path and is_there else f"{headline}{metrics}"


def _evaluated(reader: RunReader) -> dict[str, Extremes]:
    """The metrics of evaluations, at the steps of the evaluations: metric windows that contain them end later."""
    columns = log_columns(reader.path / "eval_episodes.jsonl")
    if "total_steps_at_eval" not in columns:
        return {}
    steps, where = np.unique(columns["total_steps_at_eval"], return_inverse=True)
    found: dict[str, Extremes] = {}
    for column, values in columns.items():
        name = {"total_reward": "return", "length": "length"}.get(column, column.removeprefix("extras."))
        if name == column and column != "length":  # a counter, or another field of the row
            continue
        means = [float(np.mean(part)) for index in range(len(steps)) if len(part := _finite(values[where == index]))]
        at = [int(step) for index, step in enumerate(steps) if len(_finite(values[where == index]))]
        if means:
            least, most = int(np.argmin(means)), int(np.argmax(means))
            found[f"eval/{name}"] = Extremes(means[-1], means[least], at[least], means[most], at[most])
    return found


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return values[np.isfinite(values)]

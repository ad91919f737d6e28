"""The current data of a run, updated as its files change; only reads the run directory."""

from __future__ import annotations

import contextlib
import math
import os
import re
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rekindle.errors import RekindleError
from rekindle.run.curve import Curve, Extreme
from rekindle.run.metadata import ALL_LOGS, Log, RunMetadata
from rekindle.run.overview import mapping, real, tolerant
from rekindle.run.reader import RunReader
from rekindle.run.settings import algorithm_name, environment_name, flat_settings
from rekindle.text import decimal, moment, whole
from rekindle.ui.details import CheckpointFile, list_checkpoints, sign

__all__ = ["Happening", "Metric", "RunFeed", "is_lower_better"]

Level = Literal["note", "good", "warning", "error"]

_PART = 2**18
"""Bytes of a log between two checks of the clock."""
_MOST_METRICS = 500
_MOST_HAPPENINGS = 500
_RATE_SECONDS = 60.0
_MOST_STEPS = 2**53
_LATEST = 2.0**36
"""The latest valid time; a hostile file may contain any number."""
_SPLITS = {"episode": "train", "train": "logged"}
"""Labels for the prefixes of metrics."""
_FIRST = {"return": 0, "length": 1}
_OF_ACTOR = re.compile(r"actor_\d")
_LOWER_IS_BETTER = ("loss", "error", "stall")
_ENDS: dict[str, Level] = {"finished": "good", "stopped": "warning", "failed": "error", "crashed": "error"}


class Metric(NamedTuple):
    """The metric of a curve, such as `return` of `train` or `loss` of `agent`."""

    name: str
    split: str


class Happening(NamedTuple):
    """An event to show: when (seconds since 1970), at which env step if known, and the text."""

    time: float
    step: int | None
    level: Level
    text: str


class Stamp(NamedTuple):
    """When a row was written, and the env steps then."""

    time: float
    steps: int


def is_lower_better(name: str) -> bool:
    """Whether the best value of a metric is its minimum."""
    return any(word in name for word in _LOWER_IS_BETTER)


class RunFeed:
    """The current data of a run; call `poll` regularly.

    Nothing is read twice, unless a resume truncated the logs. Memory is bounded, however long the run is.
    """

    def __init__(self, path: str | Path) -> None:
        self.reader = RunReader(path)
        self.metadata: RunMetadata | None = None
        self.status = "unreadable"
        """running, finished, stopped, failed, crashed, or unreadable."""
        self.config: dict[str, Any] = {}
        self.checkpoints: list[CheckpointFile] = []
        self.problems: list[str] = []
        """What cannot be read at present."""
        self.is_stop_requested = False
        self._happenings: deque[Happening] = deque(maxlen=_MOST_HAPPENINGS)
        self._tails = {log: self.reader.tail(log) for log in ALL_LOGS}
        self._damaged: dict[Log, str] = {}
        self._seen_resumes = 0
        self._noted_status = ""
        self._seen_checkpoints: tuple[object, ...] = ()
        self._known_files: set[str] = set()
        self.changes = 0
        """Increases whenever anything but the clock has changed."""
        self._forget()

    def _forget(self) -> None:
        """Reset everything that comes from the logs."""
        self.changes += 1
        self.curves: dict[Metric, Curve] = {}
        self.steps = self.updates = self.episodes = 0
        self._stamps: deque[Stamp] = deque()
        self._newest = 0.0
        self._logged: deque[Happening] = deque(maxlen=_MOST_HAPPENINGS)
        """Events from the logs."""
        self._nulls: set[Metric] = set()
        self._round: list[float] = []
        self._round_step: int | None = None
        self._round_time = 0.0

    # Properties

    @property
    def name(self) -> str:
        """Name, version and id, as in the path."""
        return "/".join(self.reader.path.parts[-3:])

    @property
    def algorithm(self) -> str | None:
        """The algorithm in the config, or else the class of the agent."""
        return algorithm_name(flat_settings(self.config)) or (self.metadata and self.metadata.agent)

    @property
    def environment(self) -> str | None:
        """The environment in the config, if there is one."""
        return environment_name(flat_settings(self.config))

    @property
    def shown_status(self) -> str:
        """The status, or `stopping` while a live run has been asked to stop."""
        return "stopping" if self.is_stop_requested else self.status

    @property
    def is_live(self) -> bool:
        """Whether a process was writing the run at the last poll."""
        return self.status == "running"

    @property
    def is_offline(self) -> bool:
        """Whether its steps are updates."""
        return self.metadata is not None and self.metadata.step_unit == "updates"

    @property
    def max_steps(self) -> int | None:
        """Env steps at which it finishes, if there is a limit."""
        known = self.metadata.max_steps if self.metadata else None
        return min(known, _MOST_STEPS) if known is not None and known > 0 else None

    @property
    def share_done(self) -> float | None:
        """Progress, from 0 to 1."""
        return min(1.0, self.steps / self.max_steps) if self.max_steps else None

    @property
    def rate(self) -> float | None:
        """Env steps per second: over the last minute of a live run, over all of a run that has ended."""
        since = self._process_start if self.is_live else 0.0
        stamps = [stamp for stamp in self._stamps if stamp.time >= since]
        if len(stamps) < 2 or stamps[-1].time <= stamps[0].time:
            return None
        return max(0.0, (stamps[-1].steps - stamps[0].steps) / (stamps[-1].time - stamps[0].time))

    @property
    def actors(self) -> str | None:
        """How busy actors and learner were last, and how many workers were started again; None without actors."""
        waiting, idle, restarts = (
            self.curves.get(Metric(name, "time")) for name in ("learner_waiting", "actors_waiting", "actor_restarts")
        )
        if waiting is None or restarts is None:
            return None
        busy = f"learner {1 - waiting.last:.0%} busy"
        if idle is not None:
            busy = f"actors {1 - idle.last:.0%} busy, {busy}"
        most = restarts.greatest
        again = ", workers were started again" if most is not None and most.value > 0 else ""
        return f"{busy}{again}"

    @property
    def seconds_left(self) -> float | None:
        """Estimated time to the end at the current rate; None if unknown."""
        if not self.is_live or not self.max_steps or not self.rate:
            return None
        return max(0.0, self.max_steps - self.steps) / self.rate

    @property
    def uptime(self) -> float | None:
        """Seconds since this process opened the run; for a run that has ended, from its start to its last update."""
        if self.metadata is None:
            return None
        if self.is_live:
            return max(0.0, time.time() - self._process_start)
        return max(0.0, max(self._newest, _seconds(self.metadata.last_updated)) - _seconds(self.metadata.started_at))

    @property
    def _process_start(self) -> float:
        if self.metadata is None:
            return 0.0
        resumes = self.metadata.resumes
        return _seconds(resumes[-1].wall_time if resumes else self.metadata.started_at)

    @property
    def happenings(self) -> list[Happening]:
        """Events to show, oldest first."""
        return sorted((*self._happenings, *self._logged), key=lambda happening: happening.time)

    def splits(self, name: str) -> list[tuple[str, Curve]]:
        """The curves of one metric; training first."""
        return [(metric.split, curve) for metric, curve in self.curves.items() if metric.name == name]

    @property
    def names(self) -> list[str]:
        """All metrics: return and length first; then those that depend on the clock, and those of single actors."""
        order: dict[str, int] = {}
        for metric in self.curves:
            place = _FIRST.get(metric.name, 2 + (metric.split == "time") + bool(_OF_ACTOR.match(metric.name)))
            order[metric.name] = min(place, order.get(metric.name, place))
        return sorted(order, key=lambda name: (order[name], name))

    def best(self, metric: Metric) -> Extreme | None:
        """The best value of a metric, and its step."""
        curve = self.curves[metric]
        return curve.least if is_lower_better(metric.name) else curve.greatest

    # Reading

    def poll(self, *, seconds: float = math.inf) -> float:
        """Read new data for about `seconds` at most; returns the share of the logs that has been read, from 0 to 1."""
        deadline = time.monotonic() + seconds
        before, self.problems = (self.status, self.problems), []
        self._read_metadata()
        has_more = False
        for log in ALL_LOGS:
            while log not in self._damaged and self._read_part(log):
                if has_more := time.monotonic() >= deadline:
                    break
        self.problems += self._damaged.values()
        self._read_checkpoints()
        self._look_for_stop()
        self._look_for_end()
        if not has_more and self._round_step is not None and self._round_step < self.steps:
            self._end_round()
        self.changes += before != (self.status, self.problems)
        size = sum(_size(tail.path) for tail in self._tails.values())
        return min(0.99, sum(tail.position for tail in self._tails.values()) / max(1, size)) if has_more else 1.0

    def _read_metadata(self) -> None:
        metadata = tolerant(self.problems, lambda: self.reader.metadata, None)
        if metadata is None:
            self.status = "unreadable"
            return
        self.changes += metadata != self.metadata
        if self.metadata is None:
            self._note(_seconds(metadata.started_at), 0, "note", f"started with seed {metadata.seed}")
        self.metadata = metadata
        self.status = tolerant(self.problems, lambda: self.reader.status, metadata.status)
        self.config = self.config or tolerant(self.problems, self.reader.read_config, {})
        for resume in metadata.resumes[self._seen_resumes :]:
            level = "note" if resume.grade == "exact" else "warning"
            lost = f": {'; '.join(resume.lost)}" if resume.lost else ""
            self._note(_seconds(resume.wall_time), resume.step, level, f"resumed, {resume.grade}{lost}")
            self._damaged.clear()  # a resume truncates damaged rows
        self._seen_resumes = len(metadata.resumes)
        self.steps = max(self.steps, min(metadata.total_steps, _MOST_STEPS))
        self.episodes = max(self.episodes, metadata.total_episodes)
        self.updates = max(self.updates, metadata.updates)

    def _read_part(self, log: Log) -> bool:
        """Read a part of a log; returns whether there may be more."""
        try:
            rows, rewound = self._tails[log].poll(_PART)
        except (RekindleError, OSError) as error:
            self._damaged[log] = str(error)
            self._note(time.time(), None, "error", str(error))
            return False
        if rewound:
            self._rewind()
            return True
        for row in rows:
            self._take(log, row)
        self.changes += bool(rows)
        return bool(rows)

    def _rewind(self) -> None:
        """The logs were truncated: discard all rows, and read the logs again."""
        self._forget()
        self._tails = {log: self.reader.tail(log) for log in ALL_LOGS}
        self._note(time.time(), None, "note", "a resume truncated the logs to its checkpoint")

    def _take(self, log: Log, row: Mapping[str, Any]) -> None:
        step, when = row.get("env_steps"), real(row.get("wall_time"))
        if type(step) is not int or not 0 <= step < _MOST_STEPS:
            return
        if log == "warnings":  # they are never truncated, so their counters may be of steps that were undone
            self._logged.append(_happening(when or 0.0, step, "warning", str(row.get("message", ""))))
            return
        self.steps = max(self.steps, step)
        for counter in ("updates", "episodes"):
            if type(value := row.get(counter)) is int:
                setattr(self, counter, max(getattr(self, counter), value))
        if when is not None and log != "eval_episodes":
            self._stamp(when, step)
        if log == "metrics":
            for name, summary in mapping(row.get("metrics")).items():
                prefix, _, rest = name.partition("/") if "/" in name else ("train", "", name)
                if prefix not in ("episode", "eval"):  # the episode logs have more of these
                    self._add(Metric(rest, _SPLITS.get(prefix, prefix)), step, mapping(summary).get("mean"))
            return
        split = "train" if log == "train_episodes" else "eval"
        if split == "eval":
            self._take_evaluation(step, when or 0.0, real(row.get("total_reward")))
        self._add(Metric("return", split), step, row.get("total_reward"))
        self._add(Metric("length", split), step, row.get("length"))
        for name, value in mapping(row.get("extras")).items():
            self._add(Metric(name, split), step, value)

    def _stamp(self, when: float, step: int) -> None:
        self._newest = max(self._newest, when)
        if self._stamps and when - self._stamps[-1].time < 0.5:
            return  # ignore a clock that goes back
        self._stamps.append(Stamp(when, step))
        while self.is_live and len(self._stamps) > 5 and when - self._stamps[0].time > _RATE_SECONDS:
            self._stamps.popleft()
        if len(self._stamps) > 1000:
            self._stamps = deque(list(self._stamps)[::2])

    def _add(self, metric: Metric, step: int, value: object) -> None:
        number = real(value)
        curve = self.curves.get(metric)
        if number is None:
            self._take_null(metric, step)
        elif curve is not None:
            curve.add(step, number)
        elif len(self.curves) < _MOST_METRICS:
            self.curves[metric] = curve = Curve()
            curve.add(step, number)

    def _take_null(self, metric: Metric, step: int) -> None:
        """NaN and infinity are null in the logs; report the first in a sequence of them."""
        if metric not in self._nulls and len(self._nulls) < _MOST_METRICS:
            text = f"{metric.split} {metric.name} is not a finite number"
            self._logged.append(_happening(self._newest, step, "warning", text))
            self._nulls.add(metric)

    def _take_evaluation(self, step: int, when: float, value: float | None) -> None:
        if step != self._round_step:
            self._end_round()
            self._round_step, self._round = step, []
        self._round_time = when
        self._round += [] if value is None else [value]

    def _end_round(self) -> None:
        if self._round:
            mean, count = math.fsum(self._round) / len(self._round), len(self._round)
            episodes = f"{whole(count)} episode{'s' * (count > 1)}"
            text = f"evaluated {episodes}: return {decimal(mean)}"
            self._logged.append(_happening(self._round_time, self._round_step, "note", text))
            self.changes += 1
        self._round = []

    def _read_checkpoints(self) -> None:
        directory = self.reader.path / "checkpoints"
        seen = (sign(directory), sign(directory / "best.mpk"))
        if seen == self._seen_checkpoints:
            return
        problems: list[str] = []
        checkpoints = list_checkpoints(directory, problems)
        self.problems += problems
        self._seen_checkpoints = () if problems else seen
        for checkpoint in sorted(checkpoints, key=lambda checkpoint: checkpoint.modified):
            if checkpoint.file not in self._known_files:
                kind, score = ("checkpoint", "") if checkpoint.file.startswith("step") else ("best agent", "")
                if checkpoint.score is not None:
                    score = f", score {decimal(checkpoint.score)}"
                self._note(checkpoint.modified, checkpoint.step, "good", f"{kind} saved{score}")
        self._known_files = {checkpoint.file for checkpoint in checkpoints}
        self.checkpoints = checkpoints
        self.changes += 1

    def _look_for_stop(self) -> None:
        request = self.reader.path / "control" / "stop"
        requested = self.is_live and os.path.lexists(request)
        if requested and not self.is_stop_requested:
            self._note(time.time(), self.steps, "warning", "asked to checkpoint and stop")
        self.is_stop_requested = requested

    def _look_for_end(self) -> None:
        before, self._noted_status = self._noted_status, self.status
        if self.status == before or self.metadata is None or self.status not in _ENDS:
            return
        self._end_round()
        reason = f": {self.metadata.stop_reason}" if self.metadata.stop_reason else ""
        seen = time.time() if before == "running" else max(self._newest, _seconds(self.metadata.last_updated))
        self._note(seen, self.steps, _ENDS[self.status], f"{self.status}{reason}")

    def _note(self, when: float, step: int | None, level: Level, text: str) -> None:
        self._happenings.append(_happening(when, step, level, text))
        self.changes += 1


def _happening(when: float, step: int | None, level: Level, text: str) -> Happening:
    return Happening(min(max(0.0, when), _LATEST), step, level, text)


def _seconds(stamp: str) -> float:
    then = moment(stamp)
    return 0.0 if then is None else then.timestamp()


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return os.stat(path, follow_symlinks=False).st_size
    return 0

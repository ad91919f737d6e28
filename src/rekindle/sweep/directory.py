"""The directory of a study: `study.json`, `trials.jsonl`, and the runs of its trials.

`trials.jsonl` has two rows for each trial: `asked` with its settings, and `ended` with its results. Their order does
not depend on the timing of the runs, and all can be derived from the runs: a damaged log loses nothing.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.errors import ConfigError, LogCorrupt, RunError
from rekindle.run.creation import checked_name
from rekindle.run.finding import is_study
from rekindle.storage import files, logs
from rekindle.storage.lock import Lock
from rekindle.storage.logs import JsonLines, LogPosition
from rekindle.sweep.settings import StudySettings
from rekindle.sweep.trials import Trial, TrialStatus, best_trial

__all__ = ["Study", "StudyLog", "find_trial", "write_settings"]

STOP = "stop"
"""The file that asks for a stop."""
_MOST_JSON = 2**22


class _Row(msgspec.Struct):
    event: Literal["asked", "ended"]
    trial: int
    settings: dict[str, Any] = {}
    status: TrialStatus = "running"
    value: float | None = None
    scores: tuple[float, ...] = ()
    rungs: tuple[float, ...] = ()
    reason: str | None = None


class Study:
    """Reads a study, whether it is live, finished or was killed.

    >>> Study("nowhere")
    Traceback (most recent call last):
    ...
    rekindle.errors.RunError: there is no study at nowhere: it has no study.json
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not is_study(self.path):
            raise RunError(f"there is no study at {self.path}: it has no study.json")

    @property
    def settings(self) -> StudySettings:
        """The settings of the study."""
        file = self.path / "study.json"
        try:
            return msgspec.json.decode(files.read_bytes(file, most=_MOST_JSON), type=StudySettings)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ConfigError) as error:
            raise RunError(f"{file} is not the description of a study: {error}") from None

    @property
    def is_live(self) -> bool:
        """Whether a process is working on this study now."""
        return Lock.is_held(self.path / "lock")

    @property
    def trials(self) -> list[Trial]:
        """Every trial so far, by number; raises `LogCorrupt` if the log is damaged."""
        return _trials(self.path, logs.read_rows(self.path / "trials.jsonl"))

    @property
    def best(self) -> Trial | None:
        """The complete trial of the highest value; None if there is none yet."""
        return best_trial(self.trials)

    @property
    def status(self) -> str:
        """running, finished, or stopped."""
        if self.is_live:
            return "running"
        ended = [trial for trial in self.trials if trial.status != "running"]
        return "finished" if len(ended) >= self.settings.trials else "stopped"

    def request_stop(self) -> None:
        """Ask the process that works on this study to take checkpoints and stop."""
        files.write_atomic(self.path / STOP, b"", sync_name=False)


def _trials(path: Path, rows: list[dict[str, Any]]) -> list[Trial]:
    trials: dict[int, Trial] = {}
    for row in rows:
        try:
            read = msgspec.convert(row, _Row)
        except msgspec.ValidationError as error:
            raise LogCorrupt(f"{path / 'trials.jsonl'}: row {row['row']} is not about a trial: {error}") from None
        if read.event == "asked":
            trials[read.trial] = Trial(read.trial, read.settings)
        elif read.trial in trials:
            fields = {name: getattr(read, name) for name in ("status", "value", "scores", "rungs", "reason")}
            trials[read.trial] = msgspec.structs.replace(trials[read.trial], **fields)
    return list(trials.values())


def find_trial(name: str) -> tuple[Study, Trial]:
    """The trial in `STUDY`, `STUDY@best` or `STUDY@NUMBER`; raises `ConfigError`."""
    path, at, which = name.rpartition("@")
    if not at or "/" in which:  # an @ in the name of a directory above the study
        path, which = name, "best"
    study = Study(path)
    if which == "best":
        if (best := study.best) is None:
            raise ConfigError(f"{study.path} has no complete trial yet")
        return study, best
    found = [trial for trial in study.trials if str(trial.number) == which]
    if not found:
        raise ConfigError(f"{study.path} has no trial {which!r:.40}: use best, or a number; see rekindle show {path}")
    return study, found[0]


def write_settings(path: Path, settings: StudySettings) -> None:
    """Create a study or change its number of trials; raises `ConfigError` if the directory is another study."""
    checked_name("name", path.name)
    if is_study(path):
        stored = Study(path).settings
        if differences := stored.differences(settings):
            raise ConfigError(f"{path} is another study: {'; '.join(differences)}. Use its settings, or another name")
        if settings.trials <= stored.trials:
            return
    files.make_directory(path)
    files.write_atomic(path / "study.json", msgspec.json.format(msgspec.json.encode(settings), indent=2))


class StudyLog:
    """The one writer of a study's log; holds the lock until it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        files.require_directory(path)
        self._lock = Lock(path / "lock", advice="wait until it ends, or stop it with Ctrl-C in its terminal")
        try:
            files.remove([path / STOP])  # for another process, which has ended
            self._log, rows = self._opened()
            self.trials = {trial.number: trial for trial in _trials(path, rows)}
            """Every trial in the log, by number."""
        except BaseException:
            self._lock.release()
            raise

    def _opened(self) -> tuple[JsonLines, list[dict[str, Any]]]:
        file = self.path / "trials.jsonl"
        position = logs.mend(file, self._unused("rewound")) if os.path.lexists(file) else LogPosition()
        return JsonLines(file, position), logs.read_rows(file)

    def _unused(self, name: str) -> Path:
        number = 1
        while os.path.lexists(self.path / f"{name}-{number}"):
            number += 1
        return self.path / f"{name}-{number}"

    def ask(self, trial: Trial) -> None:
        """Log the settings of a new trial."""
        self.trials[trial.number] = trial
        self._append("asked", trial, ("settings",))

    def end(self, trial: Trial) -> None:
        """Log the results of a trial."""
        self.trials[trial.number] = trial
        self._append("ended", trial, ("status", "value", "scores", "rungs", "reason"))

    def _append(self, event: str, trial: Trial, fields: tuple[str, ...]) -> None:
        values = {name: getattr(trial, name) for name in fields}
        # Not synced: what a power cut takes is read again from the runs.
        self._log.append({"event": event, "trial": trial.number, **values, "wall_time": time.time()})

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether another process has asked for a stop."""
        return os.path.lexists(self.path / STOP)

    def close(self) -> None:
        """Close the log, and release the lock."""
        try:
            self._log.close()
            files.remove([self.path / STOP])
        finally:
            self._lock.release()

"""One run of a trial, trained up to an evaluation where it may be pruned, or to its end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.errors import CheckpointError, Interrupted, MissingExtra, RekindleError, RunError, StorageError
from rekindle.events import Evaluated, TrainingStarted
from rekindle.interrupt import Interrupter
from rekindle.run.finding import find_runs
from rekindle.run.reader import RunReader
from rekindle.run.scores import ScoreCurve, score_curve
from rekindle.storage.lock import Lock
from rekindle.sweep.settings import StudySettings, trial_version
from rekindle.training import Trainer

__all__ = ["Job", "Outcome", "Start", "train_part"]

_PATIENCE = 30.0
"""Seconds to wait for a run that another process still writes; a worker notices within one that its sweep is dead."""
_PAUSE = "the study compares its trials"
_NOT_THE_TRIAL = (StorageError, RunError, CheckpointError, MissingExtra)
"""Errors that say nothing about the settings of a trial, such as a full disk: they end the sweep."""


class Start(msgspec.Struct, frozen=True):
    """The first message to a worker."""

    study: str
    settings: StudySettings
    search_path: list[str]
    """Where to import modules from, like the process of the sweep."""


class Job(msgspec.Struct, frozen=True):
    """A run to train, and how far."""

    trial: int
    seed: int
    settings: dict[str, Any]
    until: int | None
    """Pause after the first evaluation at or after this step; None to train to the end."""


class Outcome(msgspec.Struct, frozen=True):
    """The result of a job."""

    trial: int
    seed: int
    status: Literal["reached", "failed", "stopped", "broken"]
    """It came as far as it should, its training failed, a stop was requested, or something else is broken."""
    curve: ScoreCurve = ScoreCurve([], [])
    reason: str | None = None


def train_part(study: Path, settings: StudySettings, job: Job, interrupter: Interrupter) -> Outcome:
    """Train a run as far as the job says, from where it is; never raises for a training that fails."""
    try:
        return _trained(study, settings, job, interrupter)
    except Interrupted:
        return Outcome(job.trial, job.seed, "stopped")
    except _NOT_THE_TRIAL as error:
        return Outcome(job.trial, job.seed, "broken", reason=str(error))
    except RekindleError as error:
        return Outcome(job.trial, job.seed, "failed", reason=str(error))
    except Exception as error:  # any exception of an environment or agent is a result of this trial
        return Outcome(job.trial, job.seed, "failed", reason=f"{type(error).__name__}: {error}")


def _trained(study: Path, settings: StudySettings, job: Job, interrupter: Interrupter) -> Outcome:
    version = trial_version(job.trial, job.seed)
    if (known := _reached(study / version, job.until)) is not None:
        return Outcome(job.trial, job.seed, "reached", known)
    _wait_for_former_writer(study / version)
    options = settings.options(job.settings, seed=job.seed)
    trainer = Trainer(
        options.pop("env"),
        options.pop("agent"),
        name=f"{study.name}/{version}",
        root=study.parent,
        signals=False,
        interrupter=interrupter,
        **options,
    )

    # A pause changes nothing: the run continues exactly where it was if the trial is not pruned.
    def pause_after_evaluation(_: Evaluated) -> None:
        if job.until is not None and trainer.session is not None and trainer.session.total_steps >= job.until:
            interrupter.stop(_PAUSE)

    def pause_at_start(started: TrainingStarted) -> None:
        # A kill between the evaluation and the pause: the evaluation is in the checkpoint, and is not repeated.
        if started.path is not None and _has_evaluation(score_curve(Path(started.path)), job.until):
            interrupter.stop(_PAUSE)

    trainer.on(Evaluated, pause_after_evaluation)
    trainer.on(TrainingStarted, pause_at_start)
    trainer.train(progress=False)
    known = _reached(study / version, job.until)
    return Outcome(job.trial, job.seed, "stopped") if known is None else Outcome(job.trial, job.seed, "reached", known)


def _wait_for_former_writer(directory: Path) -> None:
    """Wait for the worker of a sweep that was just killed, which ends a moment later; raises nothing if it does not."""
    deadline = time.monotonic() + _PATIENCE
    while any(Lock.is_held(path / "lock") for path in find_runs(directory)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _reached(directory: Path, until: int | None) -> ScoreCurve | None:
    """The scores of the run in a version directory, if it is as far as that step."""
    for path in reversed(find_runs(directory)):
        status = RunReader(path).status
        if status == "finished":
            return score_curve(path)
        # Only what a stopped run has logged is in its checkpoint; rows of a killed one are removed by a resume.
        if status == "stopped" and _has_evaluation(curve := score_curve(path), until):
            return curve
    return None


def _has_evaluation(curve: ScoreCurve, until: int | None) -> bool:
    return until is not None and any(step >= until for step in curve.steps)

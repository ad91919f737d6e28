"""Studies in the dashboard: a row for each, and a page with trials, importance and the curves of the best trials."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from rekindle.errors import RekindleError
from rekindle.run.finding import find_runs, is_study
from rekindle.run.scores import ScoreCurve, score_curve
from rekindle.run.settings import setting_text
from rekindle.storage.lock import Lock
from rekindle.text import path_text, printable
from rekindle.ui.details import sign

if TYPE_CHECKING:
    from rekindle.sweep import Study, Trial
    from rekindle.sweep.space import Parameter

__all__ = ["Studies", "StudyPage", "StudyRow"]

_MOST_STUDIES = 100
_MOST_TRIALS = 1000
"""The most trials on a page: the best ones."""
_CURVES = 6
"""Trials whose learning curves are shown."""


class StudyRow(msgspec.Struct, frozen=True):
    """One study in the list."""

    id: str
    """Its path below the root directory."""
    name: str
    status: str
    """running, finished, stopped, or unreadable."""
    trials: int
    ended: int
    best: float | None


class Axis(msgspec.Struct, frozen=True):
    """A setting that the study varies."""

    name: str
    low: str
    high: str
    """What stands at the ends of its axis."""
    choices: list[str]
    """The values of a choice; empty for a number."""


class TrialRow(msgspec.Struct, frozen=True):
    """One trial of a page."""

    number: int
    status: str
    value: float | None
    scores: tuple[float, ...]
    reason: str | None
    settings: dict[str, str]
    places: list[float | None]
    """Where each setting is on its axis, from 0 to 1."""
    runs: list[str]
    """The ids of its runs."""


class TrialCurve(msgspec.Struct, frozen=True):
    """The evaluations of a trial over its seeds."""

    number: int
    x: list[int]
    mean: list[float]
    least: list[float]
    most: list[float]


class StudyPage(msgspec.Struct, frozen=True):
    """Everything that the page of a study shows."""

    row: StudyRow
    path: str
    about: dict[str, str]
    axes: list[Axis]
    trials: list[TrialRow]
    """The best first."""
    best: int | None
    importance: dict[str, float]
    curves: list[TrialCurve]


class Studies:
    """The studies below a directory; a page is read again only when its log has changed. Safe for several threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[str, tuple[tuple[Any, ...], StudyPage]] = {}
        self._guard = threading.Lock()

    def _paths(self) -> dict[str, Path]:
        """The studies by id; an id is never joined to a path, so that none leads out of the root."""
        root = self._root
        if is_study(root):
            return {root.absolute().name: root}
        try:
            below = sorted(entry.path for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
        except OSError:
            return {}
        found = [Path(path) for path in below if is_study(path)]
        return {path_text(path.relative_to(root)): path for path in found[:_MOST_STUDIES]}

    def rows(self) -> list[StudyRow]:
        """A row for each study."""
        rows: list[StudyRow] = []
        for id_, path in self._paths().items():
            try:
                rows.append(self._page(id_, path).row)
            except (RekindleError, OSError):
                rows.append(StudyRow(id_, printable(path.name, most=100), "unreadable", 0, 0, None))
        return rows

    def page(self, id_: str) -> StudyPage | None:
        """The page of a study; None if there is none of this id."""
        path = self._paths().get(id_)
        return None if path is None else self._page(id_, path)

    def _page(self, id_: str, path: Path) -> StudyPage:
        signs = (*(sign(f"{path}/{name}") for name in ("study.json", "trials.jsonl")), Lock.is_held(path / "lock"))
        with self._guard:
            known = self._known.get(id_)
            if known is None or known[0] != signs:
                known = self._known[id_] = (signs, self._read(id_, path))
            return known[1]

    def _read(self, id_: str, path: Path) -> StudyPage:
        from rekindle.sweep import Study
        from rekindle.sweep.importance import importance
        from rekindle.sweep.trials import best_trial, ranked

        study = Study(path)
        settings, trials = study.settings, study.trials
        best = best_trial(trials)
        ended = ranked(trials)
        shown = [*(trial for trial in trials if trial.status == "running"), *ended][:_MOST_TRIALS]
        parameters = settings.parameters
        seeds = ", ".join(map(str, settings.seeds[:20]))
        row = StudyRow(
            id=id_,
            name=printable(path.absolute().name, most=100),
            status=study.status,
            trials=settings.trials,
            ended=len(ended),
            best=None if best is None else best.value,
        )
        return StudyPage(
            row=row,
            path=path_text(path),
            about={
                "algorithm": printable(settings.algorithm, most=60),
                "environment": "data" if settings.env is None else printable(settings.env.id, most=60),
                "steps": f"{settings.training.steps or 0:,}",
                "seeds a trial": seeds,
                "sampler": settings.sampler,
                "pruning": settings.prune,
            },
            axes=[_axis(name, parameter) for name, parameter in parameters.items()],
            trials=[_trial(study, self._root, trial, list(parameters.items())) for trial in shown],
            best=None if best is None else best.number,
            importance={printable(name, most=60): share for name, share in importance(parameters, trials).items()},
            curves=[curve for trial in ended[:_CURVES] if (curve := _curve(study, trial)) is not None],
        )


def _axis(name: str, parameter: Parameter) -> Axis:
    from rekindle.sweep.space import Choice

    short = printable(name, most=60)
    if isinstance(parameter, Choice):
        texts = [printable(setting_text(value), most=40) for value in parameter.choice]
        return Axis(short, texts[0], texts[-1], texts)
    return Axis(short, f"{parameter.low:g}", f"{parameter.high:g}", [])


def _place(parameter: Parameter, value: Any) -> float | None:
    from rekindle.sweep.space import Choice

    try:
        if isinstance(parameter, Choice):
            return parameter.index(value) / (len(parameter.choice) - 1)
        return parameter.unit(value)
    except (ValueError, TypeError, OverflowError):  # a log of another space, or one that was edited
        return None


def _trial(study: Study, root: Path, trial: Trial, parameters: Sequence[tuple[str, Parameter]]) -> TrialRow:
    return TrialRow(
        number=trial.number,
        status=trial.status,
        value=trial.value,
        scores=trial.scores,
        reason=None if trial.reason is None else printable(trial.reason),
        settings={
            printable(name, most=60): printable(setting_text(value), most=60) for name, value in trial.settings.items()
        },
        places=[_place(parameter, trial.settings.get(name)) for name, parameter in parameters],
        runs=[path_text(run.relative_to(root)) for run in _runs(study, trial)],
    )


def _runs(study: Study, trial: Trial) -> list[Path]:
    from rekindle.sweep.settings import trial_version

    versions = [study.path / trial_version(trial.number, seed) for seed in study.settings.seeds]
    return [runs[-1] for version in versions if (runs := find_runs(version))]


def _curve(study: Study, trial: Trial) -> TrialCurve | None:
    """The evaluations that all runs of a trial have."""
    curves: list[ScoreCurve] = []
    for run in _runs(study, trial):
        try:
            curves.append(score_curve(run))
        except (RekindleError, OSError, UnicodeDecodeError):
            return None
    steps = sorted(set[int].intersection(*(set(curve.steps) for curve in curves))) if curves else []
    if not steps:
        return None
    scores = np.array([[curve.scores[curve.steps.index(step)] for step in steps] for curve in curves])
    return TrialCurve(
        trial.number, steps, scores.mean(axis=0).tolist(), scores.min(axis=0).tolist(), scores.max(axis=0).tolist()
    )

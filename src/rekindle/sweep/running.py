"""Run a study: propose trials, train their runs on several workers, and prune.

Nothing depends on timing. Trial n is proposed, and pruned, with the results of trials up to n - ahead only. A trial is
pruned at an evaluation that all of its runs have reached, and they wait there. So a study that was killed, or runs with
another number of jobs, ends with the same trials, the same values and the same runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from rekindle.checkpoint.store import list_steps
from rekindle.errors import Interrupted, RunError
from rekindle.interrupt import Interrupter
from rekindle.run.finding import find_runs
from rekindle.run.scores import ScoreCurve
from rekindle.sweep.crew import Crew, Died
from rekindle.sweep.directory import Study, StudyLog, write_settings
from rekindle.sweep.executing import Job, Outcome
from rekindle.sweep.samplers import propose
from rekindle.sweep.settings import StudySettings, trial_version
from rekindle.sweep.trials import Trial, medians, ranked

__all__ = ["run_study"]

Listener: TypeAlias = Callable[[Trial], object]
_MOST_DEATHS = 3
"""Times that a run may take its process down without coming further, before its trial counts as failed."""


def run_study(
    path: str | Path,
    settings: StudySettings,
    *,
    jobs: int = 1,
    interrupter: Interrupter | None = None,
    on_trial: Listener | None = None,
) -> Study:
    """Run a study, or what is left of it, and return it.

    Args:
        path: the directory of the study, which also holds its runs; it is created if it is missing.
        settings: the settings; of a study that exists only the number of trials may change, and only grow.
        jobs: how many runs to train at the same time. The result does not depend on it.
        interrupter: a stop ends the study after checkpoints of its runs; raises `Interrupted`.
        on_trial: called with each trial that ends, in order.
    """
    directory = Path(path).absolute()
    settings.check()
    write_settings(directory, settings)
    log = StudyLog(directory)
    try:
        settings = Study(directory).settings  # it may already have more trials
        with Crew(directory, settings, jobs) as crew:
            _Run(directory, settings, log, crew, interrupter or Interrupter(), on_trial).go()
    finally:
        log.close()
    return Study(path)


class _Course:
    """A trial on its way: which evaluation its runs train up to, and which have reached it."""

    def __init__(self, trial: Trial, rungs: list[int], seeds: tuple[int, ...], thresholds: Mapping[int, float]) -> None:
        self.trial = trial
        self._targets: list[int | None] = [*rungs, None]
        self._thresholds = thresholds
        self._seeds = seeds
        self._place = 0
        self._waiting = list(seeds)
        self._outcomes: dict[int, Outcome] = {}

    def next_job(self) -> Job | None:
        """A run that no worker has yet; None if there is none for now."""
        if not self._waiting:
            return None
        return Job(self.trial.number, self._waiting.pop(0), self.trial.settings, self._targets[self._place])

    def again(self, seed: int) -> None:
        """Train a run once more, because its worker died."""
        self._waiting.insert(0, seed)

    def add(self, outcome: Outcome, settings: StudySettings) -> Trial | None:
        """Add the outcome of a run; returns the trial if it ends here."""
        self._outcomes[outcome.seed] = outcome
        if len(self._outcomes) < len(self._seeds):
            return None
        outcomes = [self._outcomes[seed] for seed in self._seeds]
        for one in outcomes:
            if one.status == "failed":
                return self._ended("failed", reason=f"seed {one.seed}: {one.reason}")
        target = self._targets[self._place]
        scores = [_score(one.curve, target, settings) for one in outcomes]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return self._ended("failed", reason="a run has no evaluation with a finite score")
        mean = statistics.fmean(known)
        if target is None:
            return self._ended("complete", value=mean, scores=tuple(known))
        self.trial = msgspec.structs.replace(self.trial, rungs=(*self.trial.rungs, mean))
        threshold = self._thresholds.get(self._place)
        if threshold is not None and mean < threshold:
            reason = f"{mean:.4g} at step {target:,}, and the median was {threshold:.4g}"
            return self._ended("pruned", scores=tuple(known), reason=reason)
        self._place += 1
        self._waiting, self._outcomes = list(self._seeds), {}
        return None

    def _ended(self, status: str, **fields: object) -> Trial:
        return msgspec.structs.replace(self.trial, status=status, **fields)


def _score(curve: ScoreCurve, target: int | None, settings: StudySettings) -> float | None:
    if target is None:
        return curve.score(settings.measure)
    # A run that has already finished (a target score, or patience) keeps its last score.
    later = [score for step, score in zip(curve.steps, curve.scores, strict=True) if step >= target]
    return later[0] if later else curve.score("final")


class _Run:
    """One process's work on a study."""

    def __init__(
        self,
        path: Path,
        settings: StudySettings,
        log: StudyLog,
        crew: Crew,
        interrupter: Interrupter,
        on_trial: Listener | None,
    ) -> None:
        self._path, self._settings, self._log, self._crew = path, settings, log, crew
        self._interrupter, self._on_trial = interrupter, on_trial
        self._courses: dict[int, _Course] = {}
        self._ended: dict[int, Trial] = {}
        """Trials that have ended, but wait for an earlier one to be logged first."""
        self._deaths: dict[tuple[int, int], list[int]] = {}

    def go(self) -> None:
        """Work until every trial has ended."""
        known = [trial for trial in self._log.trials.values() if trial.status != "running"]
        for trial in known:
            self._tell(trial)
        logged = len(known)
        while logged < self._settings.trials:
            self._ask(logged)
            self._give_jobs()
            answer = self._crew.wait()
            if self._log.is_asked_to_stop:
                self._interrupter.stop("rekindle stop")
            if self._interrupter.interruption is not None:
                self._crew.stop()
                if self._crew.is_idle:
                    raise Interrupted(f"stopped ({self._interrupter.interruption}) after {logged} trials")
            if isinstance(answer, Died):
                self._die(answer)
            elif answer is not None:
                self._take(answer)
            while logged in self._ended:
                trial = self._ended.pop(logged)
                self._log.end(trial)
                self._tell(trial)
                logged += 1
                self._ask(logged)

    def _ask(self, logged: int) -> None:
        """Propose the trials that may run now: their proposals depend on trials that have been logged."""
        settings, trials = self._settings, self._log.trials
        for number in range(logged, min(logged + settings.ahead, settings.trials)):
            if number in self._courses:
                continue
            usable = [trials[earlier] for earlier in range(max(0, number - settings.ahead + 1))]
            if number not in trials:
                pending = [trials[earlier].settings for earlier in range(len(usable), number)]
                drawn = propose(
                    settings.sampler,
                    settings.parameters,
                    number,
                    seed=settings.training.seed,
                    ranked=[trial.settings for trial in ranked(usable)],
                    pending=pending,
                )
                self._log.ask(Trial(number, drawn))
            thresholds = medians(usable, len(settings.rungs))
            self._courses[number] = _Course(trials[number], settings.rungs, settings.seeds, thresholds)

    def _give_jobs(self) -> None:
        if self._interrupter.interruption is not None:
            return
        for course in self._courses.values():
            while not self._crew.is_full and (job := course.next_job()) is not None:
                self._crew.work(job)

    def _take(self, outcome: Outcome) -> None:
        if outcome.status == "stopped":
            # Without a request to the study, it was one to this run, which means the study.
            self._interrupter.stop(f"trial {outcome.trial}, seed {outcome.seed} was asked to stop")
            return
        if outcome.status == "broken":
            raise RunError(f"trial {outcome.trial}, seed {outcome.seed}: {outcome.reason}")
        trial = self._courses[outcome.trial].add(outcome, self._settings)
        if trial is not None:
            self._ended[trial.number] = trial

    def _die(self, died: Died) -> None:
        """Try a run again whose process was killed; one that takes its process down again and again has failed."""
        job = died.job
        runs = find_runs(self._path / trial_version(job.trial, job.seed))
        steps = [step for run in runs for step in list_steps(run / "checkpoints")]
        deaths = self._deaths.setdefault((job.trial, job.seed), [])
        deaths.append(max(steps, default=0))
        if deaths[-_MOST_DEATHS:].count(deaths[-1]) >= _MOST_DEATHS:
            self._take(Outcome(job.trial, job.seed, "failed", reason=died.reason))
        else:
            self._courses[job.trial].again(job.seed)

    def _tell(self, trial: Trial) -> None:
        if self._on_trial is not None:
            self._on_trial(trial)

"""`rekindle sweep`, and studies in `rekindle show` and `rekindle resume`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rekindle.cli.modules import find_modules_here, module_of
from rekindle.cli.seeds import parse_seeds
from rekindle.cli.stopping import current_interrupter
from rekindle.cli.train import argument_value
from rekindle.envs import EnvSettings, EnvWrapping
from rekindle.envs.factory import required_files
from rekindle.errors import ConfigError, Interrupted
from rekindle.run.creation import checked_name
from rekindle.run.finding import is_study
from rekindle.run.settings import setting_text
from rekindle.stages import stage
from rekindle.sweep import Study, StudySettings, Trial, built_in_space, read_space, run_study, space_text
from rekindle.sweep.importance import importance
from rekindle.sweep.space import Space
from rekindle.sweep.trials import ranked
from rekindle.text import NOTHING, decimal, path_text, printable, shown_path
from rekindle.training.algorithms import NoSettings, agent_module, fields_of
from rekindle.training.config import check_cluster, check_files, check_modules, check_recorders
from rekindle.ui.output import complain, say, write_json
from rekindle.ui.tables import Cell, cell, console, facts, headline, number, print_whole, status_cell, table, words

__all__ = ["StudyDetails", "print_built_in", "resume_study", "show_study", "sweep_settings"]

_MOST_TRIALS = 15
"""The most trials in a table; JSON has all."""


class StudyDetails(msgspec.Struct, frozen=True):
    """A study in full."""

    path: str
    status: str
    settings: StudySettings
    trials: list[Trial]
    best: Trial | None
    importance: dict[str, float]
    """The share of the differences between complete trials that each setting explains by itself."""


def print_built_in(algorithm: str) -> int:
    """Print the built-in space of an algorithm."""
    print(space_text(built_in_space(algorithm)), end="")
    return 0


def sweep_settings(  # noqa: PLR0913 - these are the options of a command
    algorithm: str,
    env: str | None,
    *,
    name: str | None,
    root: Path,
    jobs: int,
    space: Space,
    seeds: str,
    modules: Sequence[str],
    arguments: Mapping[str, str],
    wrapping: EnvWrapping,
    agent: Any,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run a study with the options of the command."""
    find_modules_here([*modules, *module_of(env), *module_of(algorithm), *module_of(getattr(agent, "network", None))])
    source = None
    if env is not None:
        values = {key: argument_value(text) for key, text in arguments.items()}
        source = EnvSettings(id=env, modules=tuple(modules), arguments=values, **msgspec.structs.asdict(wrapping))
    study = StudySettings(
        algorithm=algorithm,
        env=source,
        agent={} if isinstance(agent, NoSettings) else fields_of(agent),
        space=space,
        seeds=tuple(parse_seeds(seeds)),
        **settings,
    )
    label = re.sub(r"[^A-Za-z0-9._+-]", "-", f"sweep-{algorithm}-{env or Path(study.training.data or '').name}")[:100]
    if study.preset is not None:
        complain(f"trials start from the preset {study.preset} of {algorithm}; --preset none turns it off")
    if study.prune != "none" and not study.rungs:
        latest = max(study.prune_at, default=0)
        complain(
            f"no trial will be pruned, because none is evaluated in the first {latest:.0%} of its steps; "
            "lower --eval-every, or pass --prune none"
        )
    return _run(root / checked_name("name", name or label), study, jobs=jobs, as_json=as_json)


def varied_space(algorithm: str, file: Path | None, typed: Sequence[str]) -> Space:
    """The settings to vary: those of the file, or the built-in ones without those that the command sets."""
    options = [word.partition("=")[0].removeprefix("--").replace("-", "_") for word in typed if word.startswith("--")]
    given = {option.replace(".no_", ".") for option in options}
    if file is None:
        space = {name: values for name, values in built_in_space(algorithm).items() if name not in given}
        if not space:
            raise ConfigError(f"the command sets all that the space of {algorithm} varies: leave one to the sweep")
        return space
    space = read_space(file)
    if both := sorted(given.intersection(space)):
        option = f"--{both[0].replace('_', '-')}"
        raise ConfigError(f"{option} sets what {path_text(file)} varies: leave out the option, or the line of the file")
    return space


def resume_study(
    path: Path, *, jobs: int, ray_address: str | None, modules: Sequence[str], files: Sequence[str], as_json: bool
) -> int:
    """Continue a study from its settings; raises `ConfigError` if they name anything that the user does not."""
    settings = Study(path).settings
    find_modules_here(modules)
    own = agent_module(settings.algorithm)
    check_modules(modules, env=settings.env_modules, agent=[] if own is None else [own])
    check_files([] if settings.env is None else required_files(settings.env), files)
    check_recorders(settings.training.record)
    if ray_address not in (None, settings.training.ray_address):
        raise ConfigError(
            f"--ray-address: {path} is a study, which continues as it began, and it names no such cluster"
        )
    check_cluster(settings.training, ray_address)
    return _run(path, settings, jobs=jobs, as_json=as_json)


def _run(path: Path, settings: StudySettings, *, jobs: int, as_json: bool) -> int:
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}: use at least 1")
    tell = _Progress(settings.trials)
    if settings.env is None and settings.training.data is None:
        raise ConfigError("there is nothing to learn from: pass an environment (ENV), or data (--data PATH)")
    trials = "1 trial" if settings.trials == 1 else f"{settings.trials} trials"
    seeds = "1 seed" if len(settings.seeds) == 1 else f"{len(settings.seeds)} seeds"
    stage(f"training {trials} with {seeds} each, {jobs} at a time")
    try:
        run_study(path, settings, jobs=jobs, interrupter=current_interrupter(), on_trial=tell)
    except Interrupted as error:
        if not is_study(path):
            raise
        raise Interrupted(f"{error}; continue with {_resume_command(shown_path(path), settings)}") from None
    return show_study(path, as_json=as_json)


class _Progress:
    """Prints a line for each trial that ends."""

    def __init__(self, trials: int) -> None:
        self._trials = trials
        self._best: Trial | None = None

    def __call__(self, trial: Trial) -> None:
        best = self._best
        if trial.value is not None and (best is None or best.value is None or trial.value > best.value):
            best = self._best = trial
        result = decimal(trial.value) if trial.value is not None else f"{trial.status}: {trial.reason}"
        known = "" if best is None or best is trial else f", best {decimal(best.value)} (trial {best.number})"
        settings = ", ".join(f"{_short(name)} {setting_text(value)}" for name, value in trial.settings.items())
        line = f"[{trial.number + 1}/{self._trials}] trial {trial.number}: {result}{known}; {settings}"
        say(printable(line, most=400))


def show_study(path: Path, *, as_json: bool) -> int:
    """Print one study in full."""
    study = Study(path)
    settings, trials = study.settings, study.trials
    shares = importance(settings.parameters, trials)
    details = StudyDetails(shown_path(path), study.status, settings, trials, study.best, shares)
    if as_json:
        write_json(details)
    else:
        _print(details)
    return 0


def _print(details: StudyDetails) -> None:
    out = console()
    settings = details.settings
    print_whole(out, cell(details.path, "bold"))
    counts = {status: sum(trial.status == status for trial in details.trials) for status in ("complete", "pruned")}
    failed = sum(trial.status == "failed" for trial in details.trials)
    ended = sum(trial.status != "running" for trial in details.trials)
    seeds = f"{len(settings.seeds)} seed{'s' * (len(settings.seeds) > 1)} a trial"
    what = f"{settings.algorithm} on {'data' if settings.env is None else settings.env.id}"
    out.print(
        facts(
            [
                ("status", status_cell(details.status)),
                (
                    "training",
                    f"{what}, {settings.training.steps or 0:,} steps, {seeds}",
                ),
                (
                    "trials",
                    f"{ended} of {settings.trials}: {counts['complete']} complete, {counts['pruned']} pruned, "
                    f"{failed} failed",
                ),
            ]
        )
    )
    if details.best is not None:
        out.print(headline(f"Best: trial {details.best.number}", decimal(details.best.value)))
        out.print(facts((name, setting_text(value)) for name, value in details.best.settings.items()))
    shown = [*ranked(details.trials)[:_MOST_TRIALS], *(trial for trial in details.trials if trial.status == "running")]
    if shown:
        note = f"the best {_MOST_TRIALS} of {ended}; --json has all" if ended > _MOST_TRIALS else ""
        out.print(headline("Trials", note))
        columns = (number("trial"), number("score"), "status", words("seeds"), words("settings", least=30))
        out.print(table(columns, [_row(trial, is_running=details.status == "running") for trial in shown]))
    if details.importance:
        out.print(headline("Importance", "how much of the difference between trials a setting explains"))
        items = sorted(details.importance.items(), key=lambda item: -item[1])
        out.print(facts((name, f"{share:4.0%} {'█' * round(30 * share)}") for name, share in items))
    if details.status not in ("running", "finished"):
        out.print(headline("Continue it"))
        print_whole(out, cell(_resume_command(details.path, settings)))
    if details.best is not None:
        out.print(headline("Train with these settings"))
        print_whole(out, cell(_like_command(details.path, settings)))


def _resume_command(path: str, settings: StudySettings) -> str:
    """The command that continues a study, with everything that it must name again."""
    own = agent_module(settings.algorithm)
    named: dict[str, Sequence[str]] = {
        "--env-module": settings.env_modules,
        "--agent-module": [] if own is None else [own],
        "--env-file": [] if settings.env is None else required_files(settings.env),
    }
    options = [word for flag, words in named.items() if words for word in (flag, *words)]
    return shlex.join(["rekindle", "resume", path, *options])


def _like_command(path: str, settings: StudySettings) -> str:
    """The command that trains the best settings with other seeds, with the modules that it must name again."""
    own = agent_module(settings.algorithm)
    modules = [*settings.env_modules, *([] if own is None else [own])]
    options = ["--env-module", *modules] if modules else []
    return shlex.join(["rekindle", "train", "--like", f"{path}@best", "--seeds", "100-104", *options])


def _row(trial: Trial, *, is_running: bool) -> list[Cell]:
    status = status_cell(trial.status) if trial.status != "pruned" else cell("pruned", "dim")
    if trial.status == "running" and not is_running:
        status = cell("open", "dim")
    scores = " ".join(decimal(score) for score in trial.scores) or NOTHING
    settings = ", ".join(f"{_short(name)} {setting_text(value)}" for name, value in trial.settings.items())
    return [str(trial.number), decimal(trial.value), status, scores, trial.reason or settings]


def _short(name: str) -> str:
    return name.rpartition(".")[2]

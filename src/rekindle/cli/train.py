"""`rekindle train` and `rekindle resume`."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rekindle.agents.presets import Preset
from rekindle.cli import INTERRUPTED
from rekindle.cli.commands.conflicts import check_placement
from rekindle.cli.messages import warnings_printed
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.cli.stopping import current_interrupter, was_signalled
from rekindle.envs import EnvFactory, EnvWrapping
from rekindle.events import TrainingStarted
from rekindle.recorders.known import OUTSIDE
from rekindle.run.finding import is_study
from rekindle.run.reader import RunReader
from rekindle.text import decimal, shown_path, time_text, whole
from rekindle.training import Trainer, TrainerSettings, TrainingReport
from rekindle.training.algorithms import fields_of
from rekindle.training.config import TrainerConfig
from rekindle.training.progress import Progress
from rekindle.ui.companion import Companion, is_shown
from rekindle.ui.output import complain, write_json
from rekindle.ui.tables import cell, console, number, print_whole, table, words

__all__ = ["argument_value", "resume_run", "train_run", "train_shown"]


def train_run(  # noqa: PLR0913 - these are the options of a command
    algorithm: str,
    env: str | None,
    *,
    settings: TrainerSettings,
    name: str | None,
    version: str,
    root: Path,
    tags: Sequence[str],
    preset: Preset | None,
    goes_on: bool,
    parent: str | None,
    with_optimiser: bool,
    modules: Sequence[str],
    arguments: Mapping[str, str],
    wrapping: EnvWrapping,
    agent: Any,
    ui: str,
    stay: bool,
    as_json: bool,
) -> int:
    """Train a new run, or continue the newest one of the same name."""
    interrupter = current_interrupter()
    find_modules_here([*modules, *module_of(env), *module_of(algorithm), *module_of(getattr(agent, "network", None))])
    values = {key: argument_value(text) for key, text in arguments.items()}
    wrappers = msgspec.structs.asdict(wrapping)
    factory = None if env is None else EnvFactory(env, modules=tuple(modules), arguments=values, **wrappers)
    trainer = Trainer(
        factory,
        algorithm,
        name=f"{name or _run_name(algorithm, factory.name if factory else Path(settings.data or '').name)}/{version}",
        root=root,
        tags=tags,
        new=not goes_on,
        start_from=parent,
        with_optimiser=with_optimiser,
        preset=None if preset is None else preset.name,
        agent_settings=None if agent is None else fields_of(agent),
        interrupter=interrupter,
        **msgspec.structs.asdict(settings),
    )
    if preset is not None and ui != "none":
        is_trial = is_study(Path(preset.name.rpartition("@")[0]))
        source = f"settings of {preset.name}" if is_trial else f"preset {preset.name} of {algorithm}"
        complain(f"using the {source}{'' if is_trial else '; --preset none turns it off'}")
    return train_shown(trainer, ui=ui, stay=stay, as_json=as_json)


def resume_run(
    path: Path,
    *,
    steps: int | None,
    strict: bool,
    changes: Mapping[str, Any],
    modules: Sequence[str],
    files: Sequence[str],
    ui: str,
    stay: bool,
    as_json: bool,
) -> int:
    """Continue a run, with those of the changed settings that are not None."""
    given: dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
    given["interrupter"] = current_interrupter()
    find_modules_here(modules)
    trainer = Trainer.resume(path, steps=steps, strict=strict, modules=modules, files=files, **given)
    check_placement(given.keys(), trainer.config)
    return train_shown(trainer, ui=ui, stay=stay, as_json=as_json)


def _tell_if_complete(event: TrainingStarted, steps: int | None) -> None:
    """Say why a training ends at once."""
    if steps is not None and event.resumed_from is not None and event.resumed_from >= steps:
        complain(f"all {whole(steps)} steps of this training are done; --steps N, with a larger N, trains further")


def train_shown(trainer: Trainer, *, ui: str, stay: bool, as_json: bool) -> int:
    """Train with the terminal UI, progress lines or nothing, and print the report."""
    with contextlib.ExitStack() as undo:
        if ui == "none":
            undo.enter_context(warnings_printed())
        else:
            progress = Progress(trainer)
            undo.callback(progress.clear)
            undo.enter_context(warnings_printed(progress.clear))
            if is_shown(ui):

                def show(event: TrainingStarted) -> None:
                    if event.path is not None:
                        progress.pause()
                        undo.callback(Companion(event.path, stay=stay, when_left=progress.go_on).close)

                trainer.on(TrainingStarted, show)
        trainer.on(TrainingStarted, lambda event: _tell_if_complete(event, trainer.config.steps))
        report = trainer.train(progress=False)
    if as_json:
        write_json({**msgspec.structs.asdict(report), "path": shown_path(report.path) if report.path else None})
    else:
        _print(report)
        if report.status == "stopped" and report.path is not None:
            out = console()
            out.print()
            print_whole(out, cell(f"continue with: {_resume_command(report.path, trainer.config)}"))
    return INTERRUPTED if report.status == "stopped" and was_signalled() else 0


def _resume_command(path: Path, config: TrainerConfig) -> str:
    """The command that continues a run, with everything that it must name again."""
    is_on_cluster = config.actors is not None and config.actors_on == "ray" and config.ray_address is not None
    named: dict[str, Sequence[str]] = {
        "--env-module": config.env_modules,
        "--agent-module": config.agent_modules,
        "--env-file": config.env_files,
        "--record": config.record if set(config.record) & set(OUTSIDE) else (),
        "--ray-address": (config.ray_address or "",) if is_on_cluster else (),
    }
    options = [word for flag, words in named.items() if words for word in (flag, *words)]
    return shlex.join(["rekindle", "resume", shown_path(path), *options])


def _print(report: TrainingReport) -> None:
    out = console()
    if report.path is not None:
        metadata = RunReader(report.path).metadata
        grade = "" if not metadata.resumes else f", {metadata.resumes[-1].grade}"
        print_whole(out, cell(f"{shown_path(report.path)}{grade}", "bold"))
    best = "" if report.best_score is None else f", best evaluation {decimal(report.best_score)}"
    steps = "" if report.is_offline else f"{whole(report.env_steps)} steps, {whole(report.episodes)} episodes, "
    print_whole(
        out,
        cell(
            f"{report.status} ({report.reason}): {steps}{whole(report.updates)} updates "
            f"in {time_text(report.seconds)}{best}"
        ),
    )
    rows = [
        [metric, decimal(item.last), decimal(item.min), whole(item.min_step), decimal(item.max), whole(item.max_step)]
        for metric, item in report.metrics.items()
    ]
    if rows:
        out.print()
        columns = (words("metric"), *map(number, ("last", "min", "at step", "max", "at step")))
        out.print(table(columns, rows))


def argument_value(text: str) -> Any:
    """An argument of an environment: JSON, or text."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def _run_name(algorithm: str, source: str) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "-", f"{algorithm}-{source}")[:100]

"""Commands that train, evaluate and export agents; `--help` shows their docstrings, so they are short."""

from __future__ import annotations

import contextlib
import functools
import io
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from rekindle.agents.presets import Preset, find_preset
from rekindle.cli.commands.arguments import PARSING, AsJson, Modules, RunPath, Stay, Tags, Trust, Trusted, Ui
from rekindle.cli.commands.config_file import read_config_file
from rekindle.cli.commands.conflicts import check_conflicts
from rekindle.cli.commands.likeness import like_defaults, trial_name
from rekindle.cli.commands.naming import check_option_names, refuse_named_positionals
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.envs import EnvWrapping
from rekindle.envs.determinism import PROBE_STEPS
from rekindle.envs.factory import latest_version
from rekindle.errors import ConfigError
from rekindle.recorders import RecorderName
from rekindle.run.creation import checked_name
from rekindle.training import TrainerSettings
from rekindle.training.algorithms import NoSettings, config_type, converted, fields_of, is_algorithm
from rekindle.training.config import ActorsOn

__all__ = [
    "algorithm_command",
    "algorithm_in",
    "algos",
    "check",
    "evaluate",
    "export",
    "find_training_preset",
    "resume",
    "train",
    "train_command",
]


def train(  # noqa: PLR0913 - these are the options of a command
    algorithm: Annotated[Positional[str], arg(metavar="ALGO", help_behavior_hint="")],
    env: Annotated[Positional[str | None], arg(metavar="[ENV]", help_behavior_hint="")] = None,
    /,
    *,
    config: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,  # noqa: ARG001 - read before
    training: OmitArgPrefixes[TrainerSettings] = TrainerSettings(),  # noqa: B008 - it is frozen
    name: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: ALGO-ENV)")] = None,
    version: Annotated[str, arg(metavar="VERSION")] = "v1",
    directory: Annotated[Path, arg(name="runs", metavar="DIR")] = Path("runs"),
    tags: Tags = (),
    preset: Literal["auto", "none"] = "auto",
    resumes: Annotated[Literal["auto", "no"], arg(name="resume")] = "no",
    parent: Annotated[str | None, arg(name="from", metavar="PATH[@best|STEP]", help_behavior_hint="")] = None,
    with_optimiser: Annotated[bool, arg(help_behavior_hint="")] = False,
    like: Annotated[str | None, arg(metavar="STUDY[@best|TRIAL]", help_behavior_hint="")] = None,
    seeds: Annotated[str | None, arg(metavar="0-4", help_behavior_hint="")] = None,
    jobs: Annotated[int, arg(metavar="N", help_behavior_hint="(default: 1)")] = 1,
    modules: Modules = (),
    arguments: Annotated[dict[str, str], arg(name="env.arguments", metavar="KEY VALUE...", help_behavior_hint="")] = {},  # noqa: B006
    wrapping: Annotated[EnvWrapping, arg(name="env")] = EnvWrapping(),  # noqa: B008
    agent: Any = NoSettings(),  # noqa: B008
    ui: Ui = "auto",
    stay: Stay = False,
    as_json: AsJson = False,
    words: Annotated[tuple[str, ...], tyro.conf.Suppress] = (),
) -> int:
    """Train an agent; `rekindle train ALGO ENV --help` also shows its settings.

    Args:
        algorithm: The algorithm: see `rekindle algos`. Or MODULE:CLASS of your own agent.
        env: A Gymnasium id, or MODULE:NAME of a function or class that creates an environment; optional with --data.
        config: A TOML file with options: those of the command override it.
        training: The settings of the training.
        name: Name of the run.
        version: Version of the run.
        directory: The directory of runs.
        tags: Tags of the run, to find it by; `rekindle tag` changes them.
        preset: Use the tuned settings for this environment, if there are any.
        resumes: Continue the newest unfinished run of this name (auto), or start a new one.
        parent: Start with the weights and normalisation of another run's checkpoint: its latest, its best, or a step.
        with_optimiser: Also take over the optimiser and the counters of that run.
        like: Train with the settings of a trial of a sweep: ALGO and ENV may be left out, options override it.
        seeds: Train one run for each of these seeds, and print one table.
        jobs: How many of these runs to train at the same time.
        modules: Modules to import first, which register ids.
        arguments: Arguments of the environment; values are JSON, or text.
        wrapping: Wrappers around the environment.
        agent: The algorithm's settings.
        ui: The terminal UI (tui; auto if there is a terminal), progress lines (plain), or nothing.
        stay: With the terminal UI: at the end, stay open and show the summary.
        as_json: Print the report as a JSON object.
        words: The command as it was typed.
    """
    from rekindle.cli.train import train_run

    check_conflicts(words, training, seeds=seeds, parent=parent, ui=ui)
    for kind, text in (("name", name), ("version", version)):
        if text is not None:
            checked_name(kind, text)
    if seeds is not None:
        from rekindle.cli.seeds import train_seeds

        config_type(algorithm)  # report an error once, and not for each run
        return train_seeds(words, seeds, version=version, jobs=jobs, ui=ui, as_json=as_json)
    if like is not None:
        tuned = Preset(steps=training.steps or 0, name=trial_name(like))
    else:
        tuned = find_training_preset(algorithm, env, training) if preset == "auto" else None
    return train_run(
        algorithm,
        env,
        settings=training,
        name=name,
        version=version,
        root=directory,
        tags=tags,
        preset=tuned,
        goes_on=resumes == "auto",
        parent=parent,
        with_optimiser=with_optimiser,
        modules=modules,
        arguments=arguments,
        wrapping=wrapping,
        agent=None if isinstance(agent, NoSettings) else agent,
        ui=ui,
        stay=stay,
        as_json=as_json,
    )


_RENAMED = ("runs", "tag", "resume", "from", "env_module", "env.arguments", "json", "help")
"""Options of `train` with other names than its parameters."""


def train_command(arguments: Sequence[str]) -> Callable[..., int]:
    """The command `train` with the settings of the algorithm in its arguments, and with its preset as defaults.

    With `--like`, the defaults are the settings of a trial.
    """
    refuse_named_positionals(arguments)
    defaults = like_defaults(arguments)
    return algorithm_command(train, arguments, {"words": tuple(arguments), **defaults}, uses_presets=not defaults)


def algorithm_command(
    command: Callable[..., int], arguments: Sequence[str], defaults: Mapping[str, Any], *, uses_presets: bool = True
) -> Callable[..., int]:
    """A command with the settings of the algorithm in its arguments, with these defaults, and those of the preset."""
    named = algorithm_in(arguments)
    if named is None:
        return command
    find_modules_here(module_of(named))
    settings = config_type(named)
    function = cast("types.FunctionType", command)
    made = types.FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    made.__doc__ = function.__doc__
    made.__annotations__ = {**function.__annotations__, "agent": Annotated[settings, arg(name="agent")]}
    made.__kwdefaults__ = {**(function.__kwdefaults__ or {}), "agent": settings(), **defaults}
    others = [name for name in made.__kwdefaults__ if name not in ("training", "wrapping", "agent", "words")]
    check_option_names(arguments, agent=[*fields_of(settings())], others=[*others, *_RENAMED])
    file = read_config_file(arguments)
    if file is not None and not uses_presets:
        raise ConfigError("--config and --like both name settings: use one of them")
    if file is not None:
        made.__kwdefaults__ |= file.defaults(settings, preset={})
    given = None if file is None else file.training.get("steps")
    preset, steps = _preset(made, arguments, steps=given) if uses_presets else (None, None)
    if preset is None:
        return made
    if file is not None:
        tuned: dict[str, dict[str, Any]] = {
            "agent": preset.settings(steps),
            "training": {"steps": preset.steps, "num_envs": preset.num_envs},
            "wrapping": preset.env,
        }
        made.__kwdefaults__ |= file.defaults(settings, preset=tuned)
        return made
    training: TrainerSettings = made.__kwdefaults__["training"]
    made.__kwdefaults__ |= {
        "agent": converted(settings, preset.settings(steps)),
        "training": msgspec.structs.replace(training, steps=preset.steps, num_envs=preset.num_envs),
        "wrapping": EnvWrapping(**preset.env),
    }
    return made


def algorithm_in(arguments: Sequence[str]) -> str | None:
    """The algorithm in the arguments; if options come first, the first word that may be one."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0] if is_algorithm(arguments[0]) else None
    known = [place for place, word in enumerate(arguments) if is_algorithm(word)]
    # A word after an option may be its value, so it is the algorithm only if there is no other.
    first = [place for place in known if not arguments[place - 1].startswith("--")] or known
    return arguments[first[0]] if first else None


def _preset(
    command: Callable[..., int], arguments: Sequence[str], *, steps: int | None
) -> tuple[Preset | None, int | None]:
    """The preset for the arguments, and the env steps if they, or a file, give them; none for invalid arguments."""

    @functools.wraps(command)
    def understood(algorithm: str, env: str | None, **options: Any) -> tuple[Preset | None, int | None]:
        is_given = any(word.partition("=")[0] == "--steps" for word in arguments)
        wanted = find_training_preset(algorithm, env, options["training"]) if options["preset"] == "auto" else None
        return wanted, options["training"].steps if is_given or steps is not None else None

    words = [word for word in arguments if word not in ("-h", "--help")]
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            return cast("Any", tyro.cli)(understood, args=words, **PARSING)
    except SystemExit:  # reported when the arguments are parsed again
        return None, None


def find_training_preset(algorithm: str, env: str | None, training: TrainerSettings) -> Preset | None:
    """The preset for a training; none for one from data alone, as presets are for env steps."""
    return None if env is None or training.is_offline else find_preset(algorithm, latest_version(env))


def resume(  # noqa: PLR0913 - these are the options of a command
    path: RunPath,
    /,
    *,
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None,
    strict: Annotated[bool, arg(help_behavior_hint="")] = False,
    record: Annotated[
        tuple[RecorderName, ...] | None, arg(metavar="NAME...", help_behavior_hint="(default: as before)")
    ] = None,
    data: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="(default: where they were)")] = None,
    jobs: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 1)")] = None,
    actors_on: Annotated[ActorsOn | None, arg(help_behavior_hint="(default: as before)")] = None,
    workers: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: as before)")] = None,
    ray_address: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None,
    trusted: Trust = Trusted(),  # noqa: B008 - it is frozen
    ui: Ui = "auto",
    stay: Stay = False,
    as_json: AsJson = False,
) -> int:
    """Continue a run that was started with train or a Trainer, or a study.

    Args:
        path: A run, a study, or a version or name directory (its newest unfinished run, or else its newest).
        steps: A new total number of steps.
        strict: Fail if the resume cannot be exact to the bit.
        record: Additional recorders for metrics: tensorboard, mlflow, wandb.
        data: Where the data of the run are now, if they were moved.
        jobs: Of a study: how many runs to train at the same time.
        actors_on: Where actors run now; the result is the same.
        workers: Number of worker processes.
        ray_address: The address of a running Ray cluster; name it again if the run was started with one.
        trusted: Modules and files of the run's config that the command may use.
        ui: The terminal UI (tui; auto if there is a terminal), progress lines (plain), or nothing.
        stay: With the terminal UI: at the end, stay open and show the summary.
        as_json: Print the report as a JSON object.
    """
    from rekindle.run.finding import is_study

    if is_study(path):
        from rekindle.cli.study import resume_study

        given = {"steps": steps, "strict": strict or None, "record": record, "data": data, "workers": workers}
        if ignored := [name for name, value in {**given, "actors-on": actors_on}.items() if value is not None]:
            raise ConfigError(f"--{ignored[0]} is for runs, and {path} is a study, which continues as it began")
        return resume_study(path, jobs=jobs or 1, ray_address=ray_address, **trusted.options, as_json=as_json)
    if jobs is not None:
        raise ConfigError(f"--jobs is for studies, and {path} is none")
    from rekindle.cli.train import resume_run

    return resume_run(
        path,
        steps=steps,
        strict=strict,
        changes={
            "record": record,
            "data": data,
            "actors_on": actors_on,
            "workers": workers,
            "ray_address": ray_address,
        },
        **trusted.options,
        ui=ui,
        stay=stay,
        as_json=as_json,
    )


def evaluate(
    path: RunPath,
    /,
    *,
    checkpoint: Annotated[str, arg(metavar="best|latest|STEP|all")] = "best",
    episodes: Annotated[int, arg(metavar="N")] = 20,
    seed: Annotated[int | None, arg(metavar="SEED", help_behavior_hint="(default: new episodes)")] = None,
    max_steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the run's eval_max_steps)")] = None,
    video: Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="")] = None,
    trusted: Trust = Trusted(),  # noqa: B008 - it is frozen
    as_json: AsJson = False,
) -> int:
    """Evaluate the agent of a run.

    Args:
        path: A run, or a version or name directory (its newest run).
        checkpoint: Which checkpoint: the best, the latest, the one at a step, or all.
        episodes: How many episodes to play.
        seed: Seed from which the seeds of the episodes are derived; the run's own seed repeats its evaluations.
        max_steps: Truncate episodes after this many steps, if the environment has no time limit of its own.
        video: Record the first episodes as animated gifs in this directory.
        trusted: Modules and files of the run's config that the command may use.
        as_json: Print a JSON list of reports.
    """
    from rekindle.cli.evaluate import evaluate_run

    return evaluate_run(
        path,
        checkpoint=checkpoint,
        episodes=episodes,
        seed=seed,
        max_steps=max_steps,
        video=video,
        **trusted.options,
        as_json=as_json,
    )


def export(
    path: RunPath,
    /,
    *,
    output: Annotated[Path, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="(required)")],
    checkpoint: Annotated[str, arg(metavar="best|latest|STEP")] = "best",
    trusted: Trust = Trusted(),  # noqa: B008 - it is frozen
    as_json: AsJson = False,
) -> int:
    """Write the policy of a run to a file that needs only numpy, or to an ONNX graph.

    Args:
        path: A run, or a version or name directory (its newest run).
        output: The file to write: an ONNX graph if its name ends in .onnx, otherwise for `rekindle.policy.load`.
        checkpoint: Which checkpoint: the best, the latest, or the one at a step.
        trusted: Modules and files of the run's config that the command may use.
        as_json: Print a JSON object: file, algorithm, step.
    """
    from rekindle.cli.evaluate import export_policy

    return export_policy(path, output, checkpoint=checkpoint, as_json=as_json, **trusted.options)


def algos(
    name: Annotated[Positional[str | None], arg(metavar="[ALGO]", help_behavior_hint="")] = None,
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """List the algorithms, or all settings of one with their defaults.

    Args:
        name: The algorithm whose settings to show, or MODULE:CLASS of your own agent.
        as_json: Print a JSON object.
    """
    from rekindle.cli.algos import list_algorithms

    return list_algorithms(name, as_json=as_json)


def check(
    env: Annotated[Positional[str], arg(metavar="ENV", help_behavior_hint="")],
    /,
    *,
    steps: Annotated[int, arg(metavar="N")] = PROBE_STEPS,
    modules: Modules = (),
    as_json: AsJson = False,
) -> int:
    """Check an environment: spaces, numbers, seeding, exact resume.

    Args:
        env: A Gymnasium id, or MODULE:NAME of a function or class that creates an environment.
        steps: The maximum number of env steps to make.
        modules: Modules to import first, which register ids.
        as_json: Print a JSON list instead of a table.
    """
    from rekindle.cli.check import check_environment

    return check_environment(env, steps=steps, modules=modules, as_json=as_json)

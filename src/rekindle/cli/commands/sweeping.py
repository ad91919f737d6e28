"""The command `sweep`; `--help` shows its docstring, so it is short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, Suppress, arg

from rekindle.cli.commands.arguments import AsJson, Modules
from rekindle.cli.commands.training import algorithm_command, find_training_preset
from rekindle.envs import EnvWrapping
from rekindle.run.scores import Measure
from rekindle.sweep.samplers import SamplerName
from rekindle.sweep.settings import Pruning
from rekindle.training import TrainerSettings
from rekindle.training.algorithms import NoSettings, config_type

__all__ = ["sweep", "sweep_command"]

_TRAINING = TrainerSettings(steps=100_000, keep_checkpoints=1)


def sweep(  # noqa: PLR0913 - these are the options of a command
    algorithm: Annotated[Positional[str], arg(metavar="ALGO", help_behavior_hint="")],
    env: Annotated[Positional[str | None], arg(metavar="[ENV]", help_behavior_hint="")] = None,
    /,
    *,
    trials: Annotated[int, arg(metavar="N")] = 20,
    space: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="(default: the built-in one)")] = None,
    print_space: Annotated[bool, arg(help_behavior_hint="")] = False,
    sampler: SamplerName = "tpe",
    seeds: Annotated[str, arg(metavar="0-1")] = "0-1",
    jobs: Annotated[int, arg(metavar="N")] = 1,
    ahead: Annotated[int, arg(metavar="N")] = 4,
    prune: Pruning = "median",
    prune_at: Annotated[tuple[float, ...], arg(metavar="SHARE...")] = (0.25, 0.5),
    measure: Measure = "final",
    training: OmitArgPrefixes[TrainerSettings] = _TRAINING,
    name: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: sweep-ALGO-ENV)")] = None,
    directory: Annotated[Path, arg(name="runs", metavar="DIR")] = Path("runs"),
    preset: Literal["auto", "none"] = "auto",
    modules: Modules = (),
    arguments: Annotated[dict[str, str], arg(name="env.arguments", metavar="KEY VALUE...", help_behavior_hint="")] = {},  # noqa: B006
    wrapping: Annotated[EnvWrapping, arg(name="env")] = EnvWrapping(),  # noqa: B008
    agent: Any = NoSettings(),  # noqa: B008
    as_json: AsJson = False,
    words: Annotated[tuple[str, ...], Suppress] = (),
) -> int:
    """Search for good settings: train many trials, prune the worst, resume exactly.

    Args:
        algorithm: The algorithm: see `rekindle algos`. Or MODULE:CLASS of your own agent.
        env: A Gymnasium id, or MODULE:NAME of a function or class that creates an environment; optional with --data.
        trials: How many settings to try; the same command with more continues the study.
        space: A TOML file of the settings to vary.
        print_space: Print the built-in space as TOML, and do nothing else.
        sampler: How settings are proposed: from earlier results (tpe), or at random.
        seeds: Train each trial with each of these seeds.
        jobs: How many runs to train at the same time; the result does not depend on it.
        ahead: How many trials run before the result of the first of them is used.
        prune: End trials early that are worse than the median.
        prune_at: When to decide that, as shares of the steps.
        measure: The score of a run: its last evaluation, its best one, or the mean over the training.
        training: The settings of each training; the seed is that of the sampler.
        name: Name of the study.
        directory: The directory of runs.
        preset: Start from the tuned settings for this environment, if there are any.
        modules: Modules to import first, which register ids.
        arguments: Arguments of the environment; values are JSON, or text.
        wrapping: Wrappers around the environment.
        agent: The algorithm's settings that are not varied.
        as_json: Print the study as a JSON object.
        words: The command as it was typed.
    """
    from rekindle.cli.study import print_built_in, sweep_settings, varied_space

    if print_space:
        return print_built_in(algorithm)
    config_type(algorithm)  # report an unknown one first
    tuned = find_training_preset(algorithm, env, training) if preset == "auto" else None
    return sweep_settings(
        algorithm,
        env,
        name=name,
        root=directory,
        jobs=jobs,
        space=varied_space(algorithm, space, [*words, *(f"--env.arguments.{key}" for key in arguments)]),
        seeds=seeds,
        modules=modules,
        arguments=arguments,
        wrapping=wrapping,
        agent=agent,
        preset=None if tuned is None else tuned.name,
        as_json=as_json,
        trials=trials,
        sampler=sampler,
        ahead=ahead,
        prune=prune,
        prune_at=prune_at,
        measure=measure,
        training=training,
    )


def sweep_command(arguments: Sequence[str]) -> Callable[..., int]:
    """The command `sweep` with the settings of the algorithm in its arguments, and with its preset as defaults."""
    return algorithm_command(sweep, arguments, {"words": tuple(arguments)})

"""Commands for data sets; `--help` shows their docstrings, so they are short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from rekindle.cli.commands.arguments import AsJson, Trust, Trusted

__all__ = ["data", "record"]

Cache = Annotated[Path | None, arg(metavar="DIR", help_behavior_hint="(default: $REKINDLE_CACHE or ~/.cache/rekindle)")]


def data(
    action: Annotated[Positional[Literal["show", "check", "export"]], arg(help_behavior_hint="")],
    path: Annotated[Positional[Path], arg(metavar="PATH", help_behavior_hint="")],
    /,
    *,
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="PATH", help_behavior_hint="(with export)")] = None,
    timeout_after: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None,
    fixed_length: Annotated[bool, arg(help_behavior_hint="")] = False,
    cache: Cache = None,
    as_json: AsJson = False,
) -> int:
    """Show, check or export a data set: a run, Minari, D4RL or npz.

    Args:
        action: Show statistics; check that agents can learn from it (exit code 1 if not); or export it.
        path: A run (or a version or name directory), the directory of a Minari data set, or a file: D4RL's HDF5, npz.
        output: The directory to write in Minari's layout, or a file that ends in .npz.
        timeout_after: For files without timeouts: every episode was cut short after this many steps.
        fixed_length: Accept that every episode terminates after the same number of steps, like at a time limit.
        cache: The directory for converted data sets.
        as_json: Print a JSON object.
    """
    from rekindle.cli.datasets import use_data

    return use_data(
        action,
        path,
        output=output,
        timeout_after=timeout_after,
        fixed_length=fixed_length,
        cache=cache,
        as_json=as_json,
    )


def record(
    env: Annotated[Positional[str], arg(metavar="ENV", help_behavior_hint="")],
    /,
    *,
    source: Annotated[str, arg(name="from", metavar="RUN[@best|STEP]", help_behavior_hint="(required)")],
    output: Annotated[Path, arg(aliases=["-o"], metavar="DIR", help_behavior_hint="(required)")],
    episodes: Annotated[int, arg(metavar="N")] = 100,
    greedy: Annotated[bool, arg(help_behavior_hint="")] = False,
    seed: Annotated[int, arg(metavar="SEED")] = 0,
    max_steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: the run's eval_max_steps)")] = None,
    trusted: Trust = Trusted(),  # noqa: B008 - it is frozen
    cache: Cache = None,
    as_json: AsJson = False,
) -> int:
    """Record a data set in Minari's layout: episodes of a run's agent.

    Args:
        env: A Gymnasium id, or MODULE:NAME; with the settings and wrappers of the run.
        source: The run whose agent plays: its latest checkpoint, its best agent, or the one at a step.
        output: The directory to write; it must not exist.
        episodes: How many episodes to play.
        greedy: Play the greedy policy. By default the agent explores: greedy data do not show what other actions do.
        seed: The seed of episodes and exploration: the same seed gives the same data.
        max_steps: Truncate episodes after this many steps, if the environment has no time limit of its own.
        trusted: Modules and files of the run's config that the command may use.
        cache: The directory for converted data sets.
        as_json: Print a JSON object.
    """
    from rekindle.cli.datasets import record_data

    return record_data(
        env,
        source,
        output,
        episodes=episodes,
        greedy=greedy,
        seed=seed,
        max_steps=max_steps,
        **trusted.options,
        cache=cache,
        as_json=as_json,
    )

"""Every command with its arguments; the docstrings are what `--help` shows, so they are short."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from rekindle.cli.text import complain

__all__ = ["COMMANDS", "check", "compare", "runs", "show", "stop", "verify"]

RunPath = Annotated[Positional[Path], arg(metavar="PATH", help_behavior_hint="")]
AsJson = Annotated[bool, arg(name="json", help_behavior_hint="")]


def runs(
    directory: Annotated[Positional[Path], arg(metavar="[DIR]")] = Path("runs"),
    /,
    *,
    as_json: AsJson = False,
) -> int:
    """List every run: status, steps, episodes, returns, age.

    Args:
        directory: Where to look: a directory of runs, or one name or version in it.
        as_json: Print a JSON list instead of a table.
    """
    from rekindle.cli.runs import list_runs

    return list_runs(directory, as_json=as_json)


def show(path: RunPath, /, *, as_json: AsJson = False) -> int:
    """Show one run in full, live or not.

    Args:
        path: A run, or a version or name directory (its newest run).
        as_json: Print a JSON object instead of tables.
    """
    from rekindle.cli.show import show_run

    return show_run(path, as_json=as_json)


def compare(
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH...", help_behavior_hint="")],
    /,
    *,
    digests: Annotated[bool, arg(help_behavior_hint="")] = False,
    as_json: AsJson = False,
) -> int:
    """Compare runs side by side.

    Args:
        paths: Runs, or version or name directories (the newest run of each).
        digests: Read every file, and say whether weights, state and logs are equal to the bit.
        as_json: Print a JSON object instead of a table.
    """
    if not paths:
        complain("compare needs at least one PATH; see rekindle compare --help")
        return 2
    from rekindle.cli.compare import compare_runs

    return compare_runs(paths, digests=digests, as_json=as_json)


def verify(path: RunPath, /, *, as_json: AsJson = False) -> int:
    """Check every file of a run; exit code 1 if one is damaged.

    Args:
        path: A run, or a version or name directory (its newest run).
        as_json: Print a JSON object: ok, grade, digests, problems. Equal digests mean equal runs, times aside.
    """
    from rekindle.cli.verify import verify_run

    return verify_run(path, as_json=as_json)


def stop(
    path: RunPath,
    /,
    *,
    wait: Annotated[float, arg(metavar="SECONDS", help_behavior_hint="(default: 0)")] = 0.0,
    as_json: AsJson = False,
) -> int:
    """Ask a live run of any process to checkpoint and stop.

    Args:
        path: A run, or a version or name directory (its newest run).
        wait: How long to wait until it has stopped; it takes about a second. Exit code 1 if it has not by then.
        as_json: Print a JSON object: asked, live, status, steps.
    """
    from rekindle.cli.stop import stop_run

    return stop_run(path, wait=wait, as_json=as_json)


def check(
    env: Annotated[Positional[str], arg(metavar="ENV", help_behavior_hint="")],
    /,
    *,
    env_module: Annotated[tuple[str, ...], arg(metavar="MODULE...", help_behavior_hint="")] = (),
    as_json: AsJson = False,
) -> int:
    """Check an environment: spaces, numbers, seeding, exact resume.

    Args:
        env: A Gymnasium id, or MODULE:NAME of what makes an environment.
        env_module: Modules to import before, which register ids.
        as_json: Print a JSON list instead of a table.
    """
    from rekindle.cli.check import check_environment

    return check_environment(env, modules=env_module, as_json=as_json)


COMMANDS: dict[str, Callable[..., int]] = {
    "runs": runs,
    "show": show,
    "compare": compare,
    "verify": verify,
    "stop": stop,
    "check": check,
}

"""Commands that show runs and stop them; `--help` shows their docstrings, so they are short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from rekindle.cli.commands.arguments import AsJson, RunPath, Stay, Tags, Trust, Trusted
from rekindle.run.scores import Measure
from rekindle.ui.output import complain

__all__ = ["compare", "dashboard", "plot", "replay", "report", "runs", "show", "stop", "tag", "verify", "watch"]


def runs(
    directory: Annotated[Positional[Path], arg(metavar="[DIR]")] = Path("runs"),
    /,
    *,
    tags: Tags = (),
    as_json: AsJson = False,
) -> int:
    """List every run: status, steps, episodes, returns, age, tags.

    Args:
        directory: A directory of runs, or a name or version directory in it.
        tags: List only runs that have all of these tags.
        as_json: Print a JSON list instead of a table.
    """
    from rekindle.cli.runs import list_runs

    return list_runs(directory, tags=tags, as_json=as_json)


def tag(
    path: RunPath,
    tags: Annotated[Positional[tuple[str, ...]], arg(metavar="[TAG...]", help_behavior_hint="")] = (),
    /,
    *,
    remove: Annotated[tuple[str, ...], arg(metavar="TAG...", help_behavior_hint="")] = (),
    every: Annotated[bool, arg(name="all", help_behavior_hint="")] = False,
    as_json: AsJson = False,
) -> int:
    """Add tags to a run or remove them; without tags, list those that it has.

    Args:
        path: A run, or a version or name directory (its newest run).
        tags: Tags to add, such as baseline or "new reward".
        remove: Tags to remove.
        every: Change every run below the path.
        as_json: Print a JSON list: path and tags of each run.
    """
    from rekindle.cli.tag import tag_runs

    return tag_runs(path, add=tags, remove=remove, every=every, as_json=as_json)


def show(path: RunPath, /, *, as_json: AsJson = False) -> int:
    """Show one run or one study in full, live or not.

    Args:
        path: A run, a study, or a version or name directory (its newest run).
        as_json: Print a JSON object instead of tables.
    """
    from rekindle.run.finding import is_study

    if is_study(path):
        from rekindle.cli.study import show_study

        return show_study(path, as_json=as_json)
    from rekindle.cli.show import show_run

    return show_run(path, as_json=as_json)


def compare(
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH...", help_behavior_hint="")],
    /,
    *,
    measure: Annotated[Measure, arg(help_behavior_hint="(default: final)")] = "final",
    tags: Tags = (),
    each: Annotated[bool, arg(help_behavior_hint="")] = False,
    digests: Annotated[bool, arg(help_behavior_hint="")] = False,
    as_json: AsJson = False,
) -> int:
    """Compare runs, and say whether groups of seeds differ by more than noise.

    Args:
        paths: Runs, or directories, which stand for every run below them.
        measure: The score of a run: its last evaluation, its best one, or the mean over the training.
        tags: Compare only runs that have all of these tags.
        each: Also show each run of groups.
        digests: Read every file, and check whether weights, state and logs are equal to the bit.
        as_json: Print a JSON object instead of a table.
    """
    if not paths:
        complain("compare needs at least one PATH; see rekindle compare --help")
        return 2
    from rekindle.cli.compare import compare_runs

    return compare_runs(paths, measure=measure, tags=tags, each=each, digests=digests, as_json=as_json)


def verify(path: RunPath, /, *, as_json: AsJson = False) -> int:
    """Check every file of a run; exit code 1 if one is damaged.

    Args:
        path: A run, or a version or name directory (its newest run).
        as_json: Print a JSON object: ok, grade, digests, problems. Equal digests mean equal runs, times aside.
    """
    from rekindle.cli.verify import verify_run

    return verify_run(path, as_json=as_json)


def replay(
    path: RunPath,
    /,
    *,
    output: Annotated[Path | None, arg(aliases=["-o"], metavar="DIR", help_behavior_hint="")] = None,
    agent: Annotated[str | None, arg(metavar="MODULE:CLASS", help_behavior_hint="")] = None,
    as_json: AsJson = False,
) -> int:
    """Replay a run from its input journal; exit code 1 if it differs.

    Args:
        path: A run whose journal was kept whole, or a version or name directory (its newest run).
        output: Keep the new run in this directory, which must not exist.
        agent: The class of an agent of your own; it is imported.
        as_json: Print a JSON object: ok, records, checkpoints, first_difference.
    """
    from rekindle.cli.replay import replay_journal

    return replay_journal(path, output, agent=agent, as_json=as_json)


def diagnose(
    path: RunPath,
    /,
    *,
    step: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: where it failed)")] = None,
    trusted: Trust = Trusted(),  # noqa: B008 - it is frozen
    as_json: AsJson = False,
) -> int:
    """Name the update, layer and row in which a training failed.

    It is repeated from its last good checkpoint; exit code 1 if nothing fails.

    Args:
        path: A run, or a version or name directory (its newest run).
        step: Look at the updates up to this env step, of any run.
        trusted: Modules and files of the run's config that the command may use.
        as_json: Print a JSON object: fault, onset, from_step, to_step, metrics.
    """
    from rekindle.cli.diagnose import diagnose_run

    return diagnose_run(path, step=step, as_json=as_json, **trusted.options)


def stop(
    path: RunPath,
    /,
    *,
    wait: Annotated[float, arg(metavar="SECONDS", help_behavior_hint="(default: 0)")] = 0.0,
    as_json: AsJson = False,
) -> int:
    """Ask a live run, in any process, to checkpoint and stop.

    Args:
        path: A run, a study, or a version or name directory (its newest unfinished run, or else its newest).
        wait: Wait this long for it to stop, which takes about a second. Exit code 1 if it has not stopped by then.
        as_json: Print a JSON object: asked, live, status, steps.
    """
    from rekindle.cli.stop import stop_run, stop_study
    from rekindle.run.finding import is_study

    if is_study(path):
        return stop_study(path, wait=wait, as_json=as_json)
    return stop_run(path, wait=wait, as_json=as_json)


def watch(
    path: RunPath,
    /,
    *,
    plain: Annotated[bool, arg(help_behavior_hint="")] = False,
    interval: Annotated[float, arg(metavar="S", help_behavior_hint="(default: 10)")] = 10.0,
    stay: Stay = False,
    theme: Annotated[
        Literal["auto", "dark", "light"], arg(metavar="NAME", help_behavior_hint="(default: auto)")
    ] = "auto",
) -> int:
    """Watch a run of any process in the terminal, live or not.

    Args:
        path: A run, or a version or name directory (its newest run).
        plain: Print progress lines instead of the terminal UI; the default without a terminal.
        interval: Seconds between two progress lines.
        stay: When the run ends, stay open and show the summary.
        theme: Colours for a terminal: auto, dark or light.
    """
    from rekindle.cli.watch import watch_run

    return watch_run(path, plain=plain, interval=interval, stay=stay, theme=theme)


def report(
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH...", help_behavior_hint="")],
    /,
    *,
    output: Annotated[Path, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="(default: report.html)")] = Path(
        "report.html"
    ),
    tags: Tags = (),
) -> int:
    """Write one self-contained HTML page about runs: curves, tables, config, video.

    Args:
        paths: Runs, or directories, which stand for every run below them.
        output: The file to write; it is replaced if it exists.
        tags: Report only on runs that have all of these tags.
    """
    if not paths:
        complain("report needs at least one PATH; see rekindle report --help")
        return 2
    from rekindle.cli.report import report_runs

    return report_runs(paths, output, tags=tags)


def plot(
    paths: Annotated[Positional[tuple[Path, ...]], arg(metavar="PATH...", help_behavior_hint="")],
    /,
    *,
    output: Annotated[Path, arg(aliases=["-o"], metavar="FILE", help_behavior_hint="(default: plot.png)")] = Path(
        "plot.png"
    ),
    metrics: Annotated[
        tuple[str, ...], arg(metavar="NAME...", help_behavior_hint="(default: returns of training and evaluation)")
    ] = (),
    tags: Tags = (),
    smoothing: Annotated[float, arg(metavar="SHARE")] = 0.02,
    theme: Literal["light", "dark"] = "light",
) -> int:
    """Plot learning curves as png or svg, with a band over runs of one training.

    Args:
        paths: Runs, or directories, which stand for every run below them.
        output: The file to write; it is replaced if it exists.
        metrics: Metrics to plot, one panel each; `profile` is the share of runs above each score.
        tags: Plot only runs that have all of these tags.
        smoothing: Smoothing window, as a share of the curve; 0 for none.
        theme: Colours for a light or a dark page.
    """
    if not paths:
        complain("plot needs at least one PATH; see rekindle plot --help")
        return 2
    from rekindle.cli.plot import plot_runs

    return plot_runs(paths, output, metrics=metrics, tags=tags, smoothing=smoothing, theme=theme)


def dashboard(
    directory: Annotated[Positional[Path], arg(metavar="[DIR]")] = Path("runs"),
    /,
    *,
    port: Annotated[int, arg(metavar="N")] = 8642,
    host: Annotated[str, arg(metavar="HOST")] = "127.0.0.1",
) -> int:
    """Show all runs in a browser, live, with charts and comparisons.

    Args:
        directory: A directory of runs, or a name or version directory in it.
        port: The port to listen on; 0 for any free port.
        host: The address to listen on; any other than a loopback address exposes the runs to the network.
    """
    from rekindle.cli.dashboard import show_dashboard

    return show_dashboard(directory, port=port, host=host)

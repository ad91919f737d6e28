"""Train, kill -9 in the middle of an episode, resume, compare, evaluate and plot, in about a minute.

One run is killed half-way and resumed. Another, with the same seed, is never interrupted. Both end with the same
weights, state and logs, bit for bit.

python examples/demo.py
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import signal
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rekindle import RunReader, StatsTracker, Trainer, verify
from rekindle.cli import main as rekindle
from rekindle.stats import RollingMean, TotalReward

ENV = "CartPole-v1"
EVALUATIONS = 20
REPORT_EVERY = 100
LINE_EVERY = 5_000  # where there is no terminal to draw a bar on


class Report(msgspec.Struct, frozen=True):
    """A progress report of the training process."""

    path: str
    steps: int
    episode: int
    episode_steps: int
    mean_return: float
    resumed: str = ""
    evaluation: float | None = None


# The training process


def train(reports: Connection, directory: Path, version: str, resume_from: str | None, steps: int) -> None:
    """Train DQN to balance a pole for this many steps, in a new run or in an unfinished one."""
    options: dict[str, Any] = {
        "stats": StatsTracker.empty().add("return", TotalReward(), RollingMean(20)),
        "signals": False,
    }
    trainer = (
        Trainer.resume(resume_from, **options)
        if resume_from
        else Trainer.from_preset(
            ENV,
            "dqn",
            steps=steps,
            name=f"demo/{version}",
            root=directory,
            new=True,
            checkpoint_every=max(1, steps // 15),
            eval_every=max(1, steps // 5),
            **options,
        )
    )
    last = Report("", 0, 0, 0, math.nan)
    for step in trainer.steps():
        session = trainer.session
        assert session is not None
        resumed = ""
        if session.resumed is not None:
            resumed = f"gone on from the checkpoint at step {session.resumed.step:,}: {session.resumed.grade}"
        mean_return = session.stats_summary()["return"]
        last = Report(str(trainer.path), step.total_steps, step.episode, step.episode_step, mean_return, resumed)
        if step.total_steps % REPORT_EVERY == 0:
            reports.send(last)
    reports.send(msgspec.structs.replace(last, evaluation=trainer.eval(EVALUATIONS).stats["episode_reward_mean"]))


# The process that watches, and kills


class Meter:
    """Shows the progress of a training: a bar on a terminal, otherwise a line now and then."""

    def __init__(self, console: Console, bar: Progress, steps: int, first: Report) -> None:
        self._console, self._bar, self._steps, self._first = console, bar, steps, first
        self._started = time.perf_counter()
        self._next_line = 0
        self._task = bar.add_task("", total=steps, completed=first.steps)

    def show(self, report: Report, note: str | None = None) -> None:
        made = report.steps - self._first.steps
        rate = made / (time.perf_counter() - self._started)
        if note is None:
            left = self._steps - report.steps
            note = "starting" if not made else f"ETA {left / rate:2.0f} s" if left else "done"
        mean_return = "-" if math.isnan(report.mean_return) else f"{report.mean_return:.1f}"
        line = f"{report.steps:>6,} steps  {rate:>6,.0f}/s  {note:<8}  return {mean_return:>6}"
        self._bar.update(self._task, completed=report.steps, description=line)
        if not self._console.is_terminal and report.steps >= self._next_line:
            self._console.print(f"   {line}")
            self._next_line = report.steps - report.steps % LINE_EVERY + LINE_EVERY


@contextmanager
def training_process(*arguments: Any) -> Generator[tuple[Any, Connection]]:
    """A process that trains, and its reports; it ends with the block, even if the block raises."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=train, args=(sender, *arguments))
    # Ctrl-C is for the parent, which then ends the child; so the child is born deaf to it.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    process.start()
    signal.signal(signal.SIGINT, handler)
    sender.close()
    try:
        yield process, receiver
    finally:
        process.kill()
        process.join()


def watch(console: Console, steps: int, *arguments: Any, kill_at: int | None = None) -> Report:
    """Follow a training process to its end, or kill it before; returns its last report."""
    bar = Progress(
        TextColumn("  "),
        BarColumn(bar_width=26),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )
    with bar, training_process(*arguments, steps) as (process, reports):
        try:
            report: Report = reports.recv()
            meter = Meter(console, bar, steps, report)
            while report.evaluation is None:
                meter.show(report)
                # In the middle of an episode, and of whatever else is going on.
                if kill_at is not None and report.steps >= kill_at and report.episode_steps >= 3:
                    process.kill()
                    meter.show(report, "killed")
                    return report
                report = reports.recv()
        except EOFError:
            process.join()
            raise SystemExit(f"the training process ended with code {process.exitcode}") from None
        process.join()
        return report


def demonstrate(directory: Path, steps: int) -> int:
    console = Console(highlight=False)
    console.print(f"\n[bold]rekindle[/]: DQN learns to balance a pole ({ENV}) in {steps:,} steps\n")
    console.print("[bold]1.[/] A run that is killed half-way")
    killed = watch(console, steps, directory, "killed", None, kill_at=steps // 2 + steps // 50)
    if killed.evaluation is not None:
        raise SystemExit("the run ended before it could be killed: use more --steps")
    console.print(
        f"   [bold red]kill -9[/] after step {killed.steps:,}, at step {killed.episode_steps} of episode "
        f"{killed.episode:,}: the run is now {RunReader(killed.path).status}\n"
    )
    console.print("[bold]2.[/] The same run, resumed")
    resumed = watch(console, steps, directory, "killed", killed.path)
    console.print(f"   {resumed.resumed}\n")
    console.print("[bold]3.[/] The same training again, but left alone")
    whole = watch(console, steps, directory, "uninterrupted", None)
    code = compare(console, resumed, whole)
    console.print("Its learning curve: ", end="")
    return code or rekindle(["plot", resumed.path, "-o", str(directory / "demo.png")])


def compare(console: Console, resumed: Report, whole: Report) -> int:
    readers = [RunReader(report.path) for report in (resumed, whole)]
    results = [verify(reader.path) for reader in readers]
    runs = Table("run", "status", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("steps", "episodes", "updates", "resumes"):
        runs.add_column(name, justify="right")
    runs.add_column("grade")
    for reader, result in zip(readers, results, strict=True):
        known = reader.metadata
        counts = (known.total_steps, known.total_episodes, known.updates, len(known.resumes))
        runs.add_row(known.version, reader.status, *(f"{count:,}" for count in counts), result.grade)
    console.print(runs)

    digests = Table("digest", *(reader.metadata.version for reader in readers), "", box=box.SIMPLE_HEAD, pad_edge=False)
    first, second = (result.digests for result in results)
    for name, digest in first.items():
        equal = "[green]equal[/]" if digest == second[name] else "[red]different[/]"
        digests.add_row(name, f"{digest or '-':.16}", f"{second[name] or '-':.16}", equal)
    console.print(digests)

    is_equal = first == second and None not in first.values() and all(result.ok for result in results)
    if is_equal:
        console.print("[bold green]Equal to the bit:[/] weights, state and logs are the same as without the kill.")
    else:
        problems = [problem for result in results for problem in result.problems]
        console.print("[bold red]The runs are not equal.[/]", *problems)
    at_first = [episode["total_reward"] for episode in readers[0].train_episodes()[:100]]
    console.print(
        f"Mean return of the first {len(at_first)} episodes: {np.mean(at_first):.1f}; "
        f"of {EVALUATIONS} played greedily now: [bold]{resumed.evaluation:.1f}[/]."
    )
    console.print(f"Look around: {readers[0].path.parent.parent}\n", soft_wrap=True)
    return 0 if is_equal else 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, kill -9, go on, and compare with a run left alone.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--steps", type=int, default=20_000, help="env steps of each run")
    args = parser.parse_args()
    try:
        sys.exit(demonstrate(args.runs, args.steps))
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

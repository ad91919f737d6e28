"""The whole idea in half a minute: train, kill -9 in the middle of an episode, go on, and compare.

One run is killed half-way and resumed; another, with the same seed, is never interrupted. They end equal to the
bit: the same weights, the same state, the same logs.

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

import gymnasium
import msgspec
import numpy as np
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from rekindle import RunReader, StatsTracker, TrainingRun, TrainingSession, verify
from rekindle.agents import Tabular
from rekindle.stats import RollingMean, TotalReward

TAXI = next(name for name in ("Taxi-v4", "Taxi-v3") if name in gymnasium.registry)
EVALUATIONS = 100
REPORT_EVERY = 100
LINE_EVERY = 5_000  # where there is no terminal to draw a bar on


class Report(msgspec.Struct, frozen=True):
    """What the training process tells the one that watches it."""

    path: str
    steps: int
    episode: int
    episode_steps: int
    mean_return: float
    resumed: str = ""
    evaluation: float | None = None


# The training process


def train(reports: Connection, directory: Path, version: str, resume_from: str | None, steps: int) -> None:
    """Train a taxi driver for so many steps, in a new run or in one that was begun before."""
    env: gymnasium.Env[Any, Any] = gymnasium.make(TAXI)
    agent = Tabular(
        env.observation_space,
        env.action_space,
        seed=0,
        learning_rate=1.0,
        epsilon_steps=steps // 2,
        capacity=steps,
        replay_updates=5,
    )
    run = TrainingRun.resume(resume_from) if resume_from else TrainingRun.create("demo", version, root=directory)
    session = TrainingSession(
        agent,
        run=run,
        max_steps=steps,
        checkpoint_every=max(1, steps // 15),
        stats=StatsTracker.empty().add("return", TotalReward(), RollingMean(100)),
        signals=False,
    )
    with session:
        stream = session.stream()
        episode_steps = 0
        resumed = ""
        if session.resumed is not None:
            where = f", inside episode {stream.episode:,}" if stream.is_open else ""
            resumed = f"gone on from the checkpoint at step {session.resumed.step:,}{where}: {session.resumed.grade}"

        def report(evaluation: float | None = None) -> None:
            mean_return = session.stats_summary()["return"]
            reports.send(
                Report(
                    str(run.path), session.total_steps, stream.episode, episode_steps, mean_return, resumed, evaluation
                )
            )

        report()
        session.every(REPORT_EVERY, report)
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            episode_steps = 0
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                episode_steps += 1
                action = stream.step(observation, float(reward), terminated, truncated)
        report()
    report(evaluation=greedy_return(agent, env))


def greedy_return(agent: Tabular, env: gymnasium.Env[Any, Any], episodes: int = EVALUATIONS) -> float:
    policy, total = agent.policy(), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1_000_000 + episode)
        is_over = False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(policy.act(np.array([observation]))[0])
            total += float(reward)
            is_over = terminated or truncated
    return total / episodes


# The process that watches, and kills


class Meter:
    """Shows how a training gets on: a bar that moves, or where there is no terminal a line now and then."""

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
    """A process that trains, and its reports; gone when the block is left, however that happens."""
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
    """Follow a training process to its end, or kill it on the way; its last report."""
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
    console.print(f"\n[bold]rekindle[/]: Q-learning drives a taxi ({TAXI}) for {steps:,} steps\n")
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
    return compare(console, resumed, whole)


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
        console.print("[bold green]Equal to the bit:[/] the kill left no trace in weights, state or logs.")
    else:
        problems = [problem for result in results for problem in result.problems]
        console.print("[bold red]The runs are not equal.[/]", *problems)
    at_first = [episode["total_reward"] for episode in readers[0].train_episodes()[:100]]
    console.print(
        f"Mean return of the first {len(at_first)} episodes: {np.mean(at_first):.1f}; "
        f"of {EVALUATIONS} driven greedily now: [bold]{resumed.evaluation:.1f}[/]."
    )
    console.print(f"Look around: {readers[0].path.parent.parent}\n", soft_wrap=True)
    return 0 if is_equal else 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, kill -9, go on, and compare with a run left alone.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs are kept")
    parser.add_argument("--steps", type=int, default=30_000, help="env steps of each run")
    args = parser.parse_args()
    try:
        sys.exit(demonstrate(args.runs, args.steps))
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()

"""`rekindle train --seeds`: one run per seed, several at a time, and one table at the end."""

from __future__ import annotations

import contextlib
import re
import signal
import statistics
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from rekindle.cli import INTERRUPTED
from rekindle.cli.stopping import current_interrupter
from rekindle.errors import ConfigError
from rekindle.launch import launching
from rekindle.text import NOTHING, decimal, printable, time_text, whole
from rekindle.ui.output import say, write_json
from rekindle.ui.tables import cell, console, number, print_whole, status_cell, table, words

__all__ = ["parse_seeds", "train_seeds"]

_REPLACED = ("--seeds", "--jobs", "--seed", "--version", "--ui")
"""Options with a value that are replaced or removed for each run."""


_MOST_SEEDS = 10_000


class _Run(msgspec.Struct):
    """One run: its report, or its error; neither if it was not started."""

    seed: int
    report: dict[str, Any] | None = None
    error: str | None = None


def parse_seeds(text: str) -> list[int]:
    """Parse a list of seeds.

    >>> parse_seeds("0-2,7")
    [0, 1, 2, 7]
    """
    parts = [re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip()) for part in text.split(",")]
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    if len(ranges) < len(parts) or not all(ranges):
        raise ConfigError(f"seeds {text!r:.80}: use different whole numbers such as 0-4 or 1,5,7-9")
    if (count := sum(map(len, ranges))) > _MOST_SEEDS:
        raise ConfigError(f"seeds {text!r:.80} are {whole(count)}: use at most {whole(_MOST_SEEDS)}")
    seeds = [seed for part in ranges for seed in part]
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds {text!r:.80}: use different whole numbers such as 0-4 or 1,5,7-9")
    return seeds


def train_seeds(command: Sequence[str], seeds: str, *, version: str, jobs: int, ui: str, as_json: bool) -> int:
    """Train with each seed in its own process; if one fails, the others continue."""
    current_interrupter()  # raises if a stop was requested
    chosen = parse_seeds(seeds)
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}: use at least 1")
    lines = "none" if ui == "none" else "plain"  # one terminal has no room for several runs
    common = launching("train", *_without(command), "--json", "--ui", lines)
    crew = _Crew()
    with crew.signals(), ThreadPoolExecutor(jobs) as pool:
        # --seeds None: a config file may name the seeds, and each of these processes trains one.
        common += ["--seeds", "None"]
        commands = [[*common, "--seed", str(seed), "--version", f"{version}-seed{seed}"] for seed in chosen]
        runs = list(pool.map(crew.train, chosen, commands))
    if as_json:
        write_json(runs)
    else:
        _print(runs)
    if any(run.error for run in runs):
        return 1
    return INTERRUPTED if crew.is_interrupted else 0


class _Crew:
    """The training processes, and the signals to them."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        """Held while a process is started, so that it neither misses a signal nor gets it twice."""
        self._live: set[subprocess.Popen[str]] = set()
        self._is_stopping = False
        self.is_interrupted = False
        """Whether a signal has stopped one of them before its end."""

    @contextlib.contextmanager
    def signals(self) -> Generator[None]:
        """Pass SIGINT, SIGTERM and SIGHUP on to all processes: the first signal makes them checkpoint and stop."""
        passed = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as with nohup
            passed.append(signal.SIGHUP)
        former = {number: signal.signal(number, self._pass_on) for number in passed}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _pass_on(self, number: int, _: Any) -> None:
        with self._guard:
            self._is_stopping = self.is_interrupted = True
            for process in self._live:
                process.send_signal(number)

    def train(self, seed: int, command: list[str]) -> _Run:
        """Train to the end, and print progress lines."""
        with self._guard:
            if self._is_stopping:
                return _Run(seed)
            # In its own session, so that Ctrl-C reaches it only once, through this process.
            process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            self._live.add(process)
        errors: list[str] = []
        reader = threading.Thread(target=self._tell, args=(seed, process, errors))
        with process:
            reader.start()
            output = process.stdout.read() if process.stdout else ""
            reader.join()
        with self._guard:
            self._live.discard(process)
        if process.returncode == INTERRUPTED:
            self.is_interrupted = True
        if process.returncode == INTERRUPTED and not output:  # interrupted before the run started
            return _Run(seed)
        if process.returncode in (0, INTERRUPTED):
            return _Run(seed, report=msgspec.json.decode(output))
        return _Run(seed, error=errors[-1] if errors else f"the process ended with code {process.returncode}")

    def _tell(self, seed: int, process: subprocess.Popen[str], errors: list[str]) -> None:
        for line in process.stderr or ():
            text = line.strip()
            if text:
                errors[:] = [text.removeprefix("rekindle: ")]
                say(f"seed {seed}: {printable(text)}")


def _without(command: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words_left = iter(command)
    for word in words_left:
        if word in _REPLACED:
            next(words_left, None)
        elif word != "--json" and word.partition("=")[0] not in _REPLACED:
            kept.append(word)
    return kept


def _print(runs: Sequence[_Run]) -> None:
    out = console(whole_lines=True)
    is_offline = any(run.report and _is_offline(run.report) for run in runs)
    unit = "updates" if is_offline else "steps"
    out.print(
        table(
            [number("seed"), "status", *map(number, (unit, "episodes", "best", "time")), words("run")],
            [_row(run) for run in runs],
        )
    )
    scores = [run.report["best_score"] for run in runs if run.report and run.report["best_score"] is not None]
    if len(scores) > 1:
        mean, deviation = statistics.fmean(scores), statistics.stdev(scores)
        text = f"best evaluation: mean {decimal(mean)}, standard deviation {decimal(deviation)} of {len(scores)} seeds"
        print_whole(out, cell(text))


def _is_offline(report: Mapping[str, Any]) -> bool:
    """Whether a report is of an agent that learned from data alone: it has no env steps."""
    return report["updates"] > 0 and not report["env_steps"]


def _row(run: _Run) -> list[Any]:
    if run.report is None:
        status = "failed" if run.error else "not begun"
        return [str(run.seed), status_cell(status), *[NOTHING] * 4, run.error or NOTHING]
    report = run.report
    best = NOTHING if report["best_score"] is None else decimal(report["best_score"])
    counts = [whole(report["updates" if _is_offline(report) else "env_steps"]), whole(report["episodes"])]
    where = str(Path(report["path"])) if report["path"] else NOTHING
    return [str(run.seed), status_cell(report["status"]), *counts, best, time_text(report["seconds"]), where]

"""A training that is killed while it starts: there is no run yet, or one that can be resumed, exactly.

From the first directory that `rekindle train` makes to the first checkpoint, every call that changes a file is a place
to die; and so is any moment of the first seconds, most of which go into imports, the probe and compilation.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import ENVIRONMENT, HERE, Ended, needs_strace
from tracing import CHANGES, Call, parse

import rekindle
from rekindle.run.finding import find_runs

# What compiles less is quicker to start; it is the same for all. It is not kept, as a kill may leave half of it.
VARIABLES = {
    **ENVIRONMENT,
    "XLA_FLAGS": "--xla_backend_optimization_level=0",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}
COMMON = (
    *("--preset", "none", "--steps", "90", "--seed", "3", "--checkpoint-every", "30", "--metrics-every", "25"),
    *("--eval-every", "60", "--eval-episodes", "1", "--env.max-episode-steps", "20", "--ui", "none", "--json"),
)
SETTINGS = {
    "tabular": (
        *("FrozenLake-v1", "--agent.capacity", "50", "--agent.replay-updates", "1", "--agent.epsilon-steps", "90"),
    ),
    "dqn": (
        *("CartPole-v1", "--agent.hidden-sizes", "4", "--agent.capacity", "60", "--agent.warmup-steps", "20"),
        *("--agent.epsilon-steps", "90"),
        *("--agent.update-every", "10", "--agent.batch-size", "8"),
    ),
    "ppo": (
        *("CartPole-v1", "--agent.hidden-sizes", "4", "--agent.rollout-steps", "25", "--agent.minibatch-size", "25"),
        *("--agent.epochs", "1"),
    ),
}
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
LEARNED = [pytest.param(algorithm, marks=needs_jax) for algorithm in ("dqn", "ppo")]


class CommandServer:
    """Runs commands in forked processes, in which something may happen to the calls that change files."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "command_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=VARIABLES,
        )

    def run(self, start: Start, arguments: Sequence[str], fault: str = "") -> Ended:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        places = {name: str(start.directory / name) for name in ("disk", "output", "errors", "report")}
        self._process.stdin.write(json.dumps({"arguments": arguments, "fault": fault, **places}) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Ended(code, (start.directory / "errors").read_text())

    def close(self) -> None:
        self._process.communicate()


class Start:
    """A place for one training, and the commands that start it and go on with it."""

    def __init__(self, directory: Path, algorithm: str, server: CommandServer, *options: str) -> None:
        self.directory = directory
        self.disk = directory / "disk"
        self.disk.mkdir(parents=True)
        self.command = ["train", algorithm, *SETTINGS[algorithm], *COMMON, *options, "--runs", str(self.root)]
        self.command += ["--name", "run"]
        self._server = server

    @property
    def root(self) -> Path:
        return self.disk / "runs"

    def train(self, fault: str = "") -> Ended:
        return self._server.run(self, self.command, fault)

    def start_or_resume(self, fault: str = "") -> Ended:
        return self._server.run(self, [*self.command, "--resume", "auto"], fault)

    def resume(self) -> Ended:
        return self._server.run(self, ["resume", str(self.root / "run"), "--ui", "none", "--json"])

    def spawn(self, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
        """The command in an interpreter of its own."""
        whole = [*prefix, sys.executable, "-m", "rekindle", *self.command]
        return subprocess.Popen(
            whole, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=VARIABLES, cwd=self.directory
        )

    @property
    def runs(self) -> list[Path]:
        return find_runs(self.root)

    @property
    def calls(self) -> list[str]:
        """What the injector reports, with the same names in every training."""
        lines = (self.directory / "report").read_text().splitlines()
        return [line.replace(str(self.disk), "") for line in lines]

    def assert_survives(self, reference: Any, *, by_path: bool = True) -> None:
        """Right after a kill: go on, by the path of the run or by the same command, and end as if nothing happened."""
        assert len(self.runs) <= 1
        if not self.runs:
            refused = self.resume()
            assert refused.code == 1
            assert refused.errors.startswith(f"rekindle: there is no run at {self.root / 'run'}")
            assert refused.errors.count("\n") == 1
            ended = self.train()
        else:
            ended = self.resume() if by_path else self.start_or_resume()
        assert ended.code == 0, ended.errors
        told = [line for line in ended.errors.splitlines() if "there was no checkpoint yet" not in line]
        assert told == []
        self.assert_complete(reference)

    @property
    def is_finished(self) -> bool:
        return any(rekindle.RunReader(run).status == "finished" for run in self.runs)

    def assert_complete(self, reference: Any) -> None:
        """There is one run, which finished with the digests of an uninterrupted one."""
        (run,) = self.runs
        assert list(run.parent.glob(".new-*")) == []
        found = rekindle.verify(run)
        assert (found.problems, found.grade, found.digests) == ([], "exact", reference)
        assert rekindle.RunReader(run).status == "finished"


@pytest.fixture(scope="module")
def server() -> Iterator[CommandServer]:
    server = CommandServer()
    yield server
    server.close()


@pytest.fixture
def starts(scratch: Path, server: CommandServer) -> Callable[..., Start]:
    """Makes places for trainings; each is removed when the next is made, as a sweep has hundreds."""
    made: list[Start] = []

    def make(algorithm: str, *options: str) -> Start:
        if made:
            shutil.rmtree(made[-1].directory)
        made.append(Start(scratch / f"start_{len(made)}", algorithm, server, *options))
        return made[-1]

    return make


class Reference:
    """What an undisturbed training ends with, and which calls it makes up to its first checkpoint."""

    def __init__(self, start: Start) -> None:
        ended = start.train("trace")
        assert (ended.code, ended.errors) == (0, "")
        (run,) = start.runs
        self.digests = rekindle.verify(run).digests
        rows = [json.loads(line) for line in (start.directory / "report").read_text().splitlines()]
        paths = [row["path"] for row in rows]
        first = next(index for index, path in enumerate(paths) if path.endswith("/checkpoints/step_30.mpk"))
        self.calls = first + 2
        """Up to the one after the name of the first checkpoint."""
        sites: dict[Any, int] = {}
        for number, row in enumerate(rows[: self.calls], 1):
            sites.setdefault((row["name"], *row["stack"]), number)
        self.sites = sorted(sites.values())
        """The first call of each place in the code that changes files."""


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory, server: CommandServer) -> Callable[[str], Reference]:
    known: dict[str, Reference] = {}

    def reference(algorithm: str) -> Reference:
        if algorithm not in known:
            known[algorithm] = Reference(Start(tmp_path_factory.mktemp(algorithm) / "whole", algorithm, server))
        return known[algorithm]

    return reference


Starts = Callable[..., Start]
References = Callable[[str], Reference]


def sweep(starts: Starts, algorithm: str, reference: Reference, calls: Sequence[int], kind: str = "kill") -> None:
    seen = Counter[str]()
    for number in calls:
        start = starts(algorithm)
        ended = start.train(f"{kind} {number}")
        assert ended.killed, f"{kind} {number}: {ended.errors}"
        seen["a run" if start.runs else "no run"] += 1
        start.assert_survives(reference.digests, by_path=number % 2 == 0)
    assert seen["no run"] >= len(calls) / 4
    assert seen["a run"] >= len(calls) / 4


def test_a_kill_before_the_first_call_of_every_other_place_in_the_code(starts: Starts, references: References) -> None:
    reference = references("tabular")
    assert len(reference.sites) > 20
    sweep(starts, "tabular", reference, reference.sites[::2])


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["kill", "torn"])
def test_a_kill_before_every_call(starts: Starts, references: References, kind: str) -> None:
    reference = references("tabular")
    assert reference.calls > 50
    sweep(starts, "tabular", reference, range(1, reference.calls + 1), kind)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_a_kill_before_every_call_of_the_start_after_a_kill(starts: Starts, references: References) -> None:
    """The second start removes what the first has left, or goes on with it."""
    reference = references("tabular")
    for first in (reference.calls // 4, reference.calls - 2):
        for second in range(1, reference.calls + 20, 2):
            start = starts("tabular")
            assert start.train(f"kill {first}").killed
            if start.start_or_resume(f"kill {second}").killed:
                start.assert_survives(reference.digests, by_path=second % 4 == 1)


@needs_jax
@pytest.mark.slow
def test_a_kill_before_some_calls_of_an_agent_that_is_compiled(starts: Starts, references: References) -> None:
    reference = references("dqn")
    sweep(starts, "dqn", reference, reference.sites[::14])


@needs_jax
@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("shard", range(2))
def test_a_kill_before_every_call_of_an_agent_that_is_compiled(
    shard: int, starts: Starts, references: References
) -> None:
    reference = references("dqn")
    sweep(starts, "dqn", reference, range(1 + shard, reference.calls + 1, 2))


def fail(starts: Starts, reference: Reference, calls: Sequence[int], kind: str) -> None:
    for number in calls:
        start = starts("tabular")
        ended = start.train(f"fail {number} {kind}")
        if ended.code == 0:  # the training survived it
            continue
        assert (ended.code, ended.errors.count("\n")) == (1, 1), ended.errors
        assert ended.errors.startswith("rekindle: cannot ")
        start.assert_survives(reference.digests)


@pytest.mark.parametrize("kind", ["ENOSPC", "EROFS"])
def test_a_call_that_fails_is_told_in_one_line(starts: Starts, references: References, kind: str) -> None:
    reference = references("tabular")
    fail(starts, reference, reference.sites[::6], kind)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["ENOSPC", "EROFS", "EIO", "EACCES"])
def test_any_call_that_fails_is_told_in_one_line(starts: Starts, references: References, kind: str) -> None:
    reference = references("tabular")
    fail(starts, reference, range(1, reference.calls + 1), kind)


def test_a_child_that_is_killed_as_it_starts_begins_with_its_parent_again(starts: Starts, scratch: Path) -> None:
    parent = starts("tabular")
    assert parent.train().code == 0
    moved = parent.root.rename(scratch / "parents")
    options = ("--from", f"{moved}/run@60", "--with-optimiser", "--steps", "150")
    whole = starts("tabular", *options)
    assert whole.train().code == 0
    digests = rekindle.verify(whole.root / "run").digests
    for fault in ("replace:/config.json", "write:train_episodes.jsonl", "replace:/step_90.mpk"):
        start = starts("tabular", *options)
        assert start.train(f"kill {fault}").killed
        start.assert_survives(digests)


def test_seeds_that_are_killed_as_they_start_go_on_with_the_same_command(starts: Starts) -> None:
    whole = starts("tabular", "--seed", "1", "--version", "v1-seed1")
    assert whole.train().code == 0
    digests = rekindle.verify(whole.root / "run").digests
    start = starts("tabular", "--seed", "1", "--version", "v1-seed1")
    assert start.train("kill write:train_episodes.jsonl").killed
    words = start.command
    seeds = {place for place, word in enumerate(words) if "--seed" in (word, words[place - 1])}
    command = [
        sys.executable,
        "-m",
        "rekindle",
        *(word for place, word in enumerate(words) if place not in seeds),
        "--seeds",
        "0-1",
        "--version",
        "v1",
        "--resume",
        "auto",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=VARIABLES)
    assert done.returncode == 0, done.stderr
    assert [run["report"]["status"] for run in json.loads(done.stdout)] == ["finished", "finished"]
    assert rekindle.verify(start.root / "run" / "v1-seed1").digests == digests
    assert len(start.runs) == 2


class TestKilledFromOutside:
    """By strace as a call is entered, or by somebody who looks at the clock."""

    @needs_strace
    def test_at_some_calls(self, starts: Starts, references: References) -> None:
        self._kill_at_calls(starts, "tabular", references("tabular"), stride=12)

    @needs_strace
    @pytest.mark.exhaustive
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("algorithm", ["tabular", pytest.param("dqn", marks=needs_jax)])
    def test_at_every_call(self, starts: Starts, references: References, algorithm: str) -> None:
        self._kill_at_calls(starts, algorithm, references(algorithm), stride=1)

    def _kill_at_calls(self, starts: Starts, algorithm: str, reference: Reference, *, stride: int) -> None:
        start = starts(algorithm)
        calls = traced(start)
        assert start.runs
        # strace counts the calls of each thread by their name, those outside the disk too.
        counts: Counter[tuple[int, str]] = Counter()
        wanted: list[tuple[str, int]] = []
        for call in calls:
            counts[call.thread, call.name] += 1
            if call.path.startswith(str(start.disk)) and call.changes and call.name != "openat":
                wanted.append((call.name, counts[call.thread, call.name]))
            if call.path.endswith("/step_30.mpk"):
                break
        assert len(wanted) > 30
        for name, when in wanted[::stride]:
            start = starts(algorithm)
            calls = traced(start, inject=f"{name}:signal=SIGKILL:when={when}")
            assert any(call.killed and call.name == name for call in calls), f"{name} {when}"
            start.assert_survives(reference.digests, by_path=when % 2 == 0)

    @pytest.mark.slow
    @pytest.mark.parametrize("algorithm", LEARNED)
    def test_at_a_few_moments_of_the_first_seconds(
        self, starts: Starts, references: References, algorithm: str
    ) -> None:
        self._kill_at_moments(starts, algorithm, references(algorithm), count=2)

    @pytest.mark.exhaustive
    @pytest.mark.timeout(1800)
    @pytest.mark.parametrize("algorithm", LEARNED)
    def test_at_many_moments_of_the_first_seconds(self, starts: Starts, references: References, algorithm: str) -> None:
        self._kill_at_moments(starts, algorithm, references(algorithm), count=20)

    def _kill_at_moments(self, starts: Starts, algorithm: str, reference: Reference, *, count: int) -> None:
        moments = random.Random(algorithm)
        for _ in range(count):
            start = starts(algorithm)
            process = start.spawn()
            time.sleep(moments.uniform(0, 6))
            process.kill()
            _, errors = process.communicate()
            assert process.returncode in (0, -9), errors
            by_path = moments.random() < 0.5
            if start.is_finished:  # the kill came after the last write, or after the end
                start.assert_complete(reference.digests)
            else:
                start.assert_survives(reference.digests, by_path=by_path)


def traced(start: Start, inject: str = "") -> list[Call]:
    """Run the command under strace; returns the calls that change files, in the order in which they were done."""
    trace = start.directory / "trace"
    prefix = ["strace", "-f", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={CHANGES}"]
    process = start.spawn([*prefix, *(["-e", f"inject={inject}"] if inject else ["--seccomp-bpf"])])
    _, errors = process.communicate()
    assert process.returncode == (-9 if inject else 0), errors
    return parse(trace.read_text())


LOUD = """
import os, signal
for name in os.environ.get("SIGNALS", "").split():
    os.kill(os.getpid(), getattr(signal, name))
"""


class TestSignals:
    """While modules are imported, and before there is a run."""

    @pytest.fixture
    def here(self, scratch: Path) -> Path:
        (scratch / "loud.py").write_text(LOUD)
        return scratch

    def _command(self, here: Path, *arguments: str, signals: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "rekindle", *arguments, "--env-module", "loud", "--ui", "none", "--json"],
            capture_output=True,
            text=True,
            check=False,
            cwd=here,
            env={**VARIABLES, "SIGNALS": signals},
        )

    @pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
    def test_the_first_stops_a_training_before_it_begins(self, here: Path, number: str) -> None:
        done = self._command(here, "train", "tabular", "FrozenLake-v1", "--steps", "50", signals=number)
        assert (done.returncode, done.stdout) == (130, "")
        assert done.stderr == f"rekindle: stopped before the training began ({number})\n"
        assert [path.name for path in here.iterdir() if path.name != "__pycache__"] == ["loud.py"]

    def test_the_second_ends_the_process_at_once(self, here: Path) -> None:
        done = self._command(here, "train", "tabular", "FrozenLake-v1", signals="SIGINT SIGTERM")
        assert (done.returncode, done.stdout, done.stderr) == (-15, "", "")

    def test_a_resume_leaves_the_run_as_it_was(self, here: Path) -> None:
        assert self._command(here, "train", "tabular", "FrozenLake-v1", "--steps", "50").returncode == 0
        (run,) = find_runs(here / "runs")
        before = (run / "metadata.json").read_bytes()
        done = self._command(here, "resume", "runs/tabular-FrozenLake-v1", "--steps", "80", signals="SIGTERM")
        assert (done.returncode, done.stderr) == (130, "rekindle: stopped before the training began (SIGTERM)\n")
        assert (run / "metadata.json").read_bytes() == before

    def test_seeds_that_are_stopped_before_they_begin_are_not_failures(self, here: Path) -> None:
        options = ("--steps", "50", "--seeds", "0-1")
        done = self._command(here, "train", "tabular", "FrozenLake-v1", *options, signals="SIGTERM")
        assert done.returncode == 130
        assert [(run["report"], run["error"]) for run in json.loads(done.stdout)] == [(None, None)] * 2

    @pytest.mark.parametrize("command", ["runs", "train"])
    def test_in_the_first_imports_there_is_no_traceback(self, command: str) -> None:
        program = f"""
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "rekindle.cli.entry":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from rekindle.cli import main
sys.exit(main([{command!r}]))
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "rekindle: interrupted\n")

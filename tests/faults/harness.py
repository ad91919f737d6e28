"""What every fault test needs: trainings in processes of their own, and what must be true of them afterwards.

A `Training` is a place for one run and a list of what was acknowledged. Start it, break it, look at what is on disk
(`assert_nothing_lost`), start it again until it is done (`finish`) and hold it against one that nobody disturbed
(`assert_exact`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.run.finding import find_runs

HERE = Path(__file__).parent
WORKER = HERE / "worker.py"
NAME = "walk"
KILLED = -signal.SIGKILL

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
    "OPENBLAS_NUM_THREADS": "1",  # threads that would only be in the way of a fork and of a trace
    "PYTHONDONTWRITEBYTECODE": "1",
}


def until(condition: Callable[[], Any], seconds: float = 100) -> None:
    """Wait until a condition is true; fails if it does not become so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@dataclass(frozen=True)
class Ended:
    """How a worker ended."""

    code: int
    errors: str
    """What it wrote to standard error."""

    @property
    def killed(self) -> bool:
        return self.code == KILLED


class ForkServer:
    """A process that has imported the worker and forks it on demand: a training costs a few dozen milliseconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forkserver.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self._under_way: int | None = None

    def start(self, job: Mapping[str, Any]) -> int:
        """Begin a job; returns the process id."""
        if self._under_way is not None:  # left by a test that failed in the middle of it
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._under_way, signal.SIGKILL)
            self.wait()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        self._under_way = self._answer()
        return self._under_way

    def wait(self) -> int:
        """The exit code of the job under way, negative for a signal."""
        code = self._answer()
        self._under_way = None
        return code

    def _answer(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Training:
    """One run, the list of what it acknowledged, and ways to start it."""

    def __init__(self, directory: Path, server: ForkServer) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.disk = directory / "disk"
        """What faults happen to; the rest is the harness's own."""
        self.disk.mkdir(exist_ok=True)
        self.root = self.disk / "runs"
        self.acknowledged_path = directory / "acknowledged"
        self.report_path = directory / "report"
        self._errors_path = directory / "errors"
        self._server = server

    # Starting

    def fork(self, fault: str = "", **options: Any) -> Ended:
        """Train in a forked process until it ends; `fault` as in `injection`, options as in `worker.train`."""
        self.begin_fork(fault, **options)
        return self.end_fork()

    def begin_fork(self, fault: str = "", **options: Any) -> int:
        """The same, without waiting; returns the process id."""
        self._errors_path.write_bytes(b"")
        return self._server.start(
            {
                "root": str(self.root),
                "disk": str(self.disk),
                "acknowledged": str(self.acknowledged_path),
                "report": str(self.report_path),
                "errors": str(self._errors_path),
                "fault": fault,
                "options": options,
            }
        )

    def end_fork(self) -> Ended:
        """Wait for what `begin_fork` began."""
        return Ended(self._server.wait(), self._errors_path.read_text())

    def command(self, *options: str) -> list[str]:
        """The command line of a worker in an interpreter of its own."""
        return [sys.executable, str(WORKER), str(self.root), str(self.acknowledged_path), *options]

    def spawn(self, *options: str, prefix: Sequence[str] = (), command: Sequence[str] = (), **settings: Any) -> Ended:
        """Train in an interpreter of its own, under another program (strace, faketime) if there is a prefix.

        A command is a script, with its arguments, to run instead of the worker.
        """
        whole = [*prefix, *([sys.executable, *command] if command else self.command(*options))]
        done = subprocess.run(whole, capture_output=True, text=True, check=False, env=ENVIRONMENT, **settings)
        return Ended(done.returncode, done.stderr)

    def finish(self, **options: Any) -> int:
        """Start again until the training is done, as a user would after each crash; says how many starts it took."""
        for starts in range(5):
            if self.is_finished:
                return starts
            ended = self.fork(**options)
            assert ended.code == 0, f"the training cannot go on: {ended.errors}"
        raise AssertionError("the training does not come to its end")

    # Looking

    @property
    def runs(self) -> list[Path]:
        return find_runs(self.root) if self.root.exists() else []

    @property
    def run(self) -> Path:
        """The run; there must be one and no more."""
        (run,) = self.runs
        return run

    @property
    def is_finished(self) -> bool:
        return bool(self.runs) and rekindle.RunReader(self.run).metadata.status == "finished"

    @property
    def acknowledged(self) -> list[str]:
        """Every line acknowledged so far, by all processes."""
        try:
            return self.acknowledged_path.read_text().splitlines()
        except FileNotFoundError:
            return []

    def wait_for(self, start: str, *, seconds: float = 100) -> None:
        """Wait until a line that starts so is acknowledged."""
        deadline = time.monotonic() + seconds
        while not any(line.startswith(start) for line in self.acknowledged):
            assert time.monotonic() < deadline, f"{start!r} never came: {self.acknowledged}"
            time.sleep(0.002)

    @property
    def acknowledged_steps(self) -> list[int]:
        return [int(line.split()[1]) for line in self.acknowledged if line.startswith("checkpoint ")]

    @property
    def warnings(self) -> list[str]:
        return [line.removeprefix("warned ") for line in self.acknowledged if line.startswith("warned ")]

    @property
    def reported(self) -> list[str]:
        """What the fault injection said that it did."""
        try:
            return self.report_path.read_text().splitlines()
        except FileNotFoundError:
            return []

    @property
    def steps_on_disk(self) -> list[int]:
        return list_steps(self.run / "checkpoints") if self.runs else []

    def copy_to(self, directory: Path) -> Training:
        """The same training at another place, to be broken in another way."""
        shutil.copytree(self.directory, directory)
        return Training(directory, self._server)


@contextlib.contextmanager
def discarded(training: Training) -> Iterator[Training]:
    """A training that is removed when it went well, so that a sweep of hundreds leaves nothing behind."""
    yield training
    shutil.rmtree(training.directory)


def place(text: str, training: Training) -> str:
    """A path, or a text with one in it, as it is in every training: the root, the run and half-made runs by name."""
    text = re.sub(rf"{re.escape(str(training.root))}/{NAME}/v1/\d{{8}}_\d{{6}}(_\d+)?", "RUN", text)
    text = re.sub(rf"{re.escape(str(training.root))}/{NAME}/v1/\.new-[^/]+", "NEW", text)
    return text.replace(str(training.root), "ROOT").replace(str(training.disk), "DISK")


# What must be true


def assert_nothing_lost(training: Training) -> None:
    """Right after a crash: what was acknowledged is there, and whole."""
    acknowledged = training.acknowledged_steps
    assert half_made(training) == []
    if not training.runs:
        assert not training.acknowledged, f"the run is gone, but {training.acknowledged} was acknowledged"
        return
    run = training.run
    on_disk = training.steps_on_disk
    intact = [step for step in on_disk if is_intact(run, step)]
    if acknowledged:
        assert intact, f"step {max(acknowledged)} was acknowledged, no checkpoint of {on_disk} is intact"
        assert intact[-1] >= max(acknowledged), f"step {max(acknowledged)} was acknowledged, {intact} are intact"
    assert set(on_disk) & set(acknowledged) <= set(intact), f"of {on_disk} only {intact} are intact"
    if "config" in training.acknowledged:
        assert rekindle.RunReader(run).read_config(), "the config was acknowledged and is gone"
    if "finished" in training.acknowledged:
        assert training.is_finished, "the end was acknowledged and is forgotten"


def half_made(training: Training) -> list[str]:
    """Directories that look like a run and are none."""
    looks = (training.root / NAME / "v1").glob("[0-9]*")
    return sorted(path.name for path in looks if path not in training.runs)


def is_intact(run: Path, step: int) -> bool:
    """Whether a checkpoint can be read with everything that it names."""
    try:
        read_checkpoint(run, step)
    except rekindle.RekindleError:
        return False
    return True


def read_checkpoint(run: Path, step: int) -> Checkpoint:
    """A checkpoint, having read everything that it names; raises what reading raises."""
    from rekindle.checkpoint.replay_journal import ReplayJournal
    from rekindle.storage import codec

    checkpoint = Checkpoint.read(run / "checkpoints" / f"step_{step}.mpk")
    if checkpoint.best is not None:
        codec.read_file(run / "checkpoints" / checkpoint.best.file)
    if checkpoint.replay is not None:
        ReplayJournal(run / "replay", resume_count=0).read(checkpoint.replay)
    return checkpoint


def assert_exact(training: Training, reference: Mapping[str, str | None], *, grade: str = "exact") -> None:
    """At the end: to the bit the run that nobody disturbed, whole, and with nothing left lying about."""
    found = rekindle.verify(training.run)
    assert found.problems == []
    assert found.digests == reference
    assert found.grade == grade
    assert rekindle.RunReader(training.run).status == "finished"
    assert leftovers(training.run) == []


def leftovers(run: Path) -> list[str]:
    """Temporary files that nobody will come back for."""
    return sorted(str(path.relative_to(run)) for path in run.rglob("*.tmp"))


def assert_survives(training: Training, reference: Mapping[str, str | None]) -> None:
    """The whole promise, right after a crash: nothing lost, it goes on, and it ends as if nothing had happened."""
    assert_nothing_lost(training)
    training.finish()
    assert_exact(training, reference)

"""The worker processes of a sweep: each trains one run at a time."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from rekindle.errors import StorageError
from rekindle.storage.files import open_regular, reporting
from rekindle.sweep.executing import Job, Outcome, Start
from rekindle.sweep.settings import StudySettings

__all__ = ["Crew", "Died"]

LOG = "workers.log"
"""What the worker processes of the last sweep wrote to standard error."""
_TICK = 0.2
"""Seconds after which waiting looks for signals."""
_ENDING = 30.0
"""Seconds that a worker has to take its last checkpoint."""


class Died(msgspec.Struct, frozen=True):
    """A worker ended in the middle of a job."""

    job: Job
    reason: str


class _Worker:
    def __init__(
        self, start: bytes, said: BinaryIO, answers: queue.SimpleQueue[tuple[_Worker, Outcome | Died]]
    ) -> None:
        # -P: do not import from the working directory; in its own session, so that Ctrl-C does not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rekindle.sweep.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,
        )
        self._answers = answers
        self.job: Job | None = None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._send(start)
        self._listener.start()

    def _send(self, message: bytes) -> None:
        try:
            assert self._process.stdin is not None  # noqa: S101 - it is a pipe
            self._process.stdin.write(message + b"\n")
            self._process.stdin.flush()
        except OSError:
            return  # it has died, which `_listen` reports

    def work(self, job: Job) -> None:
        self.job = job
        self._send(msgspec.json.encode(job))

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self.job = None
            self._answers.put((self, msgspec.json.decode(line, type=Outcome)))
        code = self._process.wait()
        if self.job is not None:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            self._answers.put((self, Died(self.job, f"its process ended with {how}; see {LOG}")))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    @property
    def is_dead(self) -> bool:
        return self._process.poll() is not None

    def end(self) -> None:
        """Let it finish a checkpoint, then end it."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError as error:
                if not self.is_dead:
                    raise StorageError(f"cannot end a worker process: {error}") from error
        if self.job is not None:
            self.signal(signal.SIGTERM)
        try:
            self._process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Crew:
    """Up to `jobs` worker processes, started when they are needed."""

    def __init__(self, study: Path, settings: StudySettings, jobs: int) -> None:
        self._start = msgspec.json.encode(Start(str(study.absolute()), settings, list(sys.path)))
        self._jobs = jobs
        with reporting("open", study / LOG):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            self._said = open(open_regular(study / LOG, flags), "wb")  # noqa: SIM115 - closed by `__exit__`
        self._workers: list[_Worker] = []
        self._answers: queue.SimpleQueue[tuple[_Worker, Outcome | Died]] = queue.SimpleQueue()
        self._is_stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers:
            if worker.job is not None:
                worker.signal(signal.SIGTERM)  # all at once, so that they take their checkpoints together
        for worker in self._workers:
            worker.end()
        self._said.close()

    @property
    def is_full(self) -> bool:
        """Whether every worker is busy."""
        return sum(worker.job is not None for worker in self._workers) >= self._jobs

    @property
    def is_idle(self) -> bool:
        """Whether no worker is busy."""
        return all(worker.job is None for worker in self._workers)

    def work(self, job: Job) -> None:
        """Give a job to an idle worker."""
        for dead in [worker for worker in self._workers if worker.job is None and worker.is_dead]:
            dead.end()
            self._workers.remove(dead)
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None:
            idle = _Worker(self._start, self._said, self._answers)
            self._workers.append(idle)
        idle.work(job)

    def stop(self) -> None:
        """Ask the workers to take a checkpoint and stop."""
        if not self._is_stopping:
            self._is_stopping = True
            for worker in self._workers:
                if worker.job is not None:
                    worker.signal(signal.SIGTERM)

    def wait(self) -> Outcome | Died | None:
        """The next result; None if there is none for a moment, to look at something else."""
        try:
            worker, answer = self._answers.get(timeout=_TICK)
        except queue.Empty:
            return None
        if isinstance(answer, Died):
            worker.job = None
            worker.end()
            self._workers.remove(worker)
        return answer

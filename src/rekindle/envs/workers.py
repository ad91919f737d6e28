"""Environments in worker processes."""

from __future__ import annotations

import contextlib
import json
import pickle
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from rekindle.agent import State
from rekindle.envs.factory import EnvFactory
from rekindle.envs.pickling import pickled_by_value
from rekindle.envs.vector import Outcome, joined
from rekindle.envs.worker import GRACE, IGNORED
from rekindle.errors import ConfigError, EnvError
from rekindle.processors import processors

__all__ = ["WorkerEnvs"]

# A new interpreter, not a fork: the parent may have JAX threads and a lock on the run. The worker does not import the
# parent's script either, so scripts need no `if __name__ == "__main__"`. `-P` keeps the working directory, which may
# contain a `json.py`, off the import path until the worker has set it to the parent's.
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from rekindle.envs.worker import serve; \
serve(int(sys.argv[1]))"


class WorkerEnvs:
    """Environments in worker processes, stepped in parallel; the environments are divided evenly among the workers."""

    inexact: str | None = None

    def __init__(
        self, factory: EnvFactory, num_envs: int, *, workers: int | None = None, rebuilds: bool = False
    ) -> None:
        if num_envs < 1 or (workers is not None and not 1 <= workers <= num_envs):
            raise ConfigError(
                f"{num_envs} environments on {workers} workers: use at least 1 worker, and at most one per environment"
            )
        count = workers or min(num_envs, processors())
        self.name = factory.name
        self.num_envs = num_envs
        first_rows = [num_envs * index // count for index in range(count)]
        self._workers: list[_Worker] = []
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            for first, end in zip(first_rows, [*first_rows[1:], num_envs], strict=True):
                self._workers.append(_Worker(self.name, range(first, end)))
            for worker in self._workers:
                options = {"rebuilds": rebuilds, "first_row": worker.rows.start}
                worker.send("make", factory, len(worker.rows), options)
            spaces = [worker.receive(ConfigError) for worker in self._workers]
            undo.pop_all()
        self.observation_space, self.action_space = spaces[0]

    def one(self, row: int) -> _RemoteEnv:
        """One of the environments."""
        worker = next(worker for worker in self._workers if row in worker.rows)
        return _RemoteEnv(worker, row - worker.rows.start)

    def step(self, actions: Any) -> Outcome:
        """Step all of them."""
        for worker in self._workers:
            worker.send("step", actions[worker.rows.start : worker.rows.stop])
        # Receive all answers before raising any error: an unread answer would be taken for that of the next call.
        answers = [worker.answer() for worker in self._workers]
        outcomes = [Outcome(*worker.opened(answer)) for worker, answer in zip(self._workers, answers, strict=True)]
        return Outcome(
            joined([outcome.observations for outcome in outcomes]),
            np.concatenate([outcome.rewards for outcome in outcomes]),
            np.concatenate([outcome.statuses for outcome in outcomes]),
            {
                worker.rows.start + row: extras
                for worker, outcome in zip(self._workers, outcomes, strict=True)
                for row, extras in outcome.extras.items()
            },
        )

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            worker.hang_up()
        deadline = time.monotonic() + GRACE
        for worker in self._workers:
            worker.wait(deadline - time.monotonic())


@contextlib.contextmanager
def _signals_blocked() -> Generator[None]:
    """Block the signals that workers ignore: a new worker inherits this, until it can ignore them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """One worker process, and the connection to it."""

    def __init__(self, name: str, rows: range) -> None:
        self.rows = rows
        self._name = name
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno()), json.dumps(sys.path)]
            with _signals_blocked():
                self._process = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
                )
        self._connection = Connection(ours.detach())
        # A worker ends when its connection closes, so a worker that was never closed is not left behind.
        self.hang_up = weakref.finalize(self, self._connection.close)

    def send(self, call: str, *arguments: Any) -> None:
        """Send a call."""
        message = (call, *arguments)
        try:
            data = pickle.dumps(message) if call != "make" else pickled_by_value(message, "--vectorization sync")
            self._connection.send_bytes(data)
        except OSError as error:
            raise self._death() from error

    def answer(self) -> tuple[bool, Any] | EnvError:
        """The answer to the last call."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            return self._death()

    def opened(self, answer: tuple[bool, Any] | EnvError, failure: type[Exception] = EnvError) -> Any:
        """The result in an answer; raises the error of the worker."""
        if isinstance(answer, EnvError):
            raise answer
        is_good, result = answer
        if is_good:
            return result
        message, trace = result
        error = failure(message)
        error.add_note(f"in the worker process:\n{trace}")
        raise error

    def receive(self, failure: type[Exception] = EnvError) -> Any:
        """The result of the last call."""
        return self.opened(self.answer(), failure)

    def _death(self) -> EnvError:
        rows = f"env {self.rows.start}" if len(self.rows) == 1 else f"envs {self.rows.start} to {self.rows.stop - 1}"
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        code = self._process.returncode
        how = (
            "does not answer"
            if code is None
            else f"was killed by signal {-code}"
            if code < 0
            else f"exited with {code}"
        )
        return EnvError(f"{self._name}: the worker process of {rows} {how}")

    def wait(self, seconds: float) -> None:
        """Wait for the end of the process; kill it if it does not end in time."""
        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class _RemoteEnv:
    """One environment of a worker."""

    def __init__(self, worker: _Worker, row: int) -> None:
        self._worker, self._row = worker, row

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._worker.send("reset_one", self._row, seed, options)
        return self._worker.receive()

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        self._worker.send("step_one", self._row, action)
        return self._worker.receive()

    @property
    def has_state(self) -> bool:
        """Whether the environment can save its state."""
        self._worker.send("has_state", self._row)
        return self._worker.receive()

    def get_state(self) -> State:
        """The state of the environment."""
        self._worker.send("get_state", self._row)
        return self._worker.receive()

    def set_state(self, state: State) -> None:
        """Restore a state of the environment."""
        self._worker.send("set_state", self._row, state)
        self._worker.receive()

"""Actors in worker processes, supervised: one that dies or hangs is started again and plays its round again."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import cast

from rekindle.actors.blas import ENVIRONMENT
from rekindle.actors.casting import Cast
from rekindle.actors.evaluating import EvalPlan, PlayedEpisode
from rekindle.actors.printing import Printing
from rekindle.actors.rounds import ActorEnd, Order, RoundArrays
from rekindle.actors.shared import Link, Region
from rekindle.actors.supervision import Silence, Supervised
from rekindle.agent import State
from rekindle.envs.pickling import pickled_by_value
from rekindle.envs.worker import GRACE, IGNORED
from rekindle.errors import AgentError, ConfigError, EnvError, RekindleError
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop
from rekindle.processors import processors

__all__ = ["ActorProcesses", "raise_report", "start_patience"]

# A new interpreter, not a fork: the learner has threads of JAX, and a lock on the run. It does not import the script of
# the learner, and `-P` keeps the working directory off its path; see `rekindle.envs.workers`.
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from rekindle.actors.worker import serve; \
serve(sys.argv[1])"
_LOOK = 0.5
"""Seconds between two looks at whether workers make steps."""
_START = 120.0
"""Seconds that a worker gets at least to start alone, and then to create each of its environments."""
_START_EACH = 5.0
"""Seconds to add for each worker that starts on the same processor."""


class ActorProcesses(Supervised["_Worker"]):
    """Plays rounds in worker processes; each has several actors."""

    has_one_thread = True  # an environment variable says so

    def __init__(
        self,
        cast: Cast,
        *,
        workers: int | None = None,
        patience: float = 120.0,
    ) -> None:
        self.shape = shape = cast.shape
        super().__init__(f"{cast.factory.name}: the process", shape.actors, patience)
        self._cast = cast
        count = min(workers or processors(), shape.actors)
        ends = [shape.actors * index // count for index in range(count + 1)]
        self._order: Order | None = None
        self._free: dict[int, Order] = {}
        """What workers play without rounds, by their places."""
        self._looked = 0.0
        """When it was last checked whether these live."""
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._policies = [Region(), Region(), Region()]
            """The policies of this round and of the one before, and the one that is evaluated."""
            self._policy_size = 0
            for region in self._policies:
                self._undo.callback(region.close)
            printing = Printing()
            self._undo.callback(printing.close)
            pickled = pickled_by_value(cast, "--actors-on here")
            start = start_patience(count, processors())
            self._workers: list[_Worker] = []
            for first, end in itertools.pairwise(ends):
                self._workers.append(_Worker(cast, range(first, end), pickled, self._policies, printing, start))
            undo.pop_all()

    @property
    def workers(self) -> int:
        """See `Crew`."""
        return len(self._workers)

    @property
    def processes(self) -> list[int]:
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers]

    def start(self, order: Order) -> None:
        """Begin a round."""
        policy = self._policies[order.number % 2]
        policy.view(len(order.policy))[:] = order.policy
        self._policy_size, self._order = len(order.policy), order
        for worker in self._workers:
            worker.deaths = 0
            worker.play(order, self._policy_size)

    def collect(self) -> tuple[RoundArrays, list[ActorEnd]]:
        """Wait for the round; workers that die meanwhile are started again."""
        order = cast("Order", self._order)
        again = functools.partial(_Worker.play, order=order, policy_size=self._policy_size)
        self._order = None
        self._wait_for(self._workers, f"in round {order.number}", again, self.should_stop)
        arrays = RoundArrays.empty(self.shape, self.shape.rows)
        ends: list[ActorEnd] = []
        for worker in self._workers:
            ends += worker.collect(arrays)
        return arrays, ends

    # Without rounds

    @property
    def shares(self) -> list[range]:
        """The actors of each worker."""
        return [worker.actors for worker in self._workers]

    def start_one(self, place: int, order: Order) -> None:
        """Let one worker play, with its own policy; the others continue."""
        worker = self._workers[place]
        worker.deaths = 0
        self._free[place] = order
        worker.play(order, None)

    def take_ready(self, seconds: float) -> list[tuple[int, RoundArrays, list[ActorEnd]]]:
        """What workers have played, each with its place; waits so long if there is nothing yet."""
        waiting = [self._workers[place] for place in self._free]
        if waiting and seconds:
            _wait(waiting, seconds)
        # A learner that is busy with what others have played looks for dead workers too, but not all the time.
        is_due = seconds > 0 or time.monotonic() - self._looked > _LOOK
        if is_due:
            self._looked = time.monotonic()
        ready: list[tuple[int, RoundArrays, list[ActorEnd]]] = []
        for place, order in list(self._free.items()):
            worker = self._workers[place]
            if worker.has_answer():
                del self._free[place]
                rows = self.shape.rows_of(worker.actors)
                arrays = RoundArrays.empty(self.shape, rows.stop - rows.start)
                ends = worker.collect(arrays, slice(None))
                ready.append((place, arrays, ends))
            elif is_due and (death := worker.death(self._patience)) is not None:
                self._start_again(worker, f"{death} in chunk {order.number}")
                worker.play(order, None)
        return ready

    # Evaluations

    def evaluate(
        self, plan: EvalPlan, policy: Array, parts: Sequence[Sequence[int]], should_stop: ShouldStop
    ) -> list[PlayedEpisode] | None:
        """Play evaluation episodes between two rounds, each part on another worker; None in the middle of a round."""
        if self._order is not None or self._free:
            return None
        self._policies[_EVALUATED].view(len(policy))[:] = policy
        pickled = pickled_by_value(plan, "--actors-on here")

        def ask(worker: _Worker, numbers: list[int]) -> None:
            worker.evaluate(numbers, len(policy), pickled)

        return self._evaluated(self._workers, parts, ask, should_stop)

    def _wait(self, waiting: Sequence[_Worker]) -> Sequence[_Worker]:
        return _wait(waiting, _LOOK)

    def close(self) -> None:
        """End the workers."""
        workers, self._workers = getattr(self, "_workers", []), []  # it may not have come so far
        for worker in workers:
            worker.ask_to_quit()
        deadline = time.monotonic() + GRACE
        for worker in workers:
            worker.close(deadline - time.monotonic())
        self._undo.close()


_ERRORS: dict[str, type[RekindleError]] = {"env": EnvError, "config": ConfigError}
_EVALUATED = 2
"""The place of the policy that is evaluated."""


def start_patience(workers: int, processors: int) -> float:
    """Seconds that a worker gets to start, as all of them start at the same time."""
    return _START + _START_EACH * (workers / processors)


def raise_report(answer: State, name: str) -> None:
    """Raise the error that a worker has reported instead of an answer, if it has."""
    if "error" in answer:
        text, kind = answer["error"], answer["kind"]
        error = AgentError(f"{name}: {text}") if kind == "policy" else _ERRORS[kind](text)
        error.add_note(f"in the worker process:\n{answer['trace']}")
        raise error


class _Worker:
    """One worker process, and what it shares with the learner."""

    def __init__(
        self,
        cast: Cast,
        actors: range,
        pickled: bytes,
        policies: list[Region],
        printing: Printing,
        start_patience: float,
    ) -> None:
        shape, self._start_patience = cast.shape, start_patience
        self.actors, self._pickled, self._policies, self._printing = actors, pickled, policies, printing
        self._shape, self._rows = shape, shape.rows_of(actors)
        self.name = f"actor {actors.start}" if len(actors) == 1 else f"actors {actors.start} to {actors.stop - 1}"
        self.deaths = 0
        """Deaths in the current round."""
        self._start()

    def _start(self) -> None:
        try:
            self._start_process()
        except OSError as error:  # a limit of the user or of the machine
            raise ConfigError(
                f"the process of {self.name} cannot be started: {error}. Use fewer --workers, or raise the limits on "
                "open files and processes (ulimit -n, ulimit -u)"
            ) from error

    def _start_process(self) -> None:
        self._link = Link()
        count = self._rows.stop - self._rows.start
        self._arrays = RoundArrays.in_memory(
            self._shape, count, self._link.arrays(RoundArrays.size(self._shape, count))
        )
        self._answer: State | None = None
        self._is_new = self._is_at_start = True
        self.is_lost = False
        """Whether it works on an order whose answer is not needed any more."""
        self._silence = Silence(0)
        alive, self._alive = os.pipe()
        try:
            link, policies = self._link.descriptors, [region.descriptor for region in self._policies]
            given = {"learner": os.getpid(), "link": link, "policies": policies, "alive": alive}
            descriptors = [*link.values(), *policies, alive]
            self._process = _started(json.dumps(given), descriptors, self._printing)
        finally:
            os.close(alive)
        self.watch = os.pidfd_open(self._process.pid)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def done(self) -> int:
        """The semaphore that an answer raises."""
        return self._link.done

    def play(self, order: Order, policy_size: int | None) -> None:
        """Let it play a round, with the policy that all workers share, or without a size that of the order."""
        if self.is_lost:
            self.start_again()
        starts = order.starts[self.actors.start : self.actors.stop] if self._is_at_start or order.rewinds else None
        self._is_at_start = False
        self._send(
            {
                "kind": "play",
                "number": order.number,
                "env_steps": order.env_steps,
                "policy": order.policy if policy_size is None else [order.number % 2, policy_size],
                "starts": None if starts is None else [start.tree() for start in starts],
            }
        )

    def evaluate(self, numbers: list[int], policy_size: int, plan: bytes) -> None:
        """Let it play evaluation episodes."""
        if self.is_lost:
            self.start_again()
        self._send({"kind": "evaluate", "numbers": numbers, "policy": [_EVALUATED, policy_size], "plan": plan})

    def _send(self, message: State) -> None:
        if self._is_new:
            message |= {"cast": self._pickled, "actors": [self.actors.start, self.actors.stop]}
        self._is_new, self._answer = False, None
        self._silence = Silence(self._link.beats)
        self._link.send(message)

    def has_answer(self) -> bool:
        """Whether the round is complete; raises what the worker has reported."""
        self._answer = self._answer or cast("State | None", self._link.take_answer())
        if self._answer is None:
            return False
        raise_report(self._answer, self.name)
        return True

    def death(self, patience: float) -> str | None:
        """How the worker died, or that it hangs; None if it is well."""
        code = self._process.poll()
        if code is not None:
            return f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        allowed = patience if self._link.is_ready else max(patience, self._start_patience)
        if self._silence.seconds(self._link.beats) > allowed:
            return f"made no step for {allowed:g} s"
        return None

    def start_again(self) -> None:
        """End the rest of the process, and start another."""
        self._kill()
        self._start()

    def collect(self, into: RoundArrays, rows: slice | None = None) -> list[ActorEnd]:
        """Copy the round out of the shared memory."""
        into.take(self._arrays, self._rows if rows is None else rows)
        return [ActorEnd.of_tree(end) for end in self.take_answer()["ends"]]

    def take_answer(self) -> State:
        """What it has answered."""
        answer, self._answer = cast("State", self._answer), None
        return answer

    def ask_to_quit(self) -> None:
        """Let it end."""
        self._link.ask_to_quit()

    def close(self, seconds: float) -> None:
        """Wait for its end; kill it if it does not end in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        self._kill()

    def _kill(self) -> None:
        """End it, and close what it shared: after that it cannot answer any more, however late."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._alive)
        os.close(self.watch)
        del self._arrays
        self._link.close()


def _started(arguments: str, descriptors: list[int], printing: Printing) -> subprocess.Popen[bytes]:
    # Signals that a worker ignores are blocked while it starts, so that none hits it before it can ignore them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)
    try:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-P", "-c", _PROGRAM, arguments, json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            stdout=printing.stdout,
            stderr=printing.stderr,
            pass_fds=descriptors,
            env={**os.environ, **ENVIRONMENT},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(workers: Sequence[_Worker], seconds: float) -> Sequence[_Worker]:
    """Wait until a worker has an answer or dies; returns those that did, or all if none did in time: one may hang."""
    poll = select.poll()
    for worker in workers:
        poll.register(worker.done, select.POLLIN)
        poll.register(worker.watch, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll(seconds * 1e3)}
    return [worker for worker in workers if {worker.done, worker.watch} & ready] if ready else list(workers)

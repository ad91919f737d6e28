"""What workers have in common, wherever they run: how they are waited for, and how often one may die."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

from rekindle.actors.evaluating import PlayedEpisode
from rekindle.errors import EnvError, Interrupted
from rekindle.interrupt import ShouldStop, never

__all__ = ["Silence", "Supervised", "Worker"]

_MOST_DEATHS = 3
"""Deaths of a worker in one round, or in one evaluation, at which the training ends."""

_LONGEST_LOOK = 2.0
"""Seconds between two looks at a worker that count at most as silence."""


class Silence:
    """How long a worker has made no step, as far as the learner has looked.

    While the learner is suspended or busy itself, it does not look, and that time proves nothing about a worker.
    """

    def __init__(self, beats: int = -1) -> None:
        """`beats` are the steps of the worker so far."""
        self._beats, self._looked, self._seconds = beats, time.monotonic(), 0.0

    def seconds(self, beats: int) -> float:
        """Look at the steps of the worker; returns the seconds without a new one."""
        now = time.monotonic()
        since = min(now - self._looked, _LONGEST_LOOK)
        self._seconds = self._seconds + since if beats == self._beats else 0.0
        self._beats, self._looked = beats, now
        return self._seconds


class Worker(Protocol):
    """Plays for some actors."""

    name: str
    actors: range
    deaths: int
    is_lost: bool
    """Whether it may still work on an order whose answer is not needed any more."""

    def has_answer(self) -> bool:
        """Whether it has done what it was asked to."""
        ...

    def take_answer(self) -> dict[str, Any]:
        """The result; raises the error of an environment."""
        ...

    def death(self, patience: float) -> str | None:
        """How it died, or that it made no step for this many seconds; None if it lives."""
        ...

    def start_again(self) -> None:
        """Replace it by a new one."""
        ...


SomeWorker = TypeVar("SomeWorker", bound=Worker)


class Supervised(Generic[SomeWorker]):
    """Waits for workers, counts what they do, and starts those again that died."""

    def __init__(self, what: str, actors: int, patience: float) -> None:
        """`what` are the environment and the kind of worker, for messages."""
        self._what, self._patience = what, patience
        self.report: Callable[[str], object] = lambda _: None
        """Is called with a message when a worker is started again."""
        self.should_stop: ShouldStop = never
        """See `Crew`."""
        self.restarts = [0] * actors
        """See `Crew`."""
        self.worker_restarts = 0
        """See `Crew`."""

    def _start_again(self, worker: Worker, death: str) -> None:
        worker.deaths += 1
        what = f"{self._what} of {worker.name} {death}"
        if worker.deaths >= _MOST_DEATHS:
            raise EnvError(f"{what}, for the third time: the training ends")
        self.worker_restarts += 1
        for actor in worker.actors:
            self.restarts[actor] += 1
        self.report(f"{what}: it is started again, and plays again")
        worker.start_again()

    @abstractmethod
    def _wait(self, waiting: Sequence[SomeWorker]) -> Sequence[SomeWorker]:
        """Wait a while, at most until one has an answer or died; returns those to look at."""

    def _answered(self, worker: SomeWorker) -> None:
        """A worker has an answer."""

    def _wait_for(
        self,
        workers: Sequence[SomeWorker],
        when: str,
        again: Callable[[SomeWorker], object],
        should_stop: ShouldStop = never,
    ) -> None:
        """Wait until all have answered; `again` repeats the order of one that had to be started again."""
        waiting = list(workers)
        try:
            self._wait_until_done(waiting, when, again, should_stop)
        except Interrupted:
            for worker in workers:
                worker.is_lost = True
            raise

    def _wait_until_done(
        self,
        waiting: list[SomeWorker],
        when: str,
        again: Callable[[SomeWorker], object],
        should_stop: ShouldStop,
    ) -> None:
        while waiting:
            for worker in self._wait(waiting):
                if worker.has_answer():
                    waiting.remove(worker)
                    self._answered(worker)
                elif (death := worker.death(self._patience)) is not None:
                    self._start_again(worker, f"{death} {when}")
                    again(worker)
            if waiting and should_stop():
                raise Interrupted(f"stopped {when}")

    def _evaluated(
        self,
        workers: Sequence[SomeWorker],
        parts: Sequence[Sequence[int]],
        ask: Callable[[SomeWorker, list[int]], object],
        should_stop: ShouldStop,
    ) -> list[PlayedEpisode]:
        """Let each worker play its share of the parts: the numbers of evaluation episodes."""
        count = min(len(parts), len(workers))
        workers = workers[:count]
        shares = [[number for part in parts[place::count] for number in part] for place in range(count)]

        def again(worker: SomeWorker) -> None:
            ask(worker, shares[workers.index(worker)])

        for worker in workers:
            worker.deaths = 0
            again(worker)
        self._wait_for(workers, "in an evaluation", again, should_stop)
        return [cast("PlayedEpisode", tuple(one)) for worker in workers for one in worker.take_answer()["played"]]

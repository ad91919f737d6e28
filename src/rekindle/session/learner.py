"""Who learns, and when: on the host's thread, or on a thread that owns the agent (`background`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from rekindle.agent import InterruptibleUpdates, LearningAgent, Metrics, ReportsEpisodes, StreamSlots, TracksStreams
from rekindle.errors import AgentError, InputError
from rekindle.experience import ActMode, Array, Observations, Transitions

__all__ = ["ClosedLearner", "DirectLearner", "Learner"]

Result = TypeVar("Result")


class Learner(Protocol):
    """What a session needs of whoever owns the agent.

    It knows whether the agent has failed: once a call that involves it raised, or a loss was not finite, what the agent
    holds is never saved, and every further call raises `AgentError`. An `InputError` is no failure: something was
    refused, and nothing changed.
    """

    skipped: int
    """Updates that were owed and given up."""
    blocked: int
    """Host calls that had to wait for room in a queue."""

    @property
    def failure(self) -> BaseException | None:
        """Why what the agent holds cannot be trusted; None if it can."""
        ...

    @property
    def updates(self) -> int:
        """Updates made so far."""
        ...

    def fail(self, error: BaseException) -> None:
        """From now on the agent has failed."""
        ...

    def refuse(self) -> NoReturn:
        """Raise `AgentError`: the agent has failed."""
        ...

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots, /) -> Array:
        """Ask for actions."""
        ...

    def observe(self, transitions: Transitions, streams: StreamSlots, /) -> None:
        """Hand over transitions; the caller may change them afterwards."""
        ...

    def cut(self, slots: list[int]) -> None:
        """The last transition of these streams was the last of its episode."""
        ...

    def learned(self) -> Iterable[tuple[int, Metrics]]:
        """Learn if it is time; returns what was learned: how many updates, and their metrics."""
        ...

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function that reads the agent, once everything handed over before was processed.

        Returns what waits for its result. If the function raises, the agent has not failed.
        """
        ...

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers on the episode that ended."""
        ...

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        ...

    def close(self) -> None:
        """Process everything handed over; afterwards the agent is the caller's."""
        ...


class DirectLearner:
    """Learns on the host's thread: inside `observe` (inline), or only when told to (manual)."""

    def __init__(self, agent: LearningAgent, *, is_manual: bool, should_stop: Callable[[], bool] | None = None) -> None:
        """With `should_stop`, `learned` raises `Interrupted` once it says so, if the agent can be interrupted."""
        self._agent = agent
        self.is_manual = is_manual
        self.skipped = self.blocked = 0
        self.failure: BaseException | None = None
        # Without a method of ours in between, which would cost as much as the rest of a short call.
        self.act: Callable[[Observations, ActMode, StreamSlots], Array] = agent.act
        self.observe: Callable[[Transitions, StreamSlots], None] = agent.observe
        self._updates_due = agent.updates_due
        # Asking whether an object follows a protocol is slow, so it is asked once.
        self._tracker = agent if isinstance(agent, TracksStreams) else None
        self._reporter = agent if isinstance(agent, ReportsEpisodes) else None
        self._interruptible = agent if isinstance(agent, InterruptibleUpdates) else None
        self._should_stop = should_stop

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._agent.updates

    def fail(self, error: BaseException) -> None:
        """From now on the agent has failed."""
        if self.failure is None:
            self.failure = error
            self.act = self.observe = self._updates_due = self.refuse

    def refuse(self, *_: Any) -> NoReturn:
        """Raise `AgentError`: the agent has failed."""
        raise AgentError(
            f"the agent failed in an earlier call ({type(self.failure).__name__}: {self.failure}), so what it holds is "
            "not saved: open the run again to go on from its last checkpoint"
        ) from self.failure

    def cut(self, slots: list[int]) -> None:
        """The last transition of these streams was the last of its episode."""
        if self._tracker is not None:
            self._tracker.cut(np.array(slots, np.int64))

    def learned(self) -> Iterable[tuple[int, Metrics]]:
        """Make the updates that are due, unless they wait for `learn`."""
        due = 0 if self.is_manual else self._updates_due()
        return (self._update(due),) if due > 0 else ()

    def learn(self, milliseconds: float | None) -> Iterator[tuple[int, Metrics]]:
        """Make the updates that are due, as long as there is time."""
        started = time.perf_counter()
        while (due := self._updates_due()) > 0:
            if milliseconds is None:
                yield make_updates(self._agent, due)
            elif (time.perf_counter() - started) * 1e3 < milliseconds:
                yield make_updates(self._agent, 1)
            else:
                return

    def _update(self, n: int) -> tuple[int, Metrics]:
        if self._should_stop is None or self._interruptible is None:
            return make_updates(self._agent, n)
        before = self._agent.updates
        metrics = self._interruptible.update_until(n, self._should_stop)
        return self._agent.updates - before, metrics

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function that reads the agent, now."""
        if self.failure is not None:
            self.refuse()
        result = function()
        return lambda: result

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers on the episode that ended."""
        return {} if self._reporter is None else self._reporter.episode_extras()

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        if self._reporter is not None:
            self._reporter.on_episode_start()

    def close(self) -> None:
        """Nothing is under way."""


def make_updates(agent: LearningAgent, n: int) -> tuple[int, Metrics]:
    """Let an agent make `n` updates; returns how many it made, as some stop early, and their metrics."""
    before = agent.updates
    metrics = agent.update(n)
    return agent.updates - before, metrics


class ClosedLearner:
    """Stands where the learner was, once a session takes no more calls."""

    skipped = blocked = updates = 0
    failure = None

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        """Refuse whatever it is asked to do."""
        raise InputError(self._why)

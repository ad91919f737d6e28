"""Who learns, and when: inside the host's calls, or on a thread that owns the agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np

from rekindle.agent import (
    LearningAgent,
    Metrics,
    ReportsEpisodes,
    StreamSlots,
    TracksStreams,
)
from rekindle.errors import InputError
from rekindle.experience import ActMode, Array, Observations, Transitions

__all__ = ["DirectLearner", "Learner"]

Result = TypeVar("Result")


class Learner(Protocol):
    """What a session needs of whoever owns the agent."""

    skipped: int
    """Updates that were owed and given up."""
    blocked: int
    """Host calls that had to wait for room in a queue."""

    @property
    def updates(self) -> int:
        """Updates made so far."""
        ...

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """Ask for actions."""
        ...

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Hand over transitions; the caller may change them afterwards."""
        ...

    def cut(self, slots: list[int]) -> None:
        """The last transition of these streams was its episode's last."""
        ...

    def learned(self) -> Iterable[tuple[int, Metrics]]:
        """Learn if it is time, and say what was learned: how many updates, and their metrics."""
        ...

    def call(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function when everything handed over before has been met; returns what waits for its result."""
        ...

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers on the episode that ended."""
        ...

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        ...

    def close(self) -> None:
        """Meet everything handed over; afterwards the agent is the caller's."""
        ...


class DirectLearner:
    """Learns on the host's thread: inside `observe` (inline), or only when told to (manual)."""

    def __init__(self, agent: LearningAgent, *, is_manual: bool) -> None:
        self._agent = agent
        self.is_manual = is_manual
        self.skipped = self.blocked = 0
        self.act = agent.act
        self.observe = agent.observe
        # Asking whether an object follows a protocol is slow, so it is asked once.
        self._tracker = agent if isinstance(agent, TracksStreams) else None
        self._reporter = agent if isinstance(agent, ReportsEpisodes) else None

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._agent.updates

    def cut(self, slots: list[int]) -> None:
        """The last transition of these streams was its episode's last."""
        if self._tracker is not None:
            self._tracker.cut(np.array(slots, np.int64))

    def learned(self) -> Iterable[tuple[int, Metrics]]:
        """Make the updates that are due, unless they wait for `learn`."""
        due = 0 if self.is_manual else self._agent.updates_due()
        return (make_updates(self._agent, due),) if due > 0 else ()

    def learn(self, milliseconds: float | None) -> Iterator[tuple[int, Metrics]]:
        """Make the updates that are due, as long as there is time."""
        started = time.perf_counter()
        while (due := self._agent.updates_due()) > 0:
            if milliseconds is None:
                yield make_updates(self._agent, due)
            elif (time.perf_counter() - started) * 1e3 < milliseconds:
                yield make_updates(self._agent, 1)
            else:
                return

    def call(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function now."""
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
    """Let an agent make `n` updates, and say how many it made: some stop early."""
    before = agent.updates
    metrics = agent.update(n)
    return agent.updates - before, metrics


class ClosedLearner:
    """Stands where the learner was, once a session is closed."""

    skipped = blocked = updates = 0

    def __getattr__(self, name: str) -> Any:
        """Refuse whatever it is asked to do."""
        raise InputError("the session is closed: open another to go on with its run")

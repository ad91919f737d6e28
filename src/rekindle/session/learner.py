"""When and where the agent learns: on the host's thread, or on its own thread (`background`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from rekindle.agent import (
    InterruptibleUpdates,
    LearningAgent,
    Metrics,
    ReportsEpisodes,
    State,
    StreamSlots,
    TracksStreams,
)
from rekindle.errors import AgentError, InputError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.session.records import Dispatched

__all__ = ["ClosedLearner", "DirectLearner", "Learner", "refuse_transitions"]

Result = TypeVar("Result")


class Learner(Protocol):
    """Owns the agent on behalf of a session.

    It tracks whether the agent has failed: once a call to it raised, or a loss was not finite, the agent's state is
    never saved, and every further call raises `AgentError`. An `InputError` is not a failure: the call was refused, and
    nothing changed.
    """

    blocked: int
    """Host calls that had to wait for room in a queue."""

    @property
    def skipped(self) -> int:
        """Updates that were due and then skipped."""
        ...

    @property
    def failure(self) -> BaseException | None:
        """Why the state of the agent cannot be trusted; None if it can."""
        ...

    @property
    def updates(self) -> int:
        """Updates made so far."""
        ...

    def fail(self, error: BaseException) -> None:
        """Mark the agent as failed."""
        ...

    def refuse(self) -> NoReturn:
        """Raise `AgentError`, because the agent has failed."""
        ...

    def look(self) -> None:
        """Take notice of the updates made so far: the current call sees these, and none that are made meanwhile."""
        ...

    def take_dispatches(self) -> list[Dispatched]:
        """What a learner on another thread did, as far as it was noticed and not returned before."""
        ...

    def exploration_state(self) -> list[Any] | None:
        """The state of the generator that explores on the host's thread; None if the agent explores itself."""
        ...

    def host_state(self) -> State | None:
        """What the host has seen of a learner on another thread, for a checkpoint."""
        ...

    def state_reader(self) -> Callable[[], State | None]:
        """A function that returns the learner's own part of a checkpoint, to be called by `read`."""
        ...

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots, /) -> Array:
        """Choose actions."""
        ...

    def observe(self, transitions: Transitions, streams: StreamSlots, /) -> None:
        """Pass transitions to the agent; the caller may change the arrays afterwards."""
        ...

    def cut(self, slots: list[int]) -> None:
        """Tell the agent that the last transition of these streams ended their episodes."""
        ...

    def learned(self) -> Iterable[tuple[int, Metrics]]:
        """Learn if updates are due; returns the number of updates made, and their metrics."""
        ...

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function that reads the agent, after everything passed before was processed.

        Returns a function that waits for its result. If the function raises, the agent has not failed.
        """
        ...

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers for the record of the episode that ended."""
        ...

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        ...

    def close(self) -> None:
        """Process everything passed so far; afterwards the caller owns the agent."""
        ...


class DirectLearner:
    """Learns on the host's thread: inside `observe` (inline), or only in `learn` (manual)."""

    def __init__(self, agent: LearningAgent, *, is_manual: bool, should_stop: Callable[[], bool] | None = None) -> None:
        """If `should_stop` returns true, `learned` raises `Interrupted`, provided that the agent can be interrupted."""
        self._agent = agent
        self.is_manual = is_manual
        self.skipped = self.blocked = 0
        self.failure: BaseException | None = None
        # Assigned directly: another method call would take as long as the rest of a short call.
        self.act: Callable[[Observations, ActMode, StreamSlots], Array] = agent.act
        self.observe: Callable[[Transitions, StreamSlots], None] = agent.observe
        self._updates_due = agent.updates_due
        # isinstance with a protocol is slow, so do it once.
        self._tracker = agent if isinstance(agent, TracksStreams) else None
        self._reporter = agent if isinstance(agent, ReportsEpisodes) else None
        self._interruptible = agent if isinstance(agent, InterruptibleUpdates) else None
        self._should_stop = should_stop

    @property
    def updates(self) -> int:
        """Updates made so far."""
        return self._agent.updates

    def look(self) -> None:
        """Nothing to notice: updates are made in the calls of the host."""

    def take_dispatches(self) -> list[Dispatched]:
        """None: the calls of the host decide."""
        return []

    def exploration_state(self) -> None:
        """None: the agent explores itself."""

    def host_state(self) -> None:
        """None: there is nothing that the host has not seen."""

    def state_reader(self) -> Callable[[], None]:
        """None: the agent has all of the state."""
        return lambda: None

    def fail(self, error: BaseException) -> None:
        """Mark the agent as failed."""
        if self.failure is None:
            self.failure = error
            self.act = self.observe = self._updates_due = self.refuse

    def refuse(self, *_: Any) -> NoReturn:
        """Raise `AgentError`, because the agent has failed."""
        raise AgentError(
            f"the agent failed in an earlier call ({type(self.failure).__name__}: {self.failure}), so its state is "
            "not saved: open the run again to continue from its last checkpoint"
        ) from self.failure

    def cut(self, slots: list[int]) -> None:
        """Tell the agent that the last transition of these streams ended their episodes."""
        if self._tracker is not None:
            self._tracker.cut(np.array(slots, np.int64))

    def learned(self) -> Iterable[tuple[int, Metrics]]:
        """Make the updates that are due, unless the learner is manual."""
        due = 0 if self.is_manual else self._updates_due()
        return (self._update(due),) if due > 0 else ()

    def learn(self, milliseconds: float | None) -> Iterator[tuple[int, Metrics]]:
        """Make the updates that are due, as long as time is left."""
        started = time.perf_counter()
        while (due := self._updates_due()) > 0:
            if milliseconds is None:
                yield make_updates(self._agent, due)
            elif (time.perf_counter() - started) * 1e3 < milliseconds:
                yield make_updates(self._agent, 1)
            else:
                return

    def learn_again(self, sizes: Iterable[int]) -> Iterator[tuple[int, Metrics]]:
        """Make dispatches of these sizes, as `learn` did."""
        for size in sizes:
            yield make_updates(self._agent, size)

    def _update(self, n: int) -> tuple[int, Metrics]:
        if self._should_stop is None or self._interruptible is None:
            return make_updates(self._agent, n)
        before = self._agent.updates
        metrics = self._interruptible.update_until(n, self._should_stop)
        return self._agent.updates - before, metrics

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function that reads the agent, immediately."""
        if self.failure is not None:
            self.refuse()
        result = function()
        return lambda: result

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers for the record of the episode that ended."""
        return {} if self._reporter is None else self._reporter.episode_extras()

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        if self._reporter is not None:
            self._reporter.on_episode_start()

    def close(self) -> None:
        """Nothing to do: no work is pending."""


def make_updates(agent: LearningAgent, n: int) -> tuple[int, Metrics]:
    """Let an agent make `n` updates; returns how many it made, as it may stop early, and their metrics."""
    before = agent.updates
    metrics = agent.update(n)
    return agent.updates - before, metrics


def refuse_transitions(*_: Any) -> NoReturn:
    """Raise `InputError`: in place of `observe`, if the agent learns from data alone."""
    raise InputError("the agent learns from data alone, and takes no transitions: call learn(updates=...)")


class ClosedLearner:
    """Replaces the learner of a closed session."""

    skipped = blocked = updates = 0
    failure = None

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        """Raise for every attribute."""
        raise InputError(self._why)

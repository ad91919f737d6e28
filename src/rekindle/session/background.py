"""A learner on a thread that owns the agent."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import (
    HasPolicy,
    LearningAgent,
    Metrics,
    Policy,
    ReportsEpisodes,
    SkipsUpdates,
    StreamSlots,
    TracksStreams,
    VersionsPolicies,
)
from rekindle.errors import AgentError, ConfigError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.session.learner import Result, make_updates
from rekindle.spaces import ActionStructure

__all__ = ["BackgroundLearner"]
_DISPATCH = 8
"""Updates between two checks of the queue."""
_WAIT = 0.001
"""Seconds between two checks of a full queue."""
_BACKLOG = 256
"""Updates that may be due before the rest is skipped."""


def with_policy(agent: LearningAgent) -> HasPolicy:
    """Return the agent if it has `policy()`; raise `ConfigError` otherwise."""
    if isinstance(agent, HasPolicy):
        return agent
    raise ConfigError(
        f"learner='background' needs an agent with policy(), which {type(agent).__name__} lacks: "
        "use learner='inline' or 'manual'"
    )


_Observed = tuple[Transitions, StreamSlots, NDArray[np.int64] | None]
"""Transitions, their streams, and for an agent that needs them the versions of the policies that chose the actions."""


class _Call(msgspec.Struct, frozen=True, eq=False):
    function: Callable[[], Any]
    future: Future[Any]
    changes: bool
    """Whether the call changes the agent; if it does and raises, the agent has failed."""


class BackgroundLearner:
    """Learns on a thread that owns the agent, so that a frame of the host never waits for an update.

    The calls of the host become messages in a bounded queue, processed in order. The host acts with an immutable
    policy, which is published after each round of updates, and draws the random numbers itself.
    """

    def __init__(self, agent: LearningAgent, exploration: np.random.Generator, *, capacity: int = 4096) -> None:
        self._agent = agent
        self._publisher = with_policy(agent)
        self._tracker = agent if isinstance(agent, TracksStreams) else None
        self._reporter = agent if isinstance(agent, ReportsEpisodes) else None
        self._skipper = agent if isinstance(agent, SkipsUpdates) else None
        self._versioned = agent if isinstance(agent, VersionsPolicies) else None
        self._exploration = exploration
        self._structure = ActionStructure.of(getattr(agent, "action_space", None))
        self._published = self._newest()
        """The policy that acts, and its version."""
        self._chosen_by: dict[int, int] = {}
        """For each stream, the version of the policy that chose its pending action."""
        self._updates = agent.updates
        self._extras: Mapping[str, float] = {}
        self._metrics: deque[tuple[int, Metrics]] = deque()
        self.skipped = self.blocked = 0
        self.failure: BaseException | None = None
        """What the agent raised, or why it counts as failed; its state is then not saved."""
        self._capacity = capacity
        self._queue: queue.SimpleQueue[_Observed | _Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rekindle-learner", daemon=True)
        self._thread.start()

    # On the host's thread

    @property
    def updates(self) -> int:
        """Updates made, as of the last publication."""
        return self._updates

    def fail(self, error: BaseException) -> None:
        """Mark the agent as failed."""
        if self.failure is None:
            self.failure = error

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """Act with the newest policy."""
        self._raise_failure()
        policy, version = self._published
        if self._versioned is not None and mode is ActMode.EXPLORE:
            self._chosen_by.update(dict.fromkeys(streams.tolist(), version))
        actions = policy.act(observations, mode, self._exploration)
        # A policy returns composite actions in their structure; the session takes what the agent would return.
        return actions if self._structure is None else self._structure.flat(actions, "actions", rows=len(streams))

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Queue a copy of the transitions."""
        versions = None
        if self._versioned is not None:
            newest = self._published[1]
            versions = np.array([self._chosen_by.pop(slot, newest) for slot in streams.tolist()], np.int64)
        self._put((transitions.copy(), streams.copy(), versions))

    def cut(self, slots: list[int]) -> None:
        """Tell the agent that the last transition of these streams ended their episodes."""
        tracker = self._tracker
        if tracker is not None:
            self._send(lambda: tracker.cut(np.array(slots, np.int64)), changes=True)

    def learned(self) -> Iterator[tuple[int, Metrics]]:
        """The updates made since the last call, with their metrics."""
        self._raise_failure()
        while self._metrics:
            yield self._metrics.popleft()

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Let the learner call a function after it has processed everything queued before."""
        return self._send(function, changes=False)

    def _send(self, function: Callable[[], Result], *, changes: bool) -> Callable[[], Result]:
        future: Future[Result] = Future()
        self._put(_Call(function, future, changes))
        if self.failure is not None:  # the agent may have failed after the learner checked the queue for the last time
            self._refuse_the_rest(self.failure)
        return future.result

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers for an episode record, as of the last publication."""
        return self._extras

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        if self._reporter is not None:
            self._send(self._reporter.on_episode_start, changes=True)

    def close(self) -> None:
        """Let the learner process everything queued, then end its thread."""
        if self._thread.is_alive():
            self._queue.put(None)
        self._thread.join()
        self._raise_failure()

    def refuse(self) -> NoReturn:
        """Raise `AgentError`: the agent has failed."""
        if isinstance(self.failure, AgentError):
            raise self.failure
        raise AgentError(f"the agent failed in the background: {self.failure!r}") from self.failure

    def _raise_failure(self) -> None:
        if self.failure is not None:
            self.refuse()

    def _put(self, message: _Observed | _Call) -> None:
        self._raise_failure()
        if self._queue.qsize() >= self._capacity:
            self.blocked += 1
            while self._queue.qsize() >= self._capacity:
                time.sleep(_WAIT)
                self._raise_failure()
        self._queue.put(message)

    # On the learner's thread

    def _work(self) -> None:
        try:
            while self._process_messages():
                if self._versioned is not None and self._versioned.policy_version != self._published[1]:
                    self._publish()  # an agent may change its policy without an update
                due = self._agent.updates_due()
                if due > _BACKLOG and self._skipper is not None:
                    self._skipper.skip_updates(due - _BACKLOG)
                    self.skipped += due - _BACKLOG
                if due > 0:
                    count = min(due, _DISPATCH)
                    self._metrics.append(make_updates(self._agent, count))
                    self._publish()
        except BaseException as error:  # the next call of the host raises it, whatever it was
            self.failure = error
            self._refuse_the_rest(error)

    def _process_messages(self) -> bool:
        """Process the messages in the queue; if no update is due, wait for one. Returns False at the end."""
        block = self._agent.updates_due() == 0
        for _ in range(self._queue.qsize() + 1):  # only those queued now: a busy host must not starve updates
            try:
                message = self._queue.get(block=block)
            except queue.Empty:
                return True
            block = False
            if message is None:
                self._publish()
                return False
            if isinstance(message, _Call):
                try:
                    message.future.set_result(message.function())
                except BaseException as error:
                    message.future.set_exception(error)
                    if message.changes:
                        raise
            else:
                transitions, streams, versions = message
                if self._versioned is not None and versions is not None:
                    self._versioned.chose(streams, versions)
                self._agent.observe(transitions, streams)
        return True

    def _publish(self) -> None:
        self._published = self._newest()
        self._updates = self._agent.updates
        if self._reporter is not None:
            self._extras = dict(self._reporter.episode_extras())

    def _newest(self) -> tuple[Policy, int]:
        return self._publisher.policy(), 0 if self._versioned is None else self._versioned.policy_version

    def _refuse_the_rest(self, error: BaseException) -> None:
        while True:
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Call):
                message.future.set_exception(error)

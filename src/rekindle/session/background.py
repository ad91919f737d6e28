"""A learner on a thread that owns the agent.

When it updates depends on the clock. With an input journal, the records of calls say which updates a call had seen, and
after how many messages each of them was made: a replay makes them at the same place, on one thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NoReturn, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import HasPolicy, LearningAgent, Metrics, Policy, SkipsUpdates, State, StreamSlots
from rekindle.errors import AgentError, ConfigError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.priority import LEARNER_NICENESS, lower_priority
from rekindle.session.learner import Result, make_updates
from rekindle.session.learner_view import Dispatch, HostsView
from rekindle.session.records import Dispatched
from rekindle.spaces import ActionStructure

__all__ = ["BackgroundLearner", "with_policy"]

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


class BackgroundLearner(HostsView):
    """Learns on a thread that owns the agent, so that a frame of the host never waits for an update.

    The calls of the host become messages in a bounded queue, processed in order. The host acts with an immutable
    policy, which is published after each round of updates, and draws the random numbers itself.
    """

    def __init__(
        self,
        agent: LearningAgent,
        exploration: np.random.Generator,
        *,
        before: HostsView | None = None,
        capacity: int = 4096,
    ) -> None:
        """`before` is the learner whose work this one continues, after a replay."""
        super().__init__(agent, exploration, before)
        self._publisher = with_policy(agent)
        self._skipper = agent if isinstance(agent, SkipsUpdates) else None
        self._structure = ActionStructure.of(getattr(agent, "action_space", None))
        self.seen = self.seen._replace(policy=self._publisher.policy())
        self._published = self.seen
        self._done: deque[Dispatch] = deque()
        """Dispatches that the host has not noticed."""
        self._unsaved: deque[Dispatch] = deque()
        """The same for the learner's thread, which saves them with a checkpoint."""
        self._floor = self.seen.number
        """The newest dispatch that need not be saved."""
        self._is_saving = False
        self._dispatches = self.seen.number
        self._processed: int = self.sent
        self._skipped = self.seen.skipped
        self._capacity = capacity
        self._queue: queue.SimpleQueue[_Observed | _Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rekindle-learner", daemon=True)
        self._thread.start()

    # On the host's thread

    def look(self) -> None:
        """Take notice of the newest publication, and of the dispatches before it."""
        newest = self._published
        while self._done and self._done[0].publication.number <= newest.number:
            self.notice(self._done.popleft())
        self.seen = newest
        if not self._is_saving:
            self._floor = newest.number

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """Act with the newest policy; explore with the newest that the current call has noticed."""
        self._raise_failure()
        seen = self._published
        if mode is ActMode.EXPLORE:
            seen = self.seen
            self.remember_choice(streams)
        self.has_drawn = True
        actions = cast("Policy", seen.policy).act(observations, mode, self.exploration)
        # A policy returns composite actions in their structure; the session takes what the agent would return.
        return actions if self._structure is None else self._structure.flat(actions, "actions", rows=len(streams))

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Queue a copy of the transitions."""
        self._put((transitions.copy(), streams.copy(), self.take_versions(streams)))
        self.sent += 1

    def cut(self, slots: list[int]) -> None:
        """Tell the agent that the last transition of these streams ended their episodes."""
        tracker = self.tracker
        if tracker is not None:
            self._send(lambda: tracker.cut(np.array(slots, np.int64)), changes=True)

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Let the learner call a function after it has processed everything queued before."""
        return self._send(function, changes=False)

    def learned(self) -> list[tuple[int, Metrics]]:
        """The updates that were noticed since the last call, with their metrics."""
        self._raise_failure()
        return super().learned()

    def _send(self, function: Callable[[], Result], *, changes: bool) -> Callable[[], Result]:
        future: Future[Result] = Future()
        self._put(_Call(function, future, changes))
        self.sent += changes
        if self.failure is not None:  # the agent may have failed after the learner checked the queue for the last time
            self._refuse_the_rest(self.failure)
        return future.result

    def start_episode(self) -> None:
        """Tell the agent that an episode starts."""
        if self.reporter is not None:
            self._send(self.reporter.on_episode_start, changes=True)

    def state_reader(self) -> Callable[[], State]:
        """A function that returns the learner's part of a checkpoint, to be called by `read`."""
        self._is_saving, seen = True, self.seen.number

        def read() -> State:
            state: State = {
                "dispatches": self._dispatches,
                "messages": self._processed,
                "unseen": [one.state() for one in self._unsaved if one.publication.number > seen],
            }
            self._is_saving = False
            return state

        return read

    def close(self) -> None:
        """Let the learner process everything queued, then end its thread."""
        if self._thread.is_alive():
            self._queue.put(None)
        self._thread.join()
        self.look()
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
        lower_priority(LEARNER_NICENESS)  # it computes all the time: the host, and threads that write files, go first
        try:
            while self._process_messages():
                if self.versioned is not None and self.versioned.policy_version != self._published.version:
                    self._dispatched(0, 0, None)  # an agent may change its policy without an update
                due, skipped = self._agent.updates_due(), 0
                if due > _BACKLOG and self._skipper is not None:
                    skipped = due - _BACKLOG
                    self._skipper.skip_updates(skipped)
                    self._skipped += skipped
                if due > 0:
                    count = min(due, _DISPATCH)
                    self._dispatched(skipped, count, make_updates(self._agent, count))
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
                return False
            if isinstance(message, _Call):
                self._processed += message.changes
                try:
                    message.future.set_result(message.function())
                except BaseException as error:
                    message.future.set_exception(error)
                    if message.changes:
                        raise
            else:
                self._processed += 1
                self.pass_on(*message)
        return True

    def _dispatched(self, skipped: int, count: int, made: tuple[int, Metrics] | None) -> None:
        """Publish the result of a dispatch."""
        self._dispatches += 1
        publication = self.publication(self._dispatches, self._skipped, self._publisher.policy())
        dispatch = Dispatch(Dispatched(self._dispatches, self._processed, skipped, count), publication, made)
        self._unsaved.append(dispatch)
        while self._unsaved and self._unsaved[0].publication.number <= self._floor:
            self._unsaved.popleft()
        self._done.append(dispatch)
        self._published = publication

    def _refuse_the_rest(self, error: BaseException) -> None:
        while True:
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Call):
                message.future.set_exception(error)

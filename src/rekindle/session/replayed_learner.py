"""A background learner whose decisions are known: it repeats them, on the host's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from rekindle.agent import LearningAgent, SkipsUpdates, State, StreamSlots
from rekindle.errors import AgentError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.session.learner import Result, make_updates
from rekindle.session.learner_view import Dispatch, HostsView
from rekindle.session.records import Context, Dispatched

__all__ = ["Acted", "ReplayedLearner"]

Acted = tuple[Array, Array]
"""The rows of the table for which a call acted, and the actions that it returned."""
_NOTHING: Acted = np.zeros(0, np.int64), np.zeros(0)


class ReplayedLearner(HostsView):
    """Makes the dispatches that calls had seen, each after the messages that it was made after."""

    def __init__(self, agent: LearningAgent, exploration: np.random.Generator, state: State | None) -> None:
        """`state` is the learner's part of the checkpoint; None if there is no checkpoint."""
        super().__init__(agent, exploration, None)
        self._skipper = agent if isinstance(agent, SkipsUpdates) else None
        self._messages: deque[Callable[[], None]] = deque()
        self._processed = self._dispatches = self._skipped = 0
        self._unseen: dict[int, Dispatch] = {}
        """Dispatches that the agent of the checkpoint had made, and the host had not noticed."""
        if state is not None:
            self.load_host_state(state)
            self._processed, self._dispatches = state["messages"], state["dispatches"]
            self._unseen = {one.publication.number: one for one in map(Dispatch.of_state, state["unseen"])}
            newest = [one.publication.skipped for one in self._unseen.values()]
            self._skipped = newest[-1] if newest else self.seen.skipped
        self._decided: list[Dispatched] = []
        self._acted: Acted | None = None
        self.acted_in_callback: Callable[[], Acted | None] = lambda: None
        """The same for a call that a callback makes now; None outside of one."""

    def prepare(self, context: Context, acted: Acted | None) -> None:
        """Get ready for a call: what it had seen, and what it returned."""
        self._decided, self._acted = context.dispatches, acted

    def look(self) -> None:
        """Make the dispatches that the call had seen."""
        decided, self._decided = self._decided, []
        for one in decided:
            if one.number > self.seen.number:  # a refused call may have seen it before the checkpoint
                self._see(one)

    def _see(self, one: Dispatched) -> None:
        dispatch = self._unseen.pop(one.number, None) or self._dispatched(one)
        self.notice(dispatch)
        self.seen = dispatch.publication

    def _dispatched(self, one: Dispatched) -> Dispatch:
        while self._processed < one.messages and self._messages:
            self._process()
        if one.skipped and self._skipper is not None:
            self._skipper.skip_updates(one.skipped)
            self._skipped += one.skipped
        made = make_updates(self._agent, one.updates) if one.updates else None
        self._dispatches = one.number
        return Dispatch(one, self.publication(one.number, self._skipped, None), made)

    def _process(self) -> None:
        self._messages.popleft()()
        self._processed += 1

    def finish(self) -> None:
        """Process what is left, so that another learner can continue; notice what no call had noticed."""
        self.take_dispatches()
        while self._messages:
            self._process()
        for number in sorted(self._unseen):
            self.notice(self._unseen.pop(number))
        self.seen = self.publication(self._dispatches, self._skipped, None)

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """Return the actions that were returned."""
        if mode is not ActMode.EXPLORE:
            return self._agent.act(observations, mode, streams)
        self.remember_choice(streams)
        slots, actions = self.acted_in_callback() or self._acted or _NOTHING
        by_slot = dict(zip(slots.tolist(), actions, strict=True))
        return np.stack([by_slot[slot] for slot in streams.tolist()])

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Queue a copy of the transitions."""
        copy, slots, versions = transitions.copy(), streams.copy(), self.take_versions(streams)
        self._send(lambda: self.pass_on(copy, slots, versions))

    def cut(self, slots: list[int]) -> None:
        """Queue the ends of episodes."""
        tracker = self.tracker
        if tracker is not None:
            self._send(lambda: tracker.cut(np.array(slots, np.int64)))

    def start_episode(self) -> None:
        """Queue the start of an episode."""
        if self.reporter is not None:
            self._send(self.reporter.on_episode_start)

    def _send(self, message: Callable[[], None]) -> None:
        self._messages.append(message)
        self.sent += 1

    def read(self, function: Callable[[], Result]) -> Callable[[], Result]:
        """Call a function that reads the agent, immediately."""
        result = function()
        return lambda: result

    def bring_to(self, state: State, following: Sequence[Dispatched]) -> None:
        """Do what the learner had done when a checkpoint was taken, as the learner's part of that says.

        A refused call may have seen dispatches before the checkpoint that are named by the record `following` it.
        """
        for one in following:
            if self.seen.number < one.number <= state["seen"][0]:
                self._see(one)
        for decided in map(Dispatch.of_state, state["unseen"]):
            one = decided.dispatched
            if one.number not in self._unseen:
                self._unseen[one.number] = self._dispatched(one)
        while self._processed < state["messages"] and self._messages:
            self._process()

    def state_reader(self) -> Callable[[], State]:
        """A function that returns the learner's part of a checkpoint."""
        unseen = [one.state() for _, one in sorted(self._unseen.items())]
        state: State = {"dispatches": self._dispatches, "messages": self._processed, "unseen": unseen}
        return lambda: state

    def refuse(self) -> NoReturn:
        """Raise `AgentError`: the agent has failed."""
        raise AgentError(f"the agent failed while the calls of a journal were replayed: {self.failure}")

    def close(self) -> None:
        """Nothing to do: no thread is running."""

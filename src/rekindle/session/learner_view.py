"""What the host sees of a learner that is not on its thread: its publications, and what follows from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import (
    LearningAgent,
    Metrics,
    Policy,
    ReportsEpisodes,
    State,
    StreamSlots,
    TracksStreams,
    VersionsPolicies,
    numbers_of,
)
from rekindle.checks import checked_extras
from rekindle.experience import Transitions
from rekindle.session.records import Dispatched

__all__ = ["Dispatch", "HostsView", "Publication"]


class Publication(NamedTuple):
    """The learner after a dispatch, as far as the host sees it."""

    number: int
    """Dispatches so far."""
    version: int
    """The version of the policy, for an agent that counts them."""
    updates: int
    skipped: int
    """Updates that were skipped so far."""
    extras: Mapping[str, float]
    """The agent's own numbers for the record of an episode."""
    policy: Policy | None = None


class Dispatch(NamedTuple):
    """A dispatch and its result."""

    dispatched: Dispatched
    publication: Publication
    made: tuple[int, Metrics] | None
    """The number of updates made, and their metrics; None if there were none."""

    def state(self) -> State:
        """For a checkpoint, if the host has not noticed the dispatch yet."""
        made = None if self.made is None else _updates_state(*self.made)
        number, version, updates, skipped, extras, _ = self.publication
        return {
            "dispatched": list(msgspec.structs.astuple(self.dispatched)),
            "publication": [number, version, updates, skipped, dict(extras)],
            "made": made,
        }

    @classmethod
    def of_state(cls, state: State) -> Dispatch:
        """Restore a saved state."""
        made = None if state["made"] is None else (int(state["made"][0]), dict(state["made"][1]))
        return cls(Dispatched(*state["dispatched"]), Publication(*state["publication"]), made)


class HostsView:
    """The host's side of a learner: what it has noticed, and which policies chose the pending actions."""

    blocked = 0
    """Calls that had to wait for room in a queue."""

    def __init__(self, agent: LearningAgent, exploration: np.random.Generator, before: HostsView | None) -> None:
        self._agent = agent
        self.exploration = exploration
        """The generator that explores on the host's thread."""
        self.has_drawn = True
        """Whether it may have been used since `exploration_state` was last called."""
        self.tracker = agent if isinstance(agent, TracksStreams) else None
        self.reporter = agent if isinstance(agent, ReportsEpisodes) else None
        self.versioned = agent if isinstance(agent, VersionsPolicies) else None
        self.failure: BaseException | None = None
        """What the agent raised, or why it counts as failed; its state is then not saved."""
        self.seen = self.publication(0, 0, None) if before is None else before.seen
        self.sent: int = 0 if before is None else before.sent
        """Messages to the learner that change the agent."""
        self.chosen_by: dict[int, int] = {} if before is None else before.chosen_by
        """For each stream, the version of the policy that chose its pending action."""
        self.unlogged: deque[tuple[int, Metrics]] = deque() if before is None else before.unlogged
        self._noticed: list[Dispatched] = [] if before is None else before.take_dispatches()

    @property
    def updates(self) -> int:
        """Updates made, as far as the host has noticed."""
        return self.seen.updates

    @property
    def skipped(self) -> int:
        """Updates that were due and then skipped, as far as the host has noticed."""
        return self.seen.skipped

    def fail(self, error: BaseException) -> None:
        """Mark the agent as failed."""
        if self.failure is None:
            self.failure = error

    def notice(self, dispatch: Dispatch) -> None:
        """Take notice of a dispatch."""
        self._noticed.append(dispatch.dispatched)
        if dispatch.made is not None:
            self.unlogged.append(dispatch.made)

    def take_dispatches(self) -> list[Dispatched]:
        """The dispatches that were noticed since the last call."""
        noticed, self._noticed = self._noticed, []
        return noticed

    def learned(self) -> list[tuple[int, Metrics]]:
        """The updates that were noticed since the last call, with their metrics."""
        learned = list(self.unlogged)
        self.unlogged.clear()
        return learned

    def episode_extras(self) -> Mapping[str, float]:
        """The agent's own numbers for an episode record, as of the last publication."""
        return self.seen.extras

    def remember_choice(self, streams: StreamSlots) -> None:
        """Actions were chosen for these streams."""
        if self.versioned is not None:
            self.chosen_by.update(dict.fromkeys(streams.tolist(), self.seen.version))

    def take_versions(self, streams: StreamSlots) -> NDArray[np.int64] | None:
        """The versions of the policies that chose the pending actions of these streams, which are now observed."""
        if self.versioned is None:
            return None
        newest = self.seen.version
        return np.array([self.chosen_by.pop(slot, newest) for slot in streams.tolist()], np.int64)

    def exploration_state(self) -> list[Any] | None:
        """The state of the exploring generator, without the parts that never change; None if it has not changed."""
        if not self.has_drawn:
            return None
        self.has_drawn = False
        state: Any = self.exploration.bit_generator.state
        return [state["state"]["state"].to_bytes(16, "little"), state["has_uint32"], state["uinteger"]]

    def load_exploration(self, saved: list[Any]) -> None:
        """Restore what `exploration_state` returned."""
        bits = self.exploration.bit_generator
        state: Any = bits.state
        number, has_uint32, uinteger = saved
        state["state"]["state"] = int.from_bytes(number, "little")
        bits.state = {**state, "has_uint32": has_uint32, "uinteger": uinteger}

    def publication(self, number: int, skipped: int, policy: Policy | None) -> Publication:
        """The agent now, as the host may see it."""
        version = 0 if self.versioned is None else self.versioned.policy_version
        extras = {} if self.reporter is None else checked_extras(self.reporter.episode_extras())
        return Publication(number, version, int(self._agent.updates), skipped, extras, policy)

    def pass_on(self, transitions: Transitions, streams: StreamSlots, versions: NDArray[np.int64] | None) -> None:
        """Let the agent observe transitions."""
        if self.versioned is not None and versions is not None:
            self.versioned.chose(streams, versions)
        self._agent.observe(transitions, streams)

    def host_state(self) -> State:
        """The host's side for a checkpoint."""
        number, version, updates, skipped, extras, _ = self.seen
        return {
            "seen": [number, version, updates, skipped, dict(extras)],
            "sent": self.sent,
            "chosen_by": [[slot, version] for slot, version in self.chosen_by.items()],
            "unlogged": [_updates_state(count, metrics) for count, metrics in self.unlogged],
        }

    def load_host_state(self, state: State) -> None:
        """Restore what `host_state` returned."""
        self.seen = Publication(*state["seen"])
        self.sent = state["sent"]
        self.chosen_by = dict(state["chosen_by"])
        self.unlogged.extend((count, metrics) for count, metrics in state["unlogged"])


def _updates_state(count: int, metrics: Metrics) -> list[Any]:
    return [count, {name: np.array(numbers_of(value), np.float64) for name, value in metrics.items()}]

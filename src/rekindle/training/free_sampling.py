"""Free actors: no rounds, and no actor waits for another. What is learned depends on timing, so it is not exact."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import cast

import msgspec
import numpy as np

from rekindle.actors.policies import packed_policy, policy_of
from rekindle.actors.processes import ActorProcesses
from rekindle.actors.rounds import ActorStart, Order, Played, first_start, next_starts
from rekindle.agent import PortablePolicy, State, VersionsPolicies
from rekindle.checks import refuses_misfits
from rekindle.errors import EnvError, InputError, StateError
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.session.session import TrainingSession
from rekindle.stats import EpisodeRecord
from rekindle.training.actor_metrics import ChunkMetrics
from rekindle.training.sampling import Round, StepProcessor

__all__ = ["FreeSampler"]

_MOST_QUEUED = 2
"""Chunks of a worker that wait for the learner before the worker has to wait too, so that no policy is much older."""
_WAIT = 0.5


class _Chunk(msgspec.Struct, frozen=True, eq=False):
    """What the actors of a worker have played with one policy."""

    place: int
    actors: range
    played: Played
    updates: int
    """Updates of the agent when its policy was made."""


class FreeSampler:
    """Learns from chunks in the order in which they arrive, while all actors play on with the newest policy."""

    def __init__(
        self, session: TrainingSession, crew: ActorProcesses, *, seed: int, processor: StepProcessor | None = None
    ) -> None:
        self._session, self._crew, self._processor = session, crew, processor
        self._shape = shape = crew.shape
        agent = session.agent
        self._versioned = agent if isinstance(agent, VersionsPolicies) else None
        self._slots = np.array([session.stream(row).id for row in range(shape.rows)], np.int64)
        self._starts: list[ActorStart] = [first_start(seed, actor, shape.envs_each) for actor in range(shape.actors)]
        """Where actors stand after what was received of them."""
        self._queue: deque[_Chunk] = deque()
        self._queued: Counter[int] = Counter()
        """Chunks in the queue, by worker."""
        self._learning: tuple[_Chunk, int] | None = None
        """The chunk that is being learned from, and the env steps of the training before it."""
        self._playing: dict[int, tuple[Order, int]] = {}
        """What each worker plays, and the updates of its policy."""
        self._number = 0
        self._newest: tuple[int, Array] | None = None
        """The newest policy, and the updates after which it was made."""
        self._metrics = ChunkMetrics(session, crew)
        self._steps: Iterator[Round] | None = None
        self._should_stop: ShouldStop = never
        """Whether to stop without another chunk."""
        session.attach("actors", self)
        session.mark_inexact("free actors: what is learned depends on timing, so the run cannot be repeated exactly")

    def sample(self) -> Round:
        """Make one step in the environments of a worker."""
        if self._steps is None:
            self._steps = self._endless()
        return next(self._steps)

    def _endless(self) -> Iterator[Round]:
        self._session.together.finish()
        while True:
            yield from self._chunk()

    def steps(self) -> Iterator[Round]:
        """Learn until the session is done, and yield every step of the environments of a worker."""
        session = self._session
        self._should_stop = session.interrupter.should_stop
        session.together.finish()
        while not session.is_done:
            yield from self._chunk()

    # Chunks

    def _chunk(self) -> Iterator[Round]:
        self._receive(0.0)
        if self._learning is None:
            with self._metrics.waiting():
                while not self._queue:
                    if self._should_stop():
                        return
                    self._receive(_WAIT)
            self._learning = self._queue.popleft(), self._session.total_steps
            self._queued[self._learning[0].place] -= 1
        chunk, _ = self._learning
        staleness = int(self._session.agent.updates) - chunk.updates
        with self._session.together:
            for index in range(self._learned(), self._shape.steps):
                yield self._learn(chunk, index)
                if self._session.together.is_interrupted:
                    return
                self._receive(0.0)
            self._learning = None
            self._metrics.log(chunk.actors, staleness, len(self._queue))

    def _learned(self) -> int:
        """How many steps of the chunk that is being learned from the session has seen."""
        if self._learning is None:
            return 0
        chunk, before = self._learning
        return (self._session.total_steps - before) // (len(chunk.actors) * self._shape.envs_each)

    def _receive(self, seconds: float) -> None:
        """Take what workers have played, and let them play on at once."""
        shape = self._shape
        for place, arrays, ends in self._crew.take_ready(seconds):
            order, updates = self._playing.pop(place)
            actors = self._crew.shares[place]
            self._metrics.received(place, actors, ends)
            played = Played.of(order, arrays, ends, shape)
            starts = next_starts(self._starts[actors.start : actors.stop], arrays, ends, shape)
            self._starts[actors.start : actors.stop] = starts
            self._queue.append(_Chunk(place, actors, played, updates))
            self._queued[place] += 1
        for place in range(len(self._crew.shares)):
            if place not in self._playing and self._queued[place] < _MOST_QUEUED:
                self._start(place)

    def _start(self, place: int) -> None:
        updates = int(self._session.agent.updates)
        if self._newest is None or self._newest[0] != updates:
            policy = cast("PortablePolicy", policy_of(self._session.agent))
            self._newest = updates, packed_policy(policy)
        version = None if self._versioned is None else int(self._versioned.policy_version)
        order = Order(self._number, self._session.total_steps, self._newest[1], version, list(self._starts))
        self._number += 1
        self._playing[place] = order, updates
        self._crew.start_one(place, order)

    # Learning

    def _learn(self, chunk: _Chunk, index: int) -> Round:
        session, played = self._session, chunk.played
        each = self._shape.rows_of(chunk.actors)
        rows = range(each.start, each.stop)
        if index == 0:
            for row in played.abandoned:
                session.mark_inexact(f"the open episode of stream {rows[row]} could not be replayed: it was truncated")
                session.stream(rows[row]).abandon()
        transitions = played.step(index, self._shape.layout)
        if self._processor is not None:
            rewards = np.asarray(self._processor(transitions, rows), np.float64)
            transitions = msgspec.structs.replace(transitions, rewards=rewards)
        if self._versioned is not None and played.version is not None:
            self._versioned.chose(self._slots[each], np.full(len(rows), played.version, np.int64))
        try:
            ended = cast("list[int]", session.observe_many(transitions, streams=rows))
        except InputError as error:
            raise EnvError(f"chunk {played.number}, step {index}: {error} (env step {session.total_steps})") from error
        records = session.on_episodes({row: played.extras.get((index, row - rows.start), {}) for row in ended})
        named = cast("dict[int, EpisodeRecord]", records)
        return Round(rows, transitions.rewards, transitions.statuses, named)

    # State

    def state(self) -> State:
        """The states of actors, and the transitions that were received and not learned from."""
        chunks = [*self._queue] if self._learning is None else [self._learning[0], *self._queue]
        queue = [
            {"actors": [chunk.actors.start, chunk.actors.stop], "played": chunk.played.state()} for chunk in chunks
        ]
        return {"starts": [start.tree() for start in self._starts], "queue": queue, "learned": self._learned()}

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Restore a state."""
        shape = self._shape
        if len(state["starts"]) != shape.actors:
            raise StateError(f"the run has {len(state['starts'])} actors, not {shape.actors}")
        self._starts = [ActorStart.of_tree(tree, shape) for tree in state["starts"]]
        for saved in state["queue"]:
            actors = range(*saved["actors"])
            rows = shape.rows_of(actors)
            if not 0 <= actors.start < actors.stop <= shape.actors:
                raise StateError(f"a chunk is of the actors {saved['actors']!r:.40}")
            played = Played.of_state(saved["played"], shape, rows=rows.stop - rows.start)
            self._queue.append(_Chunk(-1, actors, played, int(self._session.agent.updates)))
        learned = state.get("learned", 0)
        if type(learned) is not int or not 0 <= learned <= shape.steps or (learned and not self._queue):
            raise StateError(f"{learned!r:.40} steps of a chunk were learned from")
        if learned:
            chunk = self._queue.popleft()
            rows = len(chunk.actors) * shape.envs_each
            self._learning = chunk, self._session.total_steps - learned * rows

"""What actors and the learner do all the time, under `time/`, because it depends on where actors run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence

from rekindle.actors.casting import Crew
from rekindle.actors.rounds import ActorEnd
from rekindle.session.session import TrainingSession

__all__ = ["ChunkMetrics", "RoundMetrics"]

_LEAST = 1e-9
"""The smallest duration in seconds, so that rates are finite."""


class _Metrics:
    """The metrics that rounds and chunks share."""

    def __init__(self, session: TrainingSession, crew: Crew) -> None:
        self._session, self._crew = session, crew
        self._each = crew.shape.envs_each * crew.shape.steps
        """Transitions of an actor in a round or in a chunk."""
        self._waited = 0.0
        self._updates = int(session.agent.updates)
        self._restarts = crew.worker_restarts
        self._last = time.perf_counter()

    @contextlib.contextmanager
    def waiting(self) -> Generator[None]:
        """Count the time inside `with` as waiting of the learner."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._waited += time.perf_counter() - began

    def _log_learner(self, transitions: int, staleness: int) -> float:
        """Log what the learner has done since the last call; returns the seconds since then."""
        log, crew, now = self._session.log, self._crew, time.perf_counter()
        took, self._last = max(now - self._last, _LEAST), now
        updates, restarts = int(self._session.agent.updates), crew.worker_restarts
        log("time/samples_per_sec", transitions / took)
        log("time/updates_per_sec", (updates - self._updates) / took)
        log("time/learner_waiting", min(1.0, self._waited / took))
        log("time/staleness", staleness)
        log("time/actor_restarts", restarts - self._restarts)
        for actor, times in enumerate(crew.restarts):
            if times:
                log(f"time/actor_{actor}_restarts", times)
        self._updates, self._restarts, self._waited = updates, restarts, 0.0
        return took

    def _log_actor(self, actor: int, samples: int, played: float, took: float) -> None:
        """Log the rate of an actor, and the share of `took` seconds in which it played."""
        self._session.log(f"time/actor_{actor}_samples_per_sec", samples / max(played, _LEAST))
        self._session.log(f"time/actor_{actor}_playing", min(1.0, played / took))


class RoundMetrics(_Metrics):
    """What rounds cost."""

    def __init__(self, session: TrainingSession, crew: Crew) -> None:
        super().__init__(session, crew)
        self.staleness = 0
        """How many policies the last round was behind when it was learned from."""
        self._rounds: list[Sequence[ActorEnd]] = []

    def collected(self, ends: Sequence[ActorEnd]) -> None:
        """A round was played."""
        self._rounds.append(ends)

    def log(self) -> None:
        """Log a round that was learned from, and those that were played meanwhile: one, at the start two."""
        took = self._log_learner(self._crew.shape.transitions, self.staleness)
        rounds, self._rounds = self._rounds, []
        if not rounds:  # after the last one, nothing more is played
            return
        played = [sum(end.seconds for end in ends) for ends in zip(*rounds, strict=True)]
        self._session.log("time/actors_waiting", 1 - min(1.0, sum(played) / self._crew.workers / took))
        for actor, seconds in enumerate(played):
            self._log_actor(actor, len(rounds) * self._each, seconds, took)


class ChunkMetrics(_Metrics):
    """What free actors cost."""

    def __init__(self, session: TrainingSession, crew: Crew) -> None:
        super().__init__(session, crew)
        self._began = self._last
        self._received: dict[int, float] = {}
        """When the last chunk of each worker arrived."""
        self._chunks: list[tuple[range, Sequence[ActorEnd], float]] = []
        """What has arrived since the last call of `log`: the actors, what they did, and since when."""

    def received(self, place: int, actors: range, ends: Sequence[ActorEnd]) -> None:
        """A worker has played a chunk, and plays the next one once there is room for it."""
        now, before = time.perf_counter(), self._received.get(place, self._began)
        self._received[place] = now
        self._chunks.append((actors, ends, max(now - before, _LEAST)))

    def log(self, actors: range, staleness: int, queued: int) -> None:
        """Log a chunk of these actors that was learned from, and those that have arrived."""
        self._log_learner(len(actors) * self._each, staleness)
        self._session.log("time/actor_queue", queued)
        chunks, self._chunks = self._chunks, []
        for played_by, ends, took in chunks:
            played = [end.seconds for end in ends]
            self._session.log("time/actors_waiting", 1 - min(1.0, sum(played) / took))
            for actor, seconds in zip(played_by, played, strict=True):
                self._log_actor(actor, self._each, seconds, took)

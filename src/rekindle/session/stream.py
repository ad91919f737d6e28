"""One stream, in the form of two calls: `begin` and `step`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rekindle.errors import InputError
from rekindle.experience import EpisodeStatus
from rekindle.session.flow import Flow
from rekindle.session.streams import Streams
from rekindle.session.table import Phase, StreamId
from rekindle.traces import ResettableEnv

__all__ = ["Stream"]

_CONTINUING = EpisodeStatus.CONTINUING


class Stream:
    """One sequence of episodes, for hosts that see one observation after the other.

    `action = stream.begin(observation)` starts an episode, `action = stream.step(observation, reward, ...)` goes
    on with it. The stream builds the transitions and announces the ends.
    """

    def __init__(self, flow: Flow, streams: Streams, stream: StreamId) -> None:
        self._flow, self._streams, self._table = flow, streams, streams.table
        self._slot = self._table.slot(stream)
        self.id = self._table.id_of(self._slot)
        """The host's name for this stream."""
        self.info: dict[str, Any] = {}
        """The info of the environment's last `reset` (or of the last step that `reset` replayed)."""

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return isinstance(self._table, _ClosedStream)

    @property
    def is_open(self) -> bool:
        """Whether an episode has begun here and not ended."""
        return self._table.phase[self._slot] in (Phase.BEGUN, Phase.OPEN)

    @property
    def episode(self) -> int:
        """The number of the current episode, from 0."""
        return int(self._table.episode[self._slot])

    @property
    def length(self) -> int:
        """Steps of the open episode so far."""
        return int(self._table.length[self._slot])

    @property
    def total_reward(self) -> float:
        """The return of the open episode so far."""
        return float(self._table.total_reward[self._slot])

    @property
    def episode_seed(self) -> int:
        """The seed for the environment's next reset, derived from the run's seed, the stream and the episode."""
        return self._flow.next_seed(self._slot)

    def reset(self, env: ResettableEnv, *, options: dict[str, Any] | None = None) -> Any:
        """Reset an environment with the right seed and return its observation; `info` has the rest.

        Right after a resume, an episode that was open is replayed instead, up to where it was. If the replay has
        another outcome, the episode is closed as truncated, and the resume is graded approximate. Options are copied:
        tuples become lists, and what a checkpoint cannot hold is refused.
        """
        observation, self.info = self._flow.reset(self._slot, env, options)
        return observation

    def bring_back(self) -> Any:
        """After a resume: declare that the open episode's world is where it was, and get its newest observation.

        `begin` goes on from there.
        """
        return self._streams.bring_back(self._slot)

    def begin(self, observation: Any) -> Any:
        """Start an episode at this observation and return the first action.

        An episode still open is closed as truncated, unless `reset` or `bring_back` has just brought it back.
        """
        return self._flow.begin(self._slot, observation)

    def resume(self, observation: Any) -> Any:
        """Go on with the open episode, for a host that brought its own world back to this observation."""
        return self._flow.resume(self._slot, observation)

    def step(
        self,
        observation: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        extras: Mapping[str, float] | None = None,
    ) -> Any:
        """Report the outcome of the last action; returns the next action, or None when episode or session is over.

        `observation` is the true last one even when the episode ends; `extras` are numbers for its record.
        """
        status = EpisodeStatus.of(terminated, truncated) if terminated or truncated else _CONTINUING
        return self._flow.step(self._slot, observation, reward, status, extras)

    def abandon(self) -> None:
        """Close an open episode that has no final observation, at its last complete transition, as truncated."""
        self._flow.close_episode(self._slot)

    def close(self) -> None:
        """Forget this stream, when its character or client is gone; an open episode is closed as truncated.

        A session keeps a row for each stream until it is closed. A new stream of the same name starts at episode 0.
        """
        self._flow.close_stream(self._slot)
        # Nothing of this handle may reach the row any more: another stream may have it by now.
        closed: Any = _ClosedStream(self.id)
        self._flow = self._streams = self._table = closed


class _ClosedStream:
    """Stands where the parts of a stream were, once it is closed."""

    def __init__(self, stream: StreamId) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        raise InputError(f"stream {self._stream!r} is closed: session.stream({self._stream!r}) makes a new one")

"""A stream of episodes, with the two calls `begin` and `step`."""

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
_IN_EPISODE = (int(Phase.BEGUN), int(Phase.OPEN))


class Stream:
    """One sequence of episodes, for hosts that see one observation after the other.

    `action = stream.begin(observation)` starts an episode, `action = stream.step(observation, reward, ...)` continues
    it. The stream builds the transitions and announces the ends of episodes.
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
        """Whether an episode has begun and not ended."""
        # As a plain number: numpy is slow to compare its own with an enum's.
        return int(self._table.phase[self._slot]) in _IN_EPISODE

    @property
    def observation(self) -> Any:
        """The newest observation of the open episode, as the agent sees it; None if no episode is open.

        After a resume from an input journal, this is where the host left off.
        """
        return self._streams.newest(self._slot) if self.is_open else None

    @property
    def action(self) -> Any:
        """The action that was returned for it and whose outcome has not been reported; None if there is none.

        There is none after a session that was stopped, as it chooses no action at its end: `resume` then chooses one.
        """
        return self._streams.pending(self._slot)

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
        """Reset an environment with the right seed and return its observation; `info` is stored in `self.info`.

        Right after a resume, the episode that was open is replayed instead, up to the last step. If the replay differs
        from the original, the episode is closed as truncated, and the resume is graded approximate. Options are copied:
        tuples become lists, and values that a checkpoint cannot hold are refused.
        """
        observation, self.info = self._flow.reset(self._slot, env, options)
        return observation

    def bring_back(self) -> Any:
        """After a resume, declare that the environment of the open episode is restored; returns its newest observation.

        `begin` continues from that observation.
        """
        return self._streams.bring_back(self._slot)

    def begin(self, observation: Any) -> Any:
        """Start an episode at this observation and return the first action.

        An open episode is closed as truncated first, unless `reset` or `bring_back` has just restored it.
        """
        return self._flow.begin(self._slot, observation)

    def resume(self, observation: Any = None) -> Any:
        """Continue the open episode; returns the action for its newest observation, which may be known already.

        If your environment was restored to that observation, pass it, to have it checked.
        """
        return self._flow.resume(self._slot, observation)

    def step(
        self,
        observation: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        extras: Mapping[str, float] | None = None,
    ) -> Any:
        """Report the outcome of the last action; returns the next action, or None if episode or session is over.

        Even when the episode ends, `observation` is the true final one; `extras` are numbers for its record.
        """
        status = EpisodeStatus.of(terminated, truncated) if terminated or truncated else _CONTINUING
        return self._flow.step(self._slot, observation, reward, status, extras)

    def abandon(self) -> None:
        """Close an open episode that has no final observation, at its last complete transition, as truncated."""
        self._flow.close_episode(self._slot)

    def close(self) -> None:
        """Remove this stream, for example when its character or client is gone; an open episode is closed as truncated.

        A session keeps a row for each stream until you close it. A new stream of the same name starts at episode 0.
        """
        self._flow.close_stream(self._slot)
        # This handle must not reach the row any more: another stream may use it by now.
        closed: Any = _ClosedStream(self.id)
        self._flow = self._streams = self._table = closed


class _ClosedStream:
    """Replaces the parts of a closed stream."""

    def __init__(self, stream: StreamId) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        raise InputError(f"stream {self._stream!r} is closed: session.stream({self._stream!r}) makes a new one")

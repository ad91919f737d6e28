"""One stream, in the form of two calls: `begin` and `step`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rekindle.experience import EpisodeStatus
from rekindle.rng import episode_seed
from rekindle.session.streams import Streams
from rekindle.session.table import Phase, StreamId
from rekindle.traces import ResettableEnv

__all__ = ["Stream"]


class Stream:
    """One sequence of episodes, for hosts that see one observation after the other.

    `action = stream.begin(observation)` starts an episode, `action = stream.step(observation, reward, ...)` goes
    on with it; the stream builds the transitions and announces the ends.
    """

    def __init__(self, streams: Streams, stream: StreamId) -> None:
        self._streams = streams
        self._slot = streams.table.slot(stream)
        self.id = streams.table.ids[self._slot]
        """The host's name for this stream."""
        self.info: dict[str, Any] = {}
        """What the environment said when `reset` last brought it to where it is."""

    @property
    def is_open(self) -> bool:
        """Whether an episode has begun here and not ended."""
        return self._streams.table.phase[self._slot] in (Phase.BEGUN, Phase.OPEN)

    @property
    def episode(self) -> int:
        """The number of the current episode, from 0."""
        return int(self._streams.table.episode[self._slot])

    @property
    def length(self) -> int:
        """Steps of the open episode so far."""
        return int(self._streams.table.length[self._slot])

    @property
    def total_reward(self) -> float:
        """The return of the open episode so far."""
        return float(self._streams.table.total_reward[self._slot])

    @property
    def episode_seed(self) -> int:
        """The seed for the environment's next reset: of this run, stream and episode, and no other."""
        return episode_seed(self._streams.seed, self.id, self.episode)

    def reset(self, env: ResettableEnv, *, options: dict[str, Any] | None = None) -> Any:
        """Reset an environment with the right seed and return its observation; `info` has the rest.

        Right after a resume, an episode that was open is lived again instead, up to where it was. If what comes
        of it is not what was seen, it is closed as truncated, and the resume is graded approximate.
        """
        observation, self.info = self._streams.reset(self._slot, env, options)
        return observation

    def bring_back(self) -> Any:
        """After a resume: say that the host brought the open episode's world back, and get its newest observation.

        `begin` goes on from there.
        """
        return self._streams.bring_back(self._slot)

    def begin(self, observation: Any) -> Any:
        """Start an episode at this observation and return the first action.

        An episode still open is closed as truncated, unless `reset` or `bring_back` has just brought it back.
        """
        return self._streams.begin(self._slot, observation)

    def resume(self, observation: Any) -> Any:
        """Go on with the open episode, for a host that brought its own world back to this observation."""
        return self._streams.resume(self._slot, observation)

    def step(
        self,
        observation: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        extras: Mapping[str, float] | None = None,
    ) -> Any:
        """Tell what the last action led to; returns the next action, or None when the episode or session is over.

        `observation` is the true last one even when the episode ends; `extras` are numbers for its record.
        """
        status = EpisodeStatus.of(terminated, truncated) if terminated or truncated else EpisodeStatus.CONTINUING
        return self._streams.step(self._slot, observation, reward, status, extras)

    def abandon(self) -> None:
        """Close an open episode that has no final observation, at its last complete transition, as truncated."""
        self._streams.close_as_truncated(self._slot)

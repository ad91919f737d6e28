"""Drive Gymnasium environments against a session server."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, cast

import numpy as np

from rekindle.client.blocking import Client
from rekindle.errors import ServerError, StreamsLost
from rekindle.experience import EpisodeStatus
from rekindle.nesting import Nesting
from rekindle.spaces import SpaceParts

__all__ = ["GymClient", "Played"]


class Env(Protocol):
    """A Gymnasium environment."""

    @property
    def observation_space(self) -> Any:
        """The space of its observations."""
        ...

    @property
    def action_space(self) -> Any:
        """The space of its actions."""
        ...

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        ...

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Execute an action."""
        ...


class Played(NamedTuple):
    """The result of `GymClient.run`."""

    steps: int
    returns: list[float]
    """The return of each episode that ended, in order."""


class GymClient:
    """Steps Gymnasium environments with the actions of a server, and reports the outcomes.

    >>> GymClient("ws://127.0.0.1:7654/session", gymnasium.make("CartPole-v1")).run(10_000)  # doctest: +SKIP
    """

    def __init__(
        self,
        address: str,
        envs: Env | Sequence[Env],
        *,
        seed: int | None = None,
        mode: str = "train",
        client: str | None = None,
        token: str | None = None,
        secret_file: str | Path | None = None,
        patience: float = 60.0,
    ) -> None:
        """Connect to a server; each environment is a stream, and all are stepped together, in one request.

        Args:
            address: the address of the server.
            envs: an environment, or several with the same spaces.
            seed: environment i starts its first episode with the seed `seed + i`; later episodes are not seeded again.
            mode: `train`, or `play` for greedy actions without learning.
            client: the name of this client.
            token: the token of the server, if it requires one.
            secret_file: a file for the secret of this client.
            patience: seconds to keep trying to reach the server.
        """
        self.envs: list[Env] = (
            list(cast("Sequence[Env]", envs)) if isinstance(envs, (list, tuple)) else [cast("Env", envs)]
        )
        self._seed, self._is_playing = seed, mode == "play"
        self._totals = [0.0] * len(self.envs)
        """The return of the open episode of each environment."""
        first = self.envs[0]
        self._nesting = SpaceParts.of(first.observation_space).nesting
        self.client = Client(
            address,
            client=client,
            token=token,
            mode=mode,
            observation_space=first.observation_space,
            action_space=first.action_space,
            secret_file=secret_file,
            patience=patience,
        )

    def run(self, steps: int | None = None, *, episodes: int | None = None) -> Played:
        """Play until `steps` steps were made, `episodes` episodes ended, or the session of the server ended.

        The client disconnects at the end; another `run` connects again.
        """
        with contextlib.closing(self):
            return self._played(steps, episodes)

    def _played(self, steps: int | None, episodes: int | None) -> Played:
        made, returns = 0, list[float]()
        observations = [self._reset(place, is_first=True) for place in range(len(self.envs))]
        actions = self._begin(observations)
        while not (self.client.stop or _reached(made, steps) or _reached(len(returns), episodes)):
            outcomes = [env.step(action) for env, action in zip(self.envs, actions, strict=True)]
            made += len(outcomes)
            statuses: list[EpisodeStatus] = []
            for place, (_, reward, terminated, truncated, _) in enumerate(outcomes):
                self._totals[place] += float(reward)
                statuses.append(EpisodeStatus.of(bool(terminated), bool(truncated)))
            ended = [place for place, status in enumerate(statuses) if status.is_done]
            returns += [self._totals[place] for place in ended]
            actions = self._report(outcomes, statuses, ended)
        return Played(made, returns)

    def _report(self, outcomes: Sequence[Any], statuses: Sequence[EpisodeStatus], ended: Sequence[int]) -> list[Any]:
        streams = list(range(len(self.envs)))
        observations = [outcome[0] for outcome in outcomes]
        last = self._stacked(observations)  # a copy: `reset` of an environment may write to the same array
        fresh = {place: self._reset(place) for place in ended}
        if self._is_playing:
            return self._begin([fresh.get(place, observations[place]) for place in streams])
        rewards = [float(outcome[1]) for outcome in outcomes]
        step = (last, rewards, statuses, streams)
        begin = (self._stacked(list(fresh.values())), list(fresh)) if fresh else None
        try:
            actions = self.client.batch(step=step, begin=begin)
        except StreamsLost:
            return self._begin([self._reset(place) for place in streams])
        except ServerError:
            if self.client.stop is None:
                raise
            return []  # the session ended before this step
        found = actions[: len(streams)]
        for place, action in zip(fresh, actions[len(streams) :], strict=True):
            found[place] = action
        return found

    def _begin(self, observations: list[Any]) -> list[Any]:
        rows = self._stacked(observations)
        if self._is_playing:
            return self.client.act_many(rows, len(observations))
        while True:
            try:
                return self.client.begin_many(rows, list(range(len(observations))))
            except StreamsLost:
                continue  # it is a new client now

    def _reset(self, place: int, *, is_first: bool = False) -> Any:
        self._totals[place] = 0.0
        seed = None if self._seed is None or not is_first else self._seed + place
        return self.envs[place].reset(seed=seed)[0]

    def _stacked(self, observations: Sequence[Any]) -> Any:
        return _stacked(observations, self._nesting)

    def close(self) -> None:
        """Disconnect; the environments stay open."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()


def _stacked(observations: Sequence[Any], nesting: Nesting | None) -> Any:
    if nesting is None:
        return np.stack([np.asarray(observation) for observation in observations])
    columns = zip(*[nesting.leaves(observation, "observation") for observation in observations], strict=True)
    return nesting.build([np.stack([np.asarray(part) for part in column]) for column in columns])


def _reached(count: int, most: int | None) -> bool:
    return most is not None and count >= most

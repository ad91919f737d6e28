"""The actors of one worker, in whatever process that is."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from rekindle.actors.actor import LogicalActor
from rekindle.actors.casting import Cast
from rekindle.actors.evaluating import EpisodePlayer
from rekindle.actors.policies import act_of_policy
from rekindle.actors.rounds import ActorStart, RoundArrays
from rekindle.agent import Policy, State
from rekindle.envs.pickling import unpickled
from rekindle.envs.vector import error_text
from rekindle.errors import ConfigError, EnvError, MissingExtra

__all__ = ["Stage", "error_report"]


class Stage:
    """Plays rounds and evaluations."""

    def __init__(self, cast: Cast, actors: range, *, beat: Callable[[], object]) -> None:
        """`beat` is called after everything that takes long, to show that the worker is alive."""
        self._cast, self._beat = cast, beat
        self._player: EpisodePlayer | None = None
        self._actors: list[LogicalActor] = []
        for index in actors:
            self._actors.append(cast.actor(index, beat=beat))
        rows = cast.shape.rows_of(actors)
        self.rows = rows.stop - rows.start
        """Environments of all actors."""

    def play(self, order: State, policy: Policy, into: RoundArrays) -> list[State]:
        """Play a round; returns the state of each actor after it."""
        shape = self._cast.shape
        if order["starts"] is not None:
            for actor, start in zip(self._actors, order["starts"], strict=True):
                actor.restore(ActorStart.of_tree(start, shape))
        act = act_of_policy(policy, shape.structure)
        ends: list[State] = []
        for place, actor in enumerate(self._actors):
            rows = slice(place * shape.envs_each, (place + 1) * shape.envs_each)
            ends.append(actor.play(act, into.part(rows), order["env_steps"]).tree())
        return ends

    def evaluate(self, order: State, policy: Policy) -> list[Any]:
        """Play evaluation episodes."""
        if self._player is None:
            self._player = EpisodePlayer(unpickled(order["plan"]))  # only the learner sends orders
        return list(self._player.play(policy, order["numbers"], self._beat))

    def close(self) -> None:
        """Close the environments."""
        for actor in self._actors:
            actor.close()
        if self._player is not None:
            self._player.close()


def error_report(error: Exception | SystemExit) -> State:
    """An error as data, for the learner: of the environment, of its creation, or of the policy."""
    kind = "policy"
    if isinstance(error, EnvError):
        kind = "env"
    elif isinstance(error, ConfigError | MissingExtra):
        kind = "config"
    return {"error": error_text(error), "kind": kind, "trace": traceback.format_exc()}

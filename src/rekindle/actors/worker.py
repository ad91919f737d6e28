"""A worker process: plays the rounds of some actors. It imports no ML library, and ends with the learner."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import signal
import sys
import traceback
from typing import Any, cast

import numpy as np

from rekindle.actors.actor import LogicalActor
from rekindle.actors.casting import Cast
from rekindle.actors.evaluating import EpisodePlayer
from rekindle.actors.packing import aligned
from rekindle.actors.policies import act_of_policy, unpacked_policy
from rekindle.actors.rounds import ActorStart, RoundArrays
from rekindle.actors.shared import Link, Region
from rekindle.agent import Policy, State
from rekindle.envs.vector import error_text
from rekindle.envs.worker import IGNORED
from rekindle.errors import ConfigError, EnvError, MissingExtra
from rekindle.experience import Array

__all__ = ["Stage", "serve"]

_PDEATHSIG = 1


def serve(arguments: str) -> None:
    """Play until the learner ends, or asks to end."""
    given: dict[str, Any] = json.loads(arguments)
    _end_with(given["learner"])
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)  # they were blocked when this process started
    link = Link(given["link"])
    policies = [Region(descriptor) for descriptor in given["policies"]]
    stage: Stage | None = None
    with contextlib.suppress(SystemExit):
        while (message := link.wait(given["alive"])) is not None:
            order = cast("State", message)
            try:
                if stage is None:
                    # Only the learner writes to this memory, so nobody else can send a pickle.
                    made = pickle.loads(order["cast"])  # noqa: S301
                    stage = Stage(made, range(*order["actors"]), link, policies)
                answer = stage.play(order) if order["kind"] == "play" else stage.evaluate(order)
            except Exception as error:
                answer = {"error": error_text(error), "kind": _kind(error), "trace": traceback.format_exc()}
            link.answer(answer)
    if stage is not None:
        stage.close()


def _kind(error: Exception) -> str:
    """What the learner should raise: an error of the environment, of its creation, or of the policy."""
    return (
        "env"
        if isinstance(error, EnvError)
        else "config"
        if isinstance(error, ConfigError | MissingExtra)
        else "policy"
    )


def _end_with(learner: int) -> None:
    """Let the kernel kill this process when the learner dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != learner:  # it died before that
        os._exit(0)


class Stage:
    """The actors of a worker."""

    def __init__(self, cast: Cast, actors: range, link: Link, policies: list[Region]) -> None:
        self._cast, self._link, self._policies = cast, link, policies
        self._player: EpisodePlayer | None = None
        self._actors: list[LogicalActor] = []
        for index in actors:
            self._actors.append(cast.actor(index, beat=link.beat))
            link.beat()
        rows = cast.shape.rows_of(actors)
        count = rows.stop - rows.start
        self._arrays = RoundArrays.in_memory(cast.shape, count, link.arrays(RoundArrays.size(cast.shape, count)))

    def play(self, order: State) -> State:
        """Play a round."""
        shape = self._cast.shape
        if order["starts"] is not None:
            for actor, start in zip(self._actors, order["starts"], strict=True):
                actor.restore(ActorStart.of_tree(start, shape))
        act = act_of_policy(self._policy(order["policy"]), shape.structure)
        ends: list[State] = []
        for place, actor in enumerate(self._actors):
            rows = slice(place * shape.envs_each, (place + 1) * shape.envs_each)
            ends.append(actor.play(act, self._arrays.part(rows), order["env_steps"]).tree())
        return {"ends": ends, "number": order["number"]}

    def evaluate(self, order: State) -> State:
        """Play evaluation episodes."""
        if self._player is None:
            self._player = EpisodePlayer(pickle.loads(order["plan"]))  # noqa: S301 - from the learner, as above
        played = self._player.play(self._policy(order["policy"]), order["numbers"], self._link.beat)
        return {"played": played}

    def _policy(self, given: Array | list[int]) -> Policy:
        """The policy of an order, or where it is in the memory of all workers."""
        if isinstance(given, np.ndarray):
            return unpacked_policy(given)
        place, size = given
        data = aligned(size)
        data[:] = self._policies[place].view(size)
        return unpacked_policy(data)

    def close(self) -> None:
        """Close the environments."""
        for actor in self._actors:
            actor.close()
        if self._player is not None:
            self._player.close()

"""Actors in the process of the learner: they and the learner take turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, cast

from rekindle.actors.actor import LogicalActor
from rekindle.actors.blas import one_thread
from rekindle.actors.casting import Cast
from rekindle.actors.evaluating import EvalPlan
from rekindle.actors.policies import Act, act_of_policy, is_packed, unpacked_policy
from rekindle.actors.rounds import ActorEnd, Order, RoundArrays
from rekindle.envs.making import Vectorization
from rekindle.errors import Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never

__all__ = ["ActorsHere"]


class ActorsHere:
    """Plays a round as soon as it is started."""

    def __init__(
        self, cast: Cast, *, act: Act | None = None, vectorization: Vectorization = "sync", workers: int | None = None
    ) -> None:
        """`act` is how to act if an order has no policy: with the agent itself."""
        self.shape = cast.shape
        self.report: Callable[[str], object] = lambda _: None
        self.should_stop: ShouldStop = never
        """See `Crew`."""
        self._is_interruptible = False
        self._cast, self._act = cast, act
        self.workers, self.worker_restarts = 1, 0
        self.restarts = [0] * cast.shape.actors
        self._played: tuple[RoundArrays, list[ActorEnd]] | None = None
        self._is_fresh = True
        self._undo = contextlib.ExitStack()
        with contextlib.ExitStack() as undo:
            undo.callback(self._undo.close)
            self.has_one_thread = self._undo.enter_context(one_thread())
            self._actors: list[LogicalActor] = []
            for index in range(cast.shape.actors):
                actor = cast.actor(index, beat=self._beat, vectorization=vectorization, workers=workers)
                self._undo.callback(actor.close)
                self._actors.append(actor)
            undo.pop_all()

    def start(self, order: Order) -> None:
        """Play a round."""
        goes_back, self._is_fresh = self._is_fresh or order.rewinds, True
        self._is_interruptible = is_packed(order.policy)
        if goes_back:
            for actor, start in zip(self._actors, order.starts, strict=True):
                actor.restore(start)
        act = self._acting(order.policy)
        shape = self._cast.shape
        arrays = RoundArrays.empty(shape, shape.rows)
        ends: list[ActorEnd] = []
        for actor in self._actors:
            rows = shape.rows_of(range(actor.index, actor.index + 1))
            ends.append(actor.play(act, arrays.part(rows), order.env_steps))
        self._played, self._is_fresh = (arrays, ends), False

    def _beat(self) -> None:
        if self._is_interruptible and self.should_stop():
            raise Interrupted("stopped in a round")

    def _acting(self, policy: Any) -> Act:
        if is_packed(policy):
            policy = unpacked_policy(policy)
        if policy is None:
            return cast("Act", self._act)
        return act_of_policy(policy, self._cast.shape.structure)

    def collect(self) -> tuple[RoundArrays, list[ActorEnd]]:
        """The round that was played."""
        played, self._played = self._played, None
        if played is None:
            raise AssertionError("a round is started before it is collected")
        return played

    def evaluate(
        self,
        plan: EvalPlan,
        policy: Array,
        parts: Sequence[Sequence[int]],
        should_stop: ShouldStop,
    ) -> None:
        """There are no workers."""

    def close(self) -> None:
        """Close all environments."""
        self._undo.close()

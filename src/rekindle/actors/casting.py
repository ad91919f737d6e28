"""Create the actors of a training, in any process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from rekindle.actors.actor import LogicalActor, ResetOptions
from rekindle.actors.evaluating import EvalPlan, PlayedEpisode
from rekindle.actors.rounds import ActorEnd, Order, RoundArrays, RoundShape
from rekindle.envs import Determinism, EnvFactory, Envs, LocalEnvs, make_envs
from rekindle.envs.making import Vectorization
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop

__all__ = ["Cast", "Crew"]


class Cast(msgspec.Struct, frozen=True, eq=False):
    """Creates the actors of a training."""

    factory: EnvFactory
    shape: RoundShape
    seed: int
    determinism: Determinism
    reset_options: ResetOptions | None = None
    extras: Sequence[str] | None = None

    def actor(
        self,
        index: int,
        *,
        beat: Callable[[], object] = lambda: None,
        vectorization: Vectorization = "sync",
        workers: int | None = None,
    ) -> LogicalActor:
        """Create an actor, with its environments."""
        shape = self.shape
        rebuilds = self.determinism is Determinism.LEAKS
        envs: Envs
        if vectorization == "sync":
            first_row = index * shape.envs_each
            envs = LocalEnvs(self.factory, shape.envs_each, rebuilds=rebuilds, first_row=first_row, when_made=beat)
        else:
            envs = make_envs(
                self.factory,
                shape.envs_each,
                vectorization=vectorization,
                workers=workers,
                determinism=self.determinism,
            )
        return LogicalActor(
            index,
            envs,
            shape,
            seed=self.seed,
            reset_options=self.reset_options,
            extras=self.extras,
            beat=beat,
        )


class Crew(Protocol):
    """All actors of a training, wherever they run. Rounds are played in order, one at a time."""

    shape: RoundShape
    has_one_thread: bool
    """Whether numpy is known to compute with one BLAS thread where actors run."""
    restarts: list[int]
    """How often the worker of each actor was started again."""
    worker_restarts: int
    """How often workers were started again."""
    report: Callable[[str], object]
    """Called with a message about every actor that had to be started again."""
    should_stop: ShouldStop
    """Once it is true, `start` and `collect` raise `Interrupted`, and the round has to be started again.

    Only for a policy that is data: with anything else the round is played to its end.
    """

    @property
    def workers(self) -> int:
        """How many workers play at the same time; the actors of one take turns."""
        ...

    def start(self, order: Order) -> None:
        """Begin a round."""
        ...

    def collect(self) -> tuple[RoundArrays, list[ActorEnd]]:
        """Wait for the round; returns its transitions, and the state of each actor after it."""
        ...

    def evaluate(
        self, plan: EvalPlan, policy: Array, parts: Sequence[Sequence[int]], should_stop: ShouldStop
    ) -> list[PlayedEpisode] | None:
        """Play evaluation episodes between two rounds, each part on another worker; None if no worker is free.

        Raises `Interrupted` once `should_stop()` is true.
        """
        ...

    def close(self) -> None:
        """End the actors."""
        ...

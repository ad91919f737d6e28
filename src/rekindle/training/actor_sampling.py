"""The rounds of actors: which policy plays which round, and when the session learns from it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.actors.casting import Crew
from rekindle.actors.policies import is_packed, packed_policy, policy_of, policy_tree, repacked_policy
from rekindle.actors.rounds import ActorStart, Order, Played, RoundShape, first_start, next_starts
from rekindle.agent import PortablePolicy, State, VersionsPolicies
from rekindle.checks import refuses_misfits
from rekindle.errors import EnvError, InputError, Interrupted, StateError
from rekindle.experience import Transitions
from rekindle.session.session import TrainingSession
from rekindle.stats import EpisodeRecord
from rekindle.training.actor_metrics import RoundMetrics
from rekindle.training.sampling import Round, StepProcessor

__all__ = ["ActorSampler"]


class ActorSampler:
    """Lets actors play rounds, and passes them to the session step by step.

    P(r) is the policy after learning from round r. Without a pipeline, round r is played with P(r - 1). With one, it is
    played with P(r - 2) while the learner makes P(r - 1) from round r - 1. What is due (metric rows, evaluations,
    checkpoints) is done between two rounds.
    """

    def __init__(
        self,
        session: TrainingSession,
        crew: Crew,
        shape: RoundShape,
        *,
        seed: int,
        pipeline: int,
        processor: StepProcessor | None = None,
    ) -> None:
        self._session, self._crew, self._shape = session, crew, shape
        self._is_ahead, self._processor = pipeline > 0, processor
        agent = session.agent
        self._versioned = agent if isinstance(agent, VersionsPolicies) else None
        self._slots = np.array([session.stream(row).id for row in range(shape.rows)], np.int64)
        self._number = 0
        """The number of the next round to be collected."""
        self._starts: list[ActorStart] = [first_start(seed, actor, shape.envs_each) for actor in range(shape.actors)]
        """Where actors stand before that round."""
        self._held: list[Played] = []
        """Rounds that were collected and not learned from completely: one, or none."""
        self._planned: Order | None = None
        """That round, once its policy is known."""
        self._is_playing = False
        self._warned: set[int] = set()
        self._steps: Iterator[Round] | None = None
        self._metrics = RoundMetrics(session, crew)
        session.attach("actors", self)

    def sample(self) -> Round:
        """Make one step in each environment."""
        if self._steps is None:
            self._steps = self._endless()
        return next(self._steps)

    def _endless(self) -> Iterator[Round]:
        self._catch_up()
        while True:
            yield from self._round()

    def steps(self) -> Iterator[Round]:
        """Play until the session is done, and yield every step of all environments; stops between two rounds.

        If it is interrupted, it does not wait for the round that is being played: a resume plays that again.
        """
        session = self._session
        self._crew.should_stop = session.interrupter.should_stop
        self._catch_up()
        while not session.is_done:
            yield from self._round()

    def _catch_up(self) -> None:
        """After a resume between two rounds, do what was due; in the middle of a round it waits for its end."""
        if not (self._held and self._position(self._held[0])):
            self._session.together.finish()

    # Rounds

    def _round(self) -> Iterator[Round]:
        session = self._session
        if not self._held:
            self._plan()
            with contextlib.suppress(Interrupted):
                self._start(cast("Order", self._planned))
                self._collect()
            if not self._held:
                return
        played = self._held[0]
        with session.together:
            if self._is_ahead:
                self._plan()
                with contextlib.suppress(Interrupted):
                    self._start_if_wanted(cast("Order", self._planned))
            for index in range(self._position(played), self._shape.steps):
                yield self._learn(played, index)
                if session.together.is_interrupted:
                    return
            self._held.remove(played)
            if self._versioned is not None and played.version is not None:
                self._metrics.staleness = int(self._versioned.policy_version) - played.version
            if self._is_playing:
                with contextlib.suppress(Interrupted):
                    self._collect()
            self._metrics.log()

    def _position(self, played: Played) -> int:
        """How many steps of a round the session has seen."""
        return (self._session.total_steps - played.env_steps) // self._shape.rows

    def _plan(self) -> None:
        """Fix the policy of the next round, unless that was done before a resume."""
        if self._planned is None:
            env_steps = self._session.total_steps + sum(
                self._shape.transitions - self._position(held) * self._shape.rows for held in self._held
            )
            self._planned = Order(self._number, env_steps, *self._newest_policy(), self._starts)

    def _newest_policy(self) -> tuple[Any, int | None]:
        policy = policy_of(self._session.agent)
        version = None if self._versioned is None else int(self._versioned.policy_version)
        return packed_policy(policy) if isinstance(policy, PortablePolicy) else policy, version

    def _start_if_wanted(self, order: Order) -> None:
        most, is_stopped = self._session.max_steps, self._session.interrupter.is_stopped
        if not is_stopped and (most is None or order.env_steps < most):
            self._start(order)

    def _start(self, order: Order) -> None:
        with self._metrics.waiting():
            self._crew.start(order)
        self._is_playing = True

    def _collect(self) -> None:
        """Wait for the round that is being played."""
        order = cast("Order", self._planned)
        self._is_playing = False
        with self._metrics.waiting():
            arrays, ends = self._crew.collect()
            if self._is_stale(order):
                policy, version = self._newest_policy()
                order = msgspec.structs.replace(order, policy=policy, version=version, rewinds=True)
                self._crew.start(order)
                arrays, ends = self._crew.collect()
        self._metrics.collected(ends)
        self._held.append(Played.of(order, arrays, ends, self._shape))
        self._starts = next_starts(self._starts, arrays, ends, self._shape)
        self._number, self._planned = self._number + 1, None
        self._warn_of_long_episodes()

    def _is_stale(self, order: Order) -> bool:
        """Whether the agent cannot learn from a round any more, because its policy has changed twice since."""
        return (
            self._versioned is not None
            and order.version is not None
            and self._versioned.policy_version - order.version > 1
        )

    def _warn_of_long_episodes(self) -> None:
        each = self._shape.envs_each
        for actor, start in enumerate(self._starts):
            for env, one in enumerate(start.envs):
                row = actor * each + env
                if one.actions is None and row not in self._warned:
                    self._warned.add(row)
                    self._session.warn(
                        f"the open episode of stream {row} is too long to replay: a resume would close it as truncated"
                    )

    # Learning

    def _learn(self, played: Played, index: int) -> Round:
        session = self._session
        if index == 0:
            for row in played.abandoned:
                self._abandon(row)
        transitions = self._processed(played.step(index, self._shape.layout))
        if self._versioned is not None and played.version is not None:
            self._versioned.chose(self._slots, np.full(len(self._slots), played.version, np.int64))
        try:
            ended = cast("list[int]", session.observe_many(transitions))
        except InputError as error:
            raise EnvError(f"round {played.number}, step {index}: {error} (env step {session.total_steps})") from error
        records = session.on_episodes({row: played.extras.get((index, row), {}) for row in ended})
        named = cast("dict[int, EpisodeRecord]", records)
        return Round(range(self._shape.rows), transitions.rewards, transitions.statuses, named)

    def _abandon(self, row: int) -> None:
        """Close an episode that could not be continued where an actor was started again."""
        stream = self._session.stream(row)
        what = f"the open episode of stream {row} ({stream.length} steps)"
        self._session.mark_inexact(f"{what} could not be replayed: it was closed as truncated")
        stream.abandon()

    def _processed(self, transitions: Transitions) -> Transitions:
        if self._processor is None:
            return transitions
        rewards = np.asarray(self._processor(transitions, range(self._shape.rows)), np.float64)
        return msgspec.structs.replace(transitions, rewards=rewards)

    # State

    def state(self) -> State:
        """Everything of actors that a resume needs; where they run is no part of it."""
        planned, policy = self._planned, None
        if planned is not None and is_packed(planned.policy):
            policy = policy_tree(planned.policy)
        return {
            "shape": [self._shape.actors, self._shape.envs_each, self._shape.steps, self._is_ahead],
            "one_thread": self._crew.has_one_thread,
            "round": self._number,
            "actors": [start.tree() for start in self._starts],
            "held": [played.state() for played in self._held],
            "planned": None
            if planned is None
            else {
                "env_steps": planned.env_steps,
                "version": planned.version,
                "policy": policy,
            },
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Restore a state; actors go back to it with the next round."""
        shape = self._shape
        if state["shape"] != [shape.actors, shape.envs_each, shape.steps, self._is_ahead]:
            raise StateError(f"the rounds of the run, {state['shape']!r:.80}, differ from those of the trainer")
        if len(state["actors"]) != shape.actors:
            raise StateError(f"the run has {len(state['actors'])} actors, not {shape.actors}")
        if state["one_thread"] != self._crew.has_one_thread:
            self._session.mark_inexact(
                "actors computed with another number of BLAS threads before: the last bits of their actions may differ"
            )
        starts = [ActorStart.of_tree(tree, shape) for tree in state["actors"]]
        held = [Played.of_state(each, shape) for each in state["held"]]
        self._number, self._starts, self._held = state["round"], starts, held
        self._planned = None
        if (planned := state["planned"]) is not None:
            policy, version = self._newest_policy()
            if planned["policy"] is None:
                self._session.mark_inexact("the policy of the next round was code, which a checkpoint cannot hold")
            else:
                policy, version = repacked_policy(planned["policy"], self._session.agent), planned["version"]
            self._planned = Order(self._number, planned["env_steps"], policy, version, starts)

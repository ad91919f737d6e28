"""Each call of the host, from beginning to end.

Every call that changes a session runs the same steps in one direction: check it, pass it to the agent, update the
table, learn, end episodes, choose the next action, and do what is due. Nothing below calls back into this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rekindle.agent import is_offline
from rekindle.checks import checked_extras, required_count
from rekindle.errors import ConfigError, InputError
from rekindle.experience import ActMode, Array, EpisodeStatus, Experience, Transitions
from rekindle.rng import episode_seed
from rekindle.session.due import Due
from rekindle.session.episodes import Episodes
from rekindle.session.host_call import HostCall
from rekindle.session.inputs import InputLog
from rekindle.session.owed import OwedWork
from rekindle.session.parts import Parts
from rekindle.session.records import Kind
from rekindle.session.table import Phase, StreamId
from rekindle.session.taken import Claims, Taken
from rekindle.session.updating import Updater
from rekindle.stats import EpisodeRecord
from rekindle.traces import EpisodeTrace, ResettableEnv, frozen_options, replay

__all__ = ["Flow"]

_CONTINUING = EpisodeStatus.CONTINUING
_EXPLORE, _ACT = ActMode.EXPLORE, int(Kind.ACT)
_IDLE, _BEGUN, _OPEN, _ENDED = map(int, Phase)


class Flow:
    """Drives the parts of a session, in the order described above."""

    def __init__(self, parts: Parts, due: Due, *, seed: int, max_steps: int | None) -> None:
        self._parts, self.due = parts, due
        self._updater, self._episodes = Updater(parts), Episodes(parts)
        self.owed = OwedWork(parts, due, self._updater, self._episodes)
        self.call = HostCall(parts, due, self.owed)
        self._inputs: InputLog | None = parts.inputs
        self._streams, self._table, self._intake = parts.streams, parts.streams.table, parts.streams.intake
        self._counts, self._interrupter, self._kept, self._seed = parts.counts, parts.interrupter, parts.kept, seed
        self.max_steps, self._most_steps = max_steps, math.inf if max_steps is None else max_steps

    @property
    def is_done(self) -> bool:
        """Whether `max_steps` is reached or a stop was requested."""
        if self.owed.replay is not None:
            self.owed.replay_journal()
        return self._interrupter.is_stopped or self._counts.env_steps >= self._most_steps

    def slot(self, stream: StreamId) -> int:
        """The row of a stream; added if the stream is new."""
        if self.owed.replay is not None:
            self.owed.replay_journal()
        return self._table.slot(stream)

    # Acting

    def act(self, slot: int, observation: Any) -> Any:
        """Choose an exploring action for one observation of a stream."""
        self.call.enter()
        try:
            streams = self._streams
            arrays = self._intake.observation(observation, "observation")
            begins = streams.check_action(slot, arrays)
            if slot in streams.restored.slots:
                known = streams.restored_action(slot, arrays)
                if known.lost is not None:
                    self._parts.grading.mark_inexact(known.lost)
                if known.action is not None:
                    return self._acted(_ACT, slot, arrays, self._intake.to_host(known.action))
            return self._acted(_ACT, slot, arrays, self._choose(slot, arrays, begins=begins))
        except BaseException as error:
            self.call.leave(error)
            raise

    def _choose(self, slot: int, arrays: Sequence[Array], *, begins: bool = False) -> Any:
        """Let the agent choose an action and return it; ask the agent before changing anything, as it may refuse."""
        table = self._table
        action = self._parts.learner.act(table.batch_of_one(arrays), _EXPLORE, table.each[slot])[0]
        if begins:
            self._streams.begin(slot, arrays)
        return self._streams.hand_out(slot, action)

    def _acted(self, kind: int, slot: int, arrays: Sequence[Array], action: Any) -> Any:
        """Record a call that acts, and return its action."""
        if self._inputs is not None:
            self._inputs.act(kind, slot, arrays)
        return action

    def act_many(self, observations: Any, names: Sequence[StreamId] | Array | None) -> Any:
        """Choose an exploring action for each row of a batch."""
        with self.call:
            streams, table = self._streams, self._table
            rows = self._intake.rows(observations)
            slots, places = table.slots_of(names, rows)
            arrays = self._intake.observations(observations, "observations", rows)
            new = streams.check_actions(slots, places, arrays)
            acting, chosen, there = slots, arrays, places
            if streams.restored.slots:
                fresh = self._rows_to_act(slots.tolist(), arrays)
                acting, chosen = slots[fresh], [array[fresh] for array in arrays]
                there, new = acting, streams.beginning(acting)
            if len(acting):
                actions = self._parts.learner.act(table.observations(chosen), _EXPLORE, acting)
                streams.hand_out_many(acting, there, chosen, actions, new)
            if self._inputs is not None:
                self._inputs.act_many(slots, places, arrays)
            return self._intake.to_host_many(table.pending[places].copy())

    def _rows_to_act(self, slots: Sequence[int], arrays: Sequence[Array]) -> list[int]:
        """The rows of a batch that need an action: all but those whose action was returned before the checkpoint."""
        rows: list[int] = []
        for row, slot in enumerate(slots):
            if slot in self._streams.restored.slots:
                known = self._streams.restored_action(slot, [array[row] for array in arrays])
                if known.lost is not None:
                    self._parts.grading.mark_inexact(known.lost)
                if known.action is not None:
                    continue
            rows.append(row)
        return rows

    # Transitions

    def observe(self, slot: int, experience: Experience) -> None:
        """Process one transition."""
        self.call.enter()
        try:
            taken = self._streams.check(slot, experience)
            self.take(taken)
            if self._inputs is not None:
                self._inputs.observe(slot, taken)
            if self._counts.env_steps >= self._parts.schedule.next:
                self.due.finish_call()
            if self._parts.outbox.noted is not None:
                self.due.raise_noted()
        except BaseException as error:
            self.call.leave(error)
            raise

    def observe_many(self, transitions: Transitions, names: Sequence[StreamId] | Array | None) -> list[StreamId]:
        """Process one transition of each of several streams; returns the streams whose episode ended."""
        with self.call:
            taken = self._streams.check_many(transitions, names)
            ended = taken.statuses.nonzero()[0]
            streams = [self._table.id_of(slot) for slot in taken.slots[ended].tolist()]
            self.take(taken)
            if self._inputs is not None:
                self._inputs.observe_many(taken)
            self.due.finish_call()
            return streams

    def take(self, taken: Taken) -> None:
        """Pass a checked call to the agent and the table, and learn."""
        self._episodes.close_open(*taken.broken)
        if taken.dropped:
            self._parts.learner.cut(list(taken.dropped))
            if self._kept is not None:
                for slot in taken.dropped:
                    self._kept.cut(slot, is_gap=True)
        # The agent comes first: if it refuses a transition, nothing has changed.
        if taken.transitions is not None:
            slots = taken.slots if taken.good is None else taken.slots[taken.good]
            self._parts.learner.observe(taken.transitions, slots)
            if self._kept is not None:
                self._kept.add(taken.transitions, slots)
            self._counts.env_steps += taken.count
        for warning in self._streams.apply(taken):
            self._parts.outbox.warn(warning)
        if self._kept is not None and self._kept.is_full and self._parts.saver is not None:
            self._parts.saver.save_data(self._kept)
        self._updater.learn()

    def learn(self, milliseconds: float | None, sizes: Iterable[int] | None = None) -> int:
        """Make the updates that are due, or as many as fit into the time; returns how many.

        A replay passes the sizes of the dispatches that were made.
        """
        milliseconds = self._updater.checked_time(milliseconds)
        with self.call:
            if milliseconds is not None and self._inputs is None:
                self._parts.grading.depend_on_clock(
                    "learn(milliseconds=...) makes as many updates as fit into the time"
                )
            made = self._updater.learn_now(milliseconds, sizes)
            if self._inputs is not None:
                self._inputs.learn(made)
            return sum(made)

    def learn_offline(self, n: int) -> int:
        """Make `n` updates of an agent that learns from data alone, fewer if a stop comes; returns how many."""
        if not is_offline(self._parts.agent):
            raise ConfigError("learn(updates=...) is for agents that learn from data alone: see learn_from")
        counts, schedule = self._counts, self._parts.schedule
        first = counts.env_steps
        end = min(first + required_count("updates", n, 1), self._most_steps)
        while counts.env_steps < end and not self._interrupter.is_stopped:
            with self.call:  # a call for each round, which ends where anything is due
                self._updater.update(max(1, int(min(end, schedule.next) - counts.env_steps)))
                counts.env_steps = counts.updates
                self.due.finish_call()
        return counts.env_steps - first

    # Episodes

    def announce(self, slot: int, claims: Claims, extras: Mapping[str, float] | None) -> EpisodeRecord:
        """End an episode whose last transition was terminated or truncated."""
        with self.call:
            numbers = checked_extras(extras)
            record = self._episodes.end(slot, claims, numbers)
            if self._inputs is not None:
                self._inputs.announce(slot, claims, numbers)
            self.due.finish_call()
            return record

    def announce_many(self, ended: Mapping[StreamId, Mapping[str, float]]) -> dict[StreamId, EpisodeRecord]:
        """End the episodes of several streams, each with its extras."""
        self.owed.replay_journal()
        numbers = self._episodes.checked(ended)
        with self.call:
            records = self._episodes.end_many(numbers)
            if self._inputs is not None:
                self._inputs.announce_many(numbers)
            self.due.finish_call()
            return records

    def close_episode(self, slot: int) -> None:
        """Close an open episode at its last complete transition, as truncated."""
        with self.call:
            self._episodes.close_open(slot)
            self._called(Kind.CLOSE_EPISODE, slot)
            self.due.finish_call()

    def _called(self, kind: Kind, slot: int) -> None:
        if self._inputs is not None:
            self._inputs.slot(kind, slot)

    def start_episode(self, slot: int) -> None:
        """Announce a new episode; one with steps that is still open on that stream is closed as truncated."""
        with self.call:
            if self._table.length[slot]:
                self._episodes.close_open(slot)
            self._parts.learner.start_episode()
            self._called(Kind.START_EPISODE, slot)
            self.due.finish_call()

    def close_stream(self, slot: int) -> None:
        """Close a stream: its open episode is closed as truncated, and its row becomes free."""
        with self.call:
            self._episodes.close_open(slot)
            self._parts.learner.cut([slot])
            self._table.release(slot)
            self._called(Kind.CLOSE_STREAM, slot)
            self.due.finish_call()

    # Streams

    def begin(self, slot: int, observation: Any) -> Any:
        """Start an episode at an observation, after closing an open one, and act."""
        with self.call:
            streams, table = self._streams, self._table
            if slot in streams.restored.replayed:
                return self.resume(slot, observation)
            streams.check_announced(slot)
            arrays = self._intake.observation(observation, "observation")
            if table.phase[slot] == _BEGUN and slot in table.traces:
                if not table.continues(slot, arrays):
                    raise InputError(f"{table.name(slot)}: begin needs the observation that reset returned")
                streams.restored.settle(slot)
                return self._choose(slot, arrays)
            streams.check_first(slot, arrays)
            is_open = table.phase[slot] != _IDLE
            self._episodes.close_open(slot)
            try:
                action = self._choose(slot, arrays, begins=True)
            except InputError:
                if is_open:
                    self._called(Kind.CLOSE_EPISODE, slot)
                raise
            self._acted(Kind.BEGIN, slot, arrays, action)
            self.due.finish_call()
            return action

    def resume(self, slot: int, observation: Any) -> Any:
        """Continue an open episode at its last observation, and act; None stands for that observation."""
        with self.call:
            streams, table = self._streams, self._table
            if table.phase[slot] not in (_BEGUN, _OPEN):
                raise InputError(f"{table.name(slot)}: no episode is open to continue")
            if observation is None:
                return self._resume_here(slot)
            arrays = self._intake.observation(observation, "observation")
            if table.unlinked[slot] and slot in streams.restored.replayed:
                return self._resume_unlinked(slot, arrays)
            if not table.continues(slot, arrays):
                raise InputError(
                    f"{table.name(slot)}: cannot continue from {observation!r:.80}, "
                    f"the last was {table.last_shown(slot)}"
                )
            streams.restored.replayed.discard(slot)
            return self.act(slot, observation)

    def _resume_here(self, slot: int) -> Any:
        if slot in self._streams.restored.slots or not self._table.has_pending[slot]:
            self._intake.take_agents_form(True)  # the newest observation is known as the agent sees it
            try:
                self.act(slot, self._streams.newest(slot))
            finally:
                self._intake.take_agents_form(False)
        return self._streams.pending(slot)

    def _resume_unlinked(self, slot: int, after: Sequence[Array]) -> Any:
        """Continue after a dropped transition, with the action that was already returned for it if there is one."""
        streams, table = self._streams, self._table
        streams.restored.settle(slot)
        if table.has_pending[slot]:
            return self._intake.to_host(table.pending[slot].copy())
        return self._choose(slot, streams.link_again(slot, after))

    def step(
        self, slot: int, observation: Any, reward: Any, status: EpisodeStatus, extras: Mapping[str, float] | None
    ) -> Any:
        """Process the outcome of the last action, and act unless the episode or the session is over."""
        self.call.enter()
        try:
            streams, table = self._streams, self._table
            after = self._intake.observation(observation, "observation")
            if not table.has_pending[slot]:
                raise InputError(f"{table.name(slot)}: step was called before begin: no action is pending")
            numbers = {} if extras is None else checked_extras(extras)
            if table.unlinked[slot]:
                for warning in streams.drop_step(slot, after, reward):
                    self._parts.outbox.warn(warning)
            else:
                self.take(streams.check_step(slot, after, reward, status))
            action = None
            try:
                if status is not _CONTINUING:
                    if table.phase[slot] == _ENDED:
                        self._episodes.end(slot, Claims(), numbers)
                    else:  # its last transition was dropped, and so were all before it
                        self._episodes.close_open(slot)
                elif not self._acts_no_more():
                    arrays = streams.link_again(slot, after) if table.unlinked[slot] else after
                    action = self._choose(slot, arrays)
            finally:  # if the agent refuses to act, too: the transition has been taken
                if self._inputs is not None:
                    self._inputs.step(slot, after, float(reward), status, numbers, has_action=action is not None)
            if self._counts.env_steps >= self._parts.schedule.next:
                self.due.finish_call()
                if self._acts_no_more():  # a hook or a signal stopped the session; a resume returns the action
                    action = None
            if self._parts.outbox.noted is not None:
                self.due.raise_noted()
            return action
        except BaseException as error:
            self.call.leave(error)
            raise

    def _acts_no_more(self) -> bool:
        """Whether a resume chooses the next action, because choosing it now would waste random numbers.

        A manual learner may make updates before the next step, so with it the action is always chosen now.
        """
        if self._inputs is not None and self._inputs.replaying is not None:
            return not self._inputs.replaying.has_action
        is_done = self._interrupter.is_stopped or self._counts.env_steps >= self._most_steps  # a property is slower
        return is_done and not self._parts.direct.is_manual

    def reset(self, slot: int, env: ResettableEnv, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset an environment with the episode's seed, or replay the episode that was open before a resume."""
        self._parts.refuse_with_journal("stream.reset(env)", "reset the environment yourself, and call stream.begin")
        with self.call:
            streams, table = self._streams, self._table
            streams.check_announced(slot)
            if slot in streams.restored.slots and slot in table.traces:
                again = self._replay(env, table.traces[slot])
                if again is not None:
                    streams.restored.replayed.add(slot)
                    return again
            frozen = frozen_options(options)
            self._episodes.close_open(slot)
            trace = EpisodeTrace(self.next_seed(slot), frozen)
            with self.call.of_environment():
                observation, info = env.reset(seed=trace.seed, options=trace.options)
            streams.start_trace(slot, trace, self._intake.observation(observation, "observation"))
            self.due.finish_call()
            return observation, info

    def _replay(self, env: ResettableEnv, trace: EpisodeTrace) -> tuple[Any, dict[str, Any]] | None:
        with self.call.of_environment():
            return replay(
                env,
                trace,
                arrays_of=lambda observation: self._intake.observation(observation, "observation"),
                to_host=self._intake.to_host,
                is_stopped=self._parts.interrupter.should_stop,
            )

    def next_seed(self, slot: int) -> int:
        """The seed of the stream's current episode."""
        table = self._table
        return episode_seed(self._seed, table.id_of(slot), int(table.episode[slot]))

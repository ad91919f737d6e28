"""Streams: the path of every observation and action, and what cannot be a stream's next step."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from rekindle.agent import State, StreamSlots
from rekindle.checks import all_finite, checked_extras, checked_reward, checked_status
from rekindle.errors import InputError, StateError
from rekindle.experience import ActMode, Array, EpisodeStatus, Experience, Transitions
from rekindle.rng import episode_seed
from rekindle.session.intake import Intake, row_count
from rekindle.session.learner import Learner
from rekindle.session.table import Phase, Places, StreamId, StreamTable
from rekindle.spaces import REWARDS, STATUSES
from rekindle.stats import EpisodeRecord
from rekindle.traces import EpisodeTrace, ResettableEnv, bytes_of_each

__all__ = ["Streams"]

# Looking up a member of an enum takes as long as a step of the rest, so those of the hot path are looked up once.
_CONTINUING = EpisodeStatus.CONTINUING
_LAST_STATUS = max(map(int, EpisodeStatus))
_EXPLORE = ActMode.EXPLORE
_IDLE, _BEGUN, _OPEN, _ENDED = map(int, Phase)


class Streams:
    """All streams of a session: validates what the host says of them and passes it on.

    Nothing changes when something is refused.
    """

    def __init__(
        self,
        table: StreamTable,
        intake: Intake,
        learner: Learner,
        *,
        seed: int,
        drops_bad_values: bool,
        is_done: Callable[[], bool],
        on_transitions: Callable[[int], None],
        on_end: Callable[[StreamId, EpisodeRecord], None],
        on_loss: Callable[[str], None],
    ) -> None:
        self.table = table
        self.intake = intake
        self.seed = seed
        self.learner = learner
        self.dropped = 0
        """Transitions left out because they held NaN or infinity."""
        self.unannounced_ends = 0
        """Streams whose episode ended without `announce`."""
        self.is_torn = False
        """Whether a call has begun to change things and not come to its end."""
        self._drops_bad_values = drops_bad_values
        self._is_done = is_done
        self._on_transitions, self._on_end, self._on_loss = on_transitions, on_end, on_loss
        self._restored: set[int] = set()
        self._lived_again: set[int] = set()
        self._reward, self._status = np.zeros(1, np.float64), np.zeros(1, np.uint8)

    # Acting

    def act(self, slot: int, observation: Any) -> Any:
        """An exploring action for one observation of a stream."""
        arrays = self.intake.observation(observation, "observation")
        phase = self.table.phase[slot]
        if phase == _ENDED:
            raise self._unannounced(slot)
        if slot in self._restored and (action := self._restored_action(slot, arrays)) is not None:
            return self.intake.to_host(action)
        if phase != _OPEN:
            self._begin(slot, arrays)
        return self._act(slot, arrays)

    def exploit(self, stream: StreamId, observation: Any) -> Any:
        """The best action for one observation; the stream need not be one of these, and none is touched."""
        arrays = self.intake.observation(observation, "observation")
        slots = self.table.peek([stream])
        return self.intake.to_host(self.learner.act(self.table.batch_of_one(arrays), ActMode.EXPLOIT, slots)[0])

    def exploit_many(self, observations: Any, streams: Sequence[StreamId] | Array | None) -> Any:
        """The best action for each row of a batch, likewise."""
        rows = row_count(observations)
        arrays = self.intake.observations(observations, "observations", rows)
        slots = self.table.peek(range(rows) if streams is None else streams)
        return self.intake.to_host_many(self.learner.act(self.table.observations(arrays), ActMode.EXPLOIT, slots))

    def act_many(self, observations: Any, streams: Sequence[StreamId] | Array | None) -> Any:
        """An exploring action for each row of a batch."""
        table, rows = self.table, row_count(observations)
        slots, places = table.slots_of(streams, rows)
        arrays = self.intake.observations(observations, "observations", rows)
        self._check_ends(slots)
        acting, chosen, there = slots, arrays, places
        if self._restored:
            fresh = self._rows_to_act(slots, arrays)
            acting, chosen = slots[fresh], [array[fresh] for array in arrays]
            there = acting
        self._begin_many(acting, there, chosen)
        if len(acting):
            self.is_torn = True
            actions = self.learner.act(table.observations(chosen), _EXPLORE, acting)
            self.intake.action_layout(actions[0])
            table.pending[there] = actions
            table.has_pending[there] = True
            self.is_torn = False
        return self.intake.to_host_many(table.pending[slots])

    def _rows_to_act(self, slots: StreamSlots, arrays: Sequence[Array]) -> Array:
        """The rows of a batch whose action was not handed out already before the checkpoint."""
        known = [
            row
            for row, slot in enumerate(slots.tolist())
            if slot in self._restored and self._restored_action(slot, [array[row] for array in arrays]) is not None
        ]
        return np.setdiff1d(np.arange(len(slots)), known)

    def _restored_action(self, slot: int, arrays: Sequence[Array]) -> Array | None:
        """The action that was handed out for this observation before the checkpoint, if there was one."""
        table = self.table
        if table.continues(slot, arrays):
            self._restored.discard(slot)
            return table.pending[slot].copy() if table.has_pending[slot] else None
        if table.phase[slot] == _BEGUN:
            self._restored.discard(slot)
            self._on_loss(f"{table.name(slot)} does not begin its episode where it did before the resume")
        return None

    def _act(self, slot: int, arrays: Sequence[Array]) -> Any:
        table = self.table
        self.is_torn = True
        action = self.learner.act(table.batch_of_one(arrays), _EXPLORE, table.each[slot])[0]
        if table.action_layout is None:
            self.intake.action_layout(action)
        table.pending[slot] = action
        table.has_pending[slot] = True
        self.is_torn = False
        return self.intake.to_host(action)

    def _begin(self, slot: int, arrays: Sequence[Array]) -> None:
        """Note the first observation of an episode."""
        if not all_finite(arrays):
            raise self._not_finite_at_first(slot, arrays[0])
        self.table.phase[slot] = _BEGUN
        self.table.set_last(slot, arrays)

    def _begin_many(self, slots: StreamSlots, places: Places, arrays: Sequence[Array]) -> None:
        """The same for those of many streams that are not in the middle of an episode."""
        table = self.table
        new = (table.phase[places] != _OPEN).nonzero()[0]
        if len(new):
            beginning, first = slots[new], [array[new] for array in arrays]
            good = _finite_rows(first)
            if good is not None:
                row = int(np.argmin(good))
                raise self._not_finite_at_first(int(beginning[row]), first[0][row])
            table.phase[beginning] = _BEGUN
            for last, array in zip(table.last, first, strict=True):
                last[beginning] = array

    # Observing

    def observe(self, slot: int, experience: Experience) -> None:
        """Take one transition."""
        table, intake = self.table, self.intake
        arrays = intake.observation(experience.observation, "observation")
        after = intake.observation(experience.next_observation, "next_observation")
        action = intake.action(experience.action)
        phase = table.phase[slot]
        if phase == _ENDED:
            raise self._unannounced(slot)
        if phase != _IDLE and not table.adrift[slot] and not table.continues(slot, arrays):
            self._break(slot, experience.observation)
            phase = _IDLE
        self._restored.discard(slot)
        self._lived_again.discard(slot)
        is_good = (phase != _IDLE and not table.adrift[slot]) or all_finite(arrays)
        self._take(slot, arrays, action, experience.reward, after, experience.status, is_good=is_good)

    def _break(self, slot: int, observation: Any) -> None:
        """An observation does not follow the last: expected after a resume, refused at any other time."""
        if slot not in self._restored:
            raise InputError(
                f"{self.table.name(slot)}: the observation {observation!r:.80} is not the last one seen, "
                f"{self.table.last_shown(slot)}; was there a reset without the end of the episode being announced?"
            )
        self.close_as_truncated(slot)

    def observe_many(self, transitions: Transitions, streams: Sequence[StreamId] | Array | None) -> list[StreamId]:
        """Take one transition of each of several streams; returns those whose episode ended."""
        table, rows = self.table, len(transitions)
        slots, places = table.slots_of(streams, rows)
        arrays = self.intake.observations(transitions.observations, "observations", rows)
        after = self.intake.observations(transitions.next_observations, "next_observations", rows)
        actions = self.intake.actions(transitions.actions, rows)
        rewards = REWARDS.conform(transitions.rewards, "rewards", rows=rows)
        statuses = STATUSES.conform(transitions.statuses, "statuses", rows=rows)
        ended = statuses.nonzero()[0]
        if len(ended) and statuses.max() > _LAST_STATUS:
            raise InputError(f"statuses must be 0, 1 or 2 (EpisodeStatus), got {statuses}")
        self._check_ends(slots)
        is_continued = table.continue_all(places, arrays)
        # What was seen before was finite.
        good = _finite_rows([rewards, *after] if is_continued else [rewards, *after, *arrays])
        if good is not None and not self._drops_bad_values:
            row = int(np.argmin(good))
            raise self._not_finite(int(slots[row]), float(rewards[row]), after[0][row])
        if not is_continued:
            self._check_continuity(slots, arrays)
        if self._restored or self._lived_again:
            self._restored.difference_update(slots.tolist())
            self._lived_again.difference_update(slots.tolist())
        names = [table.ids[slot] for slot in cast("list[int]", slots[ended].tolist())]
        self.is_torn = True
        if table.traces:
            led_to = bytes_of_each(after, rows)
            for slot, action, reward, data in zip(slots.tolist(), actions, rewards.tolist(), led_to, strict=True):
                if slot in table.traces:
                    table.traces[slot].add(action, reward, data)
        if good is not None:
            for row in np.flatnonzero(~good).tolist():
                self._drop(int(slots[row]), EpisodeStatus(int(statuses[row])), [array[row] for array in after])
            slots, rewards, statuses, actions = slots[good], rewards[good], statuses[good], actions[good]
            places, ended = slots, statuses.nonzero()[0]
            arrays, after = [array[good] for array in arrays], [array[good] for array in after]
        self._take_batch(slots, places, arrays, actions, rewards, after, statuses, ended)
        return names

    def _take_batch(
        self,
        slots: StreamSlots,
        places: Places,
        arrays: Sequence[Array],
        actions: Array,
        rewards: Array,
        after: Sequence[Array],
        statuses: Array,
        ended: Array,
    ) -> None:
        table = self.table
        if len(slots):
            observations, next_observations = table.observations(arrays), table.observations(after)
            self.learner.observe(Transitions(observations, actions, rewards, next_observations, statuses), slots)
            table.total_reward[places] += rewards
            table.length[places] += 1
            table.status[places] = statuses
            table.has_pending[places] = False
            table.adrift[places] = False
            table.phase[places] = _OPEN
            for last, array in zip(table.last, after, strict=True):
                last[places] = array
            if len(ended):
                table.phase[slots[ended]] = _ENDED
                self.unannounced_ends += len(ended)
        self._on_transitions(len(slots))

    def _check_continuity(self, slots: StreamSlots, arrays: Sequence[Array]) -> None:
        table = self.table
        same = np.ones(len(slots), np.bool_)
        for array, last in zip(arrays, table.last, strict=True):
            same &= _every_row(array == last[slots])
        known = (table.phase[slots] != _IDLE) & ~table.adrift[slots]
        broken = np.flatnonzero(known & ~same).tolist()
        for row in sorted(broken, key=lambda row: int(slots[row]) in self._restored):  # those that raise go first
            self._break(int(slots[row]), arrays[0][row])

    def _check_ends(self, slots: StreamSlots) -> None:
        """Refuse a batch with a stream whose end was not announced."""
        if self.unannounced_ends:
            ended = self.table.phase[slots] == _ENDED
            if ended.any():
                raise self._unannounced(int(slots[np.argmax(ended)]))

    def _take(
        self,
        slot: int,
        arrays: Sequence[Array],
        action: Array,
        reward: Any,
        after: Sequence[Array],
        status: EpisodeStatus,
        *,
        is_good: bool,
    ) -> None:
        """Take one transition whose observation is known to fit."""
        table = self.table
        value = reward if type(reward) is float else checked_reward(reward, table.name(slot))
        if type(status) is not EpisodeStatus:
            status = checked_status(status)
        is_good = is_good and math.isfinite(value) and all_finite(after)
        if not is_good and not self._drops_bad_values:
            raise self._not_finite(slot, value, after[0])
        self.is_torn = True
        if table.traces and slot in table.traces:
            table.traces[slot].add(action, value, after)
        if not is_good:
            self._drop(slot, status, after)
            self._on_transitions(0)
            return
        self._reward[0] = value
        self._status[0] = status
        transitions = Transitions(
            table.batch_of_one(arrays),
            action[None],
            self._reward,
            table.batch_of_one(after),
            self._status,
        )
        self.learner.observe(transitions, table.each[slot])
        table.total_reward[slot] += value
        table.length[slot] += 1
        table.status[slot] = status
        table.has_pending[slot] = False
        table.adrift[slot] = False
        table.set_last(slot, after)
        if status is _CONTINUING:
            table.phase[slot] = _OPEN
        else:
            table.phase[slot] = _ENDED
            self.unannounced_ends += 1
        self._on_transitions(1)

    def _drop(self, slot: int, status: EpisodeStatus, after: Sequence[Array]) -> None:
        """Leave a transition out: what comes before and after it is not linked."""
        table = self.table
        self.dropped += 1
        self.learner.cut([slot])
        table.has_pending[slot] = False
        table.has_gaps[slot] = True
        if status is _CONTINUING:
            table.adrift[slot] = True
            table.phase[slot] = _OPEN
            if all_finite(after):
                table.set_last(slot, after)
        else:
            table.status[slot] = status
            table.phase[slot] = _ENDED
            self.unannounced_ends += 1

    # Episodes

    def announce(
        self,
        slot: int,
        *,
        total_reward: float | None = None,
        steps: int | None = None,
        status: EpisodeStatus | None = None,
        extras: Mapping[str, float] | None = None,
    ) -> EpisodeRecord:
        """End an episode whose last transition said so; totals, if given, must agree with those counted."""
        table = self.table
        if table.phase[slot] != _ENDED:
            raise InputError(
                f"{table.name(slot)}: no episode has ended there. The last transition must say TERMINATED or "
                "TRUNCATED; to close an episode without one, call session.stream(...).abandon()"
            )
        record = self._counted(slot, EpisodeStatus(int(table.status[slot])), checked_extras(extras))
        wrong: list[str] = []
        if table.has_gaps[slot]:  # the host may count what was dropped
            total_reward = steps = None
        if total_reward is not None and not math.isclose(total_reward, record.total_reward, rel_tol=1e-4, abs_tol=1e-4):
            wrong.append(f"total_reward {total_reward} was given, {record.total_reward} was counted")
        if steps is not None and steps != record.length:
            wrong.append(f"steps {steps} was given, {record.length} was counted")
        if status is not None and status != record.status:
            wrong.append(f"status {status!r} was given, {record.status!r} was seen")
        if wrong:
            raise InputError(f"{table.name(slot)}: on_episode contradicts the transitions: {'; '.join(wrong)}")
        self.is_torn = True
        self.unannounced_ends -= 1
        table.finish(slot)
        if record.length:  # otherwise all of it was dropped
            self._on_end(table.ids[slot], record)
        self.is_torn = False
        return record

    def close_as_truncated(self, slot: int) -> None:
        """End an open episode at its last complete transition."""
        table = self.table
        if table.phase[slot] == _ENDED:
            raise self._unannounced(slot)
        if table.phase[slot] == _IDLE:
            return
        record = self._counted(slot, EpisodeStatus.TRUNCATED, {})
        was_restored = slot in self._restored
        self._restored.discard(slot)
        self._lived_again.discard(slot)
        self.learner.cut([slot])
        table.finish(slot)
        if was_restored:
            self._on_loss(f"the open episode of {table.name(slot)} ({record.length} steps) was closed as truncated")
        if record.length:
            self._on_end(table.ids[slot], record)

    def announce_all(self) -> list[str]:
        """End every episode whose end was never announced; says which."""
        slots = np.flatnonzero(self.table.phase == _ENDED).tolist()
        for slot in slots:
            self.announce(slot)
        return [self.table.name(slot) for slot in slots]

    def _counted(self, slot: int, status: EpisodeStatus, extras: dict[str, float]) -> EpisodeRecord:
        return EpisodeRecord(float(self.table.total_reward[slot]), int(self.table.length[slot]), status, extras)

    # State

    def state(self) -> State:
        """Everything, as saved."""
        return {"table": self.table.state(), "dropped": self.dropped}

    def load_state(self, state: State) -> None:
        """Go on; open episodes wait to be continued or closed."""
        self.table.load_state(state["table"])
        if type(state["dropped"]) is not int or state["dropped"] < 0:
            raise StateError(f"dropped: {state['dropped']!r:.40} is not a count")
        self.dropped = state["dropped"]
        self._restored = set(self.table.open_slots())

    # Messages

    def check_announced(self) -> None:
        """Refuse to go on while an episode's end was not announced."""
        if self.unannounced_ends:
            raise self._unannounced(int(np.argmax(self.table.phase == _ENDED)))

    def _unannounced(self, slot: int) -> InputError:
        return InputError(
            f"{self.table.name(slot)}: its episode ended, but the end was never announced: "
            f"call on_episode(stream={self.table.ids[slot]!r}) first"
        )

    def _not_finite_at_first(self, slot: int, observation: Array) -> InputError:
        return InputError(f"{self.table.name(slot)}: the first observation is not finite: {observation!r:.120}")

    def _not_finite(self, slot: int, reward: float, after: Array) -> InputError:
        what = f"the reward {reward}" if not math.isfinite(reward) else f"an observation {after!r:.120}"
        error = InputError(f"{self.table.name(slot)}: {what} is not finite")
        # Not a part of the message, as a trainer, which passes that on, has no such option.
        error.add_note("A session with bad_values='drop' leaves such transitions out.")
        return error

    # The two-call form

    def begin(self, slot: int, observation: Any) -> Any:
        """Start an episode at an observation, closing one that is open, and act."""
        table = self.table
        if slot in self._lived_again:
            return self.resume(slot, observation)
        phase = table.phase[slot]
        if phase == _ENDED:
            raise self._unannounced(slot)
        arrays = self.intake.observation(observation, "observation")
        if phase == _BEGUN and slot in table.traces:
            if not table.continues(slot, arrays):
                raise InputError(f"{table.name(slot)}: begin was given another observation than reset returned")
            self._restored.discard(slot)
            return self._act(slot, arrays)
        self.close_as_truncated(slot)
        self._begin(slot, arrays)
        return self._act(slot, arrays)

    def resume(self, slot: int, observation: Any) -> Any:
        """Go on with an open episode at its last observation, and act."""
        table = self.table
        arrays = self.intake.observation(observation, "observation")
        if table.phase[slot] not in (_BEGUN, _OPEN):
            raise InputError(f"{table.name(slot)}: no episode is open there to go on with")
        if table.adrift[slot] and slot in self._lived_again:
            return self._resume_adrift(slot, arrays)
        if not table.continues(slot, arrays):
            raise InputError(
                f"{table.name(slot)}: cannot go on from {observation!r:.80}, the last was {table.last_shown(slot)}"
            )
        self._lived_again.discard(slot)
        return self.act(slot, observation)

    def _resume_adrift(self, slot: int, after: Sequence[Array]) -> Any:
        """Go on after a transition that was dropped, with the action that was handed out for it if there was one."""
        self._lived_again.discard(slot)
        self._restored.discard(slot)
        if self.table.has_pending[slot]:
            return self.intake.to_host(self.table.pending[slot].copy())
        return self._find_footing(slot, after, _CONTINUING)

    def step(
        self, slot: int, observation: Any, reward: Any, status: EpisodeStatus, extras: Mapping[str, float] | None
    ) -> Any:
        """Take the outcome of the action handed out last, and act unless the episode or the session is over."""
        table = self.table
        after = self.intake.observation(observation, "observation")
        if not table.has_pending[slot]:
            raise InputError(f"{table.name(slot)}: step before begin (no action waits for its outcome)")
        numbers = checked_extras(extras) if extras else None
        if table.adrift[slot]:
            value = checked_reward(reward, table.name(slot))
            self.dropped += 1
            if slot in table.traces:
                table.traces[slot].add(table.pending[slot], value, after)
            return self._find_footing(slot, after, status)
        if self._restored:
            self._restored.discard(slot)
        before = [array[slot] for array in table.last]
        self._take(slot, before, table.pending[slot], reward, after, status, is_good=True)
        if status is not _CONTINUING:
            if table.phase[slot] == _ENDED:
                self.announce(slot, extras=numbers)
            return None
        if self._is_done():
            return None  # an action that nobody takes would be a random number drawn for nothing
        return self._find_footing(slot, after, status) if table.adrift[slot] else self._act(slot, after)

    def _find_footing(self, slot: int, after: Sequence[Array], status: EpisodeStatus) -> Any:
        """After a dropped transition: act on the newest good observation, with no transition to make of it."""
        table = self.table
        if status is not _CONTINUING:
            self.close_as_truncated(slot)
            return None
        if all_finite(after):
            table.set_last(slot, after)
            table.adrift[slot] = False
        return self._act(slot, [array[slot] for array in table.last])

    def reset(self, slot: int, env: ResettableEnv, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Reset an environment with the episode's seed, or bring it to where a restored episode was."""
        table = self.table
        if table.phase[slot] == _ENDED:
            raise self._unannounced(slot)
        if slot in self._restored and slot in table.traces:
            again = self._live_again(env, table.traces[slot])
            if again is not None:
                self._lived_again.add(slot)
                return again
        self.close_as_truncated(slot)
        trace = EpisodeTrace(episode_seed(self.seed, table.ids[slot], int(table.episode[slot])), options)
        observation, info = env.reset(seed=trace.seed, options=options)
        arrays = self.intake.observation(observation, "observation")
        self._begin(slot, arrays)
        trace.start(arrays)
        table.traces[slot] = trace
        return observation, info

    def bring_back(self, slot: int) -> Any:
        """Take it that the world of a restored episode is where it was, and return the observation of there."""
        table = self.table
        if slot not in self._restored:
            raise InputError(f"{table.name(slot)}: no episode was open there before a resume")
        self._lived_again.add(slot)
        return table.observations([array[slot].copy() for array in table.last])

    def _live_again(self, env: ResettableEnv, known: EpisodeTrace) -> tuple[Any, dict[str, Any]] | None:
        """Repeat an episode's actions; None if it went another way."""
        trace = EpisodeTrace(known.seed, known.options)
        observation, info = env.reset(seed=known.seed, options=known.options)
        trace.start(self.intake.observation(observation, "observation"))
        for action in known.actions:
            observation, reward, terminated, truncated, info = env.step(self.intake.to_host(action))
            trace.add(action, float(reward), self.intake.observation(observation, "observation"))
            if terminated or truncated:
                return None
        return (observation, info) if trace.chain == known.chain else None


def _finite_rows(arrays: Sequence[Array]) -> Array | None:
    """Which rows hold only finite numbers; None if all of them do."""
    floats = [array for array in arrays if array.dtype.kind in "fc"]
    # The product is the quickest look at every number; one that is too large only costs the closer look.
    if all(cmath.isfinite(np.vdot(array, array)) for array in floats):
        return None
    good = np.ones(len(arrays[0]), np.bool_)
    for array in floats:
        good &= _every_row(np.isfinite(array))
    return None if good.all() else good


def _every_row(flags: Array) -> Array:
    return flags if flags.ndim == 1 else np.all(flags.reshape(len(flags), -1), axis=1)

"""Check what may come next in each stream, and update the table of streams.

Nothing here calls the agent or the session. Methods that check a call change nothing, and raise `InputError` if the
call cannot be right; methods that change the table are called after every check has passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from rekindle.agent import State, StreamSlots
from rekindle.checks import all_finite, checked_reward, checked_status, every_row, finite_rows
from rekindle.errors import InputError, StateError
from rekindle.experience import Array, EpisodeStatus, Experience, Transitions
from rekindle.session.intake import Intake
from rekindle.session.refusals import not_continued, not_finite, not_finite_at_first, unannounced
from rekindle.session.restored import Restored
from rekindle.session.table import Phase, Places, StreamId, StreamTable
from rekindle.session.taken import Begun, Claims, Closed, Taken
from rekindle.spaces import REWARDS, STATUSES, Layout
from rekindle.stats import EpisodeRecord
from rekindle.traces import EpisodeTrace, bytes_of_each

__all__ = ["Streams"]

# An enum lookup takes as long as the rest of a step, so the members used in the hot path are looked up once.
_CONTINUING = EpisodeStatus.CONTINUING
_STATUSES = tuple(EpisodeStatus)
_LAST_STATUS = max(map(int, EpisodeStatus))
_IDLE, _BEGUN, _OPEN, _ENDED = map(int, Phase)


class Streams:
    """All streams of a session."""

    def __init__(self, table: StreamTable, intake: Intake, *, drops_bad_values: bool) -> None:
        self.table = table
        self.intake = intake
        self.dropped = 0
        """Transitions that were dropped because they contained NaN or infinity."""
        self.unannounced_ends = 0
        """Streams whose episode has ended without an announcement of the end."""
        self.restored = Restored()
        self.drops_bad_values = drops_bad_values
        self._reward, self._status = np.zeros(1, np.float64), np.zeros(1, np.uint8)

    # Acting

    def check_action(self, slot: int, arrays: Sequence[Array]) -> bool:
        """Check that an action may be chosen for an observation; returns whether an episode begins with it."""
        if self.table.phase[slot] == _OPEN:
            return False
        self.check_first(slot, arrays)
        return True

    def check_first(self, slot: int, arrays: Sequence[Array]) -> None:
        """Check that an episode of a stream may begin at an observation."""
        self.check_announced(slot)
        if not all_finite(arrays):
            raise not_finite_at_first(self.table, slot, arrays[0])

    def check_actions(self, slots: StreamSlots, places: Places, arrays: Sequence[Array]) -> Array:
        """Check that actions may be chosen for a batch of observations; returns the rows that begin an episode."""
        self._check_ends(slots)
        new = self.beginning(places)
        if len(new):
            first = [array.take(new, axis=0) for array in arrays]
            good = finite_rows(first)
            if good is not None:
                row = int(np.argmin(good))
                raise not_finite_at_first(self.table, int(slots[new[row]]), first[0][row])
        return new

    def beginning(self, places: Places) -> Array:
        """The rows of a batch that begin an episode with their observation."""
        return (self.table.phase[places] != _OPEN).nonzero()[0]

    def restored_action(self, slot: int, arrays: Sequence[Array]) -> Begun:
        """For a restored stream: the action that was returned for this observation before the checkpoint, if any."""
        table = self.table
        if table.continues(slot, arrays):
            self.restored.slots.discard(slot)
            return Begun(table.pending[slot].copy() if table.has_pending[slot] else None, None)
        if table.phase[slot] == _BEGUN:
            self.restored.slots.discard(slot)
            return Begun(None, f"{table.name(slot)} does not begin its episode where it did before the resume")
        return Begun(None, None)

    def hand_out(self, slot: int, action: Array) -> Any:
        """Record the action chosen for the newest observation; returns it in the host's form."""
        table = self.table
        if table.action_layout is None:
            self.intake.action_layout(action)
        table.pending[slot] = action
        table.has_pending[slot] = True
        return self.intake.to_host(action)

    def hand_out_many(
        self, slots: StreamSlots, places: Places, arrays: Sequence[Array], actions: Array, new: Array
    ) -> None:
        """Record the actions chosen for a batch; its rows `new` begin an episode."""
        table = self.table
        if table.action_layout is None:
            self.intake.action_layout(actions[0])
        if len(new):
            beginning = slots[new]
            table.phase[beginning] = _BEGUN
            for last, array in zip(table.last, arrays, strict=True):
                last[beginning] = array.take(new, axis=0)
        table.pending[places] = actions
        table.has_pending[places] = True

    def begin(self, slot: int, arrays: Sequence[Array]) -> None:
        """Record the first observation of an episode."""
        self.table.phase[slot] = _BEGUN
        self.table.set_last(slot, arrays)

    # Transitions

    def check(self, slot: int, experience: Experience) -> Taken:
        """Check one transition of a stream."""
        table, intake = self.table, self.intake
        try:
            arrays = intake.observation(experience.observation, "observation")
            after = intake.observation(experience.next_observation, "next_observation")
            action = intake.action(experience.action)
        except AttributeError:
            raise InputError(f"observe takes an Experience, not {experience!r:.80}") from None
        phase = table.phase[slot]
        if phase == _ENDED:
            raise unannounced(self.table, slot)
        is_known = phase != _IDLE and not table.unlinked[slot]
        is_newest = is_known and table.is_newest(slot, arrays)
        broken: Sequence[int] = ()
        if is_known and not is_newest and not table.continues(slot, arrays):
            if slot not in self.restored.slots:
                raise not_continued(self.table, slot, experience.observation)
            broken, is_known = (slot,), False
        # Observations that were seen before are finite.
        is_good = (is_known or all_finite(arrays)) and all_finite((action,))
        taken = self._checked(slot, arrays, action, experience.reward, after, experience.status, is_good, broken)
        if not is_newest:
            taken.before = arrays
        return taken

    def check_step(self, slot: int, after: Sequence[Array], reward: Any, status: EpisodeStatus) -> Taken:
        """Check the outcome of the action that was returned last."""
        table = self.table
        before = [array[slot] for array in table.last]
        return self._checked(slot, before, table.pending[slot], reward, after, status, True, ())

    def _checked(
        self,
        slot: int,
        arrays: Sequence[Array],
        action: Array,
        reward: Any,
        after: Sequence[Array],
        status: EpisodeStatus,
        is_good: bool,
        broken: Sequence[int],
    ) -> Taken:
        table = self.table
        value = reward if type(reward) is float else checked_reward(reward, table.name(slot))
        if type(status) is not EpisodeStatus:
            status = checked_status(status)
        is_good = is_good and math.isfinite(value) and all_finite(after)
        slots = table.each[slot]
        if not is_good:
            if not self.drops_bad_values:
                raise not_finite(self.table, slot, value, action, after[0])
            return Taken(slots, slot, None, 0, action, value, after, status, broken=broken, dropped=(slot,))
        self._reward[0] = value
        self._status[0] = status
        before, following = table.batch_of_one(arrays), table.batch_of_one(after)
        transitions = Transitions(before, action[None], self._reward, following, self._status)
        return Taken(slots, slot, transitions, 1, action, value, after, status, None, broken)

    def check_many(self, transitions: Transitions, streams: Sequence[StreamId] | Array | None) -> Taken:
        """Check one transition of each of several streams."""
        table = self.table
        try:
            rows = len(transitions.rewards)
        except (AttributeError, TypeError):
            raise InputError(f"observe_many takes Transitions with arrays, not {transitions!r:.80}") from None
        if not rows:
            raise InputError("the batch is empty: give at least one transition")
        slots, places = table.slots_of(streams, rows)
        arrays = self.intake.observations(transitions.observations, "observations", rows)
        after = self.intake.observations(transitions.next_observations, "next_observations", rows)
        actions = self.intake.actions(transitions.actions, rows)
        rewards = REWARDS.conform(transitions.rewards, "rewards", rows=rows)
        statuses = STATUSES.conform(transitions.statuses, "statuses", rows=rows)
        if np.count_nonzero(statuses) and np.maximum.reduce(statuses) > _LAST_STATUS:  # counting is faster
            raise InputError(f"statuses must be 0, 1 or 2 (EpisodeStatus), got {statuses}")
        self._check_ends(slots)
        is_continued = table.continue_all(places, arrays)
        # Observations that were seen before are finite.
        good = finite_rows([rewards, actions, *after, *(() if is_continued else arrays)])
        if good is not None and not self.drops_bad_values:
            row = int(np.argmin(good))
            raise not_finite(self.table, int(slots[row]), float(rewards[row]), actions[row], after[0][row])
        broken = [] if is_continued else self._broken(slots, arrays)
        taken = Taken(slots, places, None, rows, actions, rewards, after, statuses, good=good, broken=broken)
        if not is_continued:
            taken.before = arrays
        if good is None:
            observations, following = table.observations(arrays), table.observations(after)
            taken.transitions = Transitions(observations, actions, rewards, following, statuses)
            return taken
        taken.dropped = slots[~good].tolist()
        taken.count -= len(taken.dropped)
        if good.any():
            observations = table.observations([array[good] for array in arrays])
            following = table.observations([array[good] for array in after])
            kept = Transitions(observations, actions[good], rewards[good], following, statuses[good])
            taken.transitions = kept
        return taken

    def _broken(self, slots: StreamSlots, arrays: Sequence[Array]) -> list[int]:
        """The streams of a batch whose observation does not continue their episode; only allowed after a resume."""
        table = self.table
        same = np.ones(len(slots), np.bool_)
        for array, last in zip(arrays, table.last, strict=True):
            same &= every_row(array == last[slots])
        known = (table.phase[slots] != _IDLE) & ~table.unlinked[slots]
        rows = np.flatnonzero(known & ~same).tolist()
        for row in rows:
            if int(slots[row]) not in self.restored.slots:
                raise not_continued(self.table, int(slots[row]), arrays[0][row])
        return [int(slots[row]) for row in rows]

    def apply(self, taken: Taken) -> Sequence[str]:
        """Update the table with a checked call; returns warnings."""
        table, slot, status = self.table, taken.places, taken.statuses
        if type(slot) is not int:
            return self._apply_many(taken)
        if self.restored.slots:
            self.restored.settle(slot)
        warnings = self._trace(slot, taken.actions, taken.rewards, taken.after) if slot in table.traces else ()
        if taken.dropped:
            self._drop(slot, status, taken.after)
            return warnings
        table.total_reward[slot] += taken.rewards
        table.length[slot] += 1
        table.status[slot] = status
        table.has_pending[slot] = False
        table.unlinked[slot] = False
        table.set_last(slot, taken.after)
        if status is _CONTINUING:
            table.phase[slot] = _OPEN
        else:
            table.phase[slot] = _ENDED
            self.unannounced_ends += 1
        return warnings

    def _apply_many(self, taken: Taken) -> Sequence[str]:
        if self.restored.slots:
            self.restored.settle(*taken.slots.tolist())
        warnings = self._trace_many(taken) if self.table.traces else []
        table, good = self.table, taken.good
        slots, places, rewards, statuses, after = taken.slots, taken.places, taken.rewards, taken.statuses, taken.after
        if good is not None:
            for row in np.flatnonzero(~good).tolist():
                self._drop(int(slots[row]), EpisodeStatus(int(statuses[row])), [array[row] for array in after])
            slots, rewards, statuses = slots[good], rewards[good], statuses[good]
            places, after = slots, [array[good] for array in after]
        if len(slots):
            table.total_reward[places] += rewards
            table.length[places] += 1
            table.status[places] = statuses
            table.has_pending[places] = False
            table.unlinked[places] = False
            table.phase[places] = _OPEN
            for last, array in zip(table.last, after, strict=True):
                last[places] = array
            ended = statuses.nonzero()[0]
            if len(ended):
                table.phase[slots[ended]] = _ENDED
                self.unannounced_ends += len(ended)
        return warnings

    def _trace_many(self, taken: Taken) -> list[str]:
        traces, warnings = self.table.traces, cast("list[str]", [])
        led_to = bytes_of_each(taken.after, len(taken.slots))
        rows = zip(taken.slots.tolist(), taken.actions, taken.rewards.tolist(), led_to, strict=True)
        for slot, action, reward, data in rows:
            if (trace := traces.get(slot)) is not None:
                trace.add(action, reward, data)
                if trace.is_full:
                    warnings.append(self._stop_trace(slot))
        return warnings

    def _trace(self, slot: int, action: Array, reward: float, led_to: Sequence[Array]) -> Sequence[str]:
        trace = self.table.traces[slot]
        trace.add(action, reward, led_to)
        return [self._stop_trace(slot)] if trace.is_full else ()

    def _stop_trace(self, slot: int) -> str:
        """Drop a trace that is full, because a checkpoint must not grow without limit; returns a warning."""
        trace = self.table.traces.pop(slot)
        return (
            f"the open episode of {self.table.name(slot)} has {len(trace.actions):,} steps, too many to replay: "
            "a resume would close it as truncated"
        )

    def _drop(self, slot: int, status: EpisodeStatus, after: Sequence[Array]) -> None:
        """Drop a transition: the transitions before and after it are not linked."""
        table = self.table
        self.dropped += 1
        table.has_pending[slot] = False
        table.has_gaps[slot] = True
        if status is _CONTINUING:
            table.unlinked[slot] = True
            table.phase[slot] = _OPEN
            if all_finite(after):
                table.set_last(slot, after)
        else:
            table.status[slot] = status
            table.phase[slot] = _ENDED
            self.unannounced_ends += 1

    # After a dropped transition

    def drop_step(self, slot: int, after: Sequence[Array], reward: Any) -> Sequence[str]:
        """Drop the outcome of an action that was chosen on an unlinked observation."""
        value = checked_reward(reward, self.table.name(slot))
        self.dropped += 1
        if slot in self.table.traces:
            return self._trace(slot, self.table.pending[slot], value, after)
        return []

    def link_again(self, slot: int, after: Sequence[Array]) -> list[Array]:
        """The newest finite observation of an unlinked stream, to act on; links the stream again if it is this one."""
        if all_finite(after):
            self.table.set_last(slot, after)
            self.table.unlinked[slot] = False
        return [array[slot] for array in self.table.last]

    # The ends of episodes

    def check_end(self, slot: int, claims: Claims, extras: dict[str, float]) -> EpisodeRecord:
        """The record of an episode whose last transition ended it; raises if the host's claims contradict it."""
        table = self.table
        if table.phase[slot] != _ENDED:
            raise InputError(
                f"{table.name(slot)}: no episode has ended there. The last transition must say TERMINATED or "
                "TRUNCATED; to close an episode without one, call session.stream(...).abandon()"
            )
        record = self._counted(slot, _STATUSES[int(table.status[slot])], extras)
        if wrong := claims.contradictions(record, has_gaps=bool(table.has_gaps[slot])):
            raise InputError(f"{table.name(slot)}: on_episode contradicts the transitions: {'; '.join(wrong)}")
        return record

    def end(self, slot: int) -> None:
        """Record that the end of the stream's episode is announced."""
        self.unannounced_ends -= 1
        self.table.finish(slot)

    def check_announced(self, slot: int) -> None:
        """Raise if the stream's episode has ended without an announcement."""
        if self.table.phase[slot] == _ENDED:
            raise unannounced(self.table, slot)

    def check_all_announced(self) -> None:
        """Raise if any episode has ended without an announcement."""
        if self.unannounced_ends:
            raise unannounced(self.table, int(np.argmax(self.table.phase == _ENDED)))

    def close_open(self, slot: int) -> Closed | None:
        """Close an open episode at its last complete transition, as truncated; None if there is none."""
        table = self.table
        self.check_announced(slot)
        if table.phase[slot] == _IDLE:
            return None
        record = self._counted(slot, EpisodeStatus.TRUNCATED, {})
        lost = None
        if slot in self.restored.slots:
            lost = f"{table.name(slot)} ({record.length} steps)"
        self.restored.settle(slot)
        table.finish(slot)
        return Closed(slot, table.id_of(slot), record, lost)

    def ended_slots(self) -> list[int]:
        """The streams whose episode has ended without an announcement."""
        return np.flatnonzero(self.table.phase == _ENDED).tolist()

    def _counted(self, slot: int, status: EpisodeStatus, extras: dict[str, float]) -> EpisodeRecord:
        return EpisodeRecord(float(self.table.total_reward[slot]), int(self.table.length[slot]), status, extras)

    # Replayed episodes

    def start_trace(self, slot: int, trace: EpisodeTrace, arrays: Sequence[Array]) -> None:
        """Begin an episode that a resume can replay."""
        self.check_first(slot, arrays)
        self.begin(slot, arrays)
        trace.start(arrays)
        self.table.traces[slot] = trace

    def bring_back(self, slot: int) -> Any:
        """Record that the environment of a restored episode is restored too; returns its newest observation."""
        table = self.table
        if slot not in self.restored.slots:
            raise InputError(f"{table.name(slot)}: no episode was open there before a resume")
        self.restored.replayed.add(slot)
        return self.newest(slot)

    def newest(self, slot: int) -> Any:
        """The newest observation of a stream, in the host's structure."""
        table = self.table
        return cast("Layout", table.observation_layout).nested([array[slot].copy() for array in table.last])

    def pending(self, slot: int) -> Any:
        """The action of a stream that was returned and not executed yet, in the host's form; None if there is none."""
        table = self.table
        return self.intake.to_host(table.pending[slot].copy()) if table.has_pending[slot] else None

    # State

    def state(self) -> State:
        """The state for a checkpoint."""
        return {"table": self.table.state(), "dropped": self.dropped}

    def load_state(self, state: State) -> None:
        """Restore the state; open episodes wait to be continued or closed."""
        self.table.load_state(state["table"])
        if type(state["dropped"]) is not int or state["dropped"] < 0:
            raise StateError(f"dropped: {state['dropped']!r:.40} is not a count")
        self.dropped = state["dropped"]
        self.expect_hosts()

    def expect_hosts(self) -> None:
        """After a resume, let the host continue or close each open episode."""
        self.restored.expect(self.table.open_slots())

    def _check_ends(self, slots: StreamSlots) -> None:
        """Raise if a stream of a batch has an unannounced end."""
        if self.unannounced_ends:
            ended = self.table.phase[slots] == _ENDED
            if ended.any():
                raise unannounced(self.table, int(slots[np.argmax(ended)]))

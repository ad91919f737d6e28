"""Replay the calls of an input journal, without the host, after a resume.

A call that a callback made has a record of its own: before that of the outer call if it was made before that one was
recorded, and after it otherwise. Hooks are not called again: their calls are the records between `HOOK_BEGUN` and
`HOOK_DONE`. Callbacks with a state are called again, so that they get the state that they had; the calls of other
callbacks are made from their records.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Protocol

import msgspec

from rekindle.checkpoint.input_segments import JournalReader
from rekindle.errors import CheckpointError, Interrupted
from rekindle.session.calls import Calls
from rekindle.session.closing import Closing
from rekindle.session.flow import Flow
from rekindle.session.inputs import InputLog
from rekindle.session.parts import Parts
from rekindle.session.records import Context, Decoded, Dispatched, Flag, Kind
from rekindle.session.records_ahead import RecordsAhead
from rekindle.session.replayed_learner import Acted, ReplayedLearner
from rekindle.session.reports import Reports
from rekindle.session.schedule import Hook
from rekindle.spaces import ArraySpec, Layout

__all__ = ["Replay", "Stops"]

logger = logging.getLogger("rekindle")

_PROGRESS_EVERY = 1.0
"""Seconds between two messages about a long replay."""
# An enum is slow to look up its members.
_STREAM, _CLOSED = Kind.STREAM, Kind.CLOSED
_PLAIN = {Kind.ACT, Kind.ACT_MANY, Kind.OBSERVE, Kind.OBSERVE_MANY, Kind.BEGIN, Kind.STEP, Kind.TICK}
_IS_PLAIN = [kind in _PLAIN for kind in range(max(Kind) + 1)]
"""By the number of a kind: whether hooks, learners and streams have nothing to do with it."""


class Stops(Protocol):
    """Looks at a session at certain points of a replay, and may end it there."""

    @property
    def numbers(self) -> Container[int]:
        """The numbers of the records before which to look."""
        ...

    def look(self, number: int, following: Sequence[Dispatched]) -> bool:
        """Look at the session before a record, which names `following`; returns whether the replay ends here."""
        ...

    def progress(self, number: int) -> None:
        """The calls before this record have been made; called about once a second."""
        ...


class Replay:
    """Replays the calls of a journal; after the last one, the session continues with its host."""

    def __init__(
        self,
        parts: Parts,
        flow: Flow,
        reports: Reports,
        inputs: InputLog,
        reader: JournalReader,
        *,
        check: Callable[[bytes], None],
        go_live: Callable[[int], None],
        stops: Stops | None = None,
    ) -> None:
        """Call `check` with the description of the journal before the first call, `go_live` after the last one.

        `go_live` is called with the number of the next record.
        """
        self._parts, self._inputs, self._table = parts, inputs, parts.streams.table
        self._calls, self._closing, self._due = Calls(parts, flow, reports), Closing(parts), flow.due
        self._check, self._go_live = check, go_live
        self._reader = reader
        self._records = RecordsAhead(reader)
        self._early: deque[Decoded] = deque()
        """Calls of callbacks before the record of the current call."""
        self._current: Decoded | None = None
        self._applied: Decoded | None = None
        """The record of a callback's call that is being made from it."""
        self._explored_at = 0
        """The number of the last record that restored the exploring generator."""
        self.calls = 0
        """Calls replayed so far."""
        self.strayed: int | None = None
        """The first call that chose another action than before."""
        self._stops = stops
        self._is_live = False

    @property
    def has_action(self) -> bool:
        """Whether the current call returned an action."""
        return self._current is not None and bool(self._current.flags & Flag.ACTION)

    def run(self) -> None:
        """Replay every call."""
        started = shown = time.monotonic()
        if self._records.peek() is not None:
            self._check(self._reader.about)
        self._parts.streams.intake.take_agents_form(True)
        self._inputs.replaying = self._parts.outbox.replaying = self
        if isinstance(self._parts.learner, ReplayedLearner):
            self._parts.learner.acted_in_callback = self._acted_in_callback
        while not self._is_live:
            if self._parts.interrupter.should_stop():
                raise Interrupted("stopped while the calls of the input journal were replayed")
            self._make_next()
            now = time.monotonic()
            if now - shown > _PROGRESS_EVERY:
                shown = now
                self._show_progress(now - started)

    def _show_progress(self, seconds: float) -> None:
        if self._stops is not None:
            self._stops.progress(self._records.number)
        else:
            calls = f"{self.calls:,}"
            logger.warning("resuming: %s calls of the input journal replayed in %.0f s", calls, seconds)

    def _is_stopped_here(self) -> bool:
        """Let `stops` look at the session between two calls; returns whether the replay is over."""
        if self._stops is None:
            return False
        number, record = self._records.number, self._records.peek()
        following = () if record is None else record.context.dispatches
        if number not in self._stops.numbers or not self._stops.look(number, following):
            return False
        self._end(number)
        return True

    def _make_next(self) -> None:
        if self._is_stopped_here():
            return
        record = self._records.peek()
        if record is not None and _stands_alone(record):
            self._records.next()
            self._early.clear()
            self._make(record)
            return
        if record is not None and record.kind is Kind.RESTARTED:
            self._restart_learner(record)
            return
        early = self._records.take_early()
        record = self._records.next()
        if record is None:
            self._end(early[0].number if early else self._records.number)
            return
        self._early = deque(early)
        if record.context.callback is not None:
            self._apply(record)
        elif record.kind is Kind.HOOK_BEGUN:  # of a hook that the host has not added this time
            if self._stops is not None or self._records.has_end_of_hook():
                self._make_calls_of_hook()
            else:
                self._end(record.number)
        elif record.kind is Kind.HOOK_DONE:  # of the hook that took the checkpoint: do what was due after it
            self._due.finish_call()
        elif record.kind is Kind.HOOK_RAISED:  # likewise
            self._parts.schedule.retry_hook(_unpacked(record), self._parts.counts.env_steps)
        else:
            self._make(record)

    def _make(self, record: Decoded) -> None:
        outer, self._current = self._current, record
        self._prepare(record)
        self.calls += 1
        try:
            if record.kind is _STREAM:
                self.reached(_STREAM)
            elif record.kind is _CLOSED:
                self._closing.close_again()
            else:
                self._calls.make(record)
        finally:
            self._current = outer

    def _prepare(self, record: Decoded) -> None:
        context = record.context
        if self._inputs.polls is not None:
            self._inputs.polls.replayed = context.polls
        if self._early:  # the first record of a call, which may be that of a callback, names its new streams
            self._extend_table(self._early[0].context)
        if not record.flags & Flag.CONTEXT:
            return
        self._extend_table(context)
        self._restore_exploration(record)
        if isinstance(self._parts.learner, ReplayedLearner):
            acted = self._calls.recorded_actions(record) if record.flags & Flag.ACTION else None
            self._parts.learner.prepare(context, acted)
            # Now: a refused call, which has no record, may have noticed what the record of a metric or a stream says.
            self._parts.learner.look()

    def _restore_exploration(self, record: Decoded) -> None:
        """Restore the exploring generator of a background learner as a call left it, unless a later one was replayed.

        A call that a callback makes in the middle of another is recorded first, and replayed later.
        """
        saved, learner = record.context.exploration, self._parts.learner
        if saved is not None and record.number >= self._explored_at and isinstance(learner, ReplayedLearner):
            learner.load_exploration(saved)
            self._explored_at = record.number

    def _acted_in_callback(self) -> Acted | None:
        """What the call returned that a callback makes now; None outside of one."""
        record = self._applied
        if record is None or self._is_in_nested_event(record):
            if not self._parts.outbox.is_emitting:
                return None
            record = next(self._calls_of_callbacks(), None)  # a callback with a state makes its calls itself
        if record is None or not record.flags & Flag.ACTION:
            return None
        return self._calls.recorded_actions(record)

    def _extend_table(self, context: Context) -> None:
        """Add the streams that were new before a record was written, and set the layouts that were."""
        table = self._table
        # A layout is set twice if a call that was refused before the first step took the first one back.
        if (saved := context.observation_layout) is not None:
            known = table.observation_layout
            if known is None or known.state() != saved:
                table.use_observation_layout(Layout.of_state(saved))
        if context.action_layout is not None:
            action = ArraySpec.of_state(context.action_layout)
            if action != table.action_layout:
                table.use_action_layout(action)
        for stream in context.added:
            table.slot(stream)

    def _end(self, number: int) -> None:
        """Go on with the host; `number` is that of the next record."""
        self._is_live = True
        self._parts.streams.intake.take_agents_form(False)
        self._inputs.replaying = self._parts.outbox.replaying = None
        if self._inputs.polls is not None:
            self._inputs.polls.replayed = None
        self._go_live(number)

    # Called back by what a call passes through

    def reached(self, kind: Kind) -> None:
        """Compare what a call did with its record, at the point at which that was written."""
        if self._applied is not None and not self._is_in_nested_event(self._applied):
            return
        if self._parts.outbox.is_emitting:  # a callback with a state makes its calls itself
            self._take_call_of_callback(kind)
            return
        record = self._current
        if record is None or record.kind is not kind:
            return
        if record.flags & Flag.ACTION:
            self._compare_actions(record)
        self._inputs.mark_recorded()
        following = self._records.peek()
        if following is not None and _stands_alone(following):
            return
        self._pass_restarts()
        if self._records.is_at_end():
            self._end(self._records.number)

    def callback(self, event: int, callback: int) -> bool:
        """Replay the calls that a callback made in an event; returns False if it must be called."""
        if self._inputs.is_recorded:
            self._pass_restarts()
        has_called = False
        while (record := self._next_call_of(event, callback)) is not None:
            self._take(record)
            self._apply(record)
            has_called = True
        if not has_called and self._inputs.is_recorded and self._records.is_at_end():
            self._end(self._records.number)
            return False
        return True

    def hook(self, place: int, hook: Hook, env_steps: int) -> bool:
        """Replay the calls of a hook; returns False if the hook was not finished, and must be called."""
        self._pass_restarts()
        record = self._records.peek()
        if self._records.is_at_end():
            self._end(self._records.number)
            return False
        if record is None or record.kind is not Kind.HOOK_BEGUN or _unpacked(record) != place:
            hook.done(env_steps)
            return True
        if not self._records.has_end_of_hook():
            self._end(record.number)
            return False
        self._records.next()
        due = hook.next
        hook.done(env_steps)
        if self._make_calls_of_hook() is Kind.HOOK_RAISED:
            hook.next = due
            raise Interrupted("the hook raised an exception")
        return True

    def _make_calls_of_hook(self) -> Kind:
        while True:
            if self._is_stopped_here():
                return Kind.HOOK_DONE
            following = self._records.peek()
            if following is not None and following.kind in (Kind.CAUGHT_UP, Kind.RESTARTED):
                return Kind.HOOK_DONE  # a resume continued here, from a checkpoint that was taken inside the hook
            self._early = deque(self._records.take_early())
            record = self._records.next()
            if record is None:
                raise CheckpointError("the input journal ends inside a hook")
            if record.kind in (Kind.HOOK_DONE, Kind.HOOK_RAISED):
                self._pass_restarts()
                if self._records.is_at_end():
                    self._end(self._records.number)
                return record.kind
            if record.context.callback is not None:
                self._apply(record)
            else:
                self._make(record)

    def _pass_restarts(self) -> None:
        """Pass the restarts of a background learner here, unless the session is to be looked at first."""
        if self._current is not None and self._current.kind is _CLOSED:
            return  # it was restarted by the session after the one that is being closed
        while (record := self._records.peek()) is not None and record.kind is Kind.RESTARTED:
            if self._stops is not None and record.number in self._stops.numbers:
                return
            self._restart_learner(record)

    def _restart_learner(self, record: Decoded) -> None:
        """Bring a background learner to where it was restarted after an earlier resume."""
        self._records.next()
        if isinstance(self._parts.learner, ReplayedLearner):
            self._parts.learner.prepare(record.context, None)
            self._restore_exploration(record)
            self._parts.learner.look()
            self._parts.learner.finish()

    def _next_call_of(self, event: int, callback: int) -> Decoded | None:
        """The next call that a callback made in an event; those that it led to, in later events, may come before it."""
        for record in self._calls_of_callbacks():
            made_in, made_by, _ = record.context.callback or (event, None, False)
            if (made_in, made_by) == (event, callback):
                return record
            if made_in <= event:
                break
        return None

    def _calls_of_callbacks(self) -> Iterator[Decoded]:
        """The calls of callbacks that were recorded next, in the current call."""
        if self._early:
            yield from self._early
        elif self._inputs.is_recorded:
            yield from self._records.late()

    def _take(self, record: Decoded) -> None:
        if self._early:
            self._early.remove(record)
        else:
            self._records.remove(record)
        self._restore_exploration(record)

    def _take_call_of_callback(self, kind: Kind) -> None:
        record = next(self._calls_of_callbacks(), None)
        if record is not None and record.kind is kind:
            self._take(record)

    def _apply(self, record: Decoded) -> None:
        """Make the call of a callback from its record."""
        self._extend_table(record.context)
        self._restore_exploration(record)
        if record.kind is _STREAM:
            return
        outer, self._applied = self._applied, record
        try:
            self._calls.make(record)
        finally:
            self._applied = outer

    def _is_in_nested_event(self, applied: Decoded) -> bool:
        """Whether the call that is being applied has emitted an event, and a callback is called with that."""
        outbox = self._parts.outbox
        return outbox.is_emitting and (outbox.event, outbox.callback) != (applied.context.callback or ())[:2]

    def _compare_actions(self, record: Decoded) -> None:
        """The host has executed the actions of the record, whatever is chosen now."""
        if not self._calls.acts_as_before(record):
            slots, actions = self._calls.recorded_actions(record)
            self._table.pending[slots] = actions
            if self.strayed is not None:
                return
            self.strayed = record.number
            self._parts.grading.mark_inexact(
                f"call {record.number}, replayed, chose another action than before: the agent, a library or the "
                "machine is not the same"
            )


def _stands_alone(record: Decoded) -> bool:
    """Whether it is a call that nothing was recorded for before or after, as nearly all are."""
    return _IS_PLAIN[record.kind] and not record.flags & Flag.CONTEXT


def _unpacked(record: Decoded) -> int:
    return msgspec.msgpack.decode(record.body, type=int)

"""Replay a whole training from the input journal of its run, without the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rekindle.agent import LearningAgent
from rekindle.checkpoint.input_segments import JournalReader, current_segments, description_of
from rekindle.checkpoint.store import Checkpoint
from rekindle.errors import CheckpointError
from rekindle.events import Event
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.session.assembly import Assembled, assemble
from rekindle.session.first_agent import FirstAgent
from rekindle.session.journal_options import About, JournalOptions
from rekindle.session.options import Options
from rekindle.session.records import Dispatched
from rekindle.session.replayed_learner import ReplayedLearner
from rekindle.session.replaying import Replay
from rekindle.session.saving import Saver

__all__ = ["ReplayListener", "replay_into"]


class ReplayListener(Protocol):
    """Called during the replay of a whole training."""

    def checkpoint(self, number: int) -> None:
        """The checkpoint before this record was taken again, and is saved."""
        ...

    def progress(self, number: int) -> None:
        """The calls before this record have been made; called about once a second."""
        ...


class _StandIn:
    """Takes the place of a callback: its calls are made from the journal."""

    def __init__(self, *, wants_updates: bool) -> None:
        self._wants_updates = wants_updates

    def hears(self, _kind: type[Event]) -> bool:
        return self._wants_updates

    def __call__(self, event: Event) -> None:
        """Do nothing."""


class _Checkpoints:
    """Takes checkpoints where they were taken before."""

    def __init__(
        self, made: Assembled, saver: Saver, expected: Mapping[int, Checkpoint], listener: ReplayListener
    ) -> None:
        self._made, self._saver, self._expected, self._listener = made, saver, expected, listener
        self.numbers = set(expected)

    def look(self, number: int, following: Sequence[Dispatched]) -> bool:
        """Take the checkpoint before this record; returns whether it was the last one."""
        parts, expected = self._made.parts, self._expected[number]
        self.numbers.discard(number)
        if isinstance(parts.learner, ReplayedLearner):
            parts.learner.bring_to(expected.session["inputs"]["learner"], following)
        self._made.due.take_checkpoint(self._saver)
        if (error := self._saver.settle()) is not None:
            raise error
        self._listener.checkpoint(number)
        return not self.numbers

    def progress(self, number: int) -> None:
        """Pass on how far the replay is."""
        self._listener.progress(number)


def replay_into(
    agent: LearningAgent,
    run: TrainingRun,
    inputs: Path,
    first: FirstAgent,
    expected: Mapping[int, Checkpoint],
    *,
    interrupter: Interrupter,
    listener: ReplayListener,
) -> int | None:
    """Replay the calls of a journal with an agent in its first state, into a new run, and close the run.

    Args:
        agent: the agent, as it was before the first call.
        run: a new run with the seed of the original.
        inputs: the directory of the journal.
        first: what is known of the session that wrote it.
        expected: the checkpoints of the original to take again, by the number of the record before which they were
            taken. The replay ends with the last of them.
        interrupter: stops the replay, which then raises `Interrupted`.
        listener: called at checkpoints, and with the progress.

    Returns the number of the first call that chose another action than before; None if all chose the same.
    """
    about = _about(inputs)
    options = Options(
        max_steps=run.metadata.max_steps,
        checkpoint_every=None,
        keep_checkpoints=max(1, len(expected)),
        metrics_every=about.metrics_every,
        callbacks=[_StandIn(wants_updates=first.wants_updates) for _ in range(first.callbacks)],
        learner=about.learner,
        bad_values=about.bad_values,
        interrupter=interrupter,
        journal=JournalOptions(is_on=True, sync=0.05, limit=None, keep="needed", is_elsewhere=True),
        keep_data=any(checkpoint.data is not None for checkpoint in expected.values()),
    )
    made = assemble(agent, run, options)
    try:
        return _replay(made, JournalReader(inputs, 0), about, expected, listener)
    except BaseException as error:
        made.parts.learner.fail(error)
        made.ending.close_after(error)
        raise


def _about(inputs: Path) -> About:
    """Whose inputs a journal holds; raises `CheckpointError` if settings were changed in the middle of it."""
    known: About | None = None
    for segment in current_segments(inputs):
        about = About.read(description_of(segment))
        change = None if known is None else known.changed_to(about)
        if change is not None:
            raise CheckpointError(
                f"{inputs} cannot be replayed as a whole: settings were changed at record {segment.first} ({change})"
            )
        known = about
    if known is None:
        raise CheckpointError(f"{inputs}: there is no input journal")
    return known


def _replay(
    made: Assembled, reader: JournalReader, about: About, expected: Mapping[int, Checkpoint], listener: ReplayListener
) -> int | None:
    parts = made.parts
    if parts.saver is None or parts.inputs is None:
        raise CheckpointError("a journal can only be replayed into a run")
    stops = _Checkpoints(made, parts.saver, expected, listener)
    own = About.of(parts.agent, about.learner, about.bad_values, about.metrics_every, is_first=True)
    ended_at: list[int] = []
    replay = Replay(
        parts,
        made.flow,
        made.reports,
        parts.inputs,
        reader,
        check=lambda data: own.check_against(data, parts.agent, has_checkpoint=False),
        go_live=ended_at.append,
        stops=stops,
    )
    replay.run()
    if ended_at[0] in stops.numbers:  # the journal ends with the newest checkpoint
        stops.look(ended_at[0], ())
    parts.interrupter.stop("the journal was replayed", complete=True)
    made.ending.close()
    return replay.strayed

"""Start the input journal of a session: at once for a new run, after a replay for one that is resumed."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rekindle.checkpoint.input_journal import InputJournal, finish_segment, shorten_segments
from rekindle.checkpoint.input_segments import JournalReader, segments
from rekindle.errors import AgentError, StorageError
from rekindle.run.directory import TrainingRun
from rekindle.session.background import BackgroundLearner
from rekindle.session.first_agent import FirstAgent
from rekindle.session.flow import Flow
from rekindle.session.inputs import InputLog
from rekindle.session.journal_options import About, JournalOptions
from rekindle.session.parts import Parts
from rekindle.session.replayed_learner import ReplayedLearner
from rekindle.session.replaying import Replay
from rekindle.session.reports import Reports
from rekindle.storage import files

__all__ = ["INPUTS", "Journalling", "UnusedJournal"]

INPUTS = "inputs"
"""The directory of the journal in the run."""


class Journalling:
    """Opens the journal of a session."""

    def __init__(self, parts: Parts, run: TrainingRun, inputs: InputLog, about: About, options: JournalOptions) -> None:
        self._parts, self._run, self._inputs = parts, run, inputs
        self._about, self._options = about, options
        self._directory = run.path / INPUTS
        saved = parts.saved_inputs
        self._first = 0 if saved is None else int(saved["number"])
        inputs.begin_at(self._first)
        if saved is not None:
            parts.streams.restored.expect(saved["restored"])

    def open(self, number: int) -> None:
        """Open the journal for new records."""
        saver, options = self._parts.saver, self._options
        if number == 0 and options.keep == "all" and not self._has_checkpoint:
            self._write_first_agent()
        journal = InputJournal(
            self._directory,
            number=number,
            resume_count=self._run.resume_count,
            sync_every=options.sync,
            about=msgspec.json.encode(self._about),
        )
        self._inputs.use(journal)
        if saver is not None:
            saver.use_journal(journal, first=self._first, keeps_all=options.keep == "all")

    @property
    def _has_checkpoint(self) -> bool:
        resumed = self._parts.grading.resumed
        return resumed is not None and resumed.checkpoint is not None

    def _write_first_agent(self) -> None:
        parts, outbox = self._parts, self._parts.outbox
        config, count = self._about.config, outbox.callback_count
        first = FirstAgent.of(parts.agent, config, callbacks=count, wants_updates=outbox.wants_updates)
        first.write(self._directory)

    def replay(self, flow: Flow, reports: Reports) -> Callable[[], None]:
        """A function that replays the calls of the journal, and opens it for new ones."""
        parts, reader = self._parts, JournalReader(self._directory, self._first)

        def go_live(number: int) -> None:
            if reader.unfinished is not None:
                finish_segment(*reader.unfinished, reader.number)
            shorten_segments(self._directory)
            self.open(number)
            self._restart_learner()
            if self._first == 0 and self._run.metadata.fork is not None:
                # The world of the fork is not in the state of the checkpoint, and a world with a journal has no other.
                for slot in sorted(parts.streams.restored.slots):
                    flow.close_episode(slot)
            if reader.lost:
                parts.grading.mark_inexact(f"a power cut destroyed {reader.lost} bytes at the end of the input journal")
            self._report(replay.calls)

        def check(about: bytes) -> None:
            self._about.check_against(about, parts.agent, has_checkpoint=self._has_checkpoint)

        replay = Replay(parts, flow, reports, self._inputs, reader, check=check, go_live=go_live)

        def run() -> None:
            try:
                replay.run()
                self._restart_learner()  # the last call may have been the end of a session, which has no learner
            except AgentError as error:
                resumed = self._parts.grading.resumed
                step = 0 if resumed is None else resumed.step
                raise AgentError(
                    f"{error}. The calls in the input journal lead to this again and again: to continue from step "
                    f"{step} without them, fork the run (rekindle fork), or open it once without journal=True"
                ) from error

        return run

    def _restart_learner(self) -> None:
        """Let a background learner continue where the replayed one has got to."""
        parts = self._parts
        if isinstance(parts.learner, ReplayedLearner):
            parts.learner.finish()
            parts.learner = BackgroundLearner(parts.agent, parts.exploration, before=parts.learner)
            self._inputs.learner = parts.learner
            self._inputs.restarted()

    def _report(self, calls: int) -> None:
        grading = self._parts.grading
        if grading.resumed is None or not calls:
            return
        grading.resumed = msgspec.structs.replace(grading.resumed, replayed=calls)
        try:
            self._run.add_resume(grading.resumed)
        except StorageError as error:
            self._parts.outbox.warn(str(error))


class UnusedJournal:
    """The journal of a run that is resumed without it: its calls are not replayed."""

    def __init__(self, run: TrainingRun) -> None:
        self._directory, self._rewound = run.path / INPUTS, run.rewound
        self._segments = segments(self._directory)

    @property
    def lost(self) -> str | None:
        """What is lost by that; None if there is no journal."""
        if not self._segments:
            return None
        return (
            f"the run has an input journal, and was resumed without it: {len(self._segments)} segments were moved to "
            f"{self._rewound}; with journal=True the calls in it are replayed"
        )

    def set_aside(self) -> None:
        """Move it to where resumes move what they do not use; call it when the resume can no longer be refused."""
        found = files.entries(self._directory) if self._directory.is_dir() else []
        named = [segment.path for segment in self._segments]
        # The oldest segments first: what a kill leaves is no journal that could be mistaken for a whole one.
        for path in [*(path for path in found if path not in named), *named]:
            files.move(path, self._rewound)

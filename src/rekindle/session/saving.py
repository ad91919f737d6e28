"""Take checkpoints, and write them on another thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import HasReplay, LearningAgent, State
from rekindle.checkpoint.input_journal import InputJournal
from rekindle.checkpoint.replay_journal import NewRows
from rekindle.checkpoint.retention import RetentionPolicy
from rekindle.checkpoint.store import Best, Checkpoint, CheckpointStore
from rekindle.errors import RekindleError
from rekindle.events import CheckpointSaved, Stamp
from rekindle.experience import Array
from rekindle.priority import lower_priority
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import ALL_LOGS, LOGS, environment
from rekindle.session.keeping import KeptData
from rekindle.storage import codec, files
from rekindle.storage.logs import LogPosition

__all__ = ["AgentPart", "Saver", "Snapshot", "frozen"]


class AgentPart(msgspec.Struct, frozen=True):
    """The agent at one moment: its state, and the replay rows that are not in the journal yet."""

    state: State
    rows: NewRows | None
    learner: State | None
    """What a background learner has done that the host has not seen."""


class Snapshot(msgspec.Struct, frozen=True):
    """Everything but the agent at one moment."""

    stamp: Stamp
    session: State
    attached: dict[str, State]
    metrics: dict[str, float]
    best: Best | None
    exact: bool
    data: NewRows | None = None
    """The kept transitions that are not in the data of the run yet."""


class Saver:
    """Writes the checkpoints of a run on its own thread, one at a time and in order."""

    def __init__(
        self,
        run: TrainingRun,
        *,
        policy: RetentionPolicy,
        announce: Callable[[CheckpointSaved], None],
        report: Callable[[str], None],
    ) -> None:
        """Call `announce` for every saved checkpoint and `report` for every problem, on any thread."""
        self.run = run
        self._announce, self._report = announce, report
        self.store = CheckpointStore(run.path, policy=policy, resume_count=run.resume_count)
        self.stall = 0.0
        """Seconds that the training thread has waited for an unfinished save."""
        self.failures = 0
        """Saves that failed."""
        self.is_behind = False
        """Whether the last save failed, so that its content is not on disk."""
        self._journal: InputJournal | None = None
        self._keeps_journal = False
        self._positions: list[int] = []
        """The numbers of the records at which the newest checkpoints were taken."""
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="rekindle-checkpoint", initializer=lower_priority)
        self._pending: Future[None] | None = None

    def use_journal(self, journal: InputJournal, *, first: int, keeps_all: bool) -> None:
        """Remove records that no resume needs after each checkpoint, unless all are kept.

        The newest checkpoint was taken before record `first`.
        """
        self._journal, self._keeps_journal, self._positions = journal, keeps_all, [first]

    def has_checkpoint_at(self, record: int) -> bool:
        """Whether the newest checkpoint was taken before this record; True until `use_journal` is called."""
        return not self._positions or self._positions[-1] == record

    def agent_copier(self, agent: LearningAgent, read_learner: Callable[[], State | None]) -> Callable[[], AgentPart]:
        """Return a function that copies the state of agent and learner, to be called on the thread that owns them."""
        previous = self._pending

        def copy_out() -> AgentPart:
            if previous is not None:
                previous.exception()  # until then the writer uses the journal
            rows = self.store.journal.collect(agent.replay()) if isinstance(agent, HasReplay) else None
            return AgentPart(agent.state(), rows, read_learner())

        return copy_out

    def save(
        self, snapshot: Snapshot, agent: Callable[[], AgentPart], metrics_position: Callable[[], LogPosition]
    ) -> None:
        """Write a checkpoint in the background, once `agent` and `metrics_position` have returned."""
        positions = {name: self.run.log(name).position for name in LOGS if name != "metrics"}
        self._submit(lambda: self._save(snapshot, agent(), {**positions, "metrics": metrics_position()}))

    def collect_data(self, kept: KeptData | None) -> NewRows | None:
        """Copy the kept transitions that are not in the data of the run yet."""
        if kept is None:
            return None
        self.settle()  # until then the writer uses the journal
        return kept.collect(self.store.data)

    def save_data(self, kept: KeptData) -> None:
        """Write kept transitions in the background; the next checkpoint names them."""
        rows = self.collect_data(kept)
        if rows is not None:
            self._submit(lambda: self.store.save_data(rows))

    def save_best(self, best: Best, agent: Callable[[], State]) -> None:
        """Write the best agent in the background."""
        self._submit(lambda: self.store.save_best(best, agent()))

    def _submit(self, job: Callable[[], None]) -> None:
        self.settle()
        self._pending = self._writer.submit(job)

    def settle(self) -> RekindleError | None:
        """Wait for the current save; returns its error, if any, after reporting and counting it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        if not pending.done():
            started = time.perf_counter()
            pending.exception()
            self.stall += time.perf_counter() - started
        error = pending.exception()
        self.is_behind = error is not None
        if error is None:
            return None
        self.failures += 1
        if not isinstance(error, RekindleError):
            raise error
        self._report(f"a checkpoint could not be saved; the previous one is kept: {error}")
        return error

    def settle_best(self) -> RekindleError | None:
        """Wait for a best agent that no later checkpoint refers to, and make its name durable."""
        if self._pending is None:
            return None
        error = self.settle()
        if error is None:
            files.sync_directory(self.store.directory)
        return error

    def _save(self, snapshot: Snapshot, agent: AgentPart, logs: Mapping[str, LogPosition]) -> None:
        stamp = snapshot.stamp
        for name in ALL_LOGS:
            self.run.log(name).sync()
        checkpoint = Checkpoint(
            step=stamp.env_steps,
            counters=msgspec.structs.asdict(stamp),
            agent=agent.state,
            session=_with_learner(snapshot.session, agent.learner),
            attached=snapshot.attached,
            metrics=snapshot.metrics,
            best=snapshot.best,
            replay=None,
            logs=dict(logs),
            environment=environment(),
        )
        if self.run.metadata.exact and not snapshot.exact:
            # Before the checkpoint: a resume from it must know.
            self.run.update_metadata(exact=False)
        path = self.store.save(checkpoint, agent.rows, snapshot.data)
        self._announce(CheckpointSaved(stamp, str(path)))
        try:
            self.run.update_counts(total_steps=stamp.env_steps, total_episodes=stamp.episodes, updates=stamp.updates)
            self.store.tidy()
            self._tidy_journal(checkpoint)
        except RekindleError as error:
            self._report(f"{path} is saved, but the cleanup after it failed: {error}")

    def _tidy_journal(self, checkpoint: Checkpoint) -> None:
        """Keep the input journal back to the checkpoint before this one, which a resume may need."""
        inputs = checkpoint.session.get("inputs")
        if inputs is None or self._journal is None:
            return
        self._positions = [*self._positions[-1:], inputs["number"]]
        if len(self._positions) > 1 and not self._keeps_journal:
            self._journal.remove_before(self._positions[0])

    def close(self) -> None:
        """Finish the current save and end the thread."""
        self._writer.shutdown()


def _with_learner(session: State, learner: State | None) -> State:
    """The session's part of a checkpoint, with what a background learner has done that the host has not seen."""
    inputs = session.get("inputs")
    if inputs is None or inputs["learner"] is None:
        return session
    seen: State = inputs["learner"]
    # A learner that has ended has processed everything, and the host has seen all of it.
    done: State = (
        {"dispatches": seen["seen"][0], "messages": seen["sent"], "unseen": []} if learner is None else learner
    )
    return {**session, "inputs": {**inputs, "learner": {**seen, **done}}}


def frozen(tree: Any, what: str) -> Any:
    """An independent copy of a state tree; raises `StateError` for a value that cannot be saved."""
    codec.encode({what: tree})
    return _copied(tree)


def _copied(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in cast("dict[str, Any]", tree).items()}
    if isinstance(tree, list):
        return [_copied(value) for value in cast("list[Any]", tree)]
    return cast("Array", tree).copy() if isinstance(tree, np.ndarray) else tree

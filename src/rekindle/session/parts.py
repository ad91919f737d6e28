"""The parts of a session, and the session's part of a checkpoint."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from rekindle.agent import LearningAgent, State
from rekindle.checkpoint.store import Checkpoint
from rekindle.checks import refuses_misfits
from rekindle.errors import AgentError, ConfigError
from rekindle.interrupt import Interrupter
from rekindle.rng import generator_from_state, generator_state
from rekindle.session.attached import Attached
from rekindle.session.best import BestAgent
from rekindle.session.counts import Counts
from rekindle.session.grading import Grading
from rekindle.session.inputs import InputLog
from rekindle.session.keeping import KeptData
from rekindle.session.learner import DirectLearner, Learner
from rekindle.session.ledger import Ledger
from rekindle.session.logbook import Logbook
from rekindle.session.outbox import Outbox
from rekindle.session.saving import Saver
from rekindle.session.schedule import Schedule
from rekindle.session.streams import Streams
from rekindle.session.table import StreamId
from rekindle.stats import EpisodeRecord

__all__ = ["Ended", "Owed", "Parts"]

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An episode that has ended but is not logged yet."""

    stream: StreamId
    record: EpisodeRecord


class Owed(msgspec.Struct, forbid_unknown_fields=True):
    """The rest of a call that a stop interrupted: its updates, and the episodes that ended with it."""

    updates: bool = False
    episodes: list[Ended] = []


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The session's part of a checkpoint."""

    streams: State
    episodes: _Count
    stats: State
    window: State
    best_score: float
    skipped_updates: _Count
    exploration: State
    schedule: State | None
    owed: Owed | None
    inputs: State | None = None
    data: State | None = None


class Parts(msgspec.Struct, kw_only=True, eq=False):
    """The parts of a session."""

    agent: LearningAgent
    learner: Learner
    direct: DirectLearner
    """The learner on the host's thread; it also takes over when a background learner has ended."""
    streams: Streams
    counts: Counts
    logbook: Logbook
    outbox: Outbox
    schedule: Schedule
    grading: Grading
    interrupter: Interrupter
    saver: Saver | None
    kept: KeptData | None = None
    """The transitions for the data of the run, if it keeps them."""
    exploration: np.random.Generator
    """The generator for the policies of a background learner, used on the host's thread."""
    best: BestAgent = msgspec.field(default_factory=BestAgent)
    attached: Attached = msgspec.field(default_factory=Attached)
    owed: Owed = msgspec.field(default_factory=Owed)
    inputs: InputLog | None = None
    """Writes the input journal, if there is one."""
    ledger: Ledger | None = None
    """What a server must know after a restart, if the session has one."""
    saved_inputs: State | None = None
    """What the checkpoint says of the input journal, from a resume until its calls have been replayed."""
    skipped_before: int = 0
    """Updates skipped before the current learner started."""

    @property
    def skipped_updates(self) -> int:
        """Updates that a background learner had to skip, over all resumes."""
        return self.skipped_before + self.learner.skipped

    def diverged(self, name: str) -> AgentError:
        """Mark the agent as failed because a loss is not finite; returns the error to raise."""
        error = AgentError(f"the metric {name} is not finite: training has diverged; the last good checkpoint is kept")
        self.learner.fail(error)
        return error

    def refuse_with_journal(self, what: str, instead: str) -> None:
        """Raise if the session has an input journal, which replays calls and cannot restore a world."""
        if self.inputs is not None:
            raise ConfigError(
                f"{what} brings back the state of an environment or object after a resume, but this session has an "
                f"input journal (journal=True), whose world continues by itself: {instead}"
            )

    def state(self) -> State:
        """The session's part of a checkpoint."""
        return {
            "streams": self.streams.state(),
            "episodes": self.counts.episodes,
            **self.logbook.state(),
            "best_score": self.best.score,
            "skipped_updates": self.skipped_updates,
            "exploration": generator_state(self.exploration),
            "schedule": self.schedule.state(self.counts.env_steps),
            "owed": msgspec.to_builtins(self.owed) if self.owed.updates else None,
            **({} if self.inputs is None else {"inputs": self.inputs.state(self.streams.restored.slots)}),
            **({} if self.kept is None else {"data": self.kept.state()}),
        }

    @refuses_misfits
    def load_state(self, checkpoint: Checkpoint) -> None:
        """Restore the session from a checkpoint."""
        saved = msgspec.convert(_current(checkpoint.session), _Saved)
        self.streams.load_state(saved.streams)
        self.logbook.load_state({"stats": saved.stats, "window": saved.window})
        self.schedule.load_state(saved.schedule, checkpoint.step)
        self.counts.episodes = saved.episodes
        self.counts.env_steps = checkpoint.step
        self.counts.updates = checkpoint.counters["updates"]
        self.best.score, self.best.kept = saved.best_score, checkpoint.best
        self.skipped_before = saved.skipped_updates
        self.exploration = generator_from_state(saved.exploration)
        self.owed = saved.owed or Owed()
        self.saved_inputs = saved.inputs
        if self.kept is not None and checkpoint.data is not None:
            self.kept.load_state(saved.data, checkpoint.data)
        self.attached.restore(checkpoint.attached)


def _current(session: State) -> State:
    """Convert a state to the current format; format 1 had no schedule, and another name for a column of the table."""
    if "schedule" in session:
        return session
    streams: dict[str, Any] = session["streams"]
    table: dict[str, Any] = dict(streams["table"])
    table["unlinked"] = table.pop("adrift")
    return {**session, "streams": {**streams, "table": table}, "schedule": None, "owed": None}

"""The checkpoints of a run: write them atomically, find the newest intact one, remove old ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from rekindle.agent import State
from rekindle.checkpoint.replay_journal import Manifest, NewRows, ReplayJournal
from rekindle.checkpoint.retention import CheckpointInfo, RetentionPolicy
from rekindle.errors import CheckpointError, FileRefused, StorageError
from rekindle.events import Stamp
from rekindle.experience import Array
from rekindle.owner import Owner
from rekindle.run.metadata import LOGS, Log
from rekindle.storage import codec, files
from rekindle.storage.logs import LogPosition

__all__ = ["Best", "Checkpoint", "CheckpointStore", "list_steps"]

_STEP = re.compile(r"step_(0|[1-9][0-9]*)\.mpk")
_BEST = re.compile(r"best_[0-9]+(_[0-9]+)?\.mpk")
_Count = Annotated[int, msgspec.Meta(ge=0)]


class Best(msgspec.Struct, frozen=True):
    """The best agent at the time of a checkpoint."""

    file: str
    score: float
    step: int


class _Fields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tree of a checkpoint."""

    kind: Literal["checkpoint"]
    step: _Count
    counters: Stamp
    agent: State
    session: State
    attached: dict[str, Any]
    metrics: dict[str, float]
    best: Best | None
    replay: Any
    logs: dict[Log, tuple[_Count, _Count, _Count]]
    environment: dict[str, str]
    data: Any = None


class Checkpoint(msgspec.Struct, frozen=True):
    """The contents of a checkpoint file, without replay rows."""

    step: int
    counters: dict[str, Any]
    agent: State
    session: State
    attached: dict[str, State]
    metrics: dict[str, float]
    """The latest value of every metric."""
    best: Best | None
    replay: Manifest | None
    logs: dict[str, LogPosition]
    environment: dict[str, str]
    data: Manifest | None = None
    """The rows of every transition of the run, if it keeps them."""

    @property
    def inputs_number(self) -> int | None:
        """The number of the record of the input journal before which it was taken; None without a journal."""
        inputs: Any = self.session.get("inputs")
        number = cast("dict[str, Any]", inputs).get("number") if isinstance(inputs, dict) else None
        return number if type(number) is int and number >= 0 else None

    @property
    def has_learner_thread(self) -> bool:
        """Whether its session has a journal and a background learner."""
        inputs: Any = self.session.get("inputs")
        return isinstance(inputs, dict) and cast("dict[str, Any]", inputs).get("learner") is not None

    def tree(self) -> State:
        """The form stored in the file."""
        return {
            "kind": "checkpoint",
            "step": self.step,
            "counters": self.counters,
            "agent": self.agent,
            "session": self.session,
            "attached": self.attached,
            "metrics": self.metrics,
            "best": None if self.best is None else msgspec.structs.asdict(self.best),
            "replay": None if self.replay is None else self.replay.tree(),
            "logs": {name: list(position) for name, position in self.logs.items()},
            "environment": self.environment,
            **({} if self.data is None else {"data": self.data.tree()}),
        }

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read one; raises `FileRefused`."""
        try:
            fields = msgspec.convert(codec.read_file(path), _Fields)
        except (msgspec.ValidationError, AttributeError, TypeError) as error:  # the latter two for misplaced arrays
            raise FileRefused(f"{path}: not a checkpoint: {error}") from None
        if fields.step != fields.counters.env_steps:
            raise FileRefused(f"{path}: step is {fields.step}, but counters.env_steps {fields.counters.env_steps}")
        if set(fields.logs) != set(LOGS):
            raise FileRefused(f"{path}: logs has the positions of {sorted(fields.logs)}, not of {sorted(LOGS)}")
        if fields.best is not None and not _BEST.fullmatch(fields.best.file):
            raise FileRefused(f"{path}: {fields.best.file!r} is not the name of a best file")
        return cls(
            step=fields.step,
            counters=msgspec.structs.asdict(fields.counters),
            agent=fields.agent,
            session=fields.session,
            attached=fields.attached,
            metrics=fields.metrics,
            best=fields.best,
            replay=None if fields.replay is None else Manifest.of(fields.replay, name=str(path)),
            logs={log: LogPosition(*position) for log, position in fields.logs.items()},
            environment=fields.environment,
            data=None if fields.data is None else Manifest.of(fields.data, name=str(path)),
        )


class Found(msgspec.Struct, frozen=True):
    """The newest intact checkpoint, and the newer ones that were skipped."""

    checkpoint: Checkpoint | None
    rows: dict[str, Array] | None
    rejected: tuple[str, ...]


def list_steps(directory: Path) -> list[int]:
    """The steps with a checkpoint file, oldest first."""
    names = (path.name for path in files.entries(directory))
    return sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))


class CheckpointStore:
    """The checkpoint files and replay segments of one run; for one thread at a time, and not for a forked child."""

    def __init__(self, run_path: Path, *, policy: RetentionPolicy, resume_count: int) -> None:
        self._owner = Owner()
        self.directory = run_path / "checkpoints"
        self.journal = ReplayJournal(run_path / "replay", resume_count=resume_count)
        self.data = ReplayJournal(run_path / "data", resume_count=resume_count)
        """Every transition of the run, if it keeps them."""
        self._run_path = run_path
        self._policy = policy
        self._known: dict[int, Checkpoint | None] = {}
        self._unwritten_best: tuple[Best, State] | None = None

    def path(self, step: int) -> Path:
        """The file of the checkpoint at a step."""
        return self.directory / f"step_{step}.mpk"

    # Finding

    def find(self) -> Found:
        """The newest intact checkpoint: its replay rows and the best file that it refers to must be intact too.

        The checkpoint is None if there is none at all; raises `CheckpointError` if there are some but none is intact.
        """
        rejected: list[str] = []
        for step in reversed(list_steps(self.directory)):
            try:
                checkpoint = Checkpoint.read(self.path(step))
                if checkpoint.step != step:
                    raise FileRefused(f"{self.path(step)}: it is the checkpoint of step {checkpoint.step}")
                if checkpoint.best is not None:
                    codec.read_file(self.directory / checkpoint.best.file)
                if checkpoint.data is not None:
                    self.data.check_presence(checkpoint.data)
                rows = None if checkpoint.replay is None else self.journal.read(checkpoint.replay)
            except FileRefused as refusal:
                rejected.append(str(refusal))
                continue
            return Found(checkpoint, rows, tuple(rejected))
        if rejected:
            listed = "\n  ".join(rejected)
            raise CheckpointError(f"no checkpoint of {self._run_path} is intact:\n  {listed}")
        return Found(None, None, ())

    def go_back_to(self, checkpoint: Checkpoint | None, rewound: Path) -> None:
        """Make a checkpoint the newest: move everything that is newer to `rewound`."""
        self._owner.check(self._run_path)
        for step in list_steps(self.directory):
            if checkpoint is None or step > checkpoint.step:
                files.move(self.path(step), rewound)
            else:
                self._known[step] = _lightened(checkpoint) if step == checkpoint.step else self._try_read(step)
        readable = all(known is not None for known in self._known.values())
        named = self._named_files()
        for path in [*self.directory.glob("best_*.mpk"), *self.journal.files()]:
            if readable and path.name not in named:
                files.move(path, rewound)
        named = self._named_files("data")
        for path in self.data.files():
            if readable and path.name not in named:
                files.move(path, rewound / "data")
        if checkpoint is None:
            files.remove([self.directory / "latest.mpk", self.directory / "best.mpk"])
            return
        files.link(self.path(checkpoint.step), self.directory / "latest.mpk")
        if checkpoint.best is None:
            files.remove([self.directory / "best.mpk"])
        else:
            files.link(self.directory / checkpoint.best.file, self.directory / "best.mpk")
        if checkpoint.replay is not None:
            self.journal.segments = list(checkpoint.replay.segments)
        if checkpoint.data is not None:
            self.data.segments = list(checkpoint.data.segments)

    def _try_read(self, step: int) -> Checkpoint | None:
        try:
            return _lightened(Checkpoint.read(self.path(step)))
        except FileRefused:
            return None

    def _named_files(self, journal: Literal["replay", "data"] = "replay") -> set[str]:
        """The segments of a journal that checkpoints name, and with those of the replay buffer the best files."""
        named: set[str] = set()
        for known in self._known.values():
            if known is not None:
                named |= {known.best.file} if known.best else set()
                manifest = known.replay if journal == "replay" else known.data
                named |= {segment.file for segment in manifest.segments} if manifest else set()
        return named

    # Saving

    def save_best(self, best: Best, agent: State) -> None:
        """Write the best agent; if that fails, try again before the next checkpoint, which refers to it."""
        self._owner.check(self._run_path)
        self._unwritten_best = (best, agent)
        self._write_best()

    def _write_best(self) -> None:
        if self._unwritten_best is None:
            return
        best, agent = self._unwritten_best
        tree = {"kind": "best", "step": best.step, "score": best.score, "agent": agent}
        path = self.directory / best.file
        # The name becomes durable together with the checkpoint that refers to it.
        files.write_atomic(path, *codec.encode(tree), sync_name=False)
        files.link(path, self.directory / "best.mpk")
        self._unwritten_best = None

    def save(self, checkpoint: Checkpoint, rows: NewRows | None, data: NewRows | None = None) -> Path:
        """Write a checkpoint; it is durable when this returns. The logs must be synced before."""
        self._owner.check(self._run_path)
        self._write_best()
        if rows is not None:
            checkpoint = msgspec.structs.replace(checkpoint, replay=self.journal.write(rows))
        if data is not None:
            checkpoint = msgspec.structs.replace(checkpoint, data=self.data.write(data))
        path = self.path(checkpoint.step)
        try:
            files.write_atomic(path, *codec.encode(checkpoint.tree()))
        except StorageError:
            if path.is_file():  # only its name may not be durable: it is pruned like any other checkpoint
                self._known[checkpoint.step] = self._try_read(checkpoint.step)
            raise
        self._known[checkpoint.step] = _lightened(checkpoint)
        return path

    def save_data(self, rows: NewRows) -> None:
        """Write rows of the run's data, which the next checkpoint names; they are durable when this returns."""
        self._owner.check(self._run_path)
        self.data.write(rows)

    def tidy(self) -> None:
        """Point `latest` to the newest checkpoint, and remove everything that no policy and no checkpoint needs."""
        self._owner.check(self._run_path)
        newest = max(self._known)
        files.link(self.path(newest), self.directory / "latest.mpk")
        infos = [CheckpointInfo(step, known.metrics if known else {}) for step, known in sorted(self._known.items())]
        wanted = {newest} | self._policy.keep(infos)
        unwanted = [step for step in self._known if step not in wanted]
        # Durable before anything they refer to is removed: a checkpoint that reappears must find its segments.
        files.remove([self.path(step) for step in unwanted], sync=self.directory)
        for step in unwanted:
            del self._known[step]
        for directory in (self.directory, self.journal.directory, self.data.directory):
            files.remove_temporaries(directory)  # of failed writes that could not be cleaned up
        if any(known is None for known in self._known.values()):
            return  # an unreadable manifest may refer to any segment
        named = self._named_files() | {segment.file for segment in self.journal.segments}
        if self._unwritten_best is not None:
            named.add(self._unwritten_best[0].file)
        stale = [*self.directory.glob("best_*.mpk"), *self.journal.files()]
        files.remove(path for path in stale if path.name not in named)
        named = self._named_files("data") | {segment.file for segment in self.data.segments}
        files.remove(path for path in self.data.files() if path.name not in named)


def _lightened(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint without its states, to keep in memory."""
    return msgspec.structs.replace(checkpoint, agent={}, session={}, attached={})


def read_agent_state(path: Path) -> tuple[int, State]:
    """The step and the agent's state in a checkpoint or best file."""
    tree: Mapping[str, Any] = codec.read_file(path)
    if tree.get("kind") not in ("checkpoint", "best"):
        raise FileRefused(f"{path}: neither a checkpoint nor a best file")
    step, agent = tree.get("step"), tree.get("agent")
    if type(step) is not int or step < 0 or not isinstance(agent, dict):
        raise FileRefused(f"{path}: it has no step, or no state of an agent")
    return step, cast("State", agent)

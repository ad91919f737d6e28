"""Fork a run: create a run that continues from a checkpoint of another one.

The new run has everything that a resume of the other would have had at that checkpoint: the agent, replay buffer, best
agent, logs up to there. Files that are never changed are shared by hard links, so a fork takes little time and space.
The other run is only read, and may be live. Of an input journal nothing is taken: the calls after the checkpoint were
made in a world that cannot be rewound, so the fork has its own journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rekindle.checkpoint.replay_journal import Manifest, ReplayJournal
from rekindle.checkpoint.store import Checkpoint, list_steps, read_agent_state
from rekindle.errors import CheckpointError, FileRefused, RekindleError
from rekindle.run.creation import Config, build, new_run, starting
from rekindle.run.finding import find_run
from rekindle.run.metadata import LOGS, Fork, RunMetadata
from rekindle.run.reader import RunReader
from rekindle.storage import codec, files, logs
from rekindle.text import stored_path

__all__ = ["ForkPoint", "find_fork_point", "fork_run"]


class ForkPoint(NamedTuple):
    """A checkpoint of a run."""

    path: Path
    """The directory of the run, absolute."""
    step: int

    @property
    def file(self) -> Path:
        """The checkpoint file."""
        return self.path / "checkpoints" / f"step_{self.step}.mpk"


def find_fork_point(source: str | Path) -> ForkPoint:
    """The checkpoint that `PATH`, `PATH@latest`, `PATH@best` or `PATH@STEP` refers to; raises `CheckpointError`."""
    text, at, which = str(source).rpartition("@")
    if not at or not (which in ("best", "latest") or which.isdecimal()):
        text, which = str(source), "latest"
    path = files.absolute(find_run(text))
    directory = path / "checkpoints"
    steps = list_steps(directory)
    there = f"there are {', '.join(map(str, steps))}" if steps else "there is none"
    if which.isdecimal():
        step = int(which)
    elif which == "latest" or not (directory / "best.mpk").exists():
        step = steps[-1] if steps else 0
    else:
        step = read_agent_state(directory / "best.mpk")[0]
        if step not in steps:
            raise CheckpointError(
                f"{path}: the best agent is of step {step}, and no checkpoint of that step was kept ({there}): "
                f"fork one of those, or start from its weights with rekindle train --from {path}@best"
            )
    if step not in steps:
        raise CheckpointError(f"{path} has no checkpoint of step {step}: {there}")
    return ForkPoint(path, step)


def fork_run(
    point: ForkPoint,
    *,
    name: str,
    version: str = "v1",
    tags: Sequence[str] = (),
    root: str | Path,
    seed: int | None = None,
    config: Config | None = None,
    training: dict[str, Any] | None = None,
    changes: Mapping[str, tuple[Any, Any]] | None = None,
    max_steps: int | None = None,
) -> Path:
    """Create a run that continues from a checkpoint, and return its directory; resume it to train.

    Args:
        point: the checkpoint, as `find_fork_point` returns it.
        name: name of the new run.
        version: version of the new run.
        tags: tags of the new run.
        root: the directory of runs.
        seed: seed of the new run; that of the other by default.
        config: its config; that of the other by default.
        training: the settings that must not change at a resume; those of the other by default.
        changes: the settings that differ, with their values before and after, for readers.
        max_steps: steps at which the training finishes, for readers.
    """
    reader = RunReader(point.path)
    metadata = reader.metadata
    parent = stored_path(point.path)
    new = new_run(
        root,
        name,
        version,
        tags=tags,
        seed=metadata.seed if seed is None else seed,
        config=reader.read_config() or None if config is None else config,
        parent=f"{parent}@{point.step}",
    )

    def fill(building: Path) -> Mapping[str, Any]:
        try:
            # What a background learner had done, and no call had seen, is in the journal alone.
            has_unseen_updates = Checkpoint.read(point.file).has_learner_thread
            checkpoint = _share(point, building)
        except RekindleError as error:
            raise CheckpointError(f"{point.file} cannot be forked: {error}") from error
        return {
            **_inherited(metadata),
            "exact": metadata.exact and not has_unseen_updates,
            "status": "stopped",
            "stop_reason": f"forked from {metadata.name} at step {point.step}",
            "total_steps": checkpoint.step,
            "total_episodes": int(checkpoint.counters["episodes"]),
            "updates": int(checkpoint.counters["updates"]),
            "max_steps": metadata.max_steps if max_steps is None else max_steps,
            "training": metadata.training if training is None else training,
            "fork": Fork(
                run=f"{metadata.name}/{metadata.version}/{metadata.run_id}",
                path=parent,
                step=point.step,
                changes=dict(changes or {}),
            ),
        }

    with starting(new.directory):
        built = build(new, fill)
    built.lock.release()
    return built.path


def _inherited(metadata: RunMetadata) -> dict[str, Any]:
    return {name: getattr(metadata, name) for name in ("agent", "step_unit")}


def _share(point: ForkPoint, building: Path) -> Checkpoint:
    """Give a new run the files of a checkpoint."""
    there, here = point.path / "checkpoints", building / "checkpoints"
    file = here / point.file.name
    files.share(point.file, file)
    checkpoint = Checkpoint.read(file)
    if checkpoint.step != point.step:
        raise FileRefused(f"it is the checkpoint of step {checkpoint.step}")
    if checkpoint.inputs_number is not None:
        # The fork has none of the records: its own begin with number 0.
        session = {name: value for name, value in checkpoint.session.items() if name != "inputs"}
        checkpoint = msgspec.structs.replace(checkpoint, session=session)
        files.write_atomic(file, *codec.encode(checkpoint.tree()), sync_name=False)
    files.link(file, here / "latest.mpk")
    if checkpoint.best is not None:
        files.share(there / checkpoint.best.file, here / checkpoint.best.file)
        files.link(here / checkpoint.best.file, here / "best.mpk")
    if checkpoint.replay is not None:
        _share_segments(checkpoint.replay, point.path / "replay", building / "replay")
    if checkpoint.data is not None:
        files.make_directory(building / "data")
        if (point.path / "data/spaces.json").exists():
            files.share(point.path / "data/spaces.json", building / "data/spaces.json")
        _share_segments(checkpoint.data, point.path / "data", building / "data")
    for log in LOGS:
        path, position = building / f"{log}.jsonl", checkpoint.logs[log]
        files.write_atomic(path, files.read_start(point.path / path.name, position.size), sync_name=False)
        logs.surplus(path, position)  # raises if these are not the rows of the checkpoint
    files.sync_directory(here)
    return checkpoint


def _share_segments(manifest: Manifest, there: Path, here: Path) -> None:
    for segment in manifest.segments:
        files.share(there / segment.file, here / segment.file)
    ReplayJournal(here, resume_count=0).check_presence(manifest)
    files.sync_directory(here)

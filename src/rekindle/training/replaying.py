"""Replay a run from its whole input journal, and compare both: an audit of a training in the real world."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import msgspec

from rekindle.agent import LearningAgent
from rekindle.checkpoint.input_segments import current_segments
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.errors import CheckpointError, ConfigError, FileRefused
from rekindle.interrupt import Interrupter
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import RunMetadata
from rekindle.run.reader import RunReader
from rekindle.session.first_agent import FIRST_AGENT, FirstAgent
from rekindle.session.restoring import differences
from rekindle.session.whole_replay import replay_into
from rekindle.space_json import read_space
from rekindle.storage import files
from rekindle.training.algorithms import ALGORITHMS, make_agent
from rekindle.verification import checkpoint_digests

__all__ = ["ComparedCheckpoint", "ReplayedRun", "replay_run"]

_OURS = "rekindle.agents."


class ComparedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of the run, and whether the replay led to the same."""

    step: int
    record: int
    """The number of calls in the journal before it."""
    equal: dict[str, bool]
    """Whether `weights`, `state` and `logs` are equal to the bit."""

    @property
    def is_equal(self) -> bool:
        """Whether all of them are."""
        return all(self.equal.values())


class ReplayedRun(msgspec.Struct, frozen=True):
    """The result of `replay_run`."""

    path: str
    output: str | None
    """The new run; None if it was only made for the comparison."""
    ok: bool
    """Whether the replay led to every checkpoint of the run."""
    records: int
    """Calls that were replayed."""
    checkpoints: list[ComparedCheckpoint]
    """The checkpoints that the run still has, in the order in which they were taken."""
    first_difference: int | None
    """The step of the first checkpoint that differs."""
    first_other_action: int | None
    """The number of the first call that chose another action than was recorded."""
    versions: list[str]
    """How this machine and its libraries differ from those that made the newest checkpoint."""


def replay_run(
    path: str | Path,
    output: str | Path | None = None,
    *,
    agent: LearningAgent | str | None = None,
    interrupter: Interrupter | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayedRun:
    """Replay a run from its input journal, and compare both at each checkpoint that the run still has.

    The journal must be kept from the first call on (`journal_keep="all"`), and the agent is created again: one of
    `rekindle.agents` from what the run says, any other only if you name it.

    Args:
        path: the run; it is only read.
        output: the directory of the new run, which must not exist; None to remove the new run after the comparison.
        agent: for an agent that is not part of rekindle, its class as `module:Class`, or a new agent to use.
        interrupter: stops the replay, which then raises `Interrupted` and leaves no run behind.
        progress: called about once a second with the number of calls that have been made, and of all of them.
    """
    reader = RunReader(path)
    if output is not None and os.path.lexists(output):
        raise ConfigError(f"{output} exists: give a directory that does not, for the new run")
    inputs = reader.path / "inputs"
    _check_journal(reader.path, inputs)
    first, metadata = FirstAgent.read(inputs / FIRST_AGENT), reader.metadata
    made = _first_agent(agent, first, metadata, reader.path)
    expected, digests = _checkpoints(reader.path)
    newest = expected[max(expected)]
    interrupter = Interrupter() if interrupter is None else interrupter
    with _new_run(reader, metadata, output) as (run, keep):
        comparison = _Comparison(run.path, expected, digests, progress)
        strayed = replay_into(made, run, inputs, first, expected, interrupter=interrupter, listener=comparison)
        compared = comparison.compared
        if not compared or compared[-1].step != newest.step:
            raise CheckpointError(
                f"{reader.path}: the input journal does not lead to the newest checkpoint, of step {newest.step}"
            )
        kept = keep()
    different = [one.step for one in compared if not one.is_equal]
    return ReplayedRun(
        path=str(reader.path),
        output=None if kept is None else str(kept),
        ok=not different,
        records=max(expected),
        checkpoints=compared,
        first_difference=different[0] if different else None,
        first_other_action=strayed,
        versions=[text.removeprefix("not bit-exact: ") for text in differences(newest.environment)],
    )


class _Comparison:
    """Compares each checkpoint as soon as it was taken again."""

    def __init__(
        self,
        again: Path,
        expected: dict[int, Checkpoint],
        digests: dict[int, dict[str, str]],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._again, self._expected, self._digests, self._progress = again, expected, digests, progress
        self.compared: list[ComparedCheckpoint] = []

    def checkpoint(self, number: int) -> None:
        """Compare the checkpoint before this record."""
        step = self._expected[number].step
        before, steps = self._digests[number], list_steps(self._again / "checkpoints")
        now = checkpoint_digests(self._again, step) if step in steps else dict.fromkeys(before, "")
        equal = {name: digest == now[name] for name, digest in before.items()}
        self.compared.append(ComparedCheckpoint(step, number, equal))

    def progress(self, number: int) -> None:
        """Pass on how many calls have been made."""
        if self._progress is not None:
            self._progress(number, max(self._expected))


def _check_journal(run: Path, inputs: Path) -> None:
    """Raise `CheckpointError` unless there is a journal from the first call on."""
    found = current_segments(inputs)
    if not found:
        raise CheckpointError(f"{run} has no input journal: train with journal=True and journal_keep='all'")
    if found[0].first > 0 or not (inputs / FIRST_AGENT).exists():
        raise CheckpointError(
            f"{run}: the input journal does not begin with the first call of the run: a replay needs "
            "journal_keep='all' from the start, and no resume without the journal"
        )


def _checkpoints(run: Path) -> tuple[dict[int, Checkpoint], dict[int, dict[str, str]]]:
    """The intact checkpoints of a run, by the record before which they were taken, and their digests.

    Raises `CheckpointError` if there is none.
    """
    directory = run / "checkpoints"
    found: dict[int, Checkpoint] = {}
    digests: dict[int, dict[str, str]] = {}
    for step in list_steps(directory):
        with contextlib.suppress(FileRefused):  # `rekindle verify` says why
            checkpoint = Checkpoint.read(directory / f"step_{step}.mpk")
            number = checkpoint.inputs_number
            if number is not None:
                digests[number], found[number] = checkpoint_digests(run, step), checkpoint
    if not found:
        raise CheckpointError(f"{run} has no intact checkpoint to compare with: open the run and close it, to take one")
    return found, digests


def _first_agent(
    given: LearningAgent | str | None, first: FirstAgent, metadata: RunMetadata, run: Path
) -> LearningAgent:
    """The agent as it was before the first call."""
    if given is None or isinstance(given, str):
        name = given or _algorithm(first.agent)
        if name is None:
            raise ConfigError(
                f"the agent of {run} is {first.agent}, which is not part of rekindle; a class that only a run names is "
                "not imported: name it yourself, as module:Class"
            )
        texts = (first.observation_space, first.action_space)
        spaces = [None if text is None else read_space(text, name=f"a space of {run}") for text in texts]
        given = make_agent(name, *spaces, seed=metadata.seed, settings=first.config)
    kind = type(given).__name__
    if kind != first.agent.rpartition(":")[2].rpartition(".")[2]:
        raise ConfigError(f"the agent of {run} is {first.agent}, and not {kind}")
    first.load_into(given)
    return given


def _algorithm(name: str) -> str | None:
    """The algorithm of a class of ours, given as `module:Class`; None for any other."""
    module, _, kind = name.partition(":")
    if not module.startswith(_OURS):
        return None
    return next((algorithm for algorithm, known in ALGORITHMS.items() if known.agent == kind), None)


@contextlib.contextmanager
def _new_run(
    reader: RunReader, metadata: RunMetadata, output: str | Path | None
) -> Generator[tuple[TrainingRun, Callable[[], Path | None]]]:
    """A new run like another one, and a function that gives it its name once it is closed; otherwise it is removed.

    It is made in a hidden directory, so that no reader takes it for a run before it is complete.
    """
    target = None if output is None else files.absolute(Path(output))
    if target is None:
        root = Path(tempfile.mkdtemp(prefix="rekindle-replay-"))
    else:
        files.make_directory(target.parent)
        root = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        run = TrainingRun.create(
            metadata.name,
            metadata.version,
            root=root,
            seed=metadata.seed,
            config=reader.read_config() or None,
            max_steps=metadata.max_steps,
        )

        def keep() -> Path | None:
            if target is not None:
                files.rename(run.path, target)
                files.sync_directory(target.parent)
            return target

        if target is not None:
            run.update_metadata(run_id=target.name)
        with contextlib.closing(run):
            yield run, keep
    finally:
        files.remove_directory(root)

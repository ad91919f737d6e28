"""The power goes, after any call: whatever the disk kept of what was not synced, nothing that was promised is lost.

A training is traced, with kills and resumes in it. For every instant the disk is rebuilt as several models of a file
system may leave it (`powercut`), and the training goes on from there. Then the same with each fsync left out in
turn: now it must fail, or the fsync would be there for nothing, or these tests would be.
"""

from __future__ import annotations

import ast
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import powercut
import pytest
from harness import ForkServer, Training, assert_exact, assert_nothing_lost
from powercut import Cut, Operation

import rekindle
from rekindle.storage.codec import read_file

Trainings = Callable[[], Training]

SHARDS = 4
"""Parts of what is to be tried, so that it can be done on several processors."""


@dataclass(frozen=True)
class Plot:
    """What happens to a training while it is traced."""

    faults: tuple[str, ...]
    """One for each process."""
    steps: int
    budget: float | None = None
    final_score: float | None = None
    configured: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What the worker is told."""
        return {
            "steps": self.steps,
            "budget": self.budget,
            "final_score": self.final_score,
            "configured": self.configured,
        }

    @property
    def grade(self) -> str:
        return "exact" if self.budget is None else "approximate"


PLOTS = {
    # Both kills leave rows in the logs that are durable and belong to no checkpoint.
    "killed and resumed": Plot(("kill replace:step_20.mpk", "kill replace:step_80.mpk", ""), 120),
    "the sync of a log fails": Plot(("fail fsync:train_episodes.jsonl EIO",), 45),
    "no hard links": Plot(("always-fail link: EPERM",), 45),
    "not exact": Plot(("",), 25, budget=60_000),
    "the best comes last": Plot(("",), 25, final_score=1e9),
    "made with its config": Plot(("",), 25, configured=True),
}


@dataclass(frozen=True)
class Story:
    """A training that was traced."""

    plot: Plot
    operations: list[Operation]
    acknowledged: bytes
    digests: Mapping[str, str | None]

    def cuts(self, operations: Iterable[Operation] | None = None) -> dict[str, Cut]:
        """What power cuts may leave of it, by content."""
        return powercut.cuts(self.operations if operations is None else operations, len(self.acknowledged))

    def cuts_without(self, reason: str) -> Iterator[Cut]:
        """What power cuts may leave if one fsync did nothing, and could not leave otherwise."""
        usual = self.cuts()
        left = [each for each in self.operations if not (each.name == "fsync" and each.reason == reason)]
        assert len(left) < len(self.operations)
        for key, cut in self.cuts(left).items():
            known = usual.get(key)
            if known is None or cut.acknowledged > known.acknowledged or not cut.durable_rows <= known.durable_rows:
                yield cut

    @property
    def reasons(self) -> list[str]:
        """Who asked for an fsync."""
        return sorted({operation.reason for operation in self.operations if operation.name == "fsync"})


@pytest.fixture(scope="session")
def stories(server: ForkServer) -> Iterator[Callable[[str], Story]]:
    """Tells stories, each once."""
    known: dict[str, Story] = {}
    with tempfile.TemporaryDirectory() as directory:

        def tell(name: str) -> Story:
            if name not in known:
                known[name] = _tell(PLOTS[name], Training(Path(directory) / f"story_{len(known)}", server))
            return known[name]

        yield tell


def _tell(plot: Plot, training: Training) -> Story:
    for fault in plot.faults:
        ended = training.fork(f"trace {fault}", **plot.options)
        assert ended.killed if fault.startswith("kill") else ended.code == 0, ended.errors
    found = rekindle.verify(training.run)
    assert found.ok
    operations = powercut.read_trace(training.report_path)
    assert powercut.everything(operations) == powercut.read_tree(training.disk), "the model of the disk is wrong"
    return Story(plot, operations, training.acknowledged_path.read_bytes(), found.digests)


def verdict(story: Story, cut: Cut, training: Training) -> str | None:
    """What goes wrong in a training that goes on from where a power cut left it; None if nothing does."""
    powercut.build(cut.tree, training.disk)
    training.acknowledged_path.write_bytes(story.acknowledged[: cut.acknowledged])
    try:
        assert_nothing_lost(training)
        if training.steps_on_disk and story.plot.grade != "exact":
            assert not rekindle.RunReader(training.run).metadata.exact, "it says that it is exact"
        if training.is_finished and (score := story.plot.final_score) is not None:
            assert read_file(training.run / "checkpoints" / "best.mpk")["score"] == score, "the best is another"
        assert cut.durable_rows <= powercut.rows_on(training.disk), "rows that were durable are gone"
        training.finish(**story.plot.options)
        assert_exact(training, story.digests, grade=story.plot.grade)
        assert cut.durable_rows <= powercut.rows_on(training.disk), "the resume lost rows that were durable"
    except (AssertionError, rekindle.RekindleError) as error:
        return f"{cut.where}: {error}"
    finally:
        shutil.rmtree(training.directory)
    return None


def parts_of_plots(*whole: str) -> Iterator[Any]:
    """Each plot in parts: in CI the first of each, and all of those that are named; the others in `make test-all`."""
    for name in PLOTS:
        for shard in range(SHARDS):
            is_quick = name in whole or shard == 0
            yield pytest.param(name, shard, marks=() if is_quick else pytest.mark.exhaustive)


@pytest.mark.parametrize(("name", "shard"), list(parts_of_plots()))
def test_nothing_promised_is_lost(name: str, shard: int, stories: Callable[[str], Story], trainings: Trainings) -> None:
    story = stories(name)
    cuts = list(story.cuts().values())
    assert len(cuts) > 100
    wrong = [found for cut in cuts[shard::SHARDS] if (found := verdict(story, cut, trainings()))]
    assert wrong == []


@pytest.mark.parametrize(("name", "shard"), list(parts_of_plots("killed and resumed", "the sync of a log fails")))
def test_without_any_one_fsync_something_is_lost(
    name: str, shard: int, stories: Callable[[str], Story], trainings: Trainings
) -> None:
    story = stories(name)
    needless = [
        reason
        for reason in story.reasons[shard::SHARDS]
        if not any(verdict(story, cut, trainings()) for cut in story.cuts_without(reason))
    ]
    assert needless == []


# Whoever calls one of these wants something to be durable.
SYNCING = {"fsync", "sync_directory", "write_atomic", "make_directory", "sync"}

NOT_IN_ANY_STORY = {
    "following.py:_save": "says how far an outside service has got; what is in doubt is checked against the service",
    "following.py:_start": "makes the directory for that",
    "tensorboard.py:start": "makes a directory for files that are cut back to what the rest of the run knows of",
    "logs.py:_sync_if_large": "syncs a log that has grown by megabytes since the last checkpoint, as that would",
    "files.py:move": "makes the directory that cutting a log has made already, unless no log had to be cut",
    "files.py:write_output": "writes a file of the user's, outside every run",
    "reader.py:request_stop": "is called by another process; a request that a power cut takes away is of no use anyway",
    "directory.py:resume": "makes a directory of the run that somebody removed",
    "directory.py:request_stop": "asks a study to stop, from another process",
    "directory.py:write_settings": "describes a study; without it the command is called again, and finds its runs",
    "replaying.py:_new_run": "makes the directory above a replayed run, which the command makes again",
    "replaying.py:keep": "gives a replayed run its name; without it the command is called again",
    "forking.py:_share": "fills a fork before it gets its name; test_forking.py checks the order",
    "forking.py:_share_segments": "the same, for its replay buffer and data",
    "files.py:share": "the same, where files cannot be shared",
    "first_agent.py:write": "stores the agent before its first call, for `rekindle replay`; a resume does not need it",
    "keeping.py:prepare_data": "stores the spaces of kept data; a data set without them infers them from the values",
    "input_journal.py:finish_segment": "ends the segment that a kill left; test_input_segments.py checks the order",
    "cache.py:_convert": "makes the cache of a data set; one that is missing is made again",
    "cache.py:_write": "fills it",
    "export.py:export_npz": "writes a file of the user's, outside every run",
    "export.py:minari_writer": "writes a directory of the user's, outside every run",
    "npy.py:sync": "is called by the three above",
    "tags.py:create_tags": "stores tags of a run, on which no resume depends",
    "files.py:create_empty": "is called by it",
    **dict.fromkeys(
        (
            "input_journal.py:__init__",
            "input_journal.py:_start_segment",
            "input_journal.py:append",
            "input_journal.py:sync",
            "input_journal.py:_sync_all",
            "input_segments.py:write_durable",
        ),
        "is part of the input journal, which has a model of power cuts of its own (test_input_journal_power_cut.py)",
    ),
}


def test_every_sync_in_the_source_is_in_a_story(stories: Callable[[str], Story]) -> None:
    """So that the tests above have left out every one of them."""
    seen = {
        place for name in PLOTS for each in stories(name).operations if each.name == "fsync" for place in each.stack
    }
    unseen: set[str] = set()
    for path in Path(rekindle.__file__).parent.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and _name(call) in SYNCING:
                    place = f"{path.name}:{function.name}"
                    lines = range(call.lineno, (call.end_lineno or call.lineno) + 1)
                    if not any(f"{place}:{line}" in seen for line in lines) and not _leaves_it(call):
                        unseen.add(place)
    assert unseen == set(NOT_IN_ANY_STORY)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _leaves_it(call: ast.Call) -> bool:
    """Whether it makes a directory and leaves the name to be synced by others."""
    return _name(call) == "make_directory" and any(each.arg == "sync_name" for each in call.keywords)

"""The kernel's side of the kills: the injector wraps all that changes files, and a kill from outside is no worse.

A point to kill at is (system call, path, how often the thread has made the call on the path). Where two threads make
the same call on the same path, which is so for the metadata only, strace kills the first that gets there; the other
is left to the injector.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from harness import Training, assert_survives, discarded, needs_strace, place
from tracing import Call, strace

Reference = Mapping[str, str | None]
Trainings = Callable[[], Training]
Point = tuple[str, str, int]

pytestmark = needs_strace

_AS_THE_INJECTOR_SAYS = {
    "openat": "open",
    "pwrite64": "pwrite",
    "mkdirat": "mkdir",
    "linkat": "link",
    "renameat": "rename",
    "renameat2": "rename",
    "replace": "rename",
    "unlinkat": "unlink",
}


def inside(calls: list[Call], training: Training) -> list[Call]:
    """The calls that change something on the disk."""
    return [call for call in calls if call.changes and call.path.startswith(str(training.disk))]


def points(calls: list[Call], training: Training) -> list[Point]:
    """Every call that changes something on the disk as a place to kill, counted as strace counts."""
    counts: Counter[tuple[int, str, str]] = Counter()
    found: dict[Point, None] = {}
    for call in calls:
        counts[call.thread, call.name, call.watched] += 1
        if inside([call], training):
            watched = call.watched.replace(str(training.disk), "DISK")
            found[call.name, watched, counts[call.thread, call.name, call.watched]] = None
    return list(found)


def test_the_injector_misses_no_call_that_changes_files(training: Training) -> None:
    script = training.directory / "recorded.py"
    script.write_text(
        "import sys\n"
        "here, disk, root, report, acknowledged = sys.argv[1:]\n"
        "sys.path.insert(0, here)\n"
        "import injection, worker\n"
        "injection.inject('record', disk, report, acknowledged)\n"
        "worker.train(root, acknowledged)\n"
    )
    places = [Path(__file__).parent, training.disk, training.root, training.report_path, training.acknowledged_path]
    ended, calls = strace(training, command=[str(script), *map(str, places)])
    assert ended.code == 0, ended.errors

    def common(name: str) -> str:
        return _AS_THE_INJECTOR_SAYS.get(name, name)

    seen_outside = Counter(f"{common(call.name)} {place(call.path, training)}" for call in inside(calls, training))
    seen_inside: Counter[str] = Counter()
    for line in training.reported:
        name, path = place(line, training).split(" ", 1)
        seen_inside[f"{common(name)} {path}"] += 1
    assert seen_inside == seen_outside
    assert seen_inside.total() > 200


class TestKilledByStrace:
    """SIGKILL by the kernel's hand, as the call is entered."""

    @pytest.fixture
    def created(self, trainings: Trainings) -> Training:
        """Killed right after it began: from here on the path of the run is known, which strace needs."""
        training = trainings()
        training.fork(die_at=0)
        return training

    def test_at_some_calls_while_the_run_is_made(self, trainings: Trainings, reference: Reference) -> None:
        self._kill_while_created(trainings, reference, stride=6)

    @pytest.mark.exhaustive
    @pytest.mark.timeout(600)
    def test_at_every_call_while_the_run_is_made(self, trainings: Trainings, reference: Reference) -> None:
        self._kill_while_created(trainings, reference, stride=1)

    def test_at_some_calls_of_the_training(self, created: Training, scratch: Path, reference: Reference) -> None:
        self._kill_while_trained(created, scratch, reference, stride=13)

    @pytest.mark.exhaustive
    @pytest.mark.timeout(1200)
    @pytest.mark.parametrize("shard", range(4))
    def test_at_every_call_of_the_training(
        self, shard: int, created: Training, scratch: Path, reference: Reference
    ) -> None:
        self._kill_while_trained(created, scratch, reference, stride=4, start=shard)

    def _kill_while_created(self, trainings: Trainings, reference: Reference, *, stride: int) -> None:
        """Only one thread is at work until the first log is written, so counting calls is enough."""
        with discarded(trainings()) as training:
            _, calls = strace(training)
            first_row = next(
                index for index, call in enumerate(calls) if ".jsonl" in call.path and call.name == "write"
            )
            counts = Counter(call.name for call in inside(calls[:first_row], training) if call.name != "openat")
        assert counts.total() > 15
        killed_at: Counter[str] = Counter()
        wanted = [(name, when) for name, count in sorted(counts.items()) for when in range(1, count + 1)][::stride]
        for name, when in wanted:
            with discarded(trainings()) as training:
                ended, calls = strace(training, inject=f"{name}:signal=SIGKILL:when={when}")
                assert ended.killed
                killed_at.update(call.name for call in calls if call.killed)
                assert_survives(training, reference)
        assert killed_at == Counter(name for name, _ in wanted)

    def _kill_while_trained(
        self, created: Training, scratch: Path, reference: Reference, *, stride: int, start: int = 0
    ) -> None:
        with discarded(created.copy_to(scratch / "baseline")) as baseline:
            _, calls = strace(baseline)
            known = points(calls, baseline)
        assert len(known) > 200
        wanted = known[start::stride]
        missed: list[Point] = []
        for number, (name, path, when) in enumerate(wanted):
            with discarded(created.copy_to(scratch / f"trial_{number}")) as training:
                target = path.replace("DISK", str(training.disk))
                ended, calls = strace(
                    training, inject=f"{name}:signal=SIGKILL:when={when}", paths=[Path(target)], calls=name
                )
                if not (ended.killed and any(call.killed and call.watched == target for call in calls)):
                    missed.append((name, path, when))
                assert_survives(training, reference)
        # Whether the last rows of a log go with this fsync or the next is up to the threads.
        assert [point for point in missed if not (point[0] == "fsync" and point[1].endswith(".jsonl"))] == []
        assert len(missed) <= len(wanted) / 20

"""A disk that refuses: the training goes on and ends exact, or stops with a clear error and goes on when started again.

Whichever it is, no error passes in silence, nothing that was acknowledged is lost, and nothing is called saved that
is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
from harness import (
    Ended,
    Training,
    assert_exact,
    assert_nothing_lost,
    discarded,
    is_intact,
    leftovers,
    needs_strace,
)
from tracing import Call, parse, strace

import rekindle
from rekindle.errors import StorageError
from rekindle.run.finding import find_runs

Reference = Mapping[str, str | None]
Trainings = Callable[[], Training]


def assert_copes(training: Training, ended: Ended, reference: Reference, *, told: str) -> None:
    """It went on and is exact, or it stopped with an error that says why; then, started again, it is exact."""
    assert ended.code in (0, 1), ended.errors
    if ended.code == 0:
        assert any(told in warning for warning in training.warnings), "an error passed in silence"
    else:
        assert re.search(rf"^StorageError: .*{told}", ended.errors, re.MULTILINE), ended.errors
        assert "finished" not in training.acknowledged
    assert_nothing_lost(training)
    training.finish()
    assert_exact(training, reference)


class TestRefusedFromInside:
    """The injector makes calls fail, each in turn."""

    @pytest.mark.parametrize("shard", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
    def test_any_one_call(self, shard: int, trainings: Trainings, reference: Reference) -> None:
        went_on, stopped = self._sweep(trainings, reference, "EIO", "Input/output error", first=shard + 1, stride=2)
        # Before the run is there it cannot go on; once it is, nearly every error is survived.
        assert went_on > 80
        assert 10 < stopped < 35

    def test_no_space_for_any_one_call(self, trainings: Trainings, reference: Reference) -> None:
        went_on, stopped = self._sweep(trainings, reference, "ENOSPC", "No space left on device", first=1, stride=5)
        assert went_on > 30
        assert stopped > 5

    def _sweep(
        self, trainings: Trainings, reference: Reference, error: str, text: str, *, first: int, stride: int
    ) -> tuple[int, int]:
        """Says how often it went on, and how often it had to be started again."""
        went_on = stopped = 0
        number = first
        while True:
            with discarded(trainings()) as training:
                ended = training.fork(f"fail {number} {error}")
                if not training.reported:
                    return went_on, stopped
                assert_copes(training, ended, reference, told=text)
                went_on += ended.code == 0
                stopped += ended.code == 1
            number += stride

    @pytest.mark.parametrize("calls", [8, 30, 80])
    def test_every_call_for_a_while(self, calls: int, trainings: Trainings, reference: Reference) -> None:
        """Cleaning up fails too, and what could not be cleared away must not stand in the way of the next."""
        first = 1
        while True:
            with discarded(trainings()) as training:
                ended = training.fork(f"outage {first}-{first + calls} EIO")
                if not training.reported:
                    break
                assert_copes(training, ended, reference, told="Input/output error")
            first += 11


TEMPORARY = [
    "checkpoints/.step_60.mpk.tmp",
    "checkpoints/.best_50.mpk.tmp",
    "replay/.rows_40_60_r1.mpk.tmp",
    ".metadata.json.tmp",
]
LOGS = ["train_episodes.jsonl", "metrics.jsonl"]
DIRECTORIES = ["checkpoints", "replay"]


@needs_strace
class TestRefusedByTheKernel:
    """strace makes a system call on one path fail, once."""

    @pytest.fixture
    def created(self, training: Training) -> Training:
        """Killed right after it began: from here on the path of the run is known, which strace needs."""
        training.fork(die_at=0)
        return training

    @pytest.mark.parametrize(
        ("name", "target"),
        [("write", target) for target in (*TEMPORARY, *LOGS)] + [("rename", target) for target in TEMPORARY],
    )
    def test_a_call(self, name: str, target: str, created: Training, reference: Reference) -> None:
        ended, calls = strace(created, inject=f"{name}:error=EIO:when=1", paths=[created.run / target], calls=name)
        assert any(call.injected for call in calls)
        assert_copes(created, ended, reference, told="Input/output error")

    @pytest.mark.parametrize("target", [*TEMPORARY, *LOGS, *DIRECTORIES])
    def test_an_fsync_that_failed_is_not_asked_again(
        self, target: str, created: Training, reference: Reference
    ) -> None:
        """The kernel tells of an error once, and says "done" to whoever asks again: the data must be written anew."""
        ended, calls = strace(
            created, inject="fsync:error=EIO:when=1", paths=[created.run / target], calls="fsync,close,openat"
        )
        assert any(call.injected for call in calls)
        for index, call in enumerate(calls):
            if call.injected:
                assert not asked_again(call, calls[index + 1 :])
        assert_copes(created, ended, reference, told="Input/output error")


def asked_again(failed: Call, later: list[Call]) -> bool:
    """Whether a descriptor whose fsync failed was synced once more before it was closed."""
    descriptor = failed.arguments.split(">")[0]
    for call in later:
        if call.arguments.split(">")[0] == descriptor:
            if call.name == "close":
                return False
            if call.name == "fsync":
                return True
    return False


def test_asking_again_would_be_noticed() -> None:
    calls = parse(
        "1 fsync(5</run/log>) = -1 EIO (Input/output error) (INJECTED)\n"
        "2 fsync(6</run/log>) = 0\n"
        "1 fsync(5</run/log>) = 0\n"
        "1 close(5</run/log>) = 0\n"
    )
    assert calls[0].injected
    assert asked_again(calls[0], calls[1:])
    assert not asked_again(calls[0], [calls[1], calls[3], calls[2]])


def test_a_log_whose_sync_failed_is_written_anew(training: Training, reference: Reference) -> None:
    ended = training.fork("fail fsync:train_episodes.jsonl EIO")
    assert ended.code == 0
    assert training.acknowledged_steps == [40, 60, 70, 70, 80, 100, 120]
    (warning,) = training.warnings
    assert re.search(
        r"cannot sync .*train_episodes\.jsonl: Input/output error; the next sync writes a new file", warning
    )
    assert_exact(training, reference)


class TestNoRoom:
    """A file system of a few kilobytes, really full."""

    @pytest.fixture
    def small(self, training: Training) -> Iterator[Training]:
        if os.geteuid() != 0:
            pytest.skip("needs root, to mount a small file system")
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(training.disk)], capture_output=True, check=False
        )
        if mounted.returncode != 0:
            pytest.skip(f"cannot mount a file system: {mounted.stderr.decode().strip()}")
        try:
            yield training
        finally:
            subprocess.run(["umount", "-l", str(training.disk)], check=True)

    def test_it_goes_on_when_there_is_room_again(self, small: Training, reference: Reference) -> None:
        small.begin_fork(pause=0.005)
        small.wait_for("checkpoint 40")
        with filled(small.disk):
            small.wait_for("warned a checkpoint could not be saved")
            saved = small.acknowledged_steps[-1]
            assert is_intact(small.run, saved)
        ended = small.end_fork()
        assert ended.code == 0, ended.errors
        assert small.acknowledged_steps[-1] == 120
        assert any("No space left on device" in warning for warning in small.warnings)
        assert_exact(small, reference)

    def test_it_stops_with_an_error_when_there_never_is(self, small: Training, reference: Reference) -> None:
        small.begin_fork(pause=0.005)
        small.wait_for("checkpoint 40")
        with filled(small.disk):
            ended = small.end_fork()
            assert ended.code == 1
            assert re.search(r"^(StorageError|RowsHeld): .*No space left on device", ended.errors, re.MULTILINE)
            assert leftovers(small.run) == []
            assert_nothing_lost(small)
        small.finish()
        assert_exact(small, reference)

    def test_a_run_that_there_is_no_room_for_is_not_made(self, small: Training, reference: Reference) -> None:
        with filled(small.disk):
            ended = small.fork()
            assert ended.code == 1
            assert re.search(r"^(StorageError|RowsHeld): .*No space left on device", ended.errors, re.MULTILINE)
            assert small.runs == []
        small.finish()
        assert_exact(small, reference)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """A disk with no room left."""
    filler = disk / "filler"
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        for size in (4096, 1):
            with contextlib.suppress(OSError):
                while os.write(descriptor, b"x" * size):
                    pass
        yield
    finally:
        os.close(descriptor)
        filler.unlink()


@pytest.mark.parametrize("size", [100, 700, 1500, 2600, 4000, 5500])
def test_a_file_may_not_grow_any_more(size: int, training: Training, reference: Reference) -> None:
    """A limit on the size of files makes the kernel write a part, and refuse the rest."""
    limited = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))"
    ended = training.spawn(prefix=[sys.executable, "-c", f"{limited}; os.execv(sys.argv[1], sys.argv[1:])"])
    assert ended.code == 1
    assert re.search(r"^(StorageError|RowsHeld): .*File too large", ended.errors, re.MULTILINE), ended.errors
    if training.runs:
        assert leftovers(training.run) == []
    assert_nothing_lost(training)
    training.finish()
    assert_exact(training, reference)


class TestUnwritableDirectory:
    """Nobody may write to a directory of the run any more: an error, and never "saved"."""

    @pytest.fixture
    def on_disk(self, tmp_path: Path, training: Training) -> Training:
        """In memory there may be no such attributes."""
        shutil.rmtree(training.disk)
        (tmp_path / "disk").mkdir()
        training.disk.symlink_to(tmp_path / "disk")
        return training

    @pytest.mark.parametrize("name", ["checkpoints", "replay"])
    def test_while_it_trains(self, name: str, on_disk: Training, reference: Reference) -> None:
        on_disk.begin_fork(pause=0.005)
        on_disk.wait_for("checkpoint 40")
        with unwritable(on_disk.run / name):
            saved = on_disk.acknowledged_steps
            ended = on_disk.end_fork()
            assert ended.code == 1
            assert re.search(r"^StorageError: cannot write .*not permitted|denied", ended.errors, re.MULTILINE)
            assert on_disk.acknowledged_steps == saved
            assert on_disk.steps_on_disk == [20, 40]
            assert_nothing_lost(on_disk)
        on_disk.finish()
        assert_exact(on_disk, reference)

    @pytest.mark.parametrize("name", ["", "checkpoints", "rewound"])
    def test_when_it_resumes(self, name: str, on_disk: Training, reference: Reference) -> None:
        assert on_disk.fork("kill replace:step_60.mpk").killed
        with unwritable(on_disk.run / name):
            before = on_disk.acknowledged
            ended = on_disk.fork()
            assert ended.code == 1
            assert re.search(r"^StorageError: .*(not permitted|denied)", ended.errors, re.MULTILINE), ended.errors
            assert on_disk.acknowledged == before
            assert_nothing_lost(on_disk)
        on_disk.finish()
        assert_exact(on_disk, reference)


@contextlib.contextmanager
def unwritable(directory: Path) -> Iterator[None]:
    """A directory in which no name can be changed; root is only stopped by an attribute of the file system."""
    if os.geteuid() != 0:
        directory.chmod(0o500)
        try:
            yield
        finally:
            directory.chmod(0o700)
        return
    changed = subprocess.run(["chattr", "+i", str(directory)], capture_output=True, check=False)
    if changed.returncode != 0:
        pytest.skip(f"this file system has no immutable directories: {changed.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(directory)], check=True)


class TestTryingAgain:
    """An error leaves nothing that would be in the way of the same process when it tries again."""

    CALLS = ("mkdir", "open", "ftruncate", "pwrite", "write", "fsync", "replace", "rename")

    @pytest.mark.parametrize("name", CALLS)
    def test_a_run_that_could_not_be_made(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for number in count(1):
            with failing(monkeypatch, name, number) as failed, contextlib.suppress(StorageError):
                rekindle.TrainingRun.create("made", root=tmp_path).close()
            assert sorted(tmp_path.rglob(".new-*")) == []
            for run in find_runs(tmp_path):
                assert not rekindle.RunReader(run).is_live
            if not failed:
                break

    @pytest.mark.parametrize("name", CALLS)
    def test_a_run_that_could_not_be_resumed(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rekindle.TrainingRun.create("made", root=tmp_path).close()
        for number in count(1):
            with failing(monkeypatch, name, number) as failed, contextlib.suppress(StorageError):
                rekindle.TrainingRun.resume(tmp_path / "made").close()
            assert not rekindle.RunReader(tmp_path / "made").is_live
            if not failed:
                break


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, number: int) -> Iterator[list[str]]:
    """Let a function of `os` fail when it is called for the so-manieth time; the list says whether it did."""
    original, calls, failed = getattr(os, name), count(1), list[str]()

    def call(*args: object, **options: object) -> object:
        if next(calls) == number:
            failed.append(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, name, call)
        yield failed

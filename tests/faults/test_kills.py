"""A training that is killed, at any instant and any number of times, ends as if nothing had happened.

Every call that changes a file is a place to die. The injector kills from inside, before each call in turn;
`test_strace.py` shows that it misses none, and kills from outside.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from harness import (
    ForkServer,
    Training,
    assert_exact,
    assert_nothing_lost,
    assert_survives,
    discarded,
    is_intact,
    place,
)

Reference = Mapping[str, str | None]
Trainings = Callable[[], Training]

SHARDS = 4
"""Parts of a sweep, so that it can run on several processors."""


def assert_every_checkpoint_loads(training: Training) -> None:
    """A kill is no power cut: every checkpoint that has a name is whole, acknowledged or not."""
    if training.runs:
        broken = [step for step in training.steps_on_disk if not is_intact(training.run, step)]
        assert broken == []


@pytest.fixture(scope="session")
def calls(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every call that a whole training makes to change files, in order."""
    training = Training(tmp_path_factory.mktemp("calls"), server)
    assert training.fork("record").code == 0
    return [place(line, training) for line in training.reported]


@pytest.mark.parametrize("shard", [0, 1, *(pytest.param(shard, marks=pytest.mark.exhaustive) for shard in (2, 3))])
def test_a_kill_before_every_call(shard: int, trainings: Trainings, reference: Reference, calls: list[str]) -> None:
    killed_at: set[str] = set()
    number = shard
    while True:
        number += 1
        if number % SHARDS != shard:
            continue
        with discarded(trainings()) as training:
            ended = training.fork(f"kill {number}")
            if not ended.killed and number > len(calls):
                break
            # Threads take turns as they like, so that two trainings may differ by a call or two.
            assert ended.killed or number > len(calls) - 5
            killed_at.update(place(line, training) for line in training.reported)
            assert_every_checkpoint_loads(training)
            assert_survives(training, reference)
    assert len(killed_at) > len(calls) / SHARDS / 3, "the sweep has become a stroll"


def test_half_a_write_before_a_kill(trainings: Trainings, reference: Reference, calls: list[str]) -> None:
    writes = [number for number, call in enumerate(calls, 1) if call.startswith("write ")]
    assert len(writes) > 40
    for number in writes:
        with discarded(trainings()) as training:
            assert training.fork(f"torn {number}").killed
            assert_every_checkpoint_loads(training)
            assert_survives(training, reference)


class TestKilledDuringRecovery:
    """The process that resumes is killed too, before each call that it makes, and the one after it as well."""

    @pytest.fixture
    def crashed(self, trainings: Trainings) -> Training:
        """Killed between a finished temporary file and its name: an orphaned segment, and logs that are too long."""
        training = trainings()
        assert training.fork("kill replace:step_80.mpk").killed
        assert training.acknowledged_steps[-1] == 70
        assert list(training.run.rglob(".step_80.mpk.tmp"))
        return training

    @pytest.fixture
    def crashed_early(self, trainings: Trainings) -> Training:
        """Killed before the first checkpoint, when there were rows in the logs already."""
        training = trainings()
        assert training.fork("kill replace:step_20.mpk").killed
        assert training.acknowledged_steps == []
        return training

    @pytest.mark.parametrize(
        "shard", [0, *(pytest.param(shard, marks=pytest.mark.exhaustive) for shard in range(1, SHARDS))]
    )
    def test_once_and_twice(self, shard: int, crashed: Training, scratch: Path, reference: Reference) -> None:
        self._sweep(crashed, scratch, reference, shard)

    def test_before_there_was_a_checkpoint(self, crashed_early: Training, scratch: Path, reference: Reference) -> None:
        # What comes after the first 40 calls is like any training.
        self._sweep(crashed_early, scratch, reference, 0, shards=1, last=40)

    def _sweep(
        self,
        crashed: Training,
        scratch: Path,
        reference: Reference,
        shard: int,
        *,
        shards: int = SHARDS,
        last: int = 999,
    ) -> None:
        number = shard
        while number < last:
            number += shards
            with discarded(crashed.copy_to(scratch / f"recovery_{number}")) as training:
                if not training.fork(f"kill {number}").killed:
                    assert number > 60, f"a resume makes more than {number} calls"
                    break
                assert_every_checkpoint_loads(training)
                assert_nothing_lost(training)
                if not training.is_finished:
                    training.fork(f"kill {number}")
                assert_every_checkpoint_loads(training)
                assert_survives(training, reference)


class TestKilledWhilePruning:
    """Whatever is left of old checkpoints, best agents and segments, everything that has a name loads."""

    def test_at_every_removal(self, trainings: Trainings, reference: Reference, calls: list[str]) -> None:
        pruned = ("checkpoints/step_", "checkpoints/best_", "replay/rows_")
        removals = [
            number
            for number, call in enumerate(calls, 1)
            if call.startswith("unlink ") and call.removeprefix("unlink RUN/").startswith(pruned)
        ]
        assert len(removals) >= 10
        for number in removals:
            for before_or_after in (number, number + 1):
                with discarded(trainings()) as training:
                    assert training.fork(f"kill {before_or_after}").killed
                    assert_every_checkpoint_loads(training)
                    newest = training.steps_on_disk[-1]
                    assert newest >= max(training.acknowledged_steps)
                    assert_survives(training, reference)

    def test_what_a_killed_pruning_left_is_pruned_by_the_next(self, training: Training, reference: Reference) -> None:
        assert training.fork("kill unlink:checkpoints/step_40.mpk").killed
        assert training.steps_on_disk == [40, 60, 70]
        training.finish()
        assert training.steps_on_disk == [100, 120]
        assert_exact(training, reference)


class TestKilledAtRandom:
    """A clock decides when to kill, so that it also happens between calls and inside of them."""

    def test_a_few(self, trainings: Trainings, reference: Reference) -> None:
        kill_at_random(trainings, reference, kills=24, seed=1)

    @pytest.mark.exhaustive
    @pytest.mark.parametrize("seed", range(2, 6))
    def test_two_hundred(self, seed: int, trainings: Trainings, reference: Reference) -> None:
        kill_at_random(trainings, reference, kills=50, seed=seed)


def kill_at_random(trainings: Trainings, reference: Reference, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    done = 0
    while done < kills:
        with discarded(trainings()) as training:
            while not training.is_finished:
                process = os.pidfd_open(training.begin_fork())
                if done < kills:  # then it may come to its end, which it hardly does on a busy machine otherwise
                    time.sleep(chance.uniform(0, 0.05))
                    with contextlib.suppress(ProcessLookupError):  # it may have come to its end
                        signal.pidfd_send_signal(process, signal.SIGKILL)
                os.close(process)
                ended = training.end_fork()
                assert ended.killed or ended.code == 0, ended.errors
                done += ended.killed
                assert_every_checkpoint_loads(training)
                assert_nothing_lost(training)
            assert_exact(training, reference)


def test_a_copy_of_a_crashed_run_goes_on_elsewhere(training: Training, scratch: Path, reference: Reference) -> None:
    assert training.fork("kill fsync:step_60").killed
    copy = training.copy_to(scratch / "copy")
    shutil.rmtree(training.directory)
    assert_survives(copy, reference)

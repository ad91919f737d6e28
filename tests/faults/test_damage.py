"""Damaged files: always noticed, never believed, and never a reason to start anew."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from crashes import NEWER, OLDER, contents, crash, find, flipped, newest, overwrite
from harness import ForkServer, Training, assert_exact, discarded

import rekindle
from rekindle.errors import CheckpointError

KINDS = ("checkpoint", "segment", "best")
STRIDE = 113
"""A prime, so that every bit of a byte and every place in a word has its turn."""


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Training:
    """Not to be changed: copy it."""
    return crash(Training(tmp_path_factory.mktemp("crashed") / "training", server))


@pytest.fixture
def broken(crashed: Training, tmp_path: Path) -> Training:
    return crashed.copy_to(tmp_path / "broken")


def assert_falls_back(training: Training, damaged: str, reference: Mapping[str, str | None]) -> None:
    """It goes on from the older checkpoint, says why, and ends as if nothing had happened."""
    training.finish()
    assert f"resumed {OLDER}" in training.acknowledged
    (resume,) = rekindle.RunReader(training.run).metadata.resumes
    assert (resume.step, resume.grade) == (OLDER, "exact")
    assert any("skipped a damaged checkpoint" in lost and damaged in lost for lost in resume.lost)
    assert_exact(training, reference)


def test_without_damage_the_newest_checkpoint_is_used(broken: Training, reference: Mapping[str, str | None]) -> None:
    broken.finish()
    (resume,) = rekindle.RunReader(broken.run).metadata.resumes
    assert (resume.step, resume.grade, resume.lost) == (NEWER, "exact", ())
    assert_exact(broken, reference)


class TestEveryByte:
    @pytest.mark.parametrize("kind", KINDS)
    def test_a_flipped_bit_of_any_byte_is_noticed(self, broken: Training, kind: str) -> None:
        run = broken.run
        path = newest(run, kind)
        data = path.read_bytes()
        for position in range(len(data)):
            overwrite(path, flipped(data, position))
            found = find(run)
            assert found.checkpoint is not None
            assert found.checkpoint.step == OLDER, f"byte {position} of {path.name}"
            assert path.name in found.rejected[0]

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_file_cut_at_any_length_is_noticed(self, broken: Training, kind: str) -> None:
        run = broken.run
        path = newest(run, kind)
        data = path.read_bytes()
        for length in range(len(data)):
            overwrite(path, data[:length])
            found = find(run)
            assert found.checkpoint is not None
            assert found.checkpoint.step == OLDER, f"{length} bytes of {path.name}"
            assert path.name in found.rejected[0]

    def test_a_flipped_bit_of_any_byte_is_a_problem_that_verify_names(self, broken: Training) -> None:
        run = broken.run
        for kind in KINDS:
            path = newest(run, kind)
            data = path.read_bytes()
            for position in range(0, len(data), STRIDE):
                overwrite(path, flipped(data, position))
                problems = rekindle.verify(run).problems
                assert any(path.name in problem for problem in problems), f"byte {position} of {path.name}"
            overwrite(path, data)
        assert rekindle.verify(run).problems == []


class TestResume:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "stride", [pytest.param(1, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)]), STRIDE]
    )
    def test_a_flipped_bit_sends_it_back_to_the_older_checkpoint(
        self,
        crashed: Training,
        tmp_path: Path,
        kind: str,
        stride: int,
        reference: Mapping[str, str | None],
    ) -> None:
        data = newest(crashed.run, kind).read_bytes()
        for position in range(0, len(data), stride):
            with discarded(crashed.copy_to(tmp_path / str(position))) as broken:
                overwrite(newest(broken.run, kind), flipped(data, position))
                assert_falls_back(broken, newest(crashed.run, kind).name, reference)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(
        "stride", [pytest.param(1, marks=[pytest.mark.exhaustive, pytest.mark.timeout(1800)]), STRIDE]
    )
    def test_a_truncated_file_sends_it_back_to_the_older_checkpoint(
        self,
        crashed: Training,
        tmp_path: Path,
        kind: str,
        stride: int,
        reference: Mapping[str, str | None],
    ) -> None:
        data = newest(crashed.run, kind).read_bytes()
        for length in range(0, len(data), stride):
            with discarded(crashed.copy_to(tmp_path / str(length))) as broken:
                overwrite(newest(broken.run, kind), data[:length])
                assert_falls_back(broken, newest(crashed.run, kind).name, reference)

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_missing_file_sends_it_back_to_the_older_checkpoint(
        self, broken: Training, kind: str, reference: Mapping[str, str | None]
    ) -> None:
        name = newest(broken.run, kind).name
        newest(broken.run, kind).unlink()
        if kind == "checkpoint":  # nothing says that it was ever there
            broken.finish()
            assert_exact(broken, reference)
        else:
            assert_falls_back(broken, name, reference)

    @pytest.mark.parametrize("kind", KINDS)
    def test_what_is_passed_over_is_moved_and_not_deleted(self, broken: Training, kind: str) -> None:
        checkpoint = newest(broken.run, "checkpoint").read_bytes()
        overwrite(newest(broken.run, kind), b"damaged")
        broken.fork()
        moved = broken.run / "rewound" / "resume_1" / f"step_{NEWER}.mpk"
        assert moved.read_bytes() == (b"damaged" if kind == "checkpoint" else checkpoint)

    def test_the_warning_reaches_the_user(self, broken: Training) -> None:
        overwrite(newest(broken.run, "checkpoint"), b"damaged")
        ended = broken.fork()
        assert ended.code == 0
        assert "skipped a damaged checkpoint" in ended.errors
        assert f"step_{NEWER}.mpk: 7 bytes are too few" in ended.errors

    def test_a_checkpoint_under_the_name_of_another_is_passed_over(
        self, broken: Training, reference: Mapping[str, str | None]
    ) -> None:
        checkpoints = broken.run / "checkpoints"
        shutil.copy(checkpoints / f"step_{OLDER}.mpk", checkpoints / "step_999.mpk")
        broken.finish()
        assert f"resumed {NEWER}" in broken.acknowledged
        assert_exact(broken, reference)

    def test_an_older_checkpoint_that_is_damaged_is_left_alone_and_in_time_pruned(
        self, broken: Training, reference: Mapping[str, str | None]
    ) -> None:
        overwrite(broken.run / "checkpoints" / f"step_{OLDER}.mpk", b"damaged")
        broken.finish()
        assert_exact(broken, reference)
        assert broken.steps_on_disk == [NEWER, 120]

    def test_damage_after_damage_costs_steps_and_nothing_else(
        self, broken: Training, reference: Mapping[str, str | None]
    ) -> None:
        for damage in (b"damaged", b"damaged again"):
            overwrite(newest(broken.run, "checkpoint"), damage)
            crash(broken)
        broken.finish()
        assert [line for line in broken.acknowledged if "resumed" in line] == [
            *[f"resumed {OLDER}"] * 2,
            f"resumed {NEWER}",
        ]
        assert_exact(broken, reference)


class TestNothingIntact:
    @pytest.mark.parametrize("what", ["checkpoints", "segments", "best", "everything"])
    def test_it_is_an_error_that_lists_every_file_and_never_a_fresh_start(self, broken: Training, what: str) -> None:
        run = broken.run
        patterns = {
            "checkpoints": ["checkpoints/step_*.mpk"],
            "segments": ["replay/*.mpk"],
            "best": ["checkpoints/best_*.mpk"],
            "everything": ["checkpoints/*.mpk", "replay/*.mpk"],
        }
        for path in [path for pattern in patterns[what] for path in run.glob(pattern)]:
            overwrite(path, b"damaged")
        before = contents(run)
        ended = broken.fork()
        assert ended.code == 1
        assert ended.errors.startswith(f"CheckpointError: no checkpoint of {run} is intact:")
        assert ended.errors.count("damaged") + ended.errors.count("too few") >= 2
        assert contents(run) == before
        assert broken.runs == [run]

    def test_segments_that_are_gone_are_an_error_too(self, broken: Training) -> None:
        for path in (broken.run / "replay").iterdir():
            path.unlink()
        before = contents(broken.run)
        ended = broken.fork()
        assert ended.code == 1
        assert ended.errors.count("missing") == 2
        assert contents(broken.run) == before

    def test_it_goes_on_when_the_files_come_back(
        self, broken: Training, crashed: Training, reference: Mapping[str, str | None]
    ) -> None:
        for path in (broken.run / "checkpoints").glob("step_*.mpk"):
            overwrite(path, b"damaged")
        assert broken.fork().code == 1
        good = newest(crashed.run, "checkpoint")
        overwrite(newest(broken.run, "checkpoint"), good.read_bytes())
        broken.finish()
        assert_exact(broken, reference)

    def test_from_python_it_is_a_checkpoint_error(
        self, broken: Training, learner: Callable[[], rekindle.LearningAgent]
    ) -> None:
        for path in (broken.run / "checkpoints").glob("step_*.mpk"):
            overwrite(path, b"damaged")
        with pytest.raises(CheckpointError, match=r"no checkpoint of .* is intact"):
            rekindle.TrainingSession.open("walk", learner(), root=broken.root, seed=7)


@pytest.fixture
def learner() -> Callable[[], rekindle.LearningAgent]:
    from worker import Learner

    return lambda: Learner(seed=3)

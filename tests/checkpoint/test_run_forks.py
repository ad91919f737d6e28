"""Forks of runs that a loop of your own has made."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.session.journal_hosts import Learning
from toys import ReplayAgent, drive, line

from rekindle import RunReader, TrainingSession, verify
from rekindle.checkpoint.forking import find_fork_point, fork_run
from rekindle.errors import RekindleError
from rekindle.training import replay_run


def trained(root: Path, name: str) -> Path:
    """A run of 60 steps, or the rest of one."""
    with TrainingSession.open(
        name, ReplayAgent(), root=root, max_steps=60, checkpoint_every=20, metrics_every=7, keep_checkpoints=9
    ) as session:
        if not session.is_done:
            drive(session)
        assert session.run is not None
        return session.run.path


def test_a_fork_of_a_session_goes_on_like_its_parent(tmp_path: Path) -> None:
    parent = trained(tmp_path, "parent")
    for step in (20, 40, 60):
        fork_run(find_fork_point(f"{parent}@{step}"), name=f"from-{step}", root=tmp_path)
        assert verify(trained(tmp_path, f"from-{step}")).digests == verify(parent).digests


class TestJournals:
    """A session that records its calls: its world cannot be rewound, so the records stay with the parent."""

    @staticmethod
    def journalled(root: Path, name: str = "parent", **options: Any) -> TrainingSession:
        given = {"checkpoint_every": 4, "metrics_every": 3, "keep_checkpoints": 9, "journal": True, "signals": False}
        return TrainingSession.open(name, Learning(), root=root, **{**given, **options})

    @staticmethod
    def play(session: TrainingSession, steps: int, *, ends_every: int = 0) -> None:
        """Steps on one stream, in episodes of a length, or in one that stays open."""
        stream = session.stream("arm")
        for number in range(steps):
            if not stream.is_open:
                stream.begin(line(100 + number))
            is_over = bool(ends_every) and (number + 1) % ends_every == 0
            stream.step(line(number), 1.0, terminated=is_over)

    def parent(self, root: Path, **options: Any) -> Path:
        with self.journalled(root, **options) as session:
            self.play(session, 14, ends_every=4)
            return session.run.path if session.run else root

    def test_a_fork_between_two_episodes_is_exact_and_has_a_journal_of_its_own(self, tmp_path: Path) -> None:
        parent = self.parent(tmp_path)
        before = {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()}
        child = fork_run(find_fork_point(f"{parent}@8"), name="child", root=tmp_path)
        assert not (child / "inputs").exists()
        assert verify(child).ok
        with self.journalled(tmp_path, "child") as session:
            assert session.resumed is not None
            assert (session.resumed.step, session.resumed.grade, session.resumed.replayed) == (8, "exact", 0)
            self.play(session, 6, ends_every=4)
        assert RunReader(child).metadata.exact
        assert verify(child).ok
        assert {path: path.read_bytes() for path in parent.rglob("*") if path.is_file()} == before

    def test_the_same_calls_after_the_checkpoint_give_what_the_parent_became(self, tmp_path: Path) -> None:
        with self.journalled(tmp_path) as session:
            self.play(session, 8, ends_every=4)
            session.checkpoint(wait=True)
            self.play(session, 6, ends_every=4)
        parent = tmp_path / "parent"
        fork_run(find_fork_point(f"{parent}@8"), name="child", root=tmp_path)
        with self.journalled(tmp_path, "child") as session:
            self.play(session, 6, ends_every=4)
        assert verify(tmp_path / "child").digests == verify(parent).digests

    def test_an_open_episode_is_closed_and_the_fork_is_approximate(self, tmp_path: Path) -> None:
        with self.journalled(tmp_path) as session:
            self.play(session, 6)
        child = fork_run(find_fork_point(tmp_path / "parent"), name="child", root=tmp_path)
        with self.journalled(tmp_path, "child") as session:
            assert not session.stream("arm").is_open
            assert session.resumed is not None
            assert session.resumed.grade == "approximate"
            assert "the open episode of stream 'arm' (6 steps) was closed" in session.resumed.lost[0]
        assert [row["status"] for row in RunReader(child).train_episodes()] == ["truncated"]
        assert not RunReader(child).metadata.exact
        assert RunReader(tmp_path / "parent").metadata.exact

    def test_a_fork_that_crashes_makes_its_own_calls_again(self, tmp_path: Path) -> None:
        with self.journalled(tmp_path) as session:
            self.play(session, 6)
        point = find_fork_point(tmp_path / "parent")
        for name in ("alone", "killed"):
            fork_run(point, name=name, root=tmp_path)
        with self.journalled(tmp_path, "alone", checkpoint_every=None) as session:
            self.play(session, 5, ends_every=3)
            self.play(session, 5, ends_every=3)
        program = (
            "import os, sys; from pathlib import Path; from tests.checkpoint.test_run_forks import TestJournals as T\n"
            "session = T.journalled(Path(sys.argv[1]), 'killed', checkpoint_every=None)\n"
            "T.play(session, 5, ends_every=3)\n"
            "os.kill(os.getpid(), 9)\n"
        )
        here = Path(__file__).parents[2]
        environment = {**os.environ, "PYTHONPATH": f"{here / 'src'}:{here}:{here / 'tests'}"}
        assert subprocess.run([sys.executable, "-c", program, tmp_path], env=environment, check=False).returncode == -9
        with self.journalled(tmp_path, "killed", checkpoint_every=None) as session:
            assert session.stream("arm").length == 2
            self.play(session, 5, ends_every=3)
            assert session.resumed is not None
            assert session.resumed.replayed > 5
        assert verify(tmp_path / "killed").digests == verify(tmp_path / "alone").digests

    def test_a_fork_can_go_on_without_a_journal(self, tmp_path: Path) -> None:
        child = fork_run(find_fork_point(f"{self.parent(tmp_path)}@8"), name="child", root=tmp_path)
        with self.journalled(tmp_path, "child", journal=False) as session:
            assert session.resumed is not None
            assert (session.resumed.grade, session.resumed.lost) == ("exact", ())
        assert verify(child).ok

    def test_a_fork_of_a_background_learner_is_approximate(self, tmp_path: Path) -> None:
        parent = self.parent(tmp_path, learner="background")
        child = fork_run(find_fork_point(f"{parent}@8"), name="child", root=tmp_path)
        assert RunReader(parent).metadata.exact
        assert not RunReader(child).metadata.exact
        with self.journalled(tmp_path, "child", learner="background") as session:
            self.play(session, 6, ends_every=4)
        assert verify(child).ok
        assert RunReader(child).metadata.total_steps == 14

    def test_the_whole_journal_of_a_fork_cannot_make_its_parent_again(self, tmp_path: Path) -> None:
        fork_run(find_fork_point(f"{self.parent(tmp_path)}@8"), name="child", root=tmp_path)
        with self.journalled(tmp_path, "child", journal_keep="all") as session:
            self.play(session, 6, ends_every=4)
        with pytest.raises(RekindleError, match="begin"):
            replay_run(tmp_path / "child", agent=Learning())

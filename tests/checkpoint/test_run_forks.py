"""Forks of runs that a loop of your own has made."""

from pathlib import Path

import pytest
from toys import ReplayAgent, drive, line

from rekindle import TrainingSession, verify
from rekindle.checkpoint.forking import find_fork_point, fork_run
from rekindle.errors import CheckpointError


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


def test_a_session_that_records_its_calls_is_not_forked(tmp_path: Path) -> None:
    with TrainingSession.open("parent", ReplayAgent(), root=tmp_path, checkpoint_every=4, journal=True) as session:
        stream = session.stream()
        stream.begin(line(0))
        for number in range(1, 6):
            stream.step(line(number), 1.0)
    with pytest.raises(CheckpointError, match="records every call"):
        fork_run(find_fork_point(tmp_path / "parent"), name="child", root=tmp_path)
    assert not list((tmp_path / "child" / "v1").glob("[0-9]*"))

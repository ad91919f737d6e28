"""`rekindle verify` tells a sound run from a damaged one, by its exit code too."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_run, open_session

from rekindle import TrainingRun, verify

Rekindle = Callable[..., Any]


def test_a_sound_run_is_ok(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path)
    outcome = rekindle("verify", path, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json == {
        "path": str(path),
        "ok": True,
        "grade": "exact",
        "digests": verify(path).digests,
        "problems": [],
        "journal": None,
    }
    shown = rekindle("verify", path)
    assert shown.code == 0
    assert "files ok grade exact weights" in shown.flat


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a checkpoint": lambda run: os.truncate(run / "checkpoints" / "step_20.mpk", 100),
    "a log": lambda run: (run / "metrics.jsonl").write_bytes(b"x\n"),
    "metadata": lambda run: os.truncate(run / "metadata.json", 20),
    "metadata that are no text": lambda run: (run / "metadata.json").write_bytes(b'{"name":"\xff"}'),
    "a lost directory": lambda run: shutil.rmtree(run / "checkpoints"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_not(tmp_path: Path, rekindle: Rekindle, damage: Callable[[Path], object]) -> None:
    path = make_run(tmp_path)
    damage(path)
    outcome = rekindle("verify", path, "--json")
    assert (outcome.code, outcome.err) == (1, "")
    assert not outcome.json["ok"]
    assert outcome.json["problems"]
    shown = rekindle("verify", path)
    assert shown.code == 1
    assert "files damaged" in shown.flat
    assert shown.out.count("\n! ") == len(outcome.json["problems"])


def test_of_a_live_run_it_says_that_the_answer_may_be_wrong(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    with open_session(run):
        outcome = rekindle("verify", run.path, "--json")
    assert outcome.json["ok"]
    assert "is live" in outcome.err

"""Runs that an earlier rekindle made: still read, still verified, still resumed to the same bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import forms
import pytest
from golden_runs import GOLDEN, make

import rekindle
from rekindle.run.directory import TrainingRun
from rekindle.session import restoring
from rekindle.storage.codec import FORMAT_VERSION

FORMATS = range(1, FORMAT_VERSION + 1)
DIGESTS = {version: json.loads((GOLDEN / f"run-format-{version}.json").read_text()) for version in FORMATS}


def copied(kind: str, tmp_path: Path, version: int) -> Path:
    """A golden run where a run would be; git keeps no empty directories, so some are missing."""
    return Path(shutil.copytree(GOLDEN / f"run-format-{version}-{kind}", tmp_path / "forms" / "v1" / "20260101_000000"))


def pretend_same_environment(monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    """Versions and processors differ from those of the golden run; its small sums come out the same."""
    metadata = rekindle.RunReader(GOLDEN / f"run-format-{version}-crashed").metadata
    known = {name: value for name, value in metadata.environment.items() if name != "host"}
    monkeypatch.setattr(restoring, "environment", lambda: known)


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("kind", ["crashed", "finished"])
def test_a_golden_run_verifies_to_the_digests_it_had(kind: str, version: int, tmp_path: Path) -> None:
    found = rekindle.verify(copied(kind, tmp_path, version))
    assert found.problems == []
    assert found.digests == DIGESTS[version][kind]
    assert found.grade == "exact"


@pytest.mark.parametrize("version", FORMATS)
def test_a_golden_run_is_read(version: int, tmp_path: Path) -> None:
    reader = rekindle.RunReader(copied("finished", tmp_path, version))
    assert (reader.status, reader.metadata.total_steps, reader.metadata.seed) == ("finished", 24, 5)
    assert len(reader.train_episodes()) == reader.metadata.total_episodes > 3
    assert [row["env_steps"] for row in reader.metric_windows()][:6] == [4, 8, 12, 16, 20, 24]
    assert rekindle.RunReader(copied("crashed", tmp_path / "other", version)).status == "crashed"


@pytest.mark.parametrize("version", FORMATS)
def test_a_golden_run_that_crashed_goes_on_and_ends_as_the_one_that_did_not(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_same_environment(monkeypatch, version)
    path = copied("crashed", tmp_path, version)
    with forms.begin(tmp_path, "two_calls", "sarsa") as session:
        assert session.resumed is not None
        assert (session.resumed.step, session.resumed.grade, session.resumed.lost) == (17, "exact", ())
        list(forms.two_calls(session))
    found = rekindle.verify(path)
    assert found.ok
    assert found.digests == DIGESTS[FORMAT_VERSION]["finished"]
    assert found.grade == "exact"


def test_today_the_same_training_comes_out_the_same(tmp_path: Path) -> None:
    assert rekindle.verify(make("finished", tmp_path)).digests == DIGESTS[FORMAT_VERSION]["finished"]


@pytest.mark.parametrize("kind", ["crashed", "finished"])
def test_weights_and_logs_are_the_same_in_every_format(kind: str) -> None:
    for digest in ("weights", "logs"):
        assert len({DIGESTS[version][kind][digest] for version in FORMATS}) == 1


def test_a_golden_run_can_be_locked_like_any_other(tmp_path: Path) -> None:
    run = TrainingRun.resume(copied("finished", tmp_path, FORMAT_VERSION))
    assert run.reader.is_live
    run.close()

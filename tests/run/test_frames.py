"""Logs as columns, with pandas and without."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from toys import ToyAgent, drive

from rekindle import EpisodeRecord, EpisodeStatus, RunReader, TrainingRun, TrainingSession
from rekindle.errors import LogCorrupt
from rekindle.run.frames import log_columns


@pytest.fixture
def run(tmp_path: Path) -> TrainingRun:
    run = TrainingRun.create("walk", root=tmp_path)
    with TrainingSession(ToyAgent(), run=run, metrics_every=10, checkpoint_every=None) as session:
        drive(session, until=60)
        session.on_eval_episode(EpisodeRecord(7.0, 3, EpisodeStatus.TERMINATED))
    return run


@pytest.fixture
def without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)


@pytest.mark.usefixtures("without_pandas")
def test_without_pandas_episodes_and_metrics_are_arrays_by_name(run: TrainingRun) -> None:
    rows = run.reader.train_episodes()
    episodes = run.episodes()
    assert episodes["total_reward"].tolist() == [row["total_reward"] for row in rows]
    assert episodes["status"].tolist() == [row["status"] for row in rows]
    assert (episodes["env_steps"].dtype, episodes["total_reward"].dtype) == (np.int64, np.float64)
    assert run.episodes("eval")["total_reward"].tolist() == [7.0]
    windows = run.reader.metric_windows()
    metrics = run.metrics()
    means = [row["metrics"].get("agent/loss", {"mean": np.nan})["mean"] for row in windows]
    np.testing.assert_array_equal(metrics["agent/loss"], means)
    greatest = run.metrics(aggregate="max")["agent/loss"]
    assert np.nanmax(greatest) == max(row["metrics"]["agent/loss"]["max"] for row in windows[:-1])


def test_with_pandas_they_are_frames(run: TrainingRun) -> None:
    pandas = pytest.importorskip("pandas")
    frame = RunReader(run.path).episodes()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["row"]) == list(range(len(frame)))
    assert isinstance(run.metrics(), pandas.DataFrame)
    assert isinstance(RunReader(run.path).metrics(), pandas.DataFrame)
    assert run.reader.frame("metrics")["env_steps"].is_monotonic_increasing


def test_what_a_row_lacks_is_nan_and_whole_rows_stay_aligned(tmp_path: Path) -> None:
    rows = [
        {"row": 0, "env_steps": 1, "total_reward": None, "extras": {"a": 1}},
        {"row": 1, "env_steps": 2, "total_reward": 2.0, "extras": {"b": "x"}, "status": "terminated"},
        {"row": 2, "env_steps": 3, "total_reward": 3.0, "stream": 4},
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"row": 3, "half')
    columns = log_columns(path)
    assert columns["env_steps"].tolist() == [1, 2, 3]
    np.testing.assert_array_equal(columns["total_reward"], [np.nan, 2.0, 3.0])
    np.testing.assert_array_equal(columns["extras.a"], [1.0, np.nan, np.nan])
    np.testing.assert_array_equal(columns["extras.b"], [np.nan] * 3)
    assert columns["status"].tolist() == [None, "terminated", None]
    assert columns["stream"].tolist() == [None, None, 4]


def test_an_empty_log_has_no_columns_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert log_columns(path) == {}
    path.write_text("nonsense\n")
    with pytest.raises(LogCorrupt):
        log_columns(path)


@pytest.mark.parametrize("number", [10**400, -(10**400)])
def test_an_integer_that_no_float_can_be_is_no_number(tmp_path: Path, number: int) -> None:
    rows = [{"row": row, "env_steps": number if row else 1, "total_reward": number} for row in range(2)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = log_columns(tmp_path / "log.jsonl")
    assert np.isnan(columns["total_reward"]).all()
    assert np.isnan(columns["env_steps"]).tolist() == [False, True]


def test_a_log_with_a_new_name_in_every_row_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    rows = ({"row": row, "env_steps": row, "metrics": {f"name{row}": {"mean": 1.0}}} for row in range(20_000))
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(LogCorrupt, match=r"columns, and nearly all are empty"):
        log_columns(tmp_path / "metrics.jsonl")

"""Weights & Biases, offline: its files hold every row of the log once, however often the training was interrupted."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

from recorded_runs import MARKS, MEDIA, expected, killed_at_save, timeless, train

from rekindle import RunReader, TrainingRun
from rekindle.errors import ConfigError
from rekindle.recorders import WandB
from rekindle.recorders.following import Follower
from rekindle.recorders.wandb import Project, _chunks, history
from rekindle.training import Trainer

RECORDER = "rekindle.recorders:WandB"
COLUMNS = {"env_steps", "updates", "episodes", "rekindle_row"}


def files_of(run: Path) -> list[Path]:
    return sorted(run.glob("wandb/offline-run-*/*.wandb"))


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [row for file in files_of(run) for row in history(file)]


def shown(run: Path) -> list[tuple[int, dict[str, float]]]:
    rows = rows_of(run)
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    return [
        (row["env_steps"], timeless({name: row[name] for name in row if name not in COLUMNS and name[0] != "_"}))
        for row in rows
    ]


def records_of(file: Path, kind: str) -> list[Any]:
    record_type: Any = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    records = [record_type.FromString(data) for data in _chunks(file.read_bytes())]
    return [getattr(record, kind) for record in records if record.WhichOneof("record_type") == kind]


def assert_shown(run: Path) -> None:
    assert shown(run) == expected(run)


def test_every_row_is_shown_with_settings_and_status(tmp_path: Path) -> None:
    run = train(tmp_path, [WandB("corridor")])
    assert_shown(run)
    assert [step for step, _ in shown(run)] == MARKS
    (file,) = files_of(run)
    (begun,), (ended,) = records_of(file, "run")[:1], records_of(file, "exit")
    assert (begun.project, begun.display_name) == ("corridor", "/".join(run.parts[-3:]))
    assert ended.exit_code == 0
    assert "learning_rate" in str(records_of(file, "config"))
    metrics = [(metric.glob_name, metric.step_metric) for metric in records_of(file, "metric")]
    assert ("*", "env_steps") in metrics  # W&B may add one for each name


def test_the_tags_of_the_run_are_sent(tmp_path: Path) -> None:
    TrainingRun.create("walk", root=tmp_path, tags=["good", "new reward"]).close()
    (file,) = files_of(train(tmp_path, [WandB()]))
    assert list(records_of(file, "run")[0].tags) == ["good", "new reward"]


def test_rows_carry_the_wall_time_of_the_log(tmp_path: Path) -> None:
    run = train(tmp_path, [WandB()])
    times = [row["wall_time"] for row in RunReader(run).metric_windows()]
    assert [row["_timestamp"] for row in rows_of(run)] == pytest.approx(times, abs=1e-3)


@pytest.mark.parametrize(("options", "code"), [({"stop_at": 20}, 0), ({"fail_at": 25}, 1)])
def test_the_run_ends_as_the_training_does_and_goes_on_with_it(
    tmp_path: Path, options: dict[str, Any], code: int
) -> None:
    run = train(tmp_path, [WandB()], **options)
    assert [ended.exit_code for ended in records_of(files_of(run)[0], "exit")] == [code]
    train(tmp_path, [WandB()])
    assert_shown(run)
    assert len({begun.run_id for file in files_of(run) for begun in records_of(file, "run")}) == 1


def test_after_an_approximate_resume_what_is_there_stays_and_the_summary_says_so(tmp_path: Path) -> None:
    run = train(tmp_path, [WandB()], fail_at=25)
    before = shown(run)
    train(tmp_path, [WandB()], loss="the wind has changed")
    assert shown(run) == before + [row for row in expected(run) if row[0] > 25]
    assert "went back to step 20" in str(records_of(files_of(run)[-1], "summary"))


@pytest.mark.slow
@pytest.mark.parametrize("save", [4, 10])
def test_after_a_kill_no_row_is_shown_twice_and_none_is_missing(tmp_path: Path, save: int) -> None:
    assert killed_at_save(RECORDER, tmp_path, save)
    run = train(tmp_path, [WandB()])
    assert RunReader(run).metadata.resumes[-1].grade == "exact"
    assert_shown(run)


def test_histograms_texts_and_videos_are_rows_of_their_own(tmp_path: Path) -> None:
    run = train(tmp_path, [WandB()], media=MEDIA)
    for name, kind in (("agent/weights", "histogram"), ("train/remark", "html-file"), ("eval/episode", "video-file")):
        found = [(row["env_steps"], row[f"{name}/_type"]) for row in rows_of(run) if f"{name}/_type" in row]
        assert found == [(step, kind) for step in MARKS]
    assert [row["env_steps"] for row in rows_of(run) if "rekindle_row" in row] == MARKS


def test_what_has_been_sent_on_and_removed_is_not_written_again(tmp_path: Path) -> None:
    run = train(tmp_path, [WandB()], stop_at=20)
    train(tmp_path, [WandB()], stop_at=30)
    shutil.rmtree(files_of(run)[0].parent)
    train(tmp_path, [WandB()])
    assert [row["env_steps"] for row in rows_of(run)] == [25, 30, 35, 40]


class Impatient:
    """Online, and gives up at the end after the first attempt, however long that takes on a busy machine."""

    def open(self, path: Path, report: Callable[[str], None]) -> Follower:
        return Follower("wandb", Project(None, "online"), path, report, patience=60.0, first_delay=1000.0)


def test_who_is_not_logged_in_is_told_and_trains_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = train(tmp_path, [Impatient()])
    assert RunReader(run).status == "finished"
    assert "wandb failed: ConfigError: you are not logged in to W&B: run `wandb login`" in caplog.text


def test_who_is_not_logged_in_is_told_before_the_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ConfigError, match="you are not logged in to W&B: run `wandb login`, or set WANDB_MODE=offline"):
        Trainer("FrozenLake-v1", "tabular", name="lake", root=tmp_path / "runs", record=["wandb"])
    assert not (tmp_path / "runs").exists()

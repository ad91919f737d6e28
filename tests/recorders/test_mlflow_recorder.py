"""MLflow shows every row of the log once, in one run however often the training was interrupted."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")

from mlflow_shown import client, only_run, shown
from recorded_runs import MARKS, MEDIA, expected, killed_at_save, train

from rekindle import RunReader, TrainingRun
from rekindle.recorders import MLflow
from rekindle.recorders.mlflow import _key, _make_tables, make_whole

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow and SQLAlchemy disagree

RECORDER = "rekindle.recorders:MLflow"


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with its tables, which take MLflow seconds to make."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    make_whole(path, "token", _make_tables)
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return Path(shutil.copy(empty_database, tmp_path / "runs" / "mlflow.db"))


def assert_shown(database: Path, run: Path) -> None:
    assert shown(database) == expected(run)


def test_every_row_is_shown_with_settings_and_status(database: Path) -> None:
    run = train(database.parent, [MLflow()])
    assert_shown(database, run)
    assert [step for step, _ in shown(database)] == MARKS
    found = only_run(database)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "/".join(run.parts[-3:])
    assert found.data.params == {"agent.learning_rate": "0.1", "steps": "40"}
    assert found.data.tags["rekindle.agent"] == "ToyAgent"


def test_the_tags_of_the_run_are_sent(database: Path) -> None:
    TrainingRun.create("walk", root=database.parent, tags=["good", "rekindle.agent"]).close()
    train(database.parent, [MLflow()])
    tags = only_run(database).data.tags
    assert (tags["good"], tags["rekindle.agent"]) == ("true", "ToyAgent")


@pytest.mark.parametrize(("options", "status"), [({"stop_at": 20}, "KILLED"), ({"fail_at": 25}, "FAILED")])
def test_the_run_ends_as_the_training_does_and_goes_on_with_it(
    database: Path, options: dict[str, Any], status: str
) -> None:
    train(database.parent, [MLflow()], **options)
    assert only_run(database).info.status == status
    run = train(database.parent, [MLflow()])
    assert_shown(database, run)
    assert only_run(database).info.status == "FINISHED"


def test_after_an_approximate_resume_what_is_there_stays_and_a_tag_says_so(database: Path) -> None:
    train(database.parent, [MLflow()], fail_at=25)
    before = shown(database)
    run = train(database.parent, [MLflow()], loss="the wind has changed")
    assert shown(database) == before + [row for row in expected(run) if row[0] > 25]
    assert "went back to step 20" in only_run(database).data.tags["rekindle.resume_1"]


@pytest.mark.slow
@pytest.mark.parametrize("save", [4, 10])
def test_after_a_kill_no_row_is_shown_twice_and_none_is_missing(database: Path, save: int) -> None:
    assert killed_at_save(RECORDER, database.parent, save)
    run = train(database.parent, [MLflow()])
    assert RunReader(run).metadata.resumes[-1].grade == "exact"
    assert_shown(database, run)


def test_texts_and_videos_are_artifacts_and_histograms_are_declined(
    database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(database.parent, [MLflow()], media=MEDIA)
    run = only_run(database).info.run_id
    for name, file in (("train/remark", "40.txt"), ("eval/episode", "40.gif")):
        assert f"{name}/{file}" in [item.path for item in client(database).list_artifacts(run, name)]
    assert caplog.text.count("mlflow cannot show a histogram") == 1


def test_a_setting_that_has_changed_becomes_a_tag(database: Path) -> None:
    run = train(database.parent, [MLflow()], stop_at=20)
    config = run / "config.json"
    config.write_text(config.read_text().replace("40", "50"))
    train(database.parent, [MLflow()])
    found = only_run(database)
    assert (found.data.params["steps"], found.data.tags["config.steps"]) == ("40", "50")


def test_a_database_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"

    def fail(building: Path) -> None:
        building.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_whole(database, "token", fail)
    assert not database.exists()
    make_whole(database, "token", lambda building: building.write_text("whole"))
    make_whole(database, "token", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]
    assert database.read_text() == "whole"


def test_of_two_who_make_a_database_the_first_wins(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"

    def be_late(building: Path) -> None:
        building.write_text("second")
        make_whole(database, "other", lambda other: other.write_text("first"))

    make_whole(database, "token", be_late)
    assert database.read_text() == "first"


@pytest.mark.parametrize("name", ["agent/loss", "loss[0]", "../x", "/x", "a//b", ".", "", "é", "a/../b", "x" * 300])
def test_every_name_becomes_one_that_mlflow_takes(name: str) -> None:
    importlib.import_module("mlflow.utils.validation")._validate_metric_name(_key(name))
    assert _key("agent/loss") == "agent/loss"

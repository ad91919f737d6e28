"""A run is one directory: made whole, found by its name, written by one process, read by any."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rekindle.errors import ConfigError, LogCorrupt, RunError, RunLocked, StorageError
from rekindle.experience import EpisodeStatus
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_run, find_runs, find_unfinished, natural_order
from rekindle.run.metadata import LOGS, Resume, timestamp
from rekindle.run.reader import RunReader
from rekindle.stats import EpisodeRecord
from rekindle.storage import files, logs
from rekindle.storage.lock import Lock

RECORD = EpisodeRecord(3.0, 2, EpisodeStatus.TERMINATED, {"hits": 1.0})
STAMP = {"env_steps": 2, "updates": 1, "episodes": 1, "wall_time": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> Generator[TrainingRun]:
    run = TrainingRun.create("cartpole", root=tmp_path, seed=7)
    yield run
    run.close()


def made(root: Path, name: str, version: str, *, status: str = "stopped", started_at: str | None = None) -> Path:
    """A run that its writer has left."""
    run = TrainingRun.create(name, version, root=root)
    run.update_metadata(status=status, started_at=started_at or run.metadata.started_at)
    run.close()
    return run.path


def clock_at(monkeypatch: pytest.MonkeyPatch, stamp: str) -> None:
    monkeypatch.setattr(time, "strftime", lambda _form: stamp)


# Making


def test_a_run_is_made_below_its_name_and_version(run: TrainingRun, tmp_path: Path) -> None:
    assert run.path.parent == tmp_path / "cartpole" / "v1"
    assert (run.name, run.version, run.run_id) == ("cartpole", "v1", run.path.name)


def test_a_new_run_has_everything_but_checkpoints(run: TrainingRun) -> None:
    directories = ["checkpoints", "control", "replay", "rewound"]
    logs = sorted(f"{log}.jsonl" for log in (*LOGS, "warnings"))
    assert sorted(path.name for path in run.path.iterdir()) == sorted([*directories, *logs, "lock", "metadata.json"])
    assert [path for name in directories for path in (run.path / name).iterdir()] == []


def test_a_new_run_is_running(run: TrainingRun) -> None:
    metadata = run.reader.metadata
    assert (metadata.status, metadata.seed, metadata.exact, metadata.resumes) == ("running", 7, True, ())
    assert not run.is_resumed
    assert run.reader.status == "running"


def test_metadata_says_what_the_last_bits_depend_on(run: TrainingRun) -> None:
    assert {"rekindle", "python", "numpy", "machine", "processors", "host"} <= set(run.metadata.environment)


def test_nothing_but_the_run_is_left_of_its_making(run: TrainingRun) -> None:
    assert sorted(run.path.parent.iterdir()) == [run.path.parent / ".lock", run.path]


def test_a_run_appears_in_one_step_with_all_that_is_known_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[dict[str, object], dict[str, object]]] = []
    rename = os.rename

    def watched(source: Path, target: Path) -> None:
        assert find_runs(tmp_path) == []
        seen.append(
            (json.loads((source / "config.json").read_text()), json.loads((source / "metadata.json").read_text()))
        )
        rename(source, target)

    monkeypatch.setattr(os, "rename", watched)
    details = {"agent": "DQN", "max_steps": 70, "parent": "runs/a@5", "training": {"algorithm": "dqn"}}
    run = TrainingRun.create_or_resume("a", root=tmp_path, config={"steps": 70}, **details)
    run.close()
    ((config, metadata),) = seen
    assert config == run.read_config() == {"steps": 70}
    assert {name: metadata[name] for name in details} == details


def test_a_config_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the config of a cannot be written as JSON"):
        TrainingRun.create("a", root=tmp_path, config={"agent": object()})
    assert list(tmp_path.iterdir()) == []


def test_the_next_start_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    directory = made(tmp_path, "a", "v1", status="finished").parent
    for name in (".new-1-killed/checkpoints", ".new-2-living", "kept"):
        (directory / name).mkdir(parents=True)
    for name in (".new-1-killed", ".new-2-living"):
        (directory / name / "metadata.json").touch()
    (directory / ".new-3-link").symlink_to(directory / "kept")
    lock = Lock(directory / ".new-2-living" / "lock")
    TrainingRun.create_or_resume("a", root=tmp_path).close()
    assert sorted(path.name for path in directory.glob(".new-*")) == [".new-2-living", ".new-3-link"]
    lock.release()
    TrainingRun.create("a", root=tmp_path).close()
    assert sorted(path.name for path in directory.glob(".new-*")) == [".new-3-link"]
    assert (directory / "kept").is_dir()


def test_what_a_killed_start_left_and_cannot_be_removed_is_told_and_in_nobodys_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a" / "v1" / ".new-1-killed").mkdir(parents=True)

    def refuse(path: Path) -> None:
        raise StorageError(f"cannot remove {path}: Operation not permitted")

    monkeypatch.setattr(files, "remove_directory", refuse)
    TrainingRun.create("a", root=tmp_path).close()
    (record,) = caplog.records
    assert "a run that was never used cannot be removed" in record.getMessage()


def test_a_run_that_never_began_is_out_of_sight_before_it_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, seen = files.remove_directory, []

    def watched(path: Path) -> None:
        seen.append(find_runs(tmp_path))
        remove(path)

    run = TrainingRun.create("a", root=tmp_path)
    monkeypatch.setattr(files, "remove_directory", watched)
    with pytest.raises(ZeroDivisionError), run.let_go_on_failure():
        _ = 1 / 0
    assert seen == [[]]
    assert [path.name for path in (tmp_path / "a" / "v1").iterdir()] == [".lock"]


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "/etc", "-v", ".hidden", "a b", "naïve", "x" * 101, "a\n"])
def test_a_name_that_cannot_be_a_directory_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        TrainingRun.create(text, root=tmp_path)
    with pytest.raises(ConfigError, match="version"):
        TrainingRun.create("cartpole", text, root=tmp_path)
    with pytest.raises(ConfigError):
        TrainingRun.create_or_resume("cartpole", text, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["CartPole-v1", "ALE.Pong", "lr_1e-3+decay", "7", "x" * 100])
def test_a_name_may_have_what_names_of_environments_have(tmp_path: Path, text: str) -> None:
    run = TrainingRun.create(text, text, root=tmp_path)
    run.close()
    assert run.path.is_dir()


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="seed is -1"):
        TrainingRun.create("cartpole", root=tmp_path, seed=-1)


def test_the_seed_may_be_an_integer_of_numpy(tmp_path: Path) -> None:
    run = TrainingRun.create("cartpole", root=tmp_path, seed=np.int64(3))  # pyright: ignore[reportArgumentType]
    run.close()
    assert RunReader(run.path).metadata.seed == 3


def test_runs_of_one_second_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_at(monkeypatch, "20240102_030405")
    ids = [made(tmp_path, "cartpole", "v1").name for _ in range(3)]
    assert ids == ["20240102_030405", "20240102_030405_2", "20240102_030405_3"]


def test_the_tenth_run_of_a_second_comes_after_the_ninth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_at(monkeypatch, "20240102_030405")
    runs = [made(tmp_path, "cartpole", "v1") for _ in range(11)]
    assert find_runs(tmp_path / "cartpole" / "v1") == runs
    assert find_run(tmp_path / "cartpole" / "v1") == runs[-1]


def test_a_run_id_does_not_go_back_when_the_clock_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock_at(monkeypatch, "20240102_030405")
    made(tmp_path, "cartpole", "v1")
    clock_at(monkeypatch, "20231231_235959")
    later = made(tmp_path, "cartpole", "v1")
    assert later.name == "20240102_030405_2"
    assert find_run(tmp_path / "cartpole") == later


@pytest.mark.parametrize("way", ["create", "resume"])
def test_a_run_stays_where_it_is_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    run = TrainingRun.create("a", root="runs")
    if way == "resume":
        run.close()
        run = TrainingRun.resume("runs/a")
        run.rewind({})
    monkeypatch.chdir(tmp_path / "elsewhere")
    run.write_config({"steps": 5})
    run.log_warning("moved", STAMP)
    run.update_metadata(status="stopped")
    run.close()
    assert run.path == RunReader(tmp_path / "runs" / "a").path
    assert (run.read_config(), RunReader(run.path).status) == ({"steps": 5}, "stopped")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_without_a_working_directory_a_relative_root_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(StorageError, match=r"cannot find the working directory, .* for runs: No such file"):
        TrainingRun.create("a")
    TrainingRun.create("a", root=tmp_path).close()


# Finding


def test_names_are_in_natural_order() -> None:
    assert sorted(["v10", "v9", "v1.10", "v1.9", "v2"], key=natural_order) == ["v1.9", "v1.10", "v2", "v9", "v10"]


def test_runs_are_found_from_any_level(tmp_path: Path) -> None:
    nine, ten = made(tmp_path, "a", "v9"), made(tmp_path, "a", "v10")
    other = made(tmp_path, "b", "v1")
    assert find_runs(tmp_path) == [nine, ten, other]
    assert find_runs(tmp_path / "a") == [nine, ten]
    assert find_runs(tmp_path / "a" / "v9") == find_runs(nine) == [nine]


def on_day(day: int) -> str:
    return f"2026-03-{day:02}T12:00:00.000+00:00"


def test_a_name_means_the_run_that_was_started_last_whatever_its_version(tmp_path: Path) -> None:
    made(tmp_path, "a", "v1-seed1", started_at=on_day(1))
    later = made(tmp_path, "a", "v1", started_at=on_day(2))
    made(tmp_path, "a", "v1-seed0", started_at=on_day(1))
    assert find_run(tmp_path / "a") == RunReader(tmp_path / "a").path == later


def test_of_versions_that_were_started_at_once_a_name_means_the_last(tmp_path: Path) -> None:
    ten = made(tmp_path, "a", "v10", started_at=on_day(1))
    made(tmp_path, "a", "v9", started_at=on_day(1))
    assert find_run(tmp_path / "a") == ten


def test_whoever_goes_on_gets_the_last_started_run_that_has_not_finished(tmp_path: Path) -> None:
    made(tmp_path, "a", "v1", status="stopped", started_at=on_day(1))
    crashed = made(tmp_path, "a", "v1", status="running", started_at=on_day(2))
    finished = made(tmp_path, "a", "v2", status="finished", started_at=on_day(3))
    assert find_run(tmp_path / "a", unfinished_first=True) == find_unfinished(tmp_path / "a") == crashed
    assert find_run(tmp_path / "a") == finished
    run = TrainingRun.resume(tmp_path / "a")
    run.close()
    assert run.path == crashed


def test_if_all_have_finished_whoever_goes_on_gets_the_one_that_was_started_last(tmp_path: Path) -> None:
    made(tmp_path, "a", "v2", status="finished", started_at=on_day(1))
    later = made(tmp_path, "a", "v1", status="finished", started_at=on_day(2))
    assert find_run(tmp_path / "a", unfinished_first=True) == later
    assert find_unfinished(tmp_path / "a") is None


def test_a_clock_that_goes_back_does_not_change_the_order_in_a_version(tmp_path: Path) -> None:
    made(tmp_path, "a", "v1", started_at=on_day(20))
    last = made(tmp_path, "a", "v1", started_at=on_day(3))
    made(tmp_path, "a", "v2", started_at=on_day(4))
    assert find_run(tmp_path / "a") == find_run(tmp_path / "a" / "v1") == last


def test_a_run_whose_metadata_are_damaged_is_not_passed_over(tmp_path: Path) -> None:
    made(tmp_path, "a", "v1", status="stopped")
    damaged = made(tmp_path, "a", "v1", status="finished")
    (damaged / "metadata.json").write_text("{")
    assert find_run(tmp_path / "a") == find_run(tmp_path / "a", unfinished_first=True) == damaged
    with pytest.raises(RunError, match=r"metadata\.json is not the metadata of a run"):
        TrainingRun.resume(tmp_path / "a")


def test_other_directories_are_passed_over(tmp_path: Path) -> None:
    run = made(tmp_path, "a", "v1")
    (run.parent / "notes").mkdir()
    (run.parent / ".new-1-abcd").mkdir()
    (run.parent / ".new-1-abcd" / "metadata.json").touch()
    (tmp_path / "file").touch()
    assert find_runs(tmp_path) == [run]


def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(tmp_path: Path) -> None:
    TrainingRun.create("dqn-maze-Corridor", root=tmp_path).close()
    with pytest.raises(RunError, match=r"no run at .*dqn-Corridor: .*; did you mean .*/dqn-maze-Corridor\?"):
        find_run(tmp_path / "dqn-Corridor")


def test_a_path_that_is_no_directory_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run at .*absent: it is not a directory"):
        find_run(tmp_path / "absent")


def test_a_directory_without_a_run_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no run at .*neither a run, a version nor a name"):
        find_run(tmp_path)


def test_the_root_of_all_runs_does_not_stand_for_one_of_them(tmp_path: Path) -> None:
    made(tmp_path, "a", "v1")
    with pytest.raises(RunError, match=r"is a directory of runs, and not one of them: name one, such as .*/a$"):
        find_run(tmp_path)


def test_there_are_no_runs_where_there_is_nothing(tmp_path: Path) -> None:
    assert find_runs(tmp_path / "absent") == []


# Resuming


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_run_is_resumed_by_its_path_its_version_or_its_name(tmp_path: Path, level: int) -> None:
    path = made(tmp_path, "a", "v1")
    run = TrainingRun.resume([path, *path.parents][level])
    run.close()
    assert run.path == path
    assert run.is_resumed


def test_a_run_has_one_writer(run: TrainingRun) -> None:
    with pytest.raises(RunLocked, match="is being written by process"):
        TrainingRun.resume(run.path)


def test_resuming_forgets_an_old_request_to_stop(tmp_path: Path) -> None:
    path = made(tmp_path, "a", "v1")
    RunReader(path).request_stop()
    run = TrainingRun.resume(path)
    run.close()
    assert not run.stop_file.exists()


def test_resuming_clears_away_what_was_half_written(tmp_path: Path) -> None:
    path = made(tmp_path, "a", "v1")
    for name in (".metadata.json.tmp", "checkpoints/.step_5.mpk.tmp", "replay/.rows_0_5_r0.mpk.tmp"):
        (path / name).touch()
    TrainingRun.resume(path).close()
    assert list(path.rglob("*.tmp")) == []


def test_a_run_that_cannot_be_resumed_is_not_left_locked(tmp_path: Path) -> None:
    path = made(tmp_path, "a", "v1")
    (path / "metadata.json").write_text("{}")
    with pytest.raises(RunError, match=r"metadata\.json is not the metadata of a run"):
        TrainingRun.resume(path)
    assert not RunReader(path).is_live


def test_create_or_resume_makes_the_first_run(tmp_path: Path) -> None:
    run = TrainingRun.create_or_resume("a", root=tmp_path, seed=3)
    run.close()
    assert not run.is_resumed
    assert run.metadata.seed == 3


@pytest.mark.parametrize("status", ["running", "stopped", "failed"])
def test_create_or_resume_goes_on_with_a_run_that_has_not_finished(tmp_path: Path, status: str) -> None:
    path = made(tmp_path, "a", "v1", status=status)
    run = TrainingRun.create_or_resume("a", root=tmp_path)
    run.close()
    assert (run.path, run.is_resumed) == (path, True)


def test_create_or_resume_starts_anew_after_a_run_that_has_finished(tmp_path: Path) -> None:
    path = made(tmp_path, "a", "v1", status="finished")
    run = TrainingRun.create_or_resume("a", root=tmp_path)
    run.close()
    assert run.path != path
    assert not run.is_resumed


def test_create_or_resume_looks_at_its_version_alone(tmp_path: Path) -> None:
    made(tmp_path, "a", "v1")
    run = TrainingRun.create_or_resume("a", "v2", root=tmp_path)
    run.close()
    assert not run.is_resumed


# Config and metadata


def test_a_config_is_read_back(run: TrainingRun) -> None:
    config = {"env": "CartPole-v1", "agent": {"lr": 1e-3, "layers": [64, 64]}, "note": None}
    run.write_config(config)
    assert run.read_config() == RunReader(run.path).read_config() == config


def test_a_config_may_be_a_struct(run: TrainingRun) -> None:
    run.write_config(msgspec.defstruct("Config", [("lr", float)])(lr=0.5))
    assert run.read_config() == {"lr": 0.5}


def test_a_run_without_a_config_has_an_empty_one(run: TrainingRun) -> None:
    assert run.read_config() == {}


def test_a_config_that_is_not_json_is_refused_and_the_old_one_stays(run: TrainingRun) -> None:
    run.write_config({"lr": 0.5})
    with pytest.raises(ConfigError, match="cannot be written as JSON"):
        run.write_config({"env": lambda: None})
    assert run.read_config() == {"lr": 0.5}


def test_a_damaged_config_is_an_error_that_names_it(run: TrainingRun) -> None:
    (run.path / "config.json").write_text("[1]")
    with pytest.raises(RunError, match=r"config\.json is not a JSON object"):
        run.read_config()


def test_metadata_changes_are_on_disk_at_once(run: TrainingRun) -> None:
    run.update_metadata(total_steps=100, status="stopped")
    stored = json.loads((run.path / "metadata.json").read_text())
    assert (stored["total_steps"], stored["status"]) == (100, "stopped")
    assert stored["last_updated"] >= stored["started_at"]
    assert stored["name"] == "cartpole"


def test_a_resume_is_recorded(run: TrainingRun) -> None:
    run.update_metadata(status="stopped", stop_reason="SIGTERM")
    run.add_resume(Resume(1, 50, "step_50.mpk", "exact", wall_time=timestamp()))
    metadata = RunReader(run.path).metadata
    assert [(resume.number, resume.step, resume.grade) for resume in metadata.resumes] == [(1, 50, "exact")]
    assert metadata.resumes[0].wall_time
    assert (metadata.status, metadata.stop_reason, metadata.exact) == ("running", None, True)
    assert run.resume_count == 1


def test_an_approximate_resume_makes_the_run_one_of_its_kind_for_ever(run: TrainingRun) -> None:
    run.add_resume(Resume(1, 50, "step_50.mpk", "approximate", ("the open episode",)))
    run.add_resume(Resume(2, 60, "step_60.mpk", "exact"))
    assert not RunReader(run.path).metadata.exact


def test_the_grade_of_a_resume_can_be_corrected(run: TrainingRun) -> None:
    run.add_resume(Resume(1, 50, "step_50.mpk", "exact"))
    run.add_resume(Resume(1, 50, "step_50.mpk", "approximate", ("the open episode",)))
    assert [resume.grade for resume in run.metadata.resumes] == ["approximate"]


# Reading


@pytest.mark.parametrize("status", ["finished", "stopped", "failed"])
def test_a_status_is_what_the_writer_said_last(tmp_path: Path, status: str) -> None:
    assert RunReader(made(tmp_path, "a", "v1", status=status)).status == status


def test_a_run_that_says_running_but_has_no_writer_has_crashed(tmp_path: Path) -> None:
    reader = RunReader(made(tmp_path, "a", "v1", status="running"))
    assert reader.metadata.status == "running"
    assert reader.status == "crashed"
    assert not reader.is_live


def test_a_reader_sees_rows_as_they_are_logged(run: TrainingRun) -> None:
    reader = RunReader(run.path)
    assert reader.train_episodes() == reader.eval_episodes() == reader.metric_windows() == []
    run.log_train_episode(RECORD, {**STAMP, "stream": 0})
    assert reader.train_episodes() == [{"row": 0, **STAMP, "stream": 0, **RECORD.row()}]


def test_an_evaluation_episode_is_tagged_with_its_step(run: TrainingRun) -> None:
    run.log_eval_episode(RECORD, STAMP)
    (row,) = run.reader.eval_episodes()
    assert row["total_steps_at_eval"] == 2
    assert EpisodeRecord.from_row(row) == RECORD


def test_a_log_can_be_followed(run: TrainingRun) -> None:
    tail = RunReader(run.path).tail("train_episodes")
    run.log_train_episode(RECORD, STAMP)
    assert [row["row"] for row in tail.poll()[0]] == [0]


def test_a_request_to_stop_carries_its_reason(run: TrainingRun) -> None:
    RunReader(run.path).request_stop("the budget is spent")
    assert run.stop_file.read_text() == "the budget is spent"
    assert list(run.stop_file.parent.iterdir()) == [run.stop_file]


def test_a_second_request_to_stop_is_no_error(run: TrainingRun) -> None:
    for reason in ("one", "two"):
        RunReader(run.path).request_stop(reason)
    assert run.stop_file.read_text() == "two"


# Going back


def test_rewinding_cuts_the_logs_and_says_what_moved(run: TrainingRun) -> None:
    run.log_train_episode(RECORD, STAMP)
    positions = {log: run.log(log).position for log in LOGS}
    for _ in range(2):
        run.log_train_episode(RECORD, STAMP)
    run.log_eval_episode(RECORD, STAMP)
    moved = run.rewind(positions)
    assert moved == ["2 rows of train_episodes.jsonl", "1 rows of eval_episodes.jsonl"]
    assert len(run.reader.train_episodes()) == 1
    assert sorted(path.name for path in (run.path / "rewound" / "resume_1").iterdir()) == [
        "eval_episodes.jsonl",
        "train_episodes.jsonl",
    ]


def test_logs_go_on_after_rewinding(run: TrainingRun) -> None:
    run.log_train_episode(RECORD, STAMP)
    positions = {log: run.log(log).position for log in LOGS}
    run.log_train_episode(RECORD, STAMP)
    run.rewind(positions)
    run.log_train_episode(RECORD, {**STAMP, "episodes": 9})
    assert [(row["row"], row["episodes"]) for row in run.reader.train_episodes()] == [(0, 1), (1, 9)]


def test_rewinding_to_nothing_empties_the_logs(run: TrainingRun) -> None:
    run.log_train_episode(RECORD, STAMP)
    run.rewind({})
    assert run.reader.train_episodes() == []


def test_rewinding_keeps_the_warnings(run: TrainingRun) -> None:
    run.log_warning("the disk is full", STAMP)
    run.rewind({})
    run.log_warning("again", STAMP)
    assert [(row["row"], row["env_steps"], row["message"]) for row in run.reader.warnings()] == [
        (0, STAMP["env_steps"], "the disk is full"),
        (1, STAMP["env_steps"], "again"),
    ]


@pytest.mark.parametrize("garbage", [b'{"row":1,"mess', b"\0" * 100, b"?\n", b'{"row":7,"message":"x"}\n{"row":8}\n'])
def test_warnings_go_on_after_the_last_sound_one(run: TrainingRun, garbage: bytes) -> None:
    path = run.path / "warnings.jsonl"
    run.log_warning("the disk is full", STAMP)
    with path.open("ab") as file:
        file.write(garbage)
    run.rewind({})
    run.log_warning("again", STAMP)
    assert [row["message"] for row in run.reader.warnings()] == ["the disk is full", "again"]
    assert (run.path / "rewound" / "resume_1" / path.name).read_bytes() == garbage


def test_each_resume_has_a_place_of_its_own_for_what_it_moves(run: TrainingRun) -> None:
    first = run.rewound
    run.add_resume(Resume(1, 0, None, "exact"))
    assert first != run.rewound


def test_a_log_that_lacks_rows_leaves_the_others_as_they_were(run: TrainingRun) -> None:
    run.log_train_episode(RECORD, STAMP)
    run.log_eval_episode(RECORD, STAMP)
    beyond = logs.LogPosition(9, 10_000, 0)
    with pytest.raises(LogCorrupt, match=r"eval_episodes\.jsonl has"):
        run.rewind({"eval_episodes": beyond})
    assert len(run.reader.train_episodes()) == 1


def test_closing_lets_another_writer_in(run: TrainingRun) -> None:
    assert run.reader.is_live
    run.close()
    assert not run.reader.is_live
    TrainingRun.resume(run.path).close()


def test_rows_that_cannot_be_written_do_not_keep_the_lock(run: TrainingRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.log("train_episodes").is_deferred = True
    run.log_train_episode(RECORD, STAMP)

    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left"):
        run.close()
    assert not run.reader.is_live

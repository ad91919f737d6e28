"""`rekindle show` shows one run in full, and survives whatever stands in its files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import evaluate, make_run, open_session, play_episode

from rekindle import TrainingRun

Rekindle = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with a config, evaluations and a resume."""
    run = TrainingRun.create("tiny", root=tmp_path, seed=7)
    run.write_config({"agent": {"learning_rate": 0.001}, "environment": "corridor"})
    with open_session(run) as session:
        for _ in range(4):
            play_episode(session)
        evaluate(session, 8.0, 10.0)
        session.stop("pause")
    with open_session(TrainingRun.resume(run.path)) as session:
        for _ in range(4):
            play_episode(session, reward=2.0)
    return run.path


def test_it_has_everything_there_is_to_know(run: Path, rekindle: Rekindle) -> None:
    shown = rekindle("show", run, "--json").json
    assert shown["summary"]["steps"] == 40
    assert shown["metadata"]["seed"] == 7
    assert [(resume["step"], resume["grade"]) for resume in shown["metadata"]["resumes"]] == [(20, "exact")]
    assert shown["config"] == {"agent": {"learning_rate": 0.001}, "environment": "corridor"}
    assert {name: log["rows"] for name, log in shown["logs"].items()} == {
        "train_episodes": 8,
        "eval_episodes": 2,
        "metrics": 4,
    }
    assert shown["metrics"]["metrics"]["episode/return"]["mean"] == 10.0
    assert [row["total_reward"] for row in shown["episodes"]] == [5.0] * 4 + [10.0] * 4
    assert shown["problems"] == []
    assert shown["writer"] is None


def test_the_tables_have_it_too(run: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("show", run)
    assert (outcome.code, outcome.err) == (0, "")
    for fact in (
        str(run),
        "status stopped",
        "steps 40",
        "return 7.50 mean of the last 100, 10.00 last",
        "best 9.00 evaluation at step 20",
        "1 20 step_20.mpk exact",
        "agent.learning_rate 0.001",
        "best, score 9.00",
        "train_episodes.jsonl 8",
        "episode/return 10.00",
        "terminated speed=0.50",
    ):
        assert fact in outcome.flat, fact


def test_it_says_which_checkpoint_is_the_latest_and_which_the_best(run: Path, rekindle: Rekindle) -> None:
    checkpoints = rekindle("show", run, "--json").json["checkpoints"]
    assert [entry["file"] for entry in checkpoints if entry["latest"]] == ["step_40.mpk"]
    assert [(entry["file"], entry["score"]) for entry in checkpoints if entry["best"]] == [("best_20.mpk", 9.0)]
    assert all(entry["size"] == (run / "checkpoints" / entry["file"]).stat().st_size for entry in checkpoints)


def test_it_says_so_of_a_copy_too(run: Path, tmp_path: Path, rekindle: Rekindle) -> None:
    copied = shutil.copytree(run, tmp_path / "copy")
    original, copy = (rekindle("show", path, "--json").json["checkpoints"] for path in (run, copied))
    assert [(entry["file"], entry["latest"], entry["best"]) for entry in copy] == [
        (entry["file"], entry["latest"], entry["best"]) for entry in original
    ]


def test_a_version_or_a_name_stands_for_its_newest_run(tmp_path: Path, rekindle: Rekindle) -> None:
    make_run(tmp_path, "tiny", "v9")
    newest = make_run(tmp_path, "tiny", "v10")
    for path in (newest, newest.parent, newest.parent.parent):
        assert rekindle("show", path, "--json").json["summary"]["path"] == str(newest)


def test_a_live_run_is_shown_with_its_writer_and_goes_on(tmp_path: Path, rekindle: Rekindle) -> None:
    with open_session(TrainingRun.create("tiny", root=tmp_path), checkpoint_every=None) as session:
        play_episode(session)
        shown = rekindle("show", tmp_path / "tiny", "--json").json
        assert shown["summary"]["status"] == "running"
        assert shown["summary"]["steps"] == 5
        assert shown["checkpoints"] == []
        assert f"process {os.getpid()} " in shown["writer"]
        play_episode(session)
    assert rekindle("show", tmp_path / "tiny", "--json").json["summary"]["status"] == "stopped"


def test_of_a_huge_log_only_the_end_is_read(run: Path, rekindle: Rekindle) -> None:
    with (run / "train_episodes.jsonl").open("wb") as file:
        file.truncate(2**30)  # a gigabyte of zeros, which is no JSON
        file.seek(0, os.SEEK_END)
        for number in range(100_000, 100_200):
            file.write(b'\n{"row":%d,"env_steps":%d,"total_reward":1.5}' % (number, number * 5))
        file.write(b"\n")
    shown = rekindle("show", run, "--json").json
    assert shown["problems"] == []
    assert shown["summary"]["steps"] == 100_199 * 5
    assert shown["logs"]["train_episodes"]["rows"] == 100_200
    assert shown["summary"]["mean_return"] == 1.5


def test_the_last_warnings_are_shown(run: Path, rekindle: Rekindle) -> None:
    rows = [{"row": row, "env_steps": row, "message": f"warning {row}"} for row in range(12)]
    (run / "warnings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert rekindle("show", run, "--json").json["warnings"] == rows[2:]
    outcome = rekindle("show", run)
    assert "11 warning 11" in outcome.flat
    assert "1 warning 1 " not in outcome.flat


HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]red[/] \u202e\u009b31m\r\n:boom:"


def test_nothing_in_a_file_can_do_anything_to_the_terminal(run: Path, rekindle: Rekindle) -> None:
    metadata = json.loads((run / "metadata.json").read_text())
    metadata |= {"stop_reason": HOSTILE, "started_at": HOSTILE, "environment": {HOSTILE: HOSTILE}}
    metadata["resumes"][0] |= {"checkpoint": HOSTILE, "lost": [HOSTILE], "wall_time": HOSTILE}
    (run / "metadata.json").write_text(json.dumps(metadata))
    (run / "config.json").write_text(json.dumps({HOSTILE: HOSTILE, "nested": {HOSTILE: [HOSTILE]}}))
    row = {"row": 0, "env_steps": HOSTILE, "total_reward": HOSTILE, "length": [], "status": HOSTILE}
    (run / "train_episodes.jsonl").write_text(json.dumps({**row, "extras": {HOSTILE: HOSTILE}}) + "\n")
    (run / "eval_episodes.jsonl").write_text(json.dumps({"row": 0, "total_steps_at_eval": {}, "extras": 1}) + "\n")
    (run / "warnings.jsonl").write_text(json.dumps({"row": 0, "env_steps": HOSTILE, "message": [HOSTILE]}) + "\n")
    metrics = {HOSTILE: HOSTILE, "b": {"mean": HOSTILE, "count": 1e300}}
    (run / "metrics.jsonl").write_text(json.dumps({"row": 0, "metrics": metrics}) + "\n")
    outcome = rekindle("show", run)
    assert (outcome.code, outcome.err) == (0, "")
    assert all(character.isprintable() for character in outcome.out if character != "\n")
    assert max(map(len, outcome.out.splitlines()[1:])) <= 80
    assert "[bold red]red[/]" in outcome.flat
    assert ":boom:" in outcome.flat
    document = rekindle("show", run, "--json")
    assert document.out.isascii()
    assert document.json["config"][HOSTILE] == HOSTILE


@pytest.mark.parametrize(
    "metrics", ["[]", "null", '"text"', "{}", '{"a":null}', '{"a":{"mean":null,"count":true}}', '{"a":[1]}']
)
def test_a_row_of_metrics_may_hold_anything(run: Path, rekindle: Rekindle, metrics: str) -> None:
    (run / "metrics.jsonl").write_text(f'{{"row":0,"metrics":{metrics}}}\n')
    assert rekindle("show", run).code == 0


def test_huge_values_are_cut_and_huge_numbers_of_them_counted(run: Path, rekindle: Rekindle) -> None:
    (run / "config.json").write_text(json.dumps({"long": "x" * 10**6, **{f"setting {n}": n for n in range(5000)}}))
    outcome = rekindle("show", run)
    assert len(outcome.out) < 20_000
    assert "the first 60 of 5001; --json has all" in outcome.flat
    assert len(rekindle("show", run, "--json").json["config"]) == 5001


def test_a_config_as_deep_as_can_be_read_can_be_shown(run: Path, rekindle: Rekindle) -> None:
    (run / "config.json").write_text('{"a":' * 400 + "1" + "}" * 400)
    assert rekindle("show", run).code == 0
    assert rekindle("show", run, "--json").code == 0


DAMAGE: dict[str, Callable[[Path], object]] = {
    "metadata": lambda run: (run / "metadata.json").write_bytes(b"{"),
    "config": lambda run: (run / "config.json").write_bytes(b"[]"),
    "the best checkpoint": lambda run: (run / "checkpoints" / "best.mpk").write_bytes(b"x"),
    "a log": lambda run: (run / "metrics.jsonl").write_bytes(b"x\n"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_damaged_is_told_and_the_rest_is_shown(
    run: Path, rekindle: Rekindle, damage: Callable[[Path], object]
) -> None:
    damage(run)
    shown = rekindle("show", run, "--json").json
    assert len(shown["problems"]) == 1
    assert shown["logs"]["train_episodes"]["rows"] == 8
    outcome = rekindle("show", run)
    assert outcome.code == 0
    assert "Problems" in outcome.out


def test_a_run_without_its_directories_is_shown(run: Path, rekindle: Rekindle) -> None:
    shutil.rmtree(run / "checkpoints")
    shutil.rmtree(run / "replay")
    assert rekindle("show", run, "--json").json["checkpoints"] == []
    assert "none yet" in rekindle("show", run).out


def test_a_path_that_is_no_run_is_told_in_one_line(tmp_path: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("show", tmp_path)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.startswith(f"rekindle: there is no run at {tmp_path}: it is neither a run, a version nor")


def test_it_counts_the_records_of_an_input_journal(tmp_path: Path, rekindle: Rekindle) -> None:
    run = TrainingRun.create("tiny", root=tmp_path)
    with open_session(run, journal=True, journal_keep="all", checkpoint_every=None) as session:
        play_episode(session)
        session.checkpoint(wait=True)
        session.log("note", 1.0)
        live = rekindle("show", run.path, "--json").json["journal"]
        assert (live["first"], live["records"], live["after_checkpoint"], live["torn"]) == (0, 12, 1, 0)
        assert "Input journal 12 records, 1 after the newest checkpoint," in rekindle("show", run.path).flat
        session.stop("pause")
    closed = rekindle("show", run.path, "--json").json["journal"]
    assert (closed["records"], closed["after_checkpoint"]) == (12, 0)
    assert closed["size"] < live["size"]


def test_it_shows_how_many_calls_a_resume_made_again(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path)
    metadata = json.loads((path / "metadata.json").read_text())
    resume = {"number": 1, "step": 20, "checkpoint": "step_20.mpk", "grade": "exact", "replayed": 1234}
    (path / "metadata.json").write_text(json.dumps({**metadata, "resumes": [resume]}))
    assert "# from step replayed checkpoint grade when lost" in rekindle("show", path).flat
    assert "1 20 1,234 step_20.mpk exact" in rekindle("show", path).flat

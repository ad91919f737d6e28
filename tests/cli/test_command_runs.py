"""`rekindle runs` lists every run, whatever state it is in."""

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
from rekindle.cli import main

Rekindle = Callable[..., Any]


def change(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_every_run_is_listed_with_its_counts_and_returns(tmp_path: Path, rekindle: Rekindle) -> None:
    first = make_run(tmp_path, episodes=4)
    second = make_run(tmp_path, "other", "v2", episodes=2, reward=3.0)
    listed = rekindle("runs", tmp_path, "--json").json
    assert [entry["path"] for entry in listed] == [str(second), str(first)]
    assert [(entry["name"], entry["version"], entry["status"]) for entry in listed] == [
        ("other", "v2", "finished"),
        ("tiny", "v1", "finished"),
    ]
    assert [(entry["steps"], entry["episodes"], entry["updates"]) for entry in listed] == [(10, 2, 10), (20, 4, 20)]
    assert [(entry["last_return"], entry["mean_return"]) for entry in listed] == [(15.0, 15.0), (5.0, 5.0)]


def test_the_table_has_a_line_for_every_run(tmp_path: Path, rekindle: Rekindle) -> None:
    paths = [make_run(tmp_path, "a"), make_run(tmp_path, "b", "v2")]
    outcome = rekindle("runs", tmp_path)
    assert (outcome.code, outcome.err) == (0, "")
    lines = [line.split() for line in outcome.out.splitlines()]
    assert [line[:7] for line in lines if "finished" in line] == [
        [str(path.relative_to(tmp_path)), "finished", "20", "4", "5.00", "5.00*", line[-2]]
        for path, line in zip(paths, lines[2:4], strict=True)
    ]


def test_the_mean_is_over_the_last_hundred_episodes(tmp_path: Path, rekindle: Rekindle) -> None:
    with open_session(TrainingRun.create("tiny", root=tmp_path)) as session:
        for number in range(150):
            play_episode(session, reward=float(number))
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert entry["mean_return"] == 5 * sum(range(50, 150)) / 100
    assert entry["last_return"] == 5 * 149


def test_the_best_return_is_the_mean_of_the_best_evaluation(tmp_path: Path, rekindle: Rekindle) -> None:
    with open_session(TrainingRun.create("tiny", root=tmp_path)) as session:
        play_episode(session)
        evaluate(session, 1.0, 30.0)
        play_episode(session)
        evaluate(session, 20.0, 22.0)
        play_episode(session)
        evaluate(session, 3.0)
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert entry["best_return"] == {"value": 21.0, "of": "evaluation", "step": 10, "at_least": False}


def test_without_evaluations_the_best_return_is_that_of_an_episode_and_marked(
    tmp_path: Path, rekindle: Rekindle
) -> None:
    with open_session(TrainingRun.create("tiny", root=tmp_path)) as session:
        for reward in (1.0, 7.0, 2.0):
            play_episode(session, reward=reward)
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert entry["best_return"] == {"value": 35.0, "of": "episode", "step": 10, "at_least": False}
    outcome = rekindle("runs", tmp_path)
    assert "35.00*" in outcome.out
    assert "* the best training episode" in outcome.out


def test_of_a_log_too_long_to_search_the_best_return_is_said_to_be_at_least_so_much(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path, episodes=50)
    monkeypatch.setattr("rekindle.run.overview._SEARCHED", 2000)
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert entry["best_return"]["at_least"]
    assert "≥ 5.00*" in rekindle("runs", tmp_path).out


def test_a_run_whose_writer_died_is_crashed_and_counted_from_its_logs(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path, episodes=4)
    change(path / "metadata.json", status="running", total_steps=10, total_episodes=2, updates=10)
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert (entry["status"], entry["steps"], entry["episodes"], entry["updates"]) == ("crashed", 20, 4, 20)


def test_a_run_that_somebody_writes_is_running_and_counted_from_its_logs(tmp_path: Path, rekindle: Rekindle) -> None:
    with open_session(TrainingRun.create("tiny", root=tmp_path), checkpoint_every=None) as session:
        play_episode(session)
        (entry,) = rekindle("runs", tmp_path, "--json").json
        assert (entry["status"], entry["steps"], entry["episodes"]) == ("running", 5, 1)


def test_a_run_without_episodes_has_no_returns(tmp_path: Path, rekindle: Rekindle) -> None:
    make_run(tmp_path, episodes=0)
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert (entry["steps"], entry["last_return"], entry["mean_return"], entry["best_return"]) == (0, None, None, None)
    assert rekindle("runs", tmp_path).code == 0


def test_returns_that_are_not_numbers_are_left_out_of_the_mean(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path, episodes=1)
    with (path / "train_episodes.jsonl").open("a") as file:
        for number, value in enumerate(("null", '"many"', "true", "[]", "1" + "0" * 400), 1):
            file.write(f'{{"row":{number},"total_reward":{value}}}\n')
    (entry,) = rekindle("runs", tmp_path, "--json").json
    assert (entry["mean_return"], entry["best_return"]["value"]) == (5.0, 5.0)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a line that is no JSON": lambda run: (run / "train_episodes.jsonl").write_bytes(b"\x1b[2Jgarbage\n"),
    "a row out of order": lambda run: (run / "metrics.jsonl").write_bytes(b'{"row":7}\n'),
    "a log that is a directory": lambda run: (
        (run / "eval_episodes.jsonl").unlink(),
        (run / "eval_episodes.jsonl").mkdir(),
    ),
    "a log that is a link": lambda run: (
        (run / "eval_episodes.jsonl").unlink(),
        (run / "eval_episodes.jsonl").symlink_to("/etc/passwd"),
    ),
    "a log that is a pipe": lambda run: ((run / "metrics.jsonl").unlink(), os.mkfifo(run / "metrics.jsonl")),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_log_is_told_and_the_other_runs_are_listed(
    tmp_path: Path, rekindle: Rekindle, damage: Callable[[Path], object]
) -> None:
    damaged, sound = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    damage(damaged)
    first, second = rekindle("runs", tmp_path, "--json").json
    assert (first["path"], first["status"], len(first["problems"])) == (str(damaged), "finished", 1)
    assert (second["path"], second["problems"], second["mean_return"]) == (str(sound), [], 5.0)
    outcome = rekindle("runs", tmp_path)
    assert outcome.code == 0
    assert "finished, damaged" in outcome.flat


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"name":"\xff"}', b'{"name":"a"}', b"[" * 100_000])
def test_a_run_with_broken_metadata_is_unreadable_and_the_others_are_listed(
    tmp_path: Path, rekindle: Rekindle, content: bytes
) -> None:
    broken = make_run(tmp_path, "a")
    make_run(tmp_path, "b")
    (broken / "metadata.json").write_bytes(content)
    first, second = rekindle("runs", tmp_path, "--json").json
    assert (first["status"], first["steps"], len(first["problems"])) == ("unreadable", None, 1)
    assert second["status"] == "finished"
    outcome = rekindle("runs", tmp_path)
    assert outcome.code == 0
    assert "unreadable" in outcome.out


def test_a_run_that_disappears_meanwhile_is_unreadable(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, there = make_run(tmp_path, "a"), make_run(tmp_path, "b")
    shutil.rmtree(gone)
    monkeypatch.setattr("rekindle.cli.runs.find_runs", lambda _: [gone, there])
    assert [entry["status"] for entry in rekindle("runs", tmp_path, "--json").json] == ["unreadable", "finished"]


def test_a_directory_without_runs_is_an_empty_list(tmp_path: Path, rekindle: Rekindle) -> None:
    assert rekindle("runs", tmp_path, "--json") == (0, "[]\n", "")
    outcome = rekindle("runs", tmp_path)
    assert (outcome.code, outcome.out) == (0, "")
    assert "there are no runs in" in outcome.err


def test_a_directory_that_is_not_there_is_told_in_one_line(tmp_path: Path, rekindle: Rekindle) -> None:
    outcome = rekindle("runs", tmp_path / "nowhere")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert outcome.err.startswith(f"rekindle: {tmp_path}/nowhere is not a directory")


def test_the_directory_is_called_runs_unless_told(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert [entry["name"] for entry in rekindle("runs", "--json").json] == ["tiny"]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_the_table_fits_the_terminal_and_loses_no_character_of_a_path(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    path = make_run(tmp_path, "a-name-that-is-much-longer-than-a-column-would-like", "version-one")
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = rekindle("runs", tmp_path).out.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].split() == ["run", "status", "steps", *["episodes"] * (columns > 60), "last", "100", "best", "age"]
    assert_whole(path.relative_to(tmp_path), lines)


def test_on_a_narrow_terminal_paths_are_whole_too(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_run(tmp_path)
    monkeypatch.setenv("COLUMNS", "20")
    assert_whole(path.relative_to(tmp_path), rekindle("runs", tmp_path).out.splitlines())


def test_in_a_pipe_each_run_is_one_line(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_run(tmp_path, "a-name-that-is-much-longer-than-a-column-would-like", "version-one")
    rekindle("runs", tmp_path)
    monkeypatch.delenv("COLUMNS")
    assert main(["runs", str(tmp_path)]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if " finished " in line]
    assert line.split()[0] == str(path.relative_to(tmp_path))


def assert_whole(path: Path, lines: list[str]) -> None:
    first_column = "".join(line.split("  ")[0].strip() for line in lines)
    assert str(path) in first_column


def test_names_cannot_do_anything_to_the_terminal(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    path = make_run(tmp_path, "a")
    hostile = tmp_path / "\x1b]0;owned\x07[bold red]x\u202e\u009b31m"
    shutil.move(path.parent.parent, hostile)
    (tmp_path / os.fsdecode(b"\xff\xfe")).mkdir()
    shutil.copytree(hostile / "v1", tmp_path / os.fsdecode(b"\xff\xfe") / "v1")
    outcome = rekindle("runs", tmp_path)
    assert outcome.code == 0
    assert all(character.isprintable() for character in outcome.out if character != "\n")
    assert r"\x1b]0;owned\x07[bold red]x\u202e\x9b31m/v1" in outcome.out
    assert r"\xff\xfe/v1" in outcome.out
    assert rekindle("runs", tmp_path, "--json").out.isascii()

"""`rekindle tag`, and `--tag` of the other commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_run as play_run

from rekindle import RunReader, TrainingRun

Rekindle = Callable[..., Any]


def make_run(root: Path, name: str = "lake", *tags: str) -> Path:
    run = TrainingRun.create(name, root=root, tags=tags)
    run.close()
    return run.path


def test_tags_are_added_removed_and_shown(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path)
    assert rekindle("tag", tmp_path / "lake").out == f"{path}: no tags\n"
    assert rekindle("tag", path, "good", "new reward").out == f"{path}: good, new reward\n"
    assert rekindle("tag", path, "--remove", "good", "--json").json == [{"path": str(path), "tags": ["new reward"]}]
    assert "tags new reward" in rekindle("show", path).flat
    assert rekindle("show", path, "--json").json["summary"]["tags"] == ["new reward"]


def test_all_runs_below_a_directory_are_tagged(tmp_path: Path, rekindle: Rekindle) -> None:
    paths = [make_run(tmp_path), make_run(tmp_path), make_run(tmp_path, "cliff")]
    told = rekindle("tag", tmp_path, "first", "--all", "--json").json
    assert {run["path"]: run["tags"] for run in told} == {str(path): ["first"] for path in paths}
    assert rekindle("tag", tmp_path / "lake", "newest").code == 0
    assert [run["path"] for run in rekindle("runs", tmp_path, "--tag", "newest", "--json").json] == [str(paths[1])]


def test_a_tag_that_is_not_there_is_reported(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path, "lake", "good")
    outcome = rekindle("tag", path, "--remove", "god", "good")
    assert (outcome.code, outcome.out) == (1, f"{path}: no tags\n")
    assert "does not have the tag 'god'" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a/b",), "tag 'a/b'"),
        (("x" * 65,), "1 to 64 printable"),
        (("a", "--remove", "a"), "cannot be added and removed at once"),
    ],
)
def test_wrong_tags_change_nothing(tmp_path: Path, rekindle: Rekindle, words: tuple[str, ...], message: str) -> None:
    path = make_run(tmp_path)
    outcome = rekindle("tag", path, *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (path / "tags").exists()


def test_the_list_shows_tags_and_is_filtered_by_them(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    tagged, other = make_run(tmp_path, "lake", "good", "small"), make_run(tmp_path, "cliff", "good")
    lines = [line.strip() for line in rekindle("runs", tmp_path).out.splitlines()]  # too narrow for a column of tags
    assert (lines.count("good, small"), lines.count("good")) == (1, 1)
    monkeypatch.setenv("COLUMNS", "120")
    wide = rekindle("runs", tmp_path).out.splitlines()
    assert (wide[0].split()[-1], wide[-1].split()[-2:]) == ("tags", ["good,", "small"])
    assert [run["path"] for run in rekindle("runs", tmp_path, "--tag", "good", "small", "--json").json] == [str(tagged)]
    assert len(rekindle("runs", tmp_path, "--tag", "good", "--json").json) == 2
    outcome = rekindle("runs", tmp_path, "--tag", "none")
    assert "none of the 2 runs" in outcome.err
    assert rekindle("tag", other, "--remove", "good").code == 0
    assert "tags" not in rekindle("runs", tmp_path / "cliff").out


def test_a_comparison_shows_tags_and_is_filtered_by_them(tmp_path: Path, rekindle: Rekindle) -> None:
    make_run(tmp_path, "lake", "good")
    make_run(tmp_path, "cliff", "bad")
    assert "tags bad good" in rekindle("compare", tmp_path).flat
    told = rekindle("compare", tmp_path, "--tag", "good", "--json").json["runs"]
    assert [run["summary"]["name"] for run in told] == ["lake"]
    outcome = rekindle("compare", tmp_path, "--tag", "none")
    assert (outcome.code, outcome.out) == (1, "")
    assert "has the tag 'none'" in outcome.err


def test_a_report_and_a_plot_are_of_runs_with_a_tag(tmp_path: Path, rekindle: Rekindle) -> None:
    for name, tag in (("lake", "good"), ("cliff", "bad")):
        RunReader(play_run(tmp_path / "runs", name)).change_tags(add=[tag])
    page = tmp_path / "report.html"
    assert rekindle("report", tmp_path / "runs", "--tag", "good", "-o", page).code == 0
    assert re.findall("<title>(.*?)/", page.read_text()) == ["lake"]
    pytest.importorskip("matplotlib")
    told = rekindle("plot", tmp_path / "runs", "--tag", "bad", "-o", tmp_path / "plot.svg")
    assert told.out.endswith(": 1 run\n")


@pytest.mark.parametrize("command", ["compare", "report", "plot"])
def test_tags_that_no_run_has_are_reported(tmp_path: Path, rekindle: Rekindle, command: str) -> None:
    make_run(tmp_path / "runs", "lake", "good")
    words = () if command == "compare" else ("-o", tmp_path / "out.svg")
    told = rekindle(command, tmp_path / "runs", "--tag", "none", *words)
    assert (told.code, told.out, told.err) == (1, "", "rekindle: the run does not have the tag 'none'\n")
    make_run(tmp_path / "runs", "cliff", "bad")
    told = rekindle(command, tmp_path / "runs", "--tag", "good", "bad", *words)
    assert (told.code, told.err) == (1, "rekindle: none of the 2 runs has the tags 'bad' and 'good'\n")
    told = rekindle(command, tmp_path / "runs", "--tag", "a/b", *words)
    assert (told.code, "tag 'a/b'" in told.err) == (2, True)
    assert not (tmp_path / "out.svg").exists()


@pytest.mark.parametrize("command", ["compare", "report", "plot"])
def test_a_path_without_runs_is_answered_with_the_nearest_name(
    tmp_path: Path, rekindle: Rekindle, command: str
) -> None:
    make_run(tmp_path, "lake")
    told = rekindle(command, tmp_path / "lakes")
    assert (told.code, told.err.endswith(f"did you mean {tmp_path / 'lake'}?\n")) == (1, True)


class TestTraining:
    OPTIONS = ("--steps", "60", "--eval-episodes", "0", "--ui", "none", "--json")

    def test_a_training_begins_with_its_tags(self, tmp_path: Path, rekindle: Rekindle) -> None:
        words = ("train", "tabular", "FrozenLake-v1", "--runs", tmp_path, *self.OPTIONS)
        report = rekindle(*words, "--tag", "baseline", "new reward").json
        assert rekindle("tag", report["path"]).out.endswith(": baseline, new reward\n")

    def test_a_training_that_goes_on_gets_further_tags(self, tmp_path: Path, rekindle: Rekindle) -> None:
        words = ("train", "tabular", "FrozenLake-v1", "--runs", tmp_path, "--resume", "auto", *self.OPTIONS)
        first = rekindle(*words, "--tag", "a", "--time-limit", "1e-9").json
        assert first["status"] == "stopped"
        assert rekindle(*words, "--tag", "b").json["path"] == first["path"]
        assert rekindle("tag", first["path"]).out.endswith(": a, b\n")

    def test_tags_are_no_setting_of_the_training(self, tmp_path: Path, rekindle: Rekindle) -> None:
        words = ("train", "tabular", "FrozenLake-v1", "--runs", tmp_path, *self.OPTIONS)
        one = rekindle(*words, "--tag", "a").json["path"]
        other = rekindle(*words).json["path"]
        told = rekindle("compare", one, other, "--digests", "--json").json
        assert told["equal"] == {"weights": True, "state": True, "logs": True}
        assert len(told["trainings"]["groups"]) == 1

    def test_a_wrong_tag_is_refused_before_the_training(self, tmp_path: Path, rekindle: Rekindle) -> None:
        words = ("train", "tabular", "FrozenLake-v1", "--runs", tmp_path / "runs", *self.OPTIONS)
        assert rekindle(*words, "--tag", "a/b").code == 2
        assert not (tmp_path / "runs").exists()

    def test_a_config_file_has_tags(self, tmp_path: Path, rekindle: Rekindle) -> None:
        file = tmp_path / "train.toml"
        file.write_text('algorithm = "tabular"\nenv = "FrozenLake-v1"\ntag = ["from-file"]\n')
        path = rekindle("train", "--config", file, "--runs", tmp_path, *self.OPTIONS).json["path"]
        assert rekindle("tag", path).out.endswith(": from-file\n")

    def test_a_fork_has_tags_of_its_own(self, tmp_path: Path, rekindle: Rekindle) -> None:
        words = ("train", "tabular", "FrozenLake-v1", "--runs", tmp_path, *self.OPTIONS)
        path = rekindle(*words, "--tag", "parent").json["path"]
        made = rekindle("fork", path, "--tag", "branch", "--create-only", "--json").json["path"]
        assert rekindle("tag", made).out.endswith(": branch\n")

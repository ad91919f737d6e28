"""`rekindle report` writes one page that needs nothing but itself, and in which nothing of a run can run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import evaluate, make_run, open_session, play_episode

from rekindle import TrainingRun
from rekindle.storage.logs import JsonLines

Rekindle = Callable[..., Any]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """The tags of a page, its attributes and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br", "img", "path", "i"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("path", "i"):
            return
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def run_with_evaluations(root: Path, **config: Any) -> Path:
    run = TrainingRun.create("tiny", root=root)
    run.write_config(config)
    with open_session(run) as session:
        for number in range(6):
            play_episode(session, reward=number)
            if number % 2:
                evaluate(session, number, number + 1.0)
        session.stop("enough", complete=True)
    return run.path


def report(rekindle: Rekindle, *paths: Path, output: Path) -> Page:
    outcome = rekindle("report", *paths, "-o", output)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(str(output))
    page = Page(output.read_text())
    assert page.open == []
    return page


def test_a_report_has_curves_tables_config_and_history(tmp_path: Path, rekindle: Rekindle) -> None:
    path = run_with_evaluations(tmp_path, algorithm="averager", env={"id": "Counting-v0"}, rate=0.25)
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps({**metadata, "parent": "runs/other@500"}))
    with closing(JsonLines(path / "warnings.jsonl")) as log:
        log.append({"env_steps": 25, "wall_time": 1.0, "message": "the disk is full"})
    page = report(rekindle, path, output=tmp_path / "report.html")
    facts = ("averager", "Counting-v0", "rate", "0.25", "finished, enough")
    for part in (*facts, "runs/other@500", "step_30.mpk", "evaluated 2 episodes", "warningthe disk is full25"):
        assert part in page.text
    labels = [value for name, value in page.attributes if name == "aria-label"]
    names = ["return", "length", "loss", "speed", "checkpoint_stall", "cpu_seconds", "memory_mb", "steps_per_sec"]
    assert labels == [f"{name} by step" for name in names]
    assert page.tags.count("svg") == len(names)
    assert "returntraineval" in page.text


def test_several_runs_are_compared(tmp_path: Path, rekindle: Rekindle) -> None:
    paths = [make_run(tmp_path, name, reward=reward) for name, reward in (("one", 1.0), ("two", 2.0))]
    page = report(rekindle, *paths, output=tmp_path / "report.html")
    assert "Side by side" in page.text
    assert "return, train" in page.text
    assert page.text.count("one/v1/") >= 3


def test_several_seeds_of_a_training_are_one_line_with_a_verdict(tmp_path: Path, rekindle: Rekindle) -> None:
    paths = [
        make_run(tmp_path, name, f"v1-seed{seed}", reward=reward + 0.1 * seed, seed=seed)
        for name, reward in (("one", 1.0), ("two", 5.0))
        for seed in range(4)
    ]
    paths.append(make_run(tmp_path, "single"))
    page = report(rekindle, *paths, output=tmp_path / "report.html")
    assert "Side by side" not in page.text
    assert "two is better than one by" in page.text
    assert "single15.00-5.00-" in page.text  # one run has no interval
    assert "Mean curvesonetwosingle" in page.text  # one legend for all charts, with one entry for each training
    assert page.tags.count("details") == 9


def test_a_directory_stands_for_every_run_below_it(tmp_path: Path, rekindle: Rekindle) -> None:
    for seed in range(2):
        make_run(tmp_path / "runs", "lake", f"v{seed}", seed=seed)
    page = report(rekindle, tmp_path / "runs", output=tmp_path / "report.html")
    assert "Report on 2 runs" in page.text


def test_many_runs_are_rows_of_one_table(tmp_path: Path, rekindle: Rekindle) -> None:
    paths = [make_run(tmp_path, f"lake{number}") for number in range(9)]
    page = report(rekindle, *paths, output=tmp_path / "report.html")
    assert page.text.index("lake0/v1/") < page.text.index("lake8/v1/") < page.text.index("Curves")
    lines = {line for name, line in page.attributes if name == "style" and line.startswith("stroke:")}
    assert len(lines) == 8
    assert any(name == "stroke-dasharray" for name, _ in page.attributes)  # the ninth line differs from the first


def test_a_page_loads_nothing_and_runs_nothing(tmp_path: Path, rekindle: Rekindle) -> None:
    page = report(rekindle, run_with_evaluations(tmp_path), output=tmp_path / "report.html")
    assert "script" not in page.tags
    assert "link" not in page.tags
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert [value for name, value in page.attributes if name in ("src", "href")] == []
    assert any(value.startswith("default-src 'none'") for name, value in page.attributes if name == "content")
    assert "http://" not in (tmp_path / "report.html").read_text()
    assert "https://" not in (tmp_path / "report.html").read_text()


def test_hostile_names_and_values_are_text(tmp_path: Path, rekindle: Rekindle) -> None:
    path = run_with_evaluations(tmp_path, algorithm=HOSTILE, **{HOSTILE: HOSTILE})
    row = {"row": 0, "env_steps": 5, "metrics": {f"agent/{HOSTILE}": {"mean": 1.0}, f"{HOSTILE}/x": {"mean": 2.0}}}
    (path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    metadata = json.loads((path / "metadata.json").read_text())
    metadata |= {"stop_reason": HOSTILE, "environment": {HOSTILE: HOSTILE}}
    (path / "metadata.json").write_text(json.dumps(metadata))
    page = report(rekindle, path, output=tmp_path / "report.html")
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert page.text.count("<script>alert(1)</script>") >= 4


def test_a_damaged_run_is_reported_with_its_problems(tmp_path: Path, rekindle: Rekindle) -> None:
    path = make_run(tmp_path)
    (path / "metrics.jsonl").write_text("nonsense\n")
    page = report(rekindle, path, output=tmp_path / "report.html")
    assert "metrics.jsonl: line 1 is not JSON" in page.text


@pytest.mark.parametrize(("name", "tag"), [("best_20.mp4", "video"), ("best_20.webm", "video"), ("best.gif", "img")])
def test_the_video_of_the_best_policy_is_in_the_page(tmp_path: Path, rekindle: Rekindle, name: str, tag: str) -> None:
    path = make_run(tmp_path)
    (path / "videos").mkdir()
    (path / "videos" / name).write_bytes(b"the best")
    (path / "videos" / "zz_newest.mp4").write_bytes(b"another")
    (path / "outside.mp4").symlink_to(tmp_path / "secret")
    page = report(rekindle, path, output=tmp_path / "report.html")
    assert page.tags.count(tag) == 1
    (source,) = [value for attribute, value in page.attributes if attribute == "src"]
    assert re.fullmatch(r"data:(video|image)/\w+;base64,dGhlIGJlc3Q=", source)
    assert name in page.text


def test_the_output_is_replaced_whole_or_left(tmp_path: Path, rekindle: Rekindle) -> None:
    path, output = make_run(tmp_path), tmp_path / "report.html"
    output.write_text("before")
    assert rekindle("report", tmp_path / "nowhere", "-o", output).code == 1
    assert output.read_text() == "before"
    assert rekindle("report", path, "-o", tmp_path / "no" / "such.html").code == 1
    assert rekindle("report", path, "-o", output).code == 0
    assert output.read_text().startswith("<!doctype html>")
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".tmp")] == []


def test_no_path_is_wrong_usage(rekindle: Rekindle) -> None:
    outcome = rekindle("report")
    assert outcome.code == 2
    assert "at least one PATH" in outcome.err

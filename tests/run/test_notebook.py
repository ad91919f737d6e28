"""In a notebook a run and an evaluation are shown, not described."""

from __future__ import annotations

from pathlib import Path

import pytest
from watched_runs import Writer, written

from rekindle import EpisodeRecord, EpisodeStatus, EvalReport, RunReader

RECORDS = [EpisodeRecord(value, 10, EpisodeStatus.TERMINATED) for value in (1.0, 3.0)]


def test_a_run_is_shown_with_its_return(tmp_path: Path) -> None:
    writer = written(tmp_path)
    writer.end()
    page = RunReader(writer.path)._repr_html_()
    for part in ("finished", "q-learning", "FrozenLake-v1", "600 of 1,200", "<svg", "return by step", "eval"):
        assert part in page
    assert page == writer.run._repr_html_()
    assert "<script" not in page


def test_a_run_without_rows_is_shown_too(tmp_path: Path) -> None:
    page = RunReader(Writer(tmp_path).path)._repr_html_()
    assert "running" in page
    assert "<svg" not in page


def test_a_run_without_episodes_is_shown_with_one_of_its_metrics(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for loss in (3.0, 2.0, None, 1.0):
        writer.steps += 100
        writer.metrics_of(time__steps_per_sec=50.0, agent__loss=loss)
    page = RunReader(writer.path)._repr_html_()
    assert "loss by step" in page
    assert ">agent</span>" in page


def test_a_run_with_a_damaged_log_is_shown_with_what_is_wrong(tmp_path: Path) -> None:
    writer = written(tmp_path)
    writer.end()
    (writer.path / "eval_episodes.jsonl").write_text("no row\n")
    page = RunReader(writer.path)._repr_html_()
    assert page.count("eval_episodes.jsonl: line 1 is not JSON") == 1
    assert "return by step" in page


def test_an_evaluation_is_a_table() -> None:
    page = EvalReport.of(RECORDS, 1234)._repr_html_()
    assert "at step 1,234, episodes: 2" in page
    assert "<td>episode_reward_mean</td><td class=number>2</td>" in page


@pytest.mark.parametrize("text", ["<script>", "</style>", '"><b>'])
def test_hostile_text_is_text(tmp_path: Path, text: str) -> None:
    writer = Writer(tmp_path, algorithm=text)
    writer.metrics_of(**{f"agent__{text}": 1.0})
    page = writer.run._repr_html_()
    assert page.replace("</style>", "", 1).count(text) == 0
    assert text not in EvalReport(1, 1, {text: 1.0})._repr_html_().replace("</style>", "", 1)

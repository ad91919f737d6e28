"""The feed shows a run as its files are, whatever happens to them."""

from __future__ import annotations

import json
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from watched_runs import LENGTH, Writer, written

from rekindle import TrainingRun
from rekindle.run.curve import Extreme
from rekindle.run.metadata import Resume
from rekindle.ui import feed as feed_module
from rekindle.ui.feed import Happening, Metric, RunFeed
from rekindle.ui.report import report_page
from rekindle.ui.summary import progress_line

RETURN = Metric("return", "train")


def polled(path: Path) -> RunFeed:
    feed = RunFeed(path)
    assert feed.poll() == 1.0
    return feed


def texts(feed: RunFeed) -> list[str]:
    return [happening.text for happening in feed.happenings]


def test_a_live_run_shows_what_it_is_and_how_far_it_has_come(tmp_path: Path) -> None:
    feed = polled(written(tmp_path).path)
    assert feed.name.startswith("lake/v1/")
    assert (feed.algorithm, feed.environment, feed.status) == ("q-learning", "FrozenLake-v1", "running")
    assert (feed.steps, feed.updates, feed.episodes) == (600, 300, 60)
    assert (feed.max_steps, feed.share_done) == (1200, 0.5)


def test_the_agent_is_the_algorithm_where_the_config_names_none(tmp_path: Path) -> None:
    feed = polled(Writer(tmp_path, algorithm=None).path)
    assert feed.algorithm == "Tabular"


def test_every_log_has_its_splits(tmp_path: Path) -> None:
    feed = polled(written(tmp_path).path)
    assert {tuple(metric) for metric in feed.curves} == {
        ("return", "train"),
        ("return", "eval"),
        ("length", "train"),
        ("length", "eval"),
        ("epsilon", "train"),
        ("loss", "agent"),
        ("steps_per_sec", "time"),
        ("depth", "logged"),
    }
    assert feed.names == ["return", "length", "depth", "epsilon", "loss", "steps_per_sec"]
    assert [split for split, _ in feed.splits("return")] == ["train", "eval"]
    assert feed.best(RETURN) == Extreme(29 / 60 + 0.5, 600)
    assert feed.best(Metric("loss", "agent")) == Extreme(1 / 600, 600)


def test_the_rate_is_that_of_the_rows_and_the_time_left_follows(tmp_path: Path) -> None:
    writer = Writer(tmp_path, max_steps=1000)
    writer.clock = _started(writer.run) + 1
    writer.episodes_of([0.0] * 20)
    feed = polled(writer.path)
    assert feed.rate == pytest.approx(LENGTH)
    assert feed.seconds_left == pytest.approx(80.0)
    assert feed.uptime is not None


def _started(run: TrainingRun) -> float:
    return datetime.fromisoformat(run.metadata.started_at).timestamp()


def test_what_is_appended_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = written(tmp_path)
    feed = polled(writer.path)
    read: list[dict[str, Any]] = []
    take = feed._take
    monkeypatch.setattr(feed, "_take", lambda log, row: (read.append(row), take(log, row)))
    writer.episodes_of([9.0])
    feed.poll()
    feed.poll()
    assert [row["total_reward"] for row in read] == [9.0]
    assert feed.curves[RETURN].last == 9.0


def test_a_long_log_is_read_in_parts_between_which_others_get_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_PART", 2**10)
    writer = Writer(tmp_path)
    writer.episodes_of([1.0] * 2000)
    feed = RunFeed(writer.path)
    shares = [feed.poll(seconds=0) for _ in range(3)]
    assert 0 < shares[0] < shares[1] < shares[2] < 1
    assert feed.poll() == 1.0
    assert feed.episodes == 2000


def test_rows_that_a_resume_cut_off_are_dropped(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.episodes_of([1.0])
    writer.evaluation_of([1.0])
    writer.episodes_of([2.0])
    positions = {log: writer.run.log(log).position for log in ("train_episodes", "eval_episodes", "metrics")}
    writer.episodes_of([100.0])
    writer.evaluation_of([50.0])
    feed = polled(writer.path)
    assert feed.curves[RETURN].greatest == Extreme(100.0, 30)
    writer.crash()
    assert (feed.poll(), feed.status) == (1.0, "crashed")
    run = TrainingRun.resume(writer.path)
    run.rewind(positions)
    feed.poll()
    assert feed.curves[RETURN].points().means.tolist() == [1.0, 2.0]
    assert feed.curves[Metric("return", "eval")].points().means.tolist() == [1.0]
    assert [text for text in texts(feed) if text.startswith("evaluated")] == ["evaluated 1 episode: return 1.00"]
    assert (feed.steps, feed.episodes, feed.status) == (20, 2, "running")
    assert "a resume truncated the logs to its checkpoint" in texts(feed)
    run.close()


def test_a_damaged_log_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    writer = written(tmp_path)
    with (writer.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"row": 7, "nonsense\n')
    feed = polled(writer.path)
    assert len(feed.problems) == 1
    assert "metrics.jsonl: line 3 is not JSON" in feed.problems[0]
    assert feed.curves[RETURN].step == 600
    feed.poll()
    assert sum("not JSON" in text for text in texts(feed)) == 1


def test_a_row_that_is_still_being_written_does_not_keep_the_reader_busy(tmp_path: Path) -> None:
    writer = written(tmp_path)
    with (writer.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"row": 2, "long": "' + b"x" * 2**20)
    assert polled(writer.path).problems == []


def test_values_that_are_no_numbers_are_left_out_and_told_once(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metrics_of(agent__loss=0.5)
    for _ in range(3):
        writer.metrics_of(agent__loss=None)
    feed = polled(writer.path)
    assert len(feed.curves[Metric("loss", "agent")]) == 1
    assert texts(feed).count("agent loss is not a finite number") == 1


@pytest.mark.parametrize(
    "row",
    [
        {"env_steps": "many", "total_reward": 1.0},
        {"env_steps": -5, "total_reward": 1.0},
        {"env_steps": 10**40, "total_reward": 1.0},
        {"env_steps": 5, "total_reward": "<script>", "extras": "none"},
        {"env_steps": 5, "total_reward": 1e308, "extras": {"x": [], "y": {}}},
        {"env_steps": 5, "wall_time": "noon", "updates": None, "episodes": True, "total_reward": True},
        {"env_steps": 5, "wall_time": 1e299, "total_reward": None},
        {"env_steps": 5, "wall_time": -1e299},
        {},
    ],
)
def test_rows_that_no_session_writes_do_no_harm(tmp_path: Path, row: dict[str, Any]) -> None:
    writer = Writer(tmp_path)
    (writer.path / "train_episodes.jsonl").write_text(json.dumps({"row": 0, **row}) + "\n")
    (writer.path / "metrics.jsonl").write_text(json.dumps({"row": 0, **row, "metrics": {"a": 1, "b/c/d": {}}}) + "\n")
    (writer.path / "eval_episodes.jsonl").write_text(json.dumps({"row": 0, **row, "total_reward": 1.0}) + "\n")
    writer.run.update_metadata(max_steps=-1)
    writer.steps = 2**63
    writer.end("stopped", "\x1b]0;x\x07")
    feed = polled(writer.path)
    assert feed.problems == []
    assert progress_line(feed).isprintable()
    assert report_page([writer.path]).endswith("</html>\n")
    assert (feed.max_steps, feed.rate) == (None, None)
    assert all(len(curve) == 0 for metric, curve in feed.curves.items() if metric == RETURN)


def test_the_number_of_curves_and_events_is_bounded(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for start in range(0, 3000, 500):
        writer.metrics_of(**{f"agent__m{number}": 1.0 for number in range(start, start + 500)})
        writer.metrics_of(**{f"agent__n{number}": None for number in range(start, start + 500)})
    feed = polled(writer.path)
    assert (len(feed.curves), len(feed.happenings)) == (500, 501)


def test_events_tell_the_story_in_order(tmp_path: Path) -> None:
    writer = written(tmp_path)
    checkpoint = writer.path / "checkpoints" / "step_600.mpk"
    checkpoint.write_bytes(b"")
    feed = polled(writer.path)
    assert "checkpoint saved" in texts(feed)
    assert [checkpoint.file for checkpoint in feed.checkpoints] == ["step_600.mpk"]
    assert texts(feed)[0] == "evaluated 2 episodes: return 0.75"  # the clock of these rows is long ago
    feed.reader.request_stop("enough")
    feed.poll()
    assert feed.is_stop_requested
    assert (feed.status, feed.shown_status) == ("running", "stopping")
    assert progress_line(feed).startswith("stopping: step ")
    assert texts(feed)[-1] == "asked to checkpoint and stop"
    writer.end("stopped", "enough")
    feed.poll()
    assert (texts(feed)[-1], feed.status, feed.is_stop_requested) == ("stopped: enough", "stopped", False)
    assert texts(feed).count("evaluated 2 episodes: return 0.75") == 2
    times = [happening.time for happening in feed.happenings]
    assert times == sorted(times)


def test_warnings_are_told_and_outlive_the_steps_that_they_were_given_at(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.episodes_of([1.0])
    positions = {log: writer.run.log(log).position for log in ("train_episodes", "eval_episodes", "metrics")}
    writer.episodes_of([2.0])
    writer.run.log_warning("the disk is full", writer.stamp())
    feed = polled(writer.path)
    told = Happening(writer.clock, 20, "warning", "the disk is full")
    assert told in feed.happenings
    writer.crash()
    run = TrainingRun.resume(writer.path)
    run.rewind(positions)
    feed.poll()
    assert (feed.steps, feed.happenings.count(told)) == (10, 1)
    run.close()


def test_a_resume_is_told_with_what_it_lost(tmp_path: Path) -> None:
    writer = written(tmp_path)
    writer.run.add_resume(Resume(1, 500, "step_500.mpk", "approximate", ("the open episode",), "2026-01-01T00:00:00Z"))
    feed = polled(writer.path)
    (told,) = [happening for happening in feed.happenings if happening.text.startswith("resumed")]
    assert (told.step, told.level, told.text) == (500, "warning", "resumed, approximate: the open episode")


def test_a_run_without_metadata_is_unreadable_not_an_error(tmp_path: Path) -> None:
    writer = written(tmp_path)
    feed = polled(writer.path)
    (writer.path / "metadata.json").write_text("{}")
    feed.poll()
    assert feed.status == "unreadable"
    assert "not the metadata of a run" in feed.problems[0]


def test_an_evaluation_is_told_when_training_has_gone_on(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.episodes_of([0.0])
    writer.evaluation_of([1.0])
    feed = polled(writer.path)
    writer.evaluation_of([3.0])
    feed.poll()
    assert not any(text.startswith("evaluated") for text in texts(feed))
    writer.episodes_of([0.0])
    feed.poll()
    feed.poll()
    assert texts(feed).count("evaluated 2 episodes: return 2.00") == 1


def test_a_run_that_is_removed_while_it_is_looked_at_is_unreadable(tmp_path: Path) -> None:
    writer = written(tmp_path)
    feed = polled(writer.path)
    writer.end()
    shutil.rmtree(writer.path)
    feed.poll()
    assert (feed.status, feed.is_live) == ("unreadable", False)
    assert "No such file" in feed.problems[0]

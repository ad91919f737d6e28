"""A log is followed as it grows and as resumes cut it, reading nothing twice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logged_runs import START, episode, window

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

from rekindle.storage import logs
from rekindle.storage.logs import JsonLines, LogPosition
from rekindle.ui.dashboard import log_index
from rekindle.ui.dashboard.log_index import LogIndex


def read_all(index: LogIndex) -> LogIndex:
    while index.poll():
        pass
    return index


def write(path: Path, numbers: range, *, shift: float = 0.0) -> JsonLines:
    log = JsonLines(path)
    for number in numbers:
        log.append(episode(number, reward=number + shift, wall_time=START + number + shift))
    return log


def returns(index: LogIndex, most: int = 10_000) -> list[float]:
    return index.blocks.points(most).mean["return"].tolist()


def same(one: LogIndex, other: LogIndex) -> bool:
    first, second = one.blocks.points(1000), other.blocks.points(1000)
    return (one.rows, one.offset, first.mean.keys()) == (other.rows, other.offset, second.mean.keys()) and all(
        np.array_equal(getattr(first, part)[name], getattr(second, part)[name], equal_nan=True)
        for part in ("mean", "least", "most")
        for name in first.mean
    )


class Reads:
    """Counts the bytes that were read, and where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offsets: list[int] = []
        self.bytes = 0
        real = os.pread

        def pread(descriptor: int, count: int, offset: int) -> bytes:
            data = real(descriptor, count, offset)
            self.offsets.append(offset)
            self.bytes += len(data)
            return data

        monkeypatch.setattr(log_index.os, "pread", pread)


def test_new_rows_are_read_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, range(1000))
    index = read_all(LogIndex(path, "train_episodes"))
    assert returns(index) == list(range(1000))
    reads = Reads(monkeypatch)
    log.append(episode(1000))
    index.poll()
    assert index.rows == 1001
    assert reads.bytes < 1000
    assert min(reads.offsets) > 0.99 * path.stat().st_size
    log.close()


def test_a_line_without_an_end_is_left_until_it_has_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    index = LogIndex(path, "train_episodes")
    assert (index.poll(), index.rows) == (False, 0)
    line = json.dumps({"row": 0, **episode(0)}).encode()
    path.write_bytes(line)
    assert (index.poll(), index.rows) == (False, 0)
    path.write_bytes(line + b"\n")
    index.poll()
    assert (index.rows, index.problem) == (1, None)


@pytest.mark.parametrize("most_blocks", [16, 65536])
@pytest.mark.parametrize("kept", [0, 1, 63, 64, 65, 250, 299])
@pytest.mark.parametrize("added", [0, 3, 200])
def test_after_a_resume_cut_the_log_the_index_is_that_of_the_new_log(
    tmp_path: Path, most_blocks: int, kept: int, added: int
) -> None:
    path = tmp_path / "log.jsonl"
    index = LogIndex(path, "train_episodes", most_blocks=most_blocks)
    log = write(path, range(kept))
    position = log.position
    for number in range(kept, 300):
        log.append(episode(number))
    log.close()
    read_all(index)
    generation = index.generation
    logs.cut(path, logs.surplus(path, position), tmp_path / "rewound")
    log = JsonLines(path, position)
    for number in range(kept, kept + added):
        log.append(episode(number, reward=-1.0, wall_time=START + 5000 + number))
    log.close()
    read_all(index)
    assert (index.rows, index.cuts) == (kept + added, 1)
    assert index.generation > generation
    fresh = read_all(LogIndex(path, "train_episodes", most_blocks=most_blocks))
    if index.blocks.level == fresh.blocks.level:  # one that was longer may be coarser
        assert same(index, fresh)
    assert index.read_rows(0, 1000) == fresh.read_rows(0, 1000)


def test_after_a_cut_only_the_end_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    log = write(path, range(5000))
    position = log.position
    for number in range(5000, 5100):
        log.append(episode(number))
    log.close()
    index = read_all(LogIndex(path, "train_episodes"))
    reads = Reads(monkeypatch)
    logs.cut(path, logs.surplus(path, position), tmp_path / "rewound")
    JsonLines(path, position).append(episode(5000, reward=-3.0, wall_time=START + 1))
    read_all(index)
    assert returns(index)[-2:] == [4999.0, -3.0]
    assert reads.bytes < path.stat().st_size / 10


def test_a_log_that_was_written_anew_with_the_same_rows_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(100)).close()
    index = read_all(LogIndex(path, "train_episodes"))
    path.with_name("copy").write_bytes(path.read_bytes())
    os.replace(path.with_name("copy"), path)
    log = JsonLines(path, LogPosition(100, path.stat().st_size))
    log.append(episode(100))
    log.close()
    read_all(index)
    assert returns(index) == list(range(101))


def test_another_log_under_the_same_name_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(100)).close()
    index = read_all(LogIndex(path, "train_episodes"))
    path.unlink()
    write(path, range(300), shift=0.5).close()
    read_all(index)
    assert returns(index) == [number + 0.5 for number in range(300)]


def test_a_detail_of_a_long_log_is_read_to_the_row(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(3000)).close()
    index = read_all(LogIndex(path, "train_episodes", most_blocks=16))
    assert index.blocks.level > 0
    points = index.detail("step", 10_001, 10_100, 500)
    inside = (points.steps > 10_000) & (points.steps <= 10_100)
    assert points.steps[inside].tolist() == [10.0 * number for number in range(1001, 1011)]
    assert points.mean["return"][inside].tolist() == list(range(1000, 1010))
    assert points.rows[inside].tolist() == list(range(1000, 1010))
    by_time = index.detail("time", START + 1000, START + 1009, 500)
    assert set(range(1000, 1010)) <= set(by_time.mean["return"].tolist())


def test_rows_are_found_wherever_they_are(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(500)).close()
    index = read_all(LogIndex(path, "train_episodes", most_blocks=16))
    assert [row["total_reward"] for row in index.read_rows(123, 4)] == [123, 124, 125, 126]
    assert [row["row"] for row in index.read_rows(498, 10)] == [498, 499]
    assert index.read_rows(500, 10) == []


def test_metrics_have_a_mean_and_the_extremes_of_their_window(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "metrics.jsonl")
    for number in range(3):
        log.append(window(number, agent__loss=float(number)))
    log.append(window(3, agent__other=5.0))
    log.close()
    points = read_all(LogIndex(log.path, "metrics")).blocks.points(100)
    assert points.mean["agent/loss"].tolist()[:3] == [0.0, 1.0, 2.0]
    assert points.least["agent/loss"].tolist()[:3] == [-1.0, 0.0, 1.0]
    assert points.most["agent/loss"].tolist()[:3] == [1.0, 2.0, 3.0]
    assert np.isnan(points.mean["agent/loss"][3])
    assert points.mean["agent/other"][3] == 5.0


HOSTILE: list[Any] = [
    b"not json",
    b"",
    b"[1, 2]",
    b"{}",
    b'{"row": 7}',
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"row": 1, "env_steps": 1' + b"0" * 400 + b', "wall_time": 0}',
    json.dumps({"row": 1, **episode(1), "total_reward": "<script>", "extras": {"epsilon": []}}).encode(),
    json.dumps({"row": 1, **episode(1), "total_reward": 1e308, "env_steps": 1e308}).encode(),
    json.dumps({"row": 1, **episode(1), "extras": {"n" * 10_000: 1.0, **{f"m{i}": 1.0 for i in range(2000)}}}).encode(),
    b'{"row": 1, "env_steps": 20, "wall_time": 0, "total_reward": 1, "extras": null}',
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("log", ["train_episodes", "metrics"])
def test_a_hostile_line_costs_that_line(tmp_path: Path, line: bytes, log: Any) -> None:
    path = tmp_path / "log.jsonl"
    metrics = window(0, a=1.0)["metrics"]
    rows = [json.dumps({"row": number, **episode(number), "metrics": metrics}).encode() for number in range(3)]
    path.write_bytes(rows[0] + b"\n" + line + b"\n" + rows[2] + b"\n")
    index = read_all(LogIndex(path, log))
    assert index.rows == 3
    points = index.blocks.points(100)
    name = "a" if log == "metrics" else "return"
    assert points.mean[name][-1] == (1.0 if log == "metrics" else 2.0)
    assert len(points.mean) <= 500
    assert index.broken_count <= 1
    assert len(index.read_rows(0, 3)) == 3


def test_a_line_that_is_longer_than_any_row_is_passed_over_without_holding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_index, "PIECE", 4096)
    path = tmp_path / "log.jsonl"
    first, last = (json.dumps({"row": number, **episode(number)}).encode() for number in (0, 2))
    path.write_bytes(first + b"\n" + b"x" * 50_000)
    index = read_all(LogIndex(path, "train_episodes"))
    assert index.rows == 1
    reads = Reads(monkeypatch)
    index.poll()
    assert reads.bytes < 20_000  # what was searched is not searched again
    with path.open("ab") as file:
        file.write(b"x" * 50_000 + b"\n" + last + b"\n")
    read_all(index)
    assert (index.rows, index.offset) == (3, path.stat().st_size)
    assert index.problem == "log.jsonl: 1 line cannot be read (2)"
    assert "broken" in index.read_rows(1, 1)[0]
    assert index.read_rows(2, 1)[0]["total_reward"] == 2.0


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_what_is_no_regular_file_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "log.jsonl"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        write(tmp_path / "secret", range(3)).close()
        path.symlink_to(tmp_path / "secret")
    index = LogIndex(path, "train_episodes")
    assert (index.poll(), index.rows) == (False, 0)


def test_a_line_without_an_end_is_told_and_not_searched_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write(path, range(3)).close()
    size = path.stat().st_size
    index = read_all(LogIndex(path, "train_episodes"))
    os.truncate(path, 2**40)  # it takes no space, and reading it would take hours
    read_all(index)
    assert index.rows == 3
    assert index.problem == "log.jsonl: line 4 has no end; the rest is not shown"
    os.truncate(path, size)
    read_all(index)
    assert index.problem is None

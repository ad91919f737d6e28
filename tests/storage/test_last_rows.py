"""The last rows of a log are read from its end, and only rows that follow one another are given out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import LogCorrupt, StorageError
from rekindle.storage import files
from rekindle.storage.logs import JsonLines, read_last_rows, read_rows


def log_of(directory: Path, texts: list[str]) -> Path:
    path = directory / "log.jsonl"
    log = JsonLines(path)
    for text in texts:
        log.append({"text": text})
    log.close()
    return path


@given(texts=st.lists(st.text(max_size=40), max_size=30), count=st.integers(1, 40), block=st.integers(1, 300))
def test_they_are_the_end_of_what_reading_everything_gives(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], count: int, block: int
) -> None:
    path = log_of(tmp_path_factory.mktemp("log"), texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "LARGE", block)
        assert read_last_rows(path, count) == read_rows(path)[-count:]


@given(texts=st.lists(st.text(max_size=40), min_size=1, max_size=30), most_bytes=st.integers(300, 2000))
def test_no_more_are_read_than_fit(tmp_path_factory: pytest.TempPathFactory, texts: list[str], most_bytes: int) -> None:
    path = log_of(tmp_path_factory.mktemp("log"), texts)
    rows = read_last_rows(path, 1000, most_bytes=most_bytes)
    assert rows == read_rows(path)[-len(rows) :]
    assert len(rows) == len(texts) or path.stat().st_size > most_bytes


def test_what_comes_before_them_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.truncate(2**30)  # a gigabyte of zeros, which is no JSON
        file.seek(0, os.SEEK_END)
        file.write(b"".join(b'\n{"row":%d}' % number for number in range(5_000_000, 5_000_200)) + b"\n")
    assert [row["row"] for row in read_last_rows(path, 100)] == list(range(5_000_100, 5_000_200))


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    path = log_of(tmp_path, ["one", "two"])
    with path.open("ab") as file:
        file.write(b'{"row":2,"te')
    assert [row["text"] for row in read_last_rows(path, 5)] == ["one", "two"]


def test_an_absent_log_and_an_empty_one_have_none(tmp_path: Path) -> None:
    assert read_last_rows(tmp_path / "log.jsonl", 5) == []
    (tmp_path / "log.jsonl").touch()
    assert read_last_rows(tmp_path / "log.jsonl", 5) == []


@pytest.mark.parametrize(
    "damage", [b"garbage\n", b'{"row":7}\n', b"[]\n", b'{"row":"3"}\n', b"\xff\n", b"[" * 5000 + b"\n"]
)
def test_a_line_that_is_not_the_next_row_is_told_with_its_number(tmp_path: Path, damage: bytes) -> None:
    path = log_of(tmp_path, ["one", "two", "three"])
    with path.open("ab") as file:
        file.write(damage)
    with pytest.raises(LogCorrupt, match="line 4"):
        read_last_rows(path, 2)


def test_a_line_that_is_no_row_is_told_also_where_its_number_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"x" * 100 + b"\n" + b"not a row\n" + b'{"row":1}\n')
    with pytest.raises(LogCorrupt, match="near its end is not a row: b'not a row'"):
        read_last_rows(path, 5, most_bytes=25)


def test_a_row_too_long_to_be_one_is_told(tmp_path: Path) -> None:
    path = log_of(tmp_path, ["x" * 1000])
    with pytest.raises(LogCorrupt, match="more than 100 bytes"):
        read_last_rows(path, 5, most_bytes=100)


def test_a_pipe_in_place_of_a_log_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    with pytest.raises(StorageError, match="not a regular file"):
        read_last_rows(tmp_path / "log.jsonl", 5)

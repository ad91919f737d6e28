"""Files are there whole or not at all, logs lose no row, and one process at a time holds the lock."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import stat
import subprocess
import sys
import textwrap
import threading
import zlib
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rekindle.errors import LogCorrupt, RunLocked, StorageError
from rekindle.storage import files, logs
from rekindle.storage import tail as tail_module
from rekindle.storage.files import link, make_directory, write_atomic
from rekindle.storage.lock import Lock
from rekindle.storage.logs import JsonLines, LogPosition, check_rows
from rekindle.storage.tail import LogTail


@contextlib.contextmanager
def no_file_beyond(size: int) -> Generator[None]:
    """Let the kernel refuse to make any file larger than this: a full disk, as far as a writer can tell."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def refuse(monkeypatch: pytest.MonkeyPatch, function: str, code: int, *, times: int = 1) -> None:
    """Let a function of `os` fail so many times, and then work again."""
    real, left = getattr(os, function), [times]

    def refusing(*arguments: Any, **options: Any) -> Any:
        if left[0] == 0:
            return real(*arguments, **options)
        left[0] -= 1
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, function, refusing)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


# Atomic files


def test_a_file_is_written_from_its_pieces(tmp_path: Path) -> None:
    pieces = [b"small", b"x" * 100_000, bytearray(b"y" * 70_000), b"", memoryview(b"end")]
    write_atomic(tmp_path / "file", *pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


def test_a_file_is_readable_by_its_owner_alone(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"data")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_replacing_a_file_leaves_no_other_name_behind(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_a_file_that_does_not_fit_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    with no_file_beyond(1000), pytest.raises(StorageError, match=r"cannot write .*file: File too large"):
        write_atomic(tmp_path / "file", b"new" * 1000)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_file_that_could_not_be_synced_is_not_put_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomic(tmp_path / "file", b"old")
    refuse(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_the_data_are_synced_before_the_name_and_the_name_before_returning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        order.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "data")
        sync(descriptor)

    def noted_replace(source: Any, target: Any) -> None:
        order.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_atomic(tmp_path / "file", b"data")
    write_atomic(tmp_path / "other", b"data", sync_name=False)
    assert order == ["data", "name", "directory", "data", "name"]


def test_a_file_in_a_directory_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot write .*No such file"):
        write_atomic(tmp_path / "absent" / "file", b"data")


def test_reading_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(StorageError, match="cannot read"):
        files.read_bytes(tmp_path / "link")


# Directories and names


def test_a_directory_is_made_with_those_above_it(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_making_a_directory_again_changes_nothing(tmp_path: Path) -> None:
    make_directory(tmp_path / "a")
    (tmp_path / "a" / "file").touch()
    make_directory(tmp_path / "a")
    assert names(tmp_path / "a") == ["file"]


def test_a_relative_directory_is_made_where_the_process_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_directory(Path("runs") / "name")
    assert (tmp_path / "runs" / "name").is_dir()


def test_a_directory_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot make the directory"):
        make_directory(tmp_path / "file" / "below")


def test_a_symbolic_link_is_not_a_directory_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StorageError, match="symbolic link"):
        files.require_directory(tmp_path / "link")


def test_a_link_is_a_second_name_of_the_same_file(tmp_path: Path) -> None:
    (tmp_path / "step_1").write_bytes(b"one")
    link(tmp_path / "step_1", tmp_path / "latest")
    assert (tmp_path / "latest").samefile(tmp_path / "step_1")


def test_a_link_takes_the_name_from_another_file(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"step_{number}").write_text(str(number))
        link(tmp_path / f"step_{number}", tmp_path / "latest")
    assert (tmp_path / "latest").read_text() == "2"
    assert names(tmp_path) == ["latest", "step_1", "step_2"]


def test_linking_a_file_to_a_name_it_has_already_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "step_1").write_bytes(b"one")
    link(tmp_path / "step_1", tmp_path / "latest")
    link(tmp_path / "step_1", tmp_path / "latest")
    assert names(tmp_path) == ["latest", "step_1"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_where_there_are_no_hard_links_a_link_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "step_1").write_bytes(b"one")
    (tmp_path / "latest").write_bytes(b"zero")
    refuse(monkeypatch, "link", code)
    link(tmp_path / "step_1", tmp_path / "latest")
    assert (tmp_path / "latest").read_bytes() == b"one"
    assert names(tmp_path) == ["latest", "step_1"]


def test_a_link_to_nothing_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot link"):
        link(tmp_path / "absent", tmp_path / "latest")


def test_moving_makes_the_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"data")
    files.move(tmp_path / "file", tmp_path / "rewound" / "resume_1")
    assert (tmp_path / "rewound" / "resume_1" / "file").read_bytes() == b"data"


def test_moving_what_is_gone_is_no_error(tmp_path: Path) -> None:
    files.move(tmp_path / "file", tmp_path / "rewound")


def test_only_half_written_files_are_cleaned_up(tmp_path: Path) -> None:
    for name in (".step_1.mpk.tmp", ".hidden", "kept.tmp", "step_1.mpk"):
        (tmp_path / name).touch()
    files.remove_temporaries(tmp_path)
    assert names(tmp_path) == [".hidden", "kept.tmp", "step_1.mpk"]


# Logs


def test_rows_are_numbered_from_zero(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    for loss in (0.5, 0.25):
        log.append({"loss": loss})
    log.close()
    assert (tmp_path / "log").read_text() == '{"row":0,"loss":0.5}\n{"row":1,"loss":0.25}\n'


def test_a_row_can_be_read_by_others_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"loss": 0.5})
    assert logs.read_rows(tmp_path / "log") == [{"row": 0, "loss": 0.5}]
    log.close()


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"values": [float("nan"), float("inf"), -float("inf"), 1.0]})
    log.close()

    def refuse_constant(name: str) -> None:
        raise AssertionError(name)

    row = json.loads((tmp_path / "log").read_text(), parse_constant=refuse_constant)
    assert row["values"] == [None, None, None, 1.0]


def test_the_position_counts_rows_and_bytes_and_sums_them(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"loss": 0.5})
    log.append({"loss": 0.25})
    log.close()
    data = (tmp_path / "log").read_bytes()
    assert log.position == LogPosition(2, len(data), zlib.crc32(data))


def test_a_log_goes_on_from_a_position(tmp_path: Path) -> None:
    first = JsonLines(tmp_path / "log")
    first.append({"loss": 0.5})
    first.close()
    second = JsonLines(tmp_path / "log", first.position)
    second.append({"loss": 0.25})
    second.close()
    data = (tmp_path / "log").read_bytes()
    assert [row["row"] for row in check_rows(tmp_path / "log", data)] == [0, 1]
    assert second.position == LogPosition(2, len(data), zlib.crc32(data))


def test_a_row_that_is_not_json_is_refused_and_takes_no_number(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    with pytest.raises(TypeError):
        log.append({"loss": object()})
    log.append({"loss": 0.5})
    log.close()
    assert logs.read_rows(tmp_path / "log") == [{"row": 0, "loss": 0.5}]


def test_rows_that_did_not_fit_are_held_and_written_later_in_order(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"text": "x" * 400})
    with no_file_beyond(512):
        for number in (1, 2):
            with pytest.raises(StorageError, match="held in memory"):
                log.append({"text": str(number) * 400})
        assert len(logs.read_rows(tmp_path / "log")) == 1
    log.append({"text": "end"})
    log.close()
    rows = logs.read_rows(tmp_path / "log")
    assert [row["row"] for row in rows] == [0, 1, 2, 3]
    assert [row["text"][:1] for row in rows] == ["x", "1", "2", "e"]


def test_a_row_that_did_not_fit_leaves_no_part_of_itself(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"text": "x"})
    size = (tmp_path / "log").stat().st_size
    with no_file_beyond(100), pytest.raises(StorageError):
        log.append({"text": "y" * 400})
    assert (tmp_path / "log").stat().st_size == size
    log.close()


def test_syncing_writes_the_rows_that_were_held(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    with no_file_beyond(100), pytest.raises(StorageError):
        log.append({"text": "y" * 400})
    log.sync()
    log.close()
    assert [row["row"] for row in logs.read_rows(tmp_path / "log")] == [0]


def test_the_position_counts_the_rows_that_are_held(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    with no_file_beyond(100), pytest.raises(StorageError):
        log.append({"text": "y" * 400})
    log.sync()
    log.close()
    data = (tmp_path / "log").read_bytes()
    assert log.position == LogPosition(1, len(data), zlib.crc32(data))


@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("goes_on", ["append", "sync", "close"])
def test_a_part_of_a_row_that_could_not_be_cut_off_is_no_part_of_the_log(
    failures: int, goes_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"text": "x"})
    refuse(monkeypatch, "ftruncate", errno.EIO, times=failures)
    with no_file_beyond(100):
        for number in (1, 2):
            with pytest.raises(StorageError):
                log.append({"text": str(number) * 400})
    if goes_on == "append":
        log.append({"text": "end"})
    elif goes_on == "sync":
        log.sync()
    log.close()
    data = (tmp_path / "log").read_bytes()
    texts = [row["text"][:1] for row in check_rows(tmp_path / "log", data)]
    assert texts == ["x", "1", "2", "e"][: 4 if goes_on == "append" else 3]
    assert log.position == LogPosition(len(texts), len(data), zlib.crc32(data))


def test_an_append_that_is_interrupted_writes_its_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log")
    write = os.write

    def interrupted(file: int, data: Any) -> int:
        write(file, data)
        monkeypatch.setattr(os, "write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.append({"text": "first"})
    log.append({"text": "second"})
    log.close()
    assert [row["text"] for row in logs.read_rows(tmp_path / "log")] == ["first", "second"]


def test_after_a_failed_sync_the_file_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"loss": 0.5})
    log.sync()
    log.append({"loss": 0.25})
    before = (tmp_path / "log").stat().st_ino
    refuse(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        log.sync()
    # What the kernel failed to write may be gone from its cache, whatever a second fsync says.
    os.truncate(tmp_path / "log", len(b'{"row":0,"loss":0.5}\n'))
    log.append({"loss": 0.125})
    log.sync()
    log.append({"loss": 0.0625})
    log.close()
    assert [row["loss"] for row in logs.read_rows(tmp_path / "log")] == [0.5, 0.25, 0.125, 0.0625]
    assert (tmp_path / "log").stat().st_ino != before


def test_building_a_file_anew_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonLines(tmp_path / "log")
    log.append({"text": "x" * 100_000})
    refuse(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(StorageError, match="cannot sync"):
        log.sync()
    with no_file_beyond(50_000), pytest.raises(StorageError) as failure:
        log.sync()
    log.append({"text": "the error of the sync is still being looked at"})
    assert failure.value is not None
    log.sync()
    log.close()
    assert [row["row"] for row in logs.read_rows(tmp_path / "log")] == [0, 1]


def test_a_log_can_be_synced_on_another_thread_while_rows_are_added(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    done = threading.Event()

    def keep_syncing() -> None:
        while not done.is_set():
            log.sync()

    thread = threading.Thread(target=keep_syncing)
    thread.start()
    for number in range(2000):
        log.append({"number": number})
    done.set()
    thread.join()
    log.sync()
    log.close()
    data = (tmp_path / "log").read_bytes()
    assert [row["number"] for row in check_rows(tmp_path / "log", data)] == list(range(2000))
    assert log.position == LogPosition(2000, len(data), zlib.crc32(data))


def test_a_log_that_nobody_syncs_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (syncs.append(descriptor), sync(descriptor)))
    log = JsonLines(tmp_path / "log")
    for _ in range(20):
        log.append({"text": "x" * 2**20})
    log.close()
    assert len(syncs) == 2


def test_rows_of_a_deferred_log_wait_until_they_are_written_out(tmp_path: Path) -> None:
    log = JsonLines(tmp_path / "log")
    log.is_deferred = True
    for number in range(3):
        log.append({"number": number})
    assert logs.read_rows(tmp_path / "log") == []
    assert log.position.rows == 3
    log.write_out()
    assert len(logs.read_rows(tmp_path / "log")) == 3
    log.close()


def test_a_row_that_is_added_later_is_made_when_it_is_needed_in_its_place(tmp_path: Path) -> None:
    log, made = JsonLines(tmp_path / "log"), list[int]()

    def fields(number: int) -> dict[str, int]:
        made.append(number)
        return {"number": number}

    log.append_later(lambda: fields(0))
    assert made == [0]
    log.is_deferred = True
    log.append_later(lambda: fields(1))
    assert made == [0]
    assert log.position.rows == 2
    assert made == [0, 1]
    log.append_later(lambda: fields(2))
    log.append(fields(3))
    log.append_later(lambda: fields(4))
    log.sync()
    rows = logs.read_rows(tmp_path / "log")
    assert [(row["row"], row["number"]) for row in rows] == [(number, number) for number in range(5)]
    log.close()


def test_the_position_waits_for_a_row_that_another_thread_is_making(tmp_path: Path) -> None:
    log, begun, goes_on = JsonLines(tmp_path / "log"), threading.Event(), threading.Event()

    def fields() -> dict[str, int]:
        begun.set()
        assert goes_on.wait(60)
        return {"number": 1}

    log.is_deferred = True
    log.append_later(fields)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(log.write_out)
        assert begun.wait(60)
        threading.Timer(0.2, goes_on.set).start()
        assert log.position.rows == 1
        written.result()
    log.close()


def test_few_rows_wait_to_be_made(tmp_path: Path) -> None:
    log, made = JsonLines(tmp_path / "log"), list[int]()
    log.is_deferred = True
    for number in range(1_500):
        log.append_later(lambda number=number: made.append(number) or {"number": number})
    assert len(made) >= 1_000
    log.close()
    assert [row["number"] for row in logs.read_rows(tmp_path / "log")] == list(range(1_500))


def test_a_deferred_log_without_checkpoints_is_synced_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_UNSYNCED_LIMIT", 1_000)
    log = JsonLines(tmp_path / "log")
    log.is_deferred = True
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(len(log._tail)))  # pyright: ignore[reportPrivateUsage]
    for number in range(100):
        log.append_later(lambda number=number: {"number": number})
        if number % 10 == 9:
            log.write_out()
    assert len(synced) == 2
    assert max(synced) < 1_500
    log.close()


@pytest.mark.parametrize("end", [JsonLines.sync, JsonLines.close])
def test_syncing_or_closing_a_deferred_log_writes_its_rows(tmp_path: Path, end: Callable[[JsonLines], None]) -> None:
    log = JsonLines(tmp_path / "log")
    log.is_deferred = True
    log.append({"number": 0})
    end(log)
    assert len(logs.read_rows(tmp_path / "log")) == 1


# Cutting


def logged(path: Path, count: int) -> list[LogPosition]:
    """Write so many rows; the position after each."""
    log = JsonLines(path)
    positions = [log.position]
    for number in range(count):
        log.append({"number": number})
        positions.append(log.position)
    log.close()
    return positions


def cut(path: Path, position: LogPosition, rewound: Path) -> int:
    """Cut a log back to a position, as a resume does."""
    return logs.cut(path, logs.surplus(path, position), rewound)


def test_a_log_is_cut_to_a_position_and_the_rest_is_kept_elsewhere(tmp_path: Path) -> None:
    path, rewound = tmp_path / "log", tmp_path / "rewound" / "resume_1"
    position = logged(path, 5)[3]
    assert cut(path, position, rewound) == 2
    assert [row["number"] for row in logs.read_rows(path)] == [0, 1, 2]
    assert [json.loads(line)["number"] for line in (rewound / "log").read_text().splitlines()] == [3, 4]


def test_a_cut_log_can_be_gone_on_with(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 5)[3]
    cut(tmp_path / "log", position, tmp_path / "rewound")
    log = JsonLines(tmp_path / "log", position)
    log.append({"number": "new"})
    log.close()
    assert [row["number"] for row in logs.read_rows(tmp_path / "log")] == [0, 1, 2, "new"]


def test_cutting_where_the_log_ends_changes_nothing(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 5)[5]
    assert cut(tmp_path / "log", position, tmp_path / "rewound") == 0
    assert names(tmp_path) == ["log"]


def test_a_torn_last_row_is_cut_off(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 2)[2]
    with (tmp_path / "log").open("ab") as file:
        file.write(b'{"row":2,"num')
    assert cut(tmp_path / "log", position, tmp_path / "rewound") == 0
    assert (tmp_path / "log").stat().st_size == position.size


def test_an_absent_log_is_cut_to_nothing(tmp_path: Path) -> None:
    assert cut(tmp_path / "log", LogPosition(), tmp_path / "rewound") == 0


def test_a_log_that_is_too_short_cannot_be_cut(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 5)[5]
    os.truncate(tmp_path / "log", position.size - 1)
    with pytest.raises(LogCorrupt, match=r"5 rows.*missing from line 5 on"):
        cut(tmp_path / "log", position, tmp_path / "rewound")


def test_a_log_with_another_past_cannot_be_cut(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 5)[5]
    data = (tmp_path / "log").read_bytes()
    (tmp_path / "log").write_bytes(data.replace(b'"number":2', b'"number":7'))
    with pytest.raises(LogCorrupt, match="not the ones that were written"):
        cut(tmp_path / "log", position, tmp_path / "rewound")
    assert names(tmp_path) == ["log"]


# Reading


def test_an_unterminated_row_is_not_there_yet(tmp_path: Path) -> None:
    assert check_rows(tmp_path, b'{"row":0}\n{"row":1}') == [{"row": 0}]


def test_rows_can_be_checked_from_the_middle(tmp_path: Path) -> None:
    assert check_rows(tmp_path, b'{"row":7}\n{"row":8}\n', first=7) == [{"row": 7}, {"row": 8}]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'{"row":0}\nnonsense\n', "line 2 is not JSON"),
        (b'{"row":0}\n\xff\xfe\n', "line 2 is not JSON"),
        (b'{"row":0}\n\n', "line 2 is not JSON"),
        (b'{"row":0}\n{"row":2}\n', "line 2 is not row 1"),
        (b'{"row":1}\n', "line 1 is not row 0"),
        (b'{"loss":1}\n', "line 1 is not row 0"),
        (b"[0]\n", "line 1 is not row 0"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(LogCorrupt, match=problem):
        check_rows(tmp_path / "log", data)


def test_an_absent_log_has_no_rows(tmp_path: Path) -> None:
    assert logs.read_rows(tmp_path / "log") == []


# Following


def numbers(tail: LogTail) -> tuple[list[Any], bool]:
    rows, rewound = tail.poll()
    return [row["number"] for row in rows], rewound


def test_a_tail_gives_each_row_once(tmp_path: Path) -> None:
    log, tail = JsonLines(tmp_path / "log"), LogTail(tmp_path / "log")
    seen = []
    for number in range(3):
        log.append({"number": number})
        seen.append(numbers(tail))
    log.close()
    assert seen == [([0], False), ([1], False), ([2], False)]
    assert numbers(tail) == ([], False)


def test_a_tail_waits_for_a_log_that_is_not_there_yet(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "log")
    assert numbers(tail) == ([], False)
    logged(tmp_path / "log", 2)
    assert numbers(tail) == ([0, 1], False)


def test_a_tail_waits_for_the_end_of_a_row(tmp_path: Path) -> None:
    tail, path = LogTail(tmp_path / "log"), tmp_path / "log"
    path.write_bytes(b'{"row":0,"number":0}\n{"row":1,"nu')
    assert numbers(tail) == ([0], False)
    assert numbers(tail) == ([], False)
    with path.open("ab") as file:
        file.write(b'mber":1}\n{"row":2,"number":2}\n')
    assert numbers(tail) == ([1, 2], False)


def test_a_tail_starts_again_when_rows_it_has_seen_were_cut_off(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 5)[2]
    tail = LogTail(tmp_path / "log")
    tail.poll()
    cut(tmp_path / "log", position, tmp_path / "rewound")
    log = JsonLines(tmp_path / "log", position)
    for number in range(50, 60):
        log.append({"number": number})
    log.close()
    assert numbers(tail) == ([0, 1, *range(50, 60)], True)
    assert numbers(tail) == ([], False)


def test_a_tail_says_so_when_everything_was_cut_off(tmp_path: Path) -> None:
    logged(tmp_path / "log", 5)
    tail = LogTail(tmp_path / "log")
    tail.poll()
    cut(tmp_path / "log", LogPosition(), tmp_path / "rewound")
    assert numbers(tail) == ([], True)
    assert numbers(tail) == ([], False)
    logged(tmp_path / "log", 1)
    assert numbers(tail) == ([0], False)


def test_a_tail_does_not_mind_a_cut_behind_what_it_has_seen(tmp_path: Path) -> None:
    log, tail = JsonLines(tmp_path / "log"), LogTail(tmp_path / "log")
    log.append({"number": 0})
    position = log.position
    assert numbers(tail) == ([0], False)
    log.append({"number": 1})
    log.close()
    cut(tmp_path / "log", position, tmp_path / "rewound")
    assert numbers(tail) == ([], False)


def test_a_tail_does_not_mind_a_log_that_was_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, tail = JsonLines(tmp_path / "log"), LogTail(tmp_path / "log")
    log.append({"number": 0})
    assert numbers(tail) == ([0], False)
    refuse(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(StorageError):
        log.sync()
    log.append({"number": 1})
    log.sync()
    log.close()
    assert numbers(tail) == ([1], False)


def test_a_tail_takes_a_long_log_in_parts(tmp_path: Path) -> None:
    logged(tmp_path / "log", 30)
    size = (tmp_path / "log").stat().st_size
    tail, parts = LogTail(tmp_path / "log"), []
    while rows := tail.poll(100)[0]:
        parts.append([row["number"] for row in rows])
    assert [number for part in parts for number in part] == list(range(30))
    assert len(parts) > 5
    assert tail.position == size


def test_a_tail_reads_a_row_that_is_longer_than_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, tail = JsonLines(tmp_path / "log"), LogTail(tmp_path / "log")
    for number in range(2):
        log.append({"number": number, "text": "x" * 500})
    log.close()
    assert [tail.poll(10)[0][0]["number"] for _ in range(2)] == [0, 1]
    assert tail.poll(10) == ([], False)
    monkeypatch.setattr(tail_module, "_LONGEST_ROW", 100)
    with pytest.raises(LogCorrupt, match="row 0 takes more than 100 bytes"):
        LogTail(tmp_path / "log").poll(10)


def test_a_tail_that_reads_parts_notices_a_cut(tmp_path: Path) -> None:
    position = logged(tmp_path / "log", 9)[2]
    tail = LogTail(tmp_path / "log")
    while tail.poll(30)[0]:
        pass
    cut(tmp_path / "log", position, tmp_path / "rewound")
    rows, rewound = tail.poll(30)
    assert ([row["number"] for row in rows], rewound) == ([0], True)
    assert [row["number"] for row in tail.poll(30)[0]] == [1]


def test_a_tail_keeps_up_with_a_concurrent_writer(tmp_path: Path) -> None:
    writer = threading.Thread(target=logged, args=(tmp_path / "log", 3000))
    tail, seen = LogTail(tmp_path / "log"), []
    writer.start()
    while writer.is_alive():
        seen += numbers(tail)[0]
    writer.join()
    seen += numbers(tail)[0]
    assert seen == list(range(3000))


# The lock


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    with pytest.raises(RunLocked, match=f"written by process {os.getpid()} on"):
        Lock(tmp_path / "lock", patience=0.0)
    lock.release()
    Lock(tmp_path / "lock", patience=0.0).release()


def test_a_lock_waits_for_one_that_is_about_to_be_released(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    timer = threading.Timer(0.05, lock.release)
    timer.start()
    Lock(tmp_path / "lock", patience=10.0).release()
    timer.join()


def test_releasing_twice_is_releasing_once(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    lock.release()
    lock.release()
    assert not Lock.is_held(tmp_path / "lock")


def test_anybody_can_see_whether_a_lock_is_held(tmp_path: Path) -> None:
    assert not Lock.is_held(tmp_path / "lock")
    lock = Lock(tmp_path / "lock")
    assert Lock.is_held(tmp_path / "lock")
    lock.release()
    assert not Lock.is_held(tmp_path / "lock")


def test_looking_at_a_lock_makes_no_file(tmp_path: Path) -> None:
    Lock.is_held(tmp_path / "lock")
    assert names(tmp_path) == []


def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    program = f"""
        import os, pathlib
        from rekindle.storage.lock import Lock
        lock = Lock(pathlib.Path({str(tmp_path / "lock")!r}))
        print(Lock.is_held(lock.path), flush=True)
        os.kill(os.getpid(), 9)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, capture_output=True, text=True)
    assert done.stdout == "True\n"
    assert not Lock.is_held(tmp_path / "lock")


@pytest.mark.parametrize(
    ("parent", "child", "held"),
    [("lock.release()", "pass", False), ("pass", "lock.release()", True)],
    ids=["the parent releases", "the child releases"],
)
def test_a_lock_is_of_the_process_that_took_it_and_of_no_fork(
    parent: str, child: str, held: bool, tmp_path: Path
) -> None:
    program = f"""
        import os, pathlib
        from rekindle.storage.lock import Lock
        lock = Lock(pathlib.Path({str(tmp_path / "lock")!r}))
        done, go_on = os.pipe(), os.pipe()
        if not os.fork():
            {child}
            os.write(done[1], b"x")
            os.read(go_on[0], 1)
            os._exit(0)
        os.read(done[0], 1)
        {parent}
        print(Lock.is_held(lock.path))
        os.write(go_on[1], b"x")
        os.wait()
    """
    told = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, capture_output=True, text=True)
    assert told.stdout == f"{held}\n"


def test_a_lock_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="cannot open"):
        Lock(tmp_path / "lock")

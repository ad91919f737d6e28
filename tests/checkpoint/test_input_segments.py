"""The input journal on disk: what a kill, a power cut or an edit leaves of it."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
from tests.hosting import wait_for

from rekindle.checkpoint import input_journal
from rekindle.checkpoint.input_journal import InputJournal, finish_segment
from rekindle.checkpoint.input_segments import CRC, HEADER, JournalReader, Record, _Scan, segments  # pyright: ignore[reportPrivateUsage]
from rekindle.errors import CheckpointError, RunLocked, StorageError

ROOM = 1024
NEVER = 3600.0
"""Seconds between two syncs, so that tests decide when there is one."""


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_journal, "_ROOM", ROOM)


def opened(directory: Path, *, number: int = 0, resume_count: int = 0, sync_every: float = NEVER) -> InputJournal:
    return InputJournal(
        directory, number=number, resume_count=resume_count, sync_every=sync_every, about=b"about the agent"
    )


def filled(directory: Path, count: int, *, synced: int = 0) -> list[Record]:
    """A journal that a kill has left, whose first records were synced."""
    journal, records = opened(directory), list[Record]()
    for number in range(count):
        data = bytes([number + 1]) * (number % 7 + 3)
        journal.append(1 + number % 5, data)
        records.append(Record(number, 1 + number % 5, data))
        if number + 1 == synced:
            journal.sync()
    return records


def read(directory: Path, number: int = 0) -> tuple[list[Record], int]:
    """The records, and how many bytes were lost."""
    reader = JournalReader(directory, number)
    records = list(reader)
    assert reader.number == number + len(records)
    return records, reader.lost


def test_few_segments_wait_to_be_synced_so_that_descriptors_do_not_run_out(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(100):
        journal.append(1, bytes([number]))
        journal.cut()
    assert len(os.listdir("/proc/self/fd")) - before < 20
    journal.close()
    assert len(read(tmp_path)[0]) == 100


def flips(data: bytes) -> Iterator[tuple[int, bytes]]:
    for place in range(len(data)):
        for bit in (0, 6):
            yield place, data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def test_what_was_appended_is_read_after_a_kill(tmp_path: Path) -> None:
    records = filled(tmp_path, 12)
    assert read(tmp_path) == (records, 0)
    assert read(tmp_path, 7) == (records[7:], 0)
    reader = JournalReader(tmp_path, 0)
    next(iter(reader))
    assert reader.about == b"about the agent"


def test_records_go_on_in_the_next_segment(tmp_path: Path) -> None:
    records = filled(tmp_path, 120)
    assert len(segments(tmp_path)) > 3
    assert read(tmp_path) == (records, 0)


def test_a_record_larger_than_a_segment_has_one_of_its_own(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for data in (b"a", b"b" * 3 * ROOM, b"c"):
        journal.append(1, data)
    journal.close()
    assert [len(record.data) for record in read(tmp_path)[0]] == [1, 3 * ROOM, 1]


def test_a_journal_that_was_closed_takes_no_more_room_than_its_records(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append(1, b"data")
    journal.close()
    (segment,) = segments(tmp_path)
    assert segment.path.stat().st_size < 200
    assert [record.data for record in read(tmp_path)[0]] == [b"data"]


def test_segments_before_a_checkpoint_are_removed(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(9):
        if number in (3, 6):
            assert journal.cut() == number
        journal.append(1, bytes([number]))
    journal.remove_before(6)
    assert [segment.first for segment in segments(tmp_path)] == [6]
    assert [record.number for record in read(tmp_path, 6)[0]] == [6, 7, 8]
    with pytest.raises(CheckpointError, match="record 3 of the input journal is missing"):
        read(tmp_path, 3)


def test_records_after_a_resume_replace_those_that_were_dropped(tmp_path: Path) -> None:
    records = filled(tmp_path, 10)
    journal = opened(tmp_path, number=8, resume_count=1)
    journal.append(3, b"other")
    assert read(tmp_path) == ([*records[:8], Record(8, 3, b"other")], 0)
    again = opened(tmp_path, number=9, resume_count=2)
    again.append(4, b"more")
    assert [record.data for record in read(tmp_path)[0]][8:] == [b"other", b"more"]


def test_a_flipped_bit_below_the_synced_offset_is_an_error_that_names_the_record(tmp_path: Path) -> None:
    filled(tmp_path, 12, synced=10)
    (segment,) = segments(tmp_path)
    whole = segment.path.read_bytes()
    (_, synced) = _places(whole, tmp_path)
    for place, data in flips(whole[:synced]):
        segment.path.write_bytes(data + whole[synced:])
        with pytest.raises(CheckpointError, match=r"record|segment|begins"):
            read(tmp_path)
        assert place < synced


def test_a_flipped_bit_above_the_synced_offset_is_cut_and_counted(tmp_path: Path) -> None:
    records = filled(tmp_path, 12, synced=6)
    (segment,) = segments(tmp_path)
    whole = segment.path.read_bytes()
    end, synced = _places(whole, tmp_path)
    for place, data in flips(whole[synced:end]):
        segment.path.write_bytes(whole[:synced] + data + whole[end:])
        found, lost = read(tmp_path)
        assert found == records[: len(found)]
        assert 6 <= len(found) < 12
        assert 0 < lost <= end - synced
        assert place < end - synced


def _places(whole: bytes, directory: Path) -> tuple[int, int]:
    """Where the last record ends, and up to where the last record says that the segment was synced."""
    (segment,) = segments(directory)
    return len(whole.rstrip(b"\0")), _Scan(segment).durable()


def test_a_segment_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 12, synced=6)
    (segment,) = segments(tmp_path)
    whole = segment.path.read_bytes()
    for length in range(1, len(whole)):
        segment.path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"record|cut short"):
            read(tmp_path)


def test_a_closed_segment_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(5):
        journal.append(1, bytes([number]))
    journal.close()
    (segment,) = segments(tmp_path)
    whole = segment.path.read_bytes()
    for length in range(len(whole)):
        segment.path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            read(tmp_path)


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_missing_segment_is_an_error(place: int, tmp_path: Path) -> None:
    filled(tmp_path, 120, synced=120)
    found = segments(tmp_path)
    assert len(found) == 4
    found[place].path.unlink()
    with pytest.raises(CheckpointError, match="missing"):
        read(tmp_path)


def test_segments_in_another_order_are_an_error(tmp_path: Path) -> None:
    filled(tmp_path, 120, synced=120)
    first, second, *_ = segments(tmp_path)
    one, other = first.path.read_bytes(), second.path.read_bytes()
    first.path.write_bytes(other)
    second.path.write_bytes(one)
    with pytest.raises(CheckpointError, match="begins with record"):
        read(tmp_path)


def test_a_power_cut_may_lose_the_tail_of_a_segment_and_all_after_it(tmp_path: Path) -> None:
    records = filled(tmp_path, 60, synced=5)
    first, *others = segments(tmp_path)
    assert others
    data = first.path.read_bytes()
    first.path.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    found, lost = read(tmp_path)
    assert found == records[: len(found)]
    assert 5 <= len(found) < others[0].first
    assert lost > 0


def test_another_format_is_refused(tmp_path: Path) -> None:

    filled(tmp_path, 3)
    (segment,) = segments(tmp_path)
    data = bytearray(segment.path.read_bytes())
    data[8] = 9
    end = HEADER.size + len(b"about the agent")
    data[end : end + 4] = CRC.pack(crc32(data[:end]))
    segment.path.write_bytes(data)
    with pytest.raises(CheckpointError, match="format 1"):
        read(tmp_path)


def test_a_full_disk_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    journal = opened(tmp_path)
    for _ in range(2):
        with pytest.raises(StorageError, match="No space left"):
            journal.append(1, b"data")
    journal.close()
    assert not list(tmp_path.iterdir())


def test_what_was_written_before_the_disk_was_full_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allocate = os.posix_fallocate

    def full(descriptor: int, start: int, size: int) -> None:
        if segments(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    journal = opened(tmp_path)

    def fill() -> None:
        while True:
            journal.append(1, b"data")

    with pytest.raises(StorageError, match="No space left"):
        fill()
    journal.cut()  # the checkpoint with which the session stops
    journal.close()
    records, lost = read(tmp_path)
    assert (len(records), lost) == (journal.number, 0)
    assert records


def test_the_next_segment_is_made_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    makers: list[str] = []
    allocate = os.posix_fallocate

    def noted(*arguments: int) -> None:
        makers.append(threading.current_thread().name)
        allocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", noted)
    journal = opened(tmp_path, sync_every=0.001)
    for _ in range(3):
        wait_for(lambda: journal._spare is not None)  # pyright: ignore[reportPrivateUsage]
        journal.append(1, b"data")
        journal.cut()
    journal.close()
    assert set(makers) == {"rekindle-journal"}
    assert [record.number for record in read(tmp_path)[0]] == [0, 1, 2]
    assert not list(tmp_path.glob(".*"))  # the last one was not needed


def test_a_segment_that_cannot_be_made_in_advance_is_made_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = os.posix_fallocate

    def full(*arguments: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, "No space left on device")
        allocate(*arguments)

    monkeypatch.setattr(os, "posix_fallocate", full)
    journal = opened(tmp_path, sync_every=0.001)
    journal.append(1, b"data")
    journal.cut()
    journal.append(1, b"more")
    journal.close()
    assert [record.data for record in read(tmp_path)[0]] == [b"data", b"more"]


def test_the_segment_that_a_kill_left_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = filled(tmp_path, 5)
    reader = JournalReader(tmp_path, 0)
    assert list(reader) == records
    assert reader.unfinished is not None
    path, end = reader.unfinished
    synced: list[bytes] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", noted)
    finish_segment(path, end, reader.number)
    monkeypatch.undo()
    assert path.stat().st_size < 2 * end
    (whole,) = synced  # it has its end, and is durable, before it is shortened: a kill or a power cut may come between
    assert len(whole) == ROOM
    for left in (whole, path.read_bytes()):
        path.write_bytes(left)
        again = JournalReader(tmp_path, 0)
        assert list(again) == records
        assert (again.lost, again.unfinished) == (0, None)
    journal = opened(tmp_path, number=5, resume_count=1)
    journal.append(1, b"later")
    assert [record.number for record in read(tmp_path)[0]] == [0, 1, 2, 3, 4, 5]
    journal.close()


def test_a_segment_with_damage_is_not_finished(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    (segment,) = segments(tmp_path)
    data = bytearray(segment.path.read_bytes())
    data[len(data.rstrip(b"\0")) - 1] ^= 1
    segment.path.write_bytes(data)
    reader = JournalReader(tmp_path, 0)
    assert len(list(reader)) == 4
    assert reader.lost
    assert reader.unfinished is None


def test_a_failed_fsync_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def fail(descriptor: int) -> None:
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    journal = opened(tmp_path)
    journal.append(1, b"data")
    monkeypatch.setattr(os, "fsync", fail)
    for _ in range(3):
        with pytest.raises(StorageError, match="Input/output error"):
            journal.sync()
    with pytest.raises(StorageError, match="Input/output error"):
        journal.append(1, b"more")
    journal.close()
    assert len(calls) == 1


def test_with_an_interval_of_0_every_record_is_durable_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(descriptor), sync(descriptor)))
    journal = opened(tmp_path, sync_every=0)
    for number in range(3):
        before = len(synced)
        journal.append(1, bytes([number]))
        assert len(synced) > before
    journal.close()


def test_a_forked_child_cannot_use_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = opened(tmp_path)
    journal.append(1, b"data")
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(RunLocked):
        journal.sync()
    monkeypatch.undo()
    journal.close()

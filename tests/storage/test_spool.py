"""Records in a file without a name: first in, first out, and nothing left behind."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import StorageError
from rekindle.storage.spool import Spool


@given(st.lists(st.binary() | st.none()))
def test_records_come_out_in_the_order_they_went_in(steps: list[bytes | None]) -> None:
    spool, waiting = Spool(), []
    for record in steps:
        if record is not None:
            spool.put(record)
            waiting.append(record)
        elif waiting:
            assert spool.get() == waiting.pop(0)
    assert [spool.get() for _ in waiting] == waiting
    spool.close()


def test_the_file_has_no_name_and_shrinks_when_all_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    truncate = os.ftruncate
    monkeypatch.setattr(
        os, "ftruncate", lambda file, size: (truncate(file, size), sizes.append(os.fstat(file).st_size))
    )
    spool = Spool(tmp_path)
    for _ in range(2):
        spool.put(b"a record")
    assert list(tmp_path.iterdir()) == []
    spool.get()
    assert sizes == []
    spool.get()
    assert sizes == [0]
    spool.close()


def test_a_record_that_finds_no_room_leaves_the_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool()
    spool.put(b"before")
    write = os.pwrite

    def full_after_three(file: int, data: Any, offset: int) -> int:
        if len(data) < 8 + len(b"lost"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:3], offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full_after_three)
        with pytest.raises(StorageError, match="No space left"):
            spool.put(b"lost")
    spool.put(b"after")
    assert [spool.get(), spool.get()] == [b"before", b"after"]
    spool.close()


def test_a_record_that_cannot_be_read_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool()
    for record in (b"damaged", b"sound"):
        spool.put(record)
    read = os.pread

    def fail(file: int, length: int, offset: int) -> bytes:
        if length == len(b"damaged"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file, length, offset)

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(StorageError, match="Input/output error"):
        spool.get()
    assert spool.get() == b"sound"
    spool.close()


def test_an_empty_spool_gives_nothing() -> None:
    with pytest.raises(IndexError):
        Spool().get()

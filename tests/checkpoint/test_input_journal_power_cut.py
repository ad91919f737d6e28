"""A power cut keeps of an input journal what was synced: every record that was acknowledged as durable."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from rekindle.checkpoint import input_journal
from rekindle.checkpoint.input_journal import InputJournal
from rekindle.checkpoint.input_segments import JournalReader
from rekindle.errors import CheckpointError


class Disk:
    """What of a directory is durable: data when a file is synced, names when the directory is."""

    def __init__(self, directory: Path, skips: Callable[[str], bool]) -> None:
        self._directory, self._skips = directory, skips
        self._data: dict[int, bytes] = {}
        self._names: dict[str, int] = {}
        self._sync = os.fsync
        self.kinds: set[str] = set()

    def fsync(self, descriptor: int) -> None:
        """Stands in for `os.fsync`."""
        self._sync(descriptor)
        status = os.fstat(descriptor)
        name = Path(os.readlink(f"/proc/self/fd/{descriptor}")).name
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "durable" if "durable" in name else "segment"
        self.kinds.add(kind)
        if self._skips(kind):
            return
        if kind == "directory":
            self._names = {path.name: path.stat().st_ino for path in self._directory.iterdir()}
        else:
            with open(f"/proc/self/fd/{descriptor}", "rb") as file:
                self._data[status.st_ino] = file.read()

    def after_a_cut(self, target: Path) -> Path:
        """The files that a power cut leaves; data that were not synced are zeros."""
        target.mkdir()
        sizes = {path.stat().st_ino: path.stat().st_size for path in self._directory.iterdir()}
        for name, inode in self._names.items():
            (target / name).write_bytes(self._data.get(inode, bytes(sizes.get(inode, 0))))
        return target


def cut_after(directory: Path, target: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> int:
    """Fill a journal over several segments; returns how many of the acknowledged records a power cut loses."""
    monkeypatch.setattr(input_journal, "_ROOM", 512)
    directory.mkdir()
    monkeypatch.setattr(os, "fsync", disk.fsync)
    journal = InputJournal(directory, number=0, resume_count=0, sync_every=3600)
    for number in range(40):
        journal.append(1, bytes([number]) * 20)
    journal.sync()
    for number in range(40, 45):
        journal.append(1, bytes([number]) * 20)
    monkeypatch.undo()
    left = disk.after_a_cut(target)
    try:
        records = list(JournalReader(left, 0))
    except CheckpointError:
        return 40
    assert [record.data[0] for record in records] == list(range(len(records)))
    return 40 - min(40, len(records))


def test_a_power_cut_loses_no_record_that_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path / "inputs", lambda kind: False)
    assert cut_after(tmp_path / "inputs", tmp_path / "left", disk, monkeypatch) == 0
    assert disk.kinds == {"directory", "durable", "segment"}


@pytest.mark.parametrize("kind", ["directory", "segment"])
def test_without_one_of_its_syncs_records_are_lost(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path / "inputs", lambda one: one == kind)
    assert cut_after(tmp_path / "inputs", tmp_path / "left", disk, monkeypatch) > 0


def test_a_lost_segment_is_noticed_because_its_name_was_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for skipped, is_noticed in ((False, True), (True, False)):
        top = tmp_path / str(skipped)
        top.mkdir()
        disk = Disk(top / "inputs", lambda kind, skipped=skipped: skipped and kind == "durable")
        cut_after(top / "inputs", top / "left", disk, monkeypatch)
        newest = max((top / "left").glob("*.journal"), key=lambda path: int(path.name.split("_")[1]))
        newest.unlink()
        reader = JournalReader(top / "left", 0)
        if is_noticed:
            with pytest.raises(CheckpointError, match="is missing"):
                list(reader)
        else:
            with pytest.raises(CheckpointError, match="does not name"):  # the file that names it is empty
                list(reader)

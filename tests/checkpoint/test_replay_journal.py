"""A checkpoint of a replay buffer writes what is new, and what it names is all of the memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.checkpoint import replay_journal as journal_module
from rekindle.checkpoint.replay_journal import Manifest, ReplayJournal, check_layout
from rekindle.errors import FileRefused
from rekindle.experience import Array
from rekindle.spaces import ArraySpec

COLUMNS = {"number": ArraySpec(np.dtype("<i8")), "pair": ArraySpec(np.dtype("<f4"), (2,))}
ROW_SIZE = 16


class Memory:
    """The newest rows of a long list, each of them made of its own number."""

    columns: Mapping[str, ArraySpec] = COLUMNS

    def __init__(self, capacity: int) -> None:
        self.first = self.end = 0
        self.capacity = capacity
        self.copied = 0

    def append(self, count: int) -> None:
        self.end += count
        self.first = max(self.first, self.end - self.capacity)

    def read(self, first: int, end: int) -> dict[str, Array]:
        assert self.first <= first <= end <= self.end
        self.copied += end - first
        return rows(first, end)

    def restore(self, first: int, columns: Mapping[str, Array]) -> None:
        raise AssertionError("a journal does not restore")


def rows(first: int, end: int) -> dict[str, Array]:
    numbers = np.arange(first, end, dtype=np.int64)
    return {"number": numbers, "pair": np.stack([numbers, -numbers], axis=-1).astype(np.float32)}


def checkpoint(journal: ReplayJournal, memory: Memory) -> Manifest:
    return journal.write(journal.collect(memory))


def assert_holds(journal: ReplayJournal, manifest: Manifest, first: int, end: int) -> None:
    read = journal.read(manifest)
    assert (manifest.first, manifest.end) == (first, end)
    for name, expected in rows(first, end).items():
        assert read[name].dtype == expected.dtype
        np.testing.assert_array_equal(read[name], expected)


def spans(manifest: Manifest) -> list[tuple[int, int]]:
    return [(segment.first, segment.end) for segment in manifest.segments]


@pytest.fixture
def journal(tmp_path: Path) -> ReplayJournal:
    return ReplayJournal(tmp_path, resume_count=0)


@pytest.fixture
def no_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MERGE_LIMIT", 0)


def test_what_was_written_is_read_back(journal: ReplayJournal) -> None:
    memory = Memory(100)
    memory.append(7)
    assert_holds(journal, checkpoint(journal, memory), 0, 7)


def test_an_empty_memory_is_read_back_empty(journal: ReplayJournal) -> None:
    manifest = checkpoint(journal, Memory(100))
    assert journal.files() == []
    assert_holds(journal, manifest, 0, 0)


def test_a_manifest_survives_its_way_through_a_checkpoint(journal: ReplayJournal) -> None:
    memory = Memory(100)
    memory.append(7)
    manifest = checkpoint(journal, memory)
    assert Manifest.of(manifest.tree(), name="file") == manifest


@pytest.mark.usefixtures("no_merging")
def test_only_new_rows_are_copied_and_written(journal: ReplayJournal, tmp_path: Path) -> None:
    memory = Memory(10_000)
    memory.append(5000)
    checkpoint(journal, memory)
    before, memory.copied = size_of(tmp_path), 0
    memory.append(50)
    manifest = checkpoint(journal, memory)
    assert memory.copied == 50
    assert size_of(tmp_path) - before < 50 * ROW_SIZE + 500
    assert_holds(journal, manifest, 0, 5050)


@pytest.mark.usefixtures("no_merging")
def test_a_checkpoint_without_new_rows_writes_nothing(journal: ReplayJournal) -> None:
    memory = Memory(100)
    memory.append(7)
    first, files = checkpoint(journal, memory), journal.files()
    assert checkpoint(journal, memory) == first
    assert journal.files() == files


@pytest.mark.usefixtures("no_merging")
def test_segments_whose_rows_have_all_gone_are_no_longer_named(journal: ReplayJournal) -> None:
    memory = Memory(100)
    manifests = []
    for _ in range(5):
        memory.append(50)
        manifests.append(checkpoint(journal, memory))
    assert spans(manifests[-1]) == [(150, 200), (200, 250)]
    assert_holds(journal, manifests[-1], 150, 250)


@pytest.mark.usefixtures("no_merging")
def test_a_segment_is_named_while_it_has_one_row_left(journal: ReplayJournal) -> None:
    memory = Memory(51)
    memory.append(50)
    checkpoint(journal, memory)
    memory.append(50)
    manifest = checkpoint(journal, memory)
    assert spans(manifest) == [(0, 50), (50, 100)]
    assert_holds(journal, manifest, 49, 100)


@pytest.mark.usefixtures("no_merging")
def test_many_new_rows_are_split_into_segments_that_the_format_can_hold(
    journal: ReplayJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_SEGMENT_LIMIT", 10 * ROW_SIZE + ROW_SIZE // 2)
    memory = Memory(100)
    memory.append(25)
    manifest = checkpoint(journal, memory)
    assert spans(manifest) == [(0, 10), (10, 20), (20, 25)]
    assert_holds(journal, manifest, 0, 25)
    memory.append(90)
    manifest = checkpoint(journal, memory)
    assert spans(manifest)[:4] == [(10, 20), (20, 25), (25, 35), (35, 45)]
    assert_holds(journal, Manifest.of(manifest.tree(), name="file"), 15, 115)


def test_a_row_larger_than_a_segment_is_a_segment_of_its_own(
    journal: ReplayJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_SEGMENT_LIMIT", 1)
    memory = Memory(100)
    memory.append(3)
    manifest = checkpoint(journal, memory)
    assert spans(manifest) == [(0, 1), (1, 2), (2, 3)]
    assert_holds(journal, manifest, 0, 3)


@pytest.mark.usefixtures("no_merging")
def test_more_new_rows_than_the_memory_holds_are_those_that_it_holds(journal: ReplayJournal) -> None:
    memory = Memory(100)
    memory.append(30)
    checkpoint(journal, memory)
    memory.append(1000)
    manifest = checkpoint(journal, memory)
    assert spans(manifest) == [(930, 1030)]
    assert_holds(journal, manifest, 930, 1030)


@pytest.mark.usefixtures("no_merging")
def test_an_older_manifest_stays_readable(journal: ReplayJournal) -> None:
    memory = Memory(100)
    memory.append(80)
    old = checkpoint(journal, memory)
    memory.append(80)
    checkpoint(journal, memory)
    assert_holds(journal, old, 0, 80)


def test_small_segments_are_merged_like_the_digits_of_a_counter(journal: ReplayJournal) -> None:
    memory = Memory(10_000)
    counts = []
    for _ in range(16):
        memory.append(1)
        counts.append(len(checkpoint(journal, memory).segments))
    assert counts == [1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4, 1]


def test_frequent_checkpoints_leave_few_files_and_copy_each_row_a_few_times(journal: ReplayJournal) -> None:
    memory = Memory(10_000)
    manifests = []
    for _ in range(300):
        memory.append(1)
        manifests.append(checkpoint(journal, memory))
    manifest = manifests[-1]
    assert len(manifest.segments) <= 9
    assert memory.copied <= 300 * 9
    assert_holds(journal, manifest, 0, 300)


def test_large_segments_are_never_copied_again(journal: ReplayJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MERGE_LIMIT", 100 * ROW_SIZE)
    memory = Memory(10_000)
    manifests = []
    for _ in range(100):
        memory.append(20)
        manifests.append(checkpoint(journal, memory))
    assert max(end - first for first, end in spans(manifests[-1])) <= 100
    assert memory.copied <= 4 * memory.end


def test_a_merged_segment_takes_the_place_of_those_it_was_made_of(journal: ReplayJournal) -> None:
    memory = Memory(6)
    memory.append(4)
    checkpoint(journal, memory)
    memory.append(4)
    manifest = checkpoint(journal, memory)
    assert spans(manifest) == [(2, 8)]
    assert_holds(journal, manifest, 2, 8)


def test_a_segment_that_could_not_be_written_is_collected_again(journal: ReplayJournal, tmp_path: Path) -> None:
    memory = Memory(100)
    memory.append(10)
    new = journal.collect(memory)
    (tmp_path / "rows_0_10_r0.mpk").mkdir()
    with pytest.raises(OSError, match="rows_0_10"):
        journal.write(new)
    (tmp_path / "rows_0_10_r0.mpk").rmdir()
    memory.append(10)
    assert_holds(journal, checkpoint(journal, memory), 0, 20)


def test_a_segment_of_another_timeline_is_never_overwritten(tmp_path: Path) -> None:
    manifests = []
    for resume_count in (0, 1):
        journal, memory = ReplayJournal(tmp_path, resume_count=resume_count), Memory(100)
        memory.append(10)
        manifests.append(checkpoint(journal, memory))
    assert manifests[0].segments[0].file != manifests[1].segments[0].file
    assert len(journal.files()) == 2


def test_a_journal_goes_on_from_the_segments_of_a_checkpoint(tmp_path: Path) -> None:
    memory = Memory(100)
    memory.append(64)
    saved = checkpoint(ReplayJournal(tmp_path, resume_count=0), memory)
    resumed = ReplayJournal(tmp_path, resume_count=1, known=saved.segments)
    memory.append(8)
    manifest = checkpoint(resumed, memory)
    assert spans(manifest) == [(0, 64), (64, 72)]
    assert_holds(resumed, manifest, 0, 72)


# Refusing


def one_segment(journal: ReplayJournal) -> Manifest:
    memory = Memory(100)
    memory.append(10)
    return checkpoint(journal, memory)


def test_a_missing_segment_is_refused(journal: ReplayJournal) -> None:
    manifest = one_segment(journal)
    journal.files()[0].unlink()
    with pytest.raises(FileRefused, match=r"rows_0_10.*missing"):
        journal.read(manifest)


def test_an_intact_file_that_is_not_the_one_named_is_refused(tmp_path: Path, journal: ReplayJournal) -> None:
    manifest = one_segment(journal)
    other = ReplayJournal(tmp_path / "other", resume_count=0)
    (tmp_path / "other").mkdir()
    memory = Memory(5)
    memory.append(10)
    checkpoint(other, memory)
    other.files()[0].rename(tmp_path / manifest.segments[0].file)
    with pytest.raises(FileRefused, match="not the file that was written"):
        journal.read(manifest)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first", -1),
        ("end", 11),
        ("segments", []),
        ("segments", [{"file": "../rows", "first": 0, "end": 10, "checksum": ""}]),
        ("segments", [{"file": "rows", "first": 1, "end": 10, "checksum": ""}]),
        ("segments", [{"file": "rows", "first": 0, "end": 9, "checksum": ""}]),
        ("segments", "rows"),
        ("surprise", 1),
    ],
)
def test_a_manifest_with_a_gap_or_a_path_is_refused(journal: ReplayJournal, field: str, value: Any) -> None:
    tree = {**one_segment(journal).tree(), field: value}
    with pytest.raises(FileRefused, match=r"step_1\.mpk: its replay manifest"):
        Manifest.of(tree, name="step_1.mpk")


def test_a_memory_of_other_columns_is_refused_and_the_difference_told(journal: ReplayJournal) -> None:
    manifest = one_segment(journal)
    check_layout(manifest, COLUMNS, name="step_1.mpk")
    other = {**COLUMNS, "pair": ArraySpec(np.dtype("<f8"), (2,))}
    with pytest.raises(FileRefused, match=r"pair: saved float32 \(2,\), now float64 \(2,\)"):
        check_layout(manifest, other, name="step_1.mpk")


# Against a list


@settings(max_examples=60, deadline=None)
@given(
    capacity=st.integers(1, 60),
    merge_limit=st.integers(0, 50 * ROW_SIZE),
    segment_limit=st.integers(ROW_SIZE, 100 * ROW_SIZE),
    steps=st.lists(
        st.one_of(st.integers(0, 100), st.sampled_from(["checkpoint", "resume", "prune"])), min_size=1, max_size=40
    ),
)
def test_every_kept_checkpoint_holds_what_the_memory_held(
    capacity: int, merge_limit: int, segment_limit: int, steps: list[int | str]
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal_module, "_MERGE_LIMIT", merge_limit)
        patch.setattr(journal_module, "_SEGMENT_LIMIT", segment_limit)
        journal, memory = ReplayJournal(Path(directory), resume_count=0), Memory(capacity)
        kept: list[tuple[Manifest, int, int]] = []
        for step in steps:
            if isinstance(step, int):
                memory.append(step)
            elif step == "checkpoint":
                kept.append((checkpoint(journal, memory), memory.first, memory.end))
            elif step == "resume" and kept:
                manifest, memory.first, memory.end = kept[-1]
                journal = ReplayJournal(Path(directory), resume_count=journal.resume_count + 1, known=manifest.segments)
            elif step == "prune" and len(kept) > 1:
                del kept[0]
                named = {segment.file for manifest, *_ in kept for segment in manifest.segments}
                for path in journal.files():
                    if path.name not in named:
                        path.unlink()
        for manifest, first, end in kept:
            assert_holds(journal, Manifest.of(manifest.tree(), name="file"), first, end)


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())

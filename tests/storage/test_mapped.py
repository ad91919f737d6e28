"""Page faults of a mapped file, taken in advance."""

import mmap
import os
import resource
import sys
from pathlib import Path

import pytest

from rekindle.storage.mapped import FaultsAhead

PAGES = 16


@pytest.fixture
def mapped(tmp_path: Path) -> mmap.mmap:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, PAGES * mmap.PAGESIZE)
    mapping = mmap.mmap(descriptor, PAGES * mmap.PAGESIZE)
    os.close(descriptor)
    return mapping


def faults_of_writing(mapping: mmap.mmap) -> int:
    """Page faults of writing to each page."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for page in range(PAGES):
        mapping[page * mmap.PAGESIZE] = 1
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.skipif(sys.platform != "linux", reason="it does nothing elsewhere")
def test_writing_to_prepared_pages_has_no_faults(mapped: mmap.mmap) -> None:
    FaultsAhead(mapped).prepare(100, len(mapped))

    assert faults_of_writing(mapped) < PAGES // 2


@pytest.mark.skipif(sys.platform != "linux", reason="it does nothing elsewhere")
def test_writing_to_other_pages_has_faults(mapped: mmap.mmap) -> None:
    FaultsAhead(mapped)

    assert faults_of_writing(mapped) >= PAGES // 2


def test_preparing_changes_nothing_and_goes_no_further_than_the_file(mapped: mmap.mmap) -> None:
    mapped[:] = before = bytes(range(256)) * (len(mapped) // 256)
    ahead = FaultsAhead(mapped)

    for start, length in ((0, 1), (5000, 10_000), (len(before) - 1, 10**9), (len(before), 100)):
        ahead.prepare(start, length)

    assert bytes(mapped) == before
    mapped.close()  # nothing refers to it

"""The power goes, for a real file system: ext4 on a loop device, shut down without writing anything back.

`test_power_cut.py` tries every instant under models of a disk; this holds the models against the real thing.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from harness import Training, assert_nothing_lost, assert_survives, needs_root

Reference = Mapping[str, str | None]
Trainings = Callable[[], Training]

pytestmark = [
    needs_root,
    pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="mkfs.ext4 is not installed"),
]


class Ext4:
    """A small ext4 file system in a file."""

    def __init__(self, image: Path) -> None:
        self._image = image
        with image.open("wb") as file:
            file.truncate(16 * 2**20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)

    def mount(self, where: Path) -> None:
        done = subprocess.run(["mount", "-o", "loop", str(self._image), str(where)], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"cannot mount a loop device: {done.stderr.decode().strip()}")
        self._where = where

    def unmount(self) -> None:
        subprocess.run(["umount", str(self._where)], check=True)

    def come_back(self) -> None:
        """The power is on again: the journal of the file system is replayed."""
        self.unmount()
        self.mount(self._where)


@pytest.fixture
def on_ext4(trainings: Trainings) -> Iterator[Callable[[], tuple[Training, Ext4]]]:
    """Makes trainings on file systems of their own; one at a time."""
    mounted: list[Ext4] = []

    def make() -> tuple[Training, Ext4]:
        while mounted:
            mounted.pop().unmount()
        training = trainings()
        system = Ext4(training.directory / "image")
        system.mount(training.disk)
        mounted.append(system)
        return training, system

    yield make
    while mounted:
        mounted.pop().unmount()


def cut_and_resume(
    on_ext4: Callable[[], tuple[Training, Ext4]], reference: Reference, *, first: int, stride: int
) -> int:
    """Cut before every so-manieth call of a training, and before the same call of the resume; says how often."""
    cuts = 0
    number = first
    while True:
        training, system = on_ext4()
        if not training.fork(f"powercut {number}").killed:
            return cuts
        system.come_back()
        assert_nothing_lost(training)
        if not training.is_finished and training.fork(f"powercut {number}").killed:
            system.come_back()
        assert_survives(training, reference)
        cuts += 1
        number += stride


def test_some_power_cuts(on_ext4: Callable[[], tuple[Training, Ext4]], reference: Reference) -> None:
    assert cut_and_resume(on_ext4, reference, first=9, stride=13) > 15


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_power_cut_before_every_call(on_ext4: Callable[[], tuple[Training, Ext4]], reference: Reference) -> None:
    assert cut_and_resume(on_ext4, reference, first=1, stride=1) > 200


def test_without_any_fsync_everything_is_lost(on_ext4: Callable[[], tuple[Training, Ext4]]) -> None:
    """So the cuts above are real."""
    training, system = on_ext4()
    assert training.fork("unsynced 200").killed
    assert max(training.acknowledged_steps) >= 80
    system.come_back()
    with pytest.raises(AssertionError, match="was acknowledged"):
        assert_nothing_lost(training)

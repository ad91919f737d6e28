"""Memory and semaphores that a learner shares with a worker process; nothing of them has a name, so nothing is left."""

from __future__ import annotations

import contextlib
import mmap
import os
import select
from collections.abc import Mapping, Sequence

import numpy as np

from rekindle.actors.packing import aligned, pack, packed_size, unpack, write
from rekindle.errors import ConfigError
from rekindle.experience import Array

__all__ = ["Link", "Region", "WorkerEnded"]

_FIELDS = ("beats", "ready", "inbox", "outbox", "quits")
_PAGE = mmap.PAGESIZE


class WorkerEnded(BaseException):
    """The learner asked this worker to end; no `SystemExit`, which an environment may raise."""


class Region:
    """Memory without a name (memfd), which both sides map; it can grow."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            if not hasattr(os, "memfd_create") or not hasattr(os, "eventfd"):
                raise ConfigError("actors on processes need Linux: use --actors-on here")
            descriptor = os.memfd_create("rekindle-actors", os.MFD_CLOEXEC)
        self.descriptor = descriptor
        self._memory: Array | None = None

    def view(self, size: int) -> Array:
        """The first bytes; the memory grows if there are not as many."""
        if self._memory is None or len(self._memory) < size:
            there = os.fstat(self.descriptor).st_size
            if there < size:
                there = -(-size // _PAGE) * _PAGE
                os.ftruncate(self.descriptor, there)
            # The former mapping is freed when its last view is gone.
            self._memory = np.frombuffer(mmap.mmap(self.descriptor, there), np.uint8)
        return self._memory[:size]

    def put(self, tree: object) -> int:
        """Write a tree; returns its size."""
        packed = pack(tree)
        size = packed_size(packed)
        write(packed, self.view(size))
        return size

    def get(self, size: int) -> object:
        """A tree that was written; its arrays are copies."""
        data = aligned(size)
        data[:] = self.view(size)
        return unpack(data)

    def close(self) -> None:
        """Close it on this side."""
        self._memory = None
        os.close(self.descriptor)


class Link:
    """What one worker shares with the learner: messages both ways, arrays of a round, and two semaphores."""

    def __init__(self, descriptors: Mapping[str, int] | None = None) -> None:
        """`descriptors` are those of the learner, in the worker."""
        given: Mapping[str, int | None] = descriptors or dict.fromkeys(("head", "inbox", "outbox", "arrays"))
        self._regions = {name: Region(given[name]) for name in ("head", "inbox", "outbox", "arrays")}
        head = self._regions["head"].view(8 * len(_FIELDS)).view(np.int64)
        self._head = {name: head[place : place + 1] for place, name in enumerate(_FIELDS)}
        if descriptors is None:
            flags = os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC
            self.go, self.done = os.eventfd(0, flags), os.eventfd(0, flags)
        else:
            self.go, self.done = descriptors["go"], descriptors["done"]

    @property
    def descriptors(self) -> dict[str, int]:
        """What the worker needs to open the same link."""
        regions = {name: region.descriptor for name, region in self._regions.items()}
        return {**regions, "go": self.go, "done": self.done}

    def arrays(self, size: int) -> Array:
        """Memory for the arrays of a round."""
        return self._regions["arrays"].view(size)

    # For the learner

    def send(self, message: object) -> None:
        """Send a message to the worker."""
        self._head["inbox"][0] = self._regions["inbox"].put(message)
        os.eventfd_write(self.go, 1)

    def take_answer(self) -> object | None:
        """The answer of the worker; None if there is none yet."""
        try:
            os.eventfd_read(self.done)
        except BlockingIOError:
            return None
        return self._regions["outbox"].get(int(self._head["outbox"][0]))

    @property
    def beats(self) -> int:
        """Steps of the worker so far: while it grows, the worker is alive."""
        return int(self._head["beats"][0])

    @property
    def is_ready(self) -> bool:
        """Whether the worker has created its environments."""
        return bool(self._head["ready"][0])

    def ask_to_quit(self) -> None:
        """Let the worker end with its next step, or at once if it waits."""
        self._head["quits"][0] = 1
        os.eventfd_write(self.go, 1)

    # For the worker

    def wait(self, alive: int) -> object | None:
        """Wait for a message; None if the worker should end, because it was asked to or the learner is gone."""
        poll = select.poll()
        poll.register(self.go, select.POLLIN)
        poll.register(alive, select.POLLIN)  # it only ever hangs up
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if alive in ready or self._head["quits"][0]:
                return None
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.go)
                return self._regions["inbox"].get(int(self._head["inbox"][0]))

    def answer(self, message: object) -> None:
        """Answer the last message."""
        self._head["outbox"][0] = self._regions["outbox"].put(message)
        os.eventfd_write(self.done, 1)

    def set_ready(self) -> None:
        """Say that all environments are created."""
        self._head["ready"][0] = 1

    def beat(self) -> None:
        """Show that the worker is alive; ends it if it should."""
        self._head["beats"][0] += 1
        if self._head["quits"][0]:
            raise WorkerEnded

    def close(self) -> None:
        """Close it on this side."""
        self._head = {}
        for region in self._regions.values():
            region.close()
        _close_all((self.go, self.done))


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)

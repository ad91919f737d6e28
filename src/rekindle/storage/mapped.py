"""Prepare parts of a mapped file for writing."""

from __future__ import annotations

import ctypes
import mmap
import sys

__all__ = ["FaultsAhead"]

_POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE` of Linux: fault pages in as if they were written to, without changing them."""


class FaultsAhead:
    """Takes the page faults of writing to a mapped file in advance, so that the thread that writes has none.

    The first write to a page of a file, and the first after each sync of it, enters the file system and may wait for
    it. Does nothing on systems that cannot do it.
    """

    def __init__(self, mapping: mmap.mmap) -> None:
        self._size = len(mapping)
        self._address = 0
        if sys.platform == "linux":
            view = ctypes.c_char.from_buffer(mapping)
            self._address = ctypes.addressof(view)
            del view  # the mapping cannot be closed while something refers to it
            # Unlike mmap.madvise, a function of ctypes does not keep other threads from running.
            self._madvise = ctypes.CDLL(None, use_errno=True).madvise
            self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def prepare(self, start: int, length: int) -> None:
        """Prepare these bytes, as far as they are in the file; the mapping must be open."""
        if self._address:
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            end = min(start + length, self._size)
            # A failure (an older kernel, a full disk) is not one of the journal: the write itself will tell.
            self._madvise(self._address + first, max(0, end - first), _POPULATE_WRITE)

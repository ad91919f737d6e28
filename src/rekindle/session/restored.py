"""The episodes that were open before a resume, until the host continues or closes them."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Restored"]


class Restored:
    """Tracks which streams have such an episode, and whose environment is back where it was."""

    def __init__(self) -> None:
        self.slots: set[int] = set()
        """The streams that wait for the host."""
        self.replayed: set[int] = set()
        """Those whose environment is back in its state before the resume."""

    def expect(self, slots: Iterable[int]) -> None:
        """Let the host continue or close the episodes of these streams, and of no others."""
        self.slots = set(slots)
        self.replayed &= self.slots

    def settle(self, *slots: int) -> None:
        """The host has continued or closed the episodes of these streams."""
        self.slots.difference_update(slots)
        self.replayed.difference_update(slots)

"""What a server keeps in the checkpoint and the input journal of its session."""

from __future__ import annotations

from typing import Protocol

from rekindle.agent import State
from rekindle.experience import Array

__all__ = ["Ledger"]


class Ledger(Protocol):
    """What a server must know after a restart: whose requests were processed, and their answers."""

    def state(self) -> State:
        """For a checkpoint."""
        ...

    def load_state(self, state: State) -> None:
        """Restore the state of a checkpoint."""
        ...

    def took(self, note: bytes, actions: Array) -> None:
        """A tick was made, now or again: its note, and the action of each step and begin."""
        ...

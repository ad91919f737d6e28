"""The errors for calls of streams that cannot be right."""

from __future__ import annotations

import math
from typing import Any

from rekindle.checks import all_finite
from rekindle.errors import InputError
from rekindle.experience import Array
from rekindle.session.table import StreamTable

__all__ = ["Converting", "not_continued", "not_finite", "not_finite_at_first", "unannounced"]


class Converting:
    """Inside `with`, a value of the host is converted: whatever is raised for it, the host gets an `InputError`.

    A class, because a generator would take as long as the conversion.
    """

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError):
            raise InputError(f"{self._what} cannot be used: {type(error).__name__}: {error}") from error


def unannounced(table: StreamTable, slot: int) -> InputError:
    """An episode has ended, and the end was not announced."""
    return InputError(
        f"{table.name(slot)}: its episode ended, but the end was never announced: "
        f"call on_episode(stream={table.id_of(slot)!r}) first"
    )


def not_continued(table: StreamTable, slot: int, observation: Any) -> InputError:
    """A transition does not start from the newest observation."""
    return InputError(
        f"{table.name(slot)}: the observation {observation!r:.80} is not the last one seen, "
        f"{table.last_shown(slot)}; was there a reset without the end of the episode being announced?"
    )


def not_finite_at_first(table: StreamTable, slot: int, observation: Array) -> InputError:
    """The first observation of an episode contains NaN or infinity."""
    return InputError(f"{table.name(slot)}: the first observation is not finite: {observation!r:.120}")


def not_finite(table: StreamTable, slot: int, reward: float, action: Array, after: Array) -> InputError:
    """A transition contains NaN or infinity."""
    what = f"an observation {after!r:.120}"
    if not math.isfinite(reward):
        what = f"the reward {reward}"
    elif not all_finite([action]):
        what = f"the action {action!r:.120}"
    error = InputError(f"{table.name(slot)}: {what} is not finite")
    # Not part of the message: the trainer passes the message on, but has no such option.
    error.add_note("A session with bad_values='drop' drops such transitions.")
    return error

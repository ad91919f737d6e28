"""The error codes that a client can receive, and the close codes of those that end its connection."""

from __future__ import annotations

from rekindle.errors import RekindleError

__all__ = ["CLOSE_CODES", "Refusal"]

CLOSE_CODES = {
    "bad_message": 1007,
    "too_large": 1009,
    "version": 1002,
    "token": 4401,
    "spaces": 4406,
    "taken": 4409,
    "gone": 4410,
    "replaced": 4408,
    "sequence": 4412,
    "rate": 1008,
    "full": 1013,
    "leaving": 1001,
    "internal": 1011,
}


class Refusal(RekindleError):
    """A message is refused; the state of the server is unchanged."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

"""Groups of calls: what is due runs after the last of them."""

from __future__ import annotations

from rekindle.errors import ConfigError
from rekindle.session.flow import Flow
from rekindle.session.parts import Parts

__all__ = ["CallGroup"]


class CallGroup:
    """Inside `with`, nothing that is due runs: metric rows, hooks and checkpoints follow when the block is left.

    If an exception leaves the block, what is due is done before the next call, or after the next group of calls.
    """

    def __init__(self, parts: Parts, flow: Flow) -> None:
        self._parts, self._flow, self._due = parts, flow, flow.due

    def __enter__(self) -> None:
        if self._parts.inputs is not None:
            raise ConfigError("calls cannot be grouped with an input journal: it records them one by one")
        self._due.is_held = True

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._due.is_held = False
        if error is None:
            self.finish()
        else:
            self._flow.owed.leave_due()

    @property
    def is_interrupted(self) -> bool:
        """Whether a stop interrupted the updates of the last call: make no other call before a resume."""
        return self._parts.owed.updates

    def finish(self) -> None:
        """Do what is due now; right after a resume, also what was due before it.

        Raises `Interrupted` if a stop comes before that is complete.
        """
        with self._flow.call:
            self._due.finish_call()

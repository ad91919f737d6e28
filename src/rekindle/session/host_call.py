"""The beginning and the end of every call of the host that changes a session."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from rekindle.errors import InputError, StorageError
from rekindle.session.due import Due
from rekindle.session.learner import DirectLearner
from rekindle.session.owed import OwedWork
from rekindle.session.parts import Parts

__all__ = ["HostCall"]


class HostCall:
    """One call of the host that changes something. It first does what a resume or an exception left due.

    If an error ends it half-way, the agent has failed: its state may not match the session's, so it is not saved. For
    example, Ctrl-C can come after the agent saw a transition and before the table of streams did. Errors that a hook or
    an environment raises, and `InputError`, leave everything consistent. What a callback raised is raised at the end.
    """

    def __init__(self, parts: Parts, due: Due, owed: OwedWork) -> None:
        self._parts, self._due, self._owed = parts, due, owed
        self._inputs = parts.inputs
        self._is_background = not isinstance(parts.learner, DirectLearner)
        self._env_error: BaseException | None = None
        """What an environment raised last."""

    def __enter__(self) -> None:
        self.enter()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if error is None and self._parts.outbox.noted is not None:
            try:
                self._due.raise_noted()
            except BaseException as noted:
                self.leave(noted)
                raise
        elif error is not None:
            self.leave(error)

    @contextlib.contextmanager
    def of_environment(self) -> Generator[None]:
        """Inside `with`, an environment of the host is called: what it raises leaves the session consistent."""
        try:
            yield
        except BaseException as error:
            self._env_error = error
            raise

    # For the calls made every step, which a `with` statement would slow down.

    def enter(self) -> None:
        """Begin a call."""
        if self._parts.learner.failure is not None:
            self._parts.learner.refuse()
        if self._owed.is_behind:
            self._owed.catch_up()
        self._due.is_unsaved = True
        if self._inputs is not None:
            try:
                self._inputs.begin_call()
            except StorageError as error:  # a sync failed on another thread
                if not self._due.is_inside_a_call and not self._parts.interrupter.is_stopped:
                    self._stop_without_journal(error)
                raise
        if self._is_background and not self._parts.outbox.is_emitting:  # the record of a host's call names the updates
            self._parts.learner.look()

    def leave(self, error: BaseException) -> None:
        """End a call with an error; raises an interrupt of a callback, which comes before an error."""
        try:
            self._leave(error)
        finally:
            if not self._due.is_inside_a_call:
                self._parts.outbox.log_noted(error)

    def _leave(self, error: BaseException) -> None:
        if self._inputs is not None:
            if not self._parts.outbox.is_emitting:  # the call of a callback is part of another, which continues
                self._inputs.mark_recorded()
            if error is self._inputs.failure:  # the call was made, but no record of it: it is saved in a checkpoint
                self._stop_without_journal(error)
                return
        if error is self._parts.outbox.raised:
            return
        if error is self._due.raised:
            self._owed.leave_due()
        if isinstance(error, InputError):
            if not self._parts.counts.env_steps and not self._parts.streams.table.open_slots():
                self._parts.streams.intake.forget_first()
            return
        if error is not self._due.raised and error is not self._env_error:
            self._parts.learner.fail(error)

    def _stop_without_journal(self, error: BaseException) -> None:
        self._due.stop_with_checkpoint(f"the input journal cannot be written: {error}")

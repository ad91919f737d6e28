"""The end of a session: its last checkpoint, its status, and the release of its resources."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator
from typing import cast

from rekindle.errors import InputError, Interrupted, RekindleError
from rekindle.events import TrainingEnded
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import Status
from rekindle.session.closing import Closing
from rekindle.session.due import Due
from rekindle.session.flow import Flow
from rekindle.session.learner import ClosedLearner, Learner
from rekindle.session.parts import Parts

__all__ = ["Ending"]

logger = logging.getLogger("rekindle")


class Ending:
    """Closes a session once, and tracks whether it is closed."""

    def __init__(self, parts: Parts, flow: Flow, due: Due, run: TrainingRun | None, *, is_logging: bool) -> None:
        self._parts, self._flow, self._due, self._run = parts, flow, due, run
        self._closing = Closing(parts)
        self._is_logging = is_logging
        """Whether the half-filled metric window is logged at the end."""
        self._functions: list[Callable[[], object]] = []
        self._refusal: str | None = None
        """Why the session accepts no more calls; None while it does."""
        self._may_log = False
        """Whether callbacks and functions of `at_end` may still log, while the session is being closed."""

    @property
    def is_closed(self) -> bool:
        """Whether the session is closed, or belongs to another process."""
        return self._refusal is not None

    def check_open(self) -> None:
        """Raise if the session is closed; what is called while it is being closed may still log."""
        if self._refusal is not None and not self._may_log:
            raise InputError(self._refusal)

    def add(self, function: Callable[[], object]) -> None:
        """Call a function when the run finishes, after its last checkpoint."""
        self._functions.append(function)

    def abandon(self) -> None:
        """In a forked child: accept no more calls, and leave the run to the parent."""
        self._refuse("this session belongs to the process that opened it; a forked child cannot use it")
        self._detach_learner()

    def _refuse(self, why: str) -> None:
        self._refusal = self._refusal or why

    def _detach_learner(self) -> None:
        self._parts.learner = cast("Learner", ClosedLearner(self._refusal or ""))

    def close(self) -> None:
        """End the session with the right status: finished, stopped, or failed if the agent has failed."""
        parts = self._parts
        try:
            self._flow.owed.replay_journal()
        except BaseException as error:
            self.close_after(error)
            raise
        if parts.learner.failure is not None:
            self._close("failed", f"the agent failed: {parts.learner.failure}", save=False)
            return
        interrupter = parts.interrupter
        is_finished = interrupter.is_complete if interrupter.is_stopped else self._flow.is_done
        reason = interrupter.reason if interrupter.is_stopped else "max_steps" if is_finished else None
        if is_finished and not self.is_closed:
            try:
                self._flow.owed.catch_up()  # a run stopped at its last step may have been resumed only for this
            except Interrupted:
                is_finished, reason = False, interrupter.interruption
            except BaseException as error:
                self.close_after(error)
                raise
        self._close("finished" if is_finished else "stopped", reason or "the host left its loop", save=True)

    def close_after(self, error: BaseException) -> None:
        """End the session after an exception of the host; save the agent unless it has failed."""
        is_interrupt = isinstance(error, KeyboardInterrupt)
        reason = "KeyboardInterrupt" if is_interrupt else f"{type(error).__name__}: {error}"
        try:
            self._close("stopped" if is_interrupt else "failed", reason, save=self._parts.learner.failure is None)
        except Exception as second:
            failure = self._parts.direct.failure
            known = (error, error.__cause__)
            if failure is not None and failure in known and failure in (second, second.__cause__):
                return  # the caller knows it
            logger.error("while closing after %s: %s: %s", reason, type(second).__name__, second)

    def _close(self, status: Status, reason: str, *, save: bool) -> None:
        if self.is_closed:
            return
        self._refuse("the session is closed: open another to continue its run")
        outbox = self._parts.outbox
        try:
            with outbox.holding_back():
                problem = self._end(status, reason, save=save)
        finally:
            self._let_go()
        if problem is not None:
            outbox.log_noted(problem)
            raise problem
        outbox.raise_noted()

    def _end(self, status: Status, reason: str, *, save: bool) -> BaseException | None:
        """End the learner, the logs and the run; returns the first error."""
        parts, problem = self._parts, cast("BaseException | None", None)
        try:
            with self._logging():  # callbacks hear of the last updates
                self._closing.end_learner()
            if save and not self._save_last(is_finished=status == "finished") and status == "finished":
                status, reason = "stopped", parts.interrupter.interruption or "interrupted"
        except Exception as error:
            problem = error
            if status != "failed":  # whatever the status would have been, part of the state is not on disk
                status, reason = "failed", f"{type(error).__name__}: {error}"
        try:
            parts.logbook.close(status)
        except RekindleError as error:  # the thread that writes metrics died: rows may be missing
            problem = problem or error
            status, reason = "failed", str(error)
        if self._run is not None:
            try:
                self._write_status(self._run, status, reason)
            except RekindleError as error:
                problem = problem or error
        parts.outbox.deliver()
        parts.outbox.emit(TrainingEnded(parts.counts.stamp(), status, reason))
        return problem

    def _save_last(self, *, is_finished: bool) -> bool:
        """Take the last checkpoint, then log rows that belong to the end only: a resume removes these rows again.

        Returns whether the run is finished; it is not if the work at the end was interrupted.
        """
        parts = self._parts
        with self._logging():  # and of the last episodes
            self._closing.end_episodes()
        if parts.saver is not None:
            parts.saver.settle()
            if self._due.is_unsaved or self._has_records or parts.saver.is_behind or parts.attached.has_changed():
                self._due.take_checkpoint(parts.saver)
            if (error := parts.saver.settle()) is not None:
                raise error
        if parts.inputs is not None:
            parts.inputs.close()  # what follows belongs to the end, so a resume does not make it again
        is_finished = is_finished and self._run_functions()
        if self._is_logging and not parts.logbook.window.is_empty:
            with self._logging():
                self._due.flush_metrics()
        return is_finished

    @property
    def _has_records(self) -> bool:
        """Whether the input journal has records after the newest checkpoint, such as those of a resume."""
        inputs, saver = self._parts.inputs, self._parts.saver
        return inputs is not None and saver is not None and not saver.has_checkpoint_at(inputs.number)

    def _run_functions(self) -> bool:
        """Call the functions of `at_end`; returns False if a stop interrupted one of them."""
        try:
            with self._logging():
                for function in self._functions:
                    function()
        except Interrupted:
            return False
        saver = self._parts.saver
        if saver is not None and (error := saver.settle_best()) is not None:
            raise error
        return True

    @contextlib.contextmanager
    def _logging(self) -> Generator[None]:
        """Inside `with`, callbacks and functions of the host may log, although the session is being closed."""
        self._may_log = True
        try:
            yield
        finally:
            self._may_log = False

    def _write_status(self, run: TrainingRun, status: Status, reason: str) -> None:
        counts = self._parts.counts
        run.log("metrics").sync()
        run.update_metadata(
            status=status,
            stop_reason=reason,
            exact=run.metadata.exact and self._parts.grading.is_exact,
            total_steps=counts.env_steps,
            total_episodes=counts.episodes,
            updates=counts.updates,
        )

    def _let_go(self) -> None:
        parts = self._parts
        self._detach_learner()
        with contextlib.ExitStack() as stack:
            if self._run is not None:
                stack.callback(self._run.close)
            if parts.inputs is not None:
                stack.callback(parts.inputs.close)
            if parts.saver is not None:
                stack.callback(parts.saver.close)
            parts.interrupter.unwatch()

"""Do what is due: metric rows, hooks, checkpoints."""

from __future__ import annotations

from rekindle.agent import session_steps
from rekindle.errors import AgentError, InputError, Interrupted
from rekindle.session.learner import DirectLearner
from rekindle.session.parts import Parts
from rekindle.session.records import Kind
from rekindle.session.saving import Saver, Snapshot
from rekindle.session.schedule import Hook

__all__ = ["Due"]


class Due:
    """Does what the schedule says, in this order: metrics, hooks (such as evaluations), checkpoint."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._is_running = False
        self.is_unsaved = True
        """Whether anything may have changed since the last checkpoint."""
        self.is_held = False
        """Whether what is due waits for the end of a group of calls."""
        self.raised: BaseException | None = None
        """What a hook or a checkpoint raised last; everything due before it was done."""
        self._interrupted_at: int | None = None
        """The env step at which a stop interrupted a hook that is still due."""

    @property
    def is_inside_a_call(self) -> bool:
        """Whether a callback or a hook is running, so that the current call is not over."""
        return self._is_running or self._parts.outbox.is_emitting

    @property
    def is_waiting(self) -> bool:
        """Whether what is due waits: for the end of a group, the announced end of an episode, or the end of a call.

        It waits for the end of a call if a callback makes another call in the middle of it.
        """
        return self.is_held or self._parts.outbox.is_in_mid_call or self._parts.streams.unannounced_ends > 0

    def finish_call(self) -> None:
        """Do what is due at the end of a call, unless it waits for a later one."""
        parts = self._parts
        if parts.counts.env_steps < parts.schedule.next or self.is_waiting:
            return
        if not self._is_running and not parts.owed.updates:
            self._run()

    def raise_noted(self) -> None:
        """Raise what a callback raised during the call of the host that ends now.

        If the call ended an episode that the host announces next, that call raises it: the host must make it first.
        """
        if not self.is_inside_a_call and not self._parts.streams.unannounced_ends:
            self._parts.outbox.raise_noted()

    def _run(self) -> None:
        parts, schedule, steps = self._parts, self._parts.schedule, self._parts.counts.env_steps
        self._is_running = True
        try:
            if schedule.metrics.is_due(steps):
                self.flush_metrics()
            self._grade_interruption(steps)
            try:
                for place, hook in schedule.due_hooks(steps):
                    self._call(place, hook, steps)
                schedule.plan()
                if schedule.checkpoint.is_due(steps) or schedule.checkpoint_asked:
                    if parts.saver is None or (parts.inputs is not None and parts.inputs.replaying is not None):
                        schedule.checkpoint_taken(steps)
                    else:
                        self.take_checkpoint(parts.saver)
                self._interrupted_at = None
            except Interrupted:  # what was interrupted, and everything after it, stays due
                self._interrupted_at = steps
            except BaseException as error:
                self.raised = error
                raise
        finally:
            self._is_running = False
            schedule.plan()
        parts.outbox.deliver()

    def _grade_interruption(self, env_steps: int) -> None:
        """Mark the session as inexact if the host made steps although a hook was due before them.

        With a journal, these steps and their order are recorded.
        """
        at = self._interrupted_at
        if at not in (None, env_steps) and self._parts.inputs is None and self._parts.grading.is_exact:
            self._parts.grading.mark_inexact(
                f"a stop interrupted a function of every() at step {at}, and the host made steps after it: the "
                f"function is called at step {env_steps} or later"
            )

    def _call(self, place: int, hook: Hook, env_steps: int) -> None:
        """Call a hook; while a journal is replayed, replay its calls instead."""
        inputs, outbox = self._parts.inputs, self._parts.outbox
        if inputs is None:
            outbox.raise_interrupt()
            hook.call(env_steps)
            return
        if inputs.replaying is not None and inputs.replaying.hook(place, hook, env_steps):
            return
        inputs.hook(Kind.HOOK_BEGUN, place)
        try:
            outbox.raise_interrupt()
            with self._parts.grading.watching_generators("a function of every()"):
                hook.call(env_steps)
        except BaseException:
            inputs.hook(Kind.HOOK_RAISED, place)
            raise
        inputs.hook(Kind.HOOK_DONE, place)

    def flush_metrics(self) -> None:
        """End the metric window; raises `AgentError` if a loss of the agent is not finite."""
        self.check_losses()
        parts = self._parts
        timings: dict[str, float] = {"checkpoint_stall": 0.0 if parts.saver is None else parts.saver.stall}
        if not isinstance(parts.learner, DirectLearner):
            timings |= {"skipped_updates": parts.skipped_updates, "blocked_calls": parts.learner.blocked}
        event = parts.logbook.flush_window(timings)
        parts.schedule.metrics.done(parts.counts.env_steps)
        parts.outbox.emit(event)

    def check_losses(self) -> None:
        """Raise before a diverged agent is logged or saved; this reads values that are still on a device."""
        bad = self._parts.logbook.non_finite_loss()
        if bad is not None:
            raise self._parts.diverged(bad)

    def take_checkpoint(self, saver: Saver) -> None:
        """Copy the state of everything; another thread writes it."""
        self.check_losses()
        parts = self._parts
        if isinstance(parts.learner, DirectLearner):
            saver.settle()
            if session_steps(parts.agent) != parts.counts.env_steps:
                error = AgentError(
                    f"{type(parts.agent).__name__}.env_steps is {parts.agent.env_steps} after "
                    f"{parts.counts.env_steps} transitions: observe must add len(transitions) to it"
                )
                parts.learner.fail(error)
                raise error
        if parts.inputs is not None:
            parts.inputs.cut()
        part = parts.learner.read(saver.agent_copier(parts.agent, parts.learner.state_reader()))
        parts.schedule.checkpoint_taken(parts.counts.env_steps)
        snapshot = Snapshot(
            stamp=parts.counts.stamp(),
            session=parts.state(),
            attached=parts.attached.save(),
            metrics=parts.logbook.means(),
            best=parts.best.kept,
            exact=parts.grading.is_exact,
            data=saver.collect_data(parts.kept),
        )
        saver.save(snapshot, part, parts.logbook.mark())
        self.is_unsaved = False

    def checkpoint(self, saver: Saver, *, wait: bool) -> None:
        """Take a checkpoint because the host asked for one; see `TrainingSession.checkpoint`."""
        parts = self._parts
        if self.is_inside_a_call and not wait:
            parts.schedule.ask_checkpoint()
            return
        if parts.inputs is not None and not parts.inputs.is_recorded:
            raise InputError(
                "checkpoint(wait=True) inside a callback: the input journal has no record of the current call yet; "
                "without wait, the checkpoint is taken when the call ends"
            )
        parts.streams.check_all_announced()
        if (failure := parts.learner.failure) is not None:
            raise AgentError("checkpoint(): the agent failed in an earlier call; its state is not saved") from failure
        self.take_checkpoint(saver)
        if wait:
            error = saver.settle()
            parts.outbox.deliver()
            if error is not None:
                raise error
            self.raise_noted()

    def stop_with_checkpoint(self, reason: str) -> None:
        """Stop the session, and save what it is now."""
        parts = self._parts
        parts.interrupter.stop(reason)
        parts.outbox.warn(reason)
        if parts.saver is not None and not parts.streams.unannounced_ends:
            self.take_checkpoint(parts.saver)
            parts.saver.settle()

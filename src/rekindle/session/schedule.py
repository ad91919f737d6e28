"""Which work is due at which env step: metric windows, hooks, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated

import msgspec

from rekindle.agent import State
from rekindle.checks import refuses_misfits
from rekindle.errors import StateError

__all__ = ["Hook", "Interval", "Schedule"]

_Count = Annotated[int, msgspec.Meta(ge=0)]


class Interval:
    """Something that is due at every multiple of `every` env steps, or never if `every` is None."""

    def __init__(self, every: int | None, env_steps: int) -> None:
        self.every = every
        self.next: float = math.inf
        """The env step at which it is due next."""
        self.done(env_steps)

    def is_due(self, env_steps: int) -> bool:
        """Whether it is due now; if a batch passes several multiples, they count once."""
        return env_steps >= self.next

    def done(self, env_steps: int) -> None:
        """Record that it was done at this step; it is due again at the next multiple."""
        if self.every is not None:
            self.next = (env_steps // self.every + 1) * self.every


class Hook(Interval):
    """A function that is due at every multiple of a number of env steps."""

    def __init__(self, every: int, function: Callable[[], object], env_steps: int) -> None:
        super().__init__(every, env_steps)
        self._function = function

    def call(self, env_steps: int) -> None:
        """Call the function; if it raises, it stays due."""
        due = self.next
        self.done(env_steps)  # before the call: if it takes a checkpoint, a resume from it must not call it again
        try:
            self._function()
        except BaseException:
            self.next = due
            raise


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metrics: bool
    hooks: list[_Count]


class Schedule:
    """Tracks what is due. It is part of the checkpoint: work that was due and not done is done after a resume."""

    def __init__(self, *, metrics_every: int | None, checkpoint_every: int | None, env_steps: int) -> None:
        self.metrics = Interval(metrics_every, env_steps)
        self.checkpoint = Interval(checkpoint_every, env_steps)
        self.checkpoint_asked = False
        """Whether a callback or hook requested a checkpoint, to be taken when the call ends."""
        self._hooks: list[Hook] = []
        self._still_due: list[int] = []
        """Positions of hooks that were due before a resume, and have not been added again yet."""
        self.next: float = 0.0
        """The first env step at which anything is due."""
        self.plan()

    def plan(self) -> None:
        """Compute the next env step at which anything is due; call it after anything was done or requested."""
        intervals = (self.metrics, *self._hooks, self.checkpoint)
        self.next = -math.inf if self.checkpoint_asked else min(interval.next for interval in intervals)

    def add_hook(self, every: int, function: Callable[[], object], env_steps: int) -> None:
        """Add a hook; after a resume it is due at once if the hook at its position was due before."""
        hook = Hook(every, function, env_steps)
        if len(self._hooks) in self._still_due:
            self._still_due.remove(len(self._hooks))
            hook.next = env_steps
        self._hooks.append(hook)
        self.plan()

    def retry_hook(self, place: int, env_steps: int) -> None:
        """Make the hook at a position due now."""
        if place < len(self._hooks):
            self._hooks[place].next = env_steps
            self.plan()
        else:
            self._still_due.append(place)

    def due_hooks(self, env_steps: int) -> Iterator[tuple[int, Hook]]:
        """The hooks that are due, with their positions; hooks added in the meantime are not included."""
        return ((place, hook) for place, hook in enumerate(list(self._hooks)) if hook.is_due(env_steps))

    def ask_checkpoint(self) -> None:
        """Make a checkpoint due at the end of the current call."""
        self.checkpoint_asked = True
        self.plan()

    def checkpoint_taken(self, env_steps: int) -> None:
        """Record that a checkpoint is being taken."""
        self.checkpoint_asked = False
        self.checkpoint.done(env_steps)
        self.plan()

    def state(self, env_steps: int) -> State:
        """What is due now and not done: nothing, unless a stop or an error came in between.

        The next due steps are not saved: they follow from the env steps, and a resume may change the intervals.
        """
        due = [place for place, hook in enumerate(self._hooks) if hook.is_due(env_steps)]
        return {"metrics": self.metrics.is_due(env_steps), "hooks": sorted({*due, *self._still_due})}

    @refuses_misfits
    def load_state(self, state: State | None, env_steps: int) -> None:
        """Restore at this step, with what was due there."""
        try:
            saved = _Saved(metrics=False, hooks=[]) if state is None else msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"schedule: {error}") from None
        for interval in (self.metrics, self.checkpoint):
            interval.done(env_steps)
        if saved.metrics and self.metrics.every is not None:
            self.metrics.next = env_steps
        self._still_due = list(saved.hooks)
        self.plan()

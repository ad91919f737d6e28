"""Watch the updates of an agent, and say where the first one goes wrong: in which layer, and at which row."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import jax
import numpy as np

from rekindle.agents.acting import Actor
from rekindle.agents.dispatch import Dispatch, Watched
from rekindle.agents.tracing import Origin, traced
from rekindle.errors import AgentError
from rekindle.experience import Array, Observations

__all__ = ["Compiled", "Located", "UpdateWatcher", "located_output"]

_MANY = 200
"""Updates that an exploding gradient is compared with."""
_EXPLODING, _CALM = 100.0, 10.0
"""How many times the median a gradient is when it explodes, and when it no longer does."""
_MOST_NUMBERS = 16


@runtime_checkable
class Compiled(Protocol):
    """An agent whose updates and outputs are compiled by JAX."""

    def compiled(self) -> tuple[Dispatch[Any], Actor[Any]]:
        """What computes updates and actions."""
        ...


class Located(NamedTuple):
    """Where something went wrong."""

    update: int
    """The number of the update; 1 for the first of the training."""
    origin: Origin
    transition: dict[str, Any]
    """What the row of the batch holds: its largest numbers, if it is long."""
    grad_norm: float | None
    usual_grad_norm: float | None
    """The median of the updates before."""


class _Onset(NamedTuple):
    """The update in which a gradient began to explode."""

    update: int
    watched: Watched
    place: int
    usual: float


class UpdateWatcher:
    """Looks at every update; raises `AgentError` after the first whose metrics or weights are not finite."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        """Updates made so far."""
        self.metrics: list[dict[str, float]] = []
        """Those of each update that it saw."""
        self.found: Located | None = None
        """The update whose result is not finite."""
        self._norms: list[float] = []
        self._onset: _Onset | None = None
        """Since when the gradient is exploding."""
        self._first_onset: _Onset | None = None
        """When it did for the first time, whether it still does or not."""
        self._last: tuple[int, Watched, int] | None = None

    def __call__(self, watched: Watched) -> None:
        """Look at a dispatch that was made."""
        for index, metrics in enumerate(watched.metrics):
            self.updates += 1
            self.metrics.append({"update": self.updates, **metrics})
            self._last = (self.updates, watched, index)
            is_good = all(map(math.isfinite, metrics.values()))
            if is_good and index == watched.count - 1:
                is_good = _is_finite(watched.after)
            self._look_at_gradient(watched, index, metrics.get("grad_norm", math.nan))
            if not is_good:
                self.found = self._located(self.updates, watched, index)
                raise AgentError(f"update {self.updates} is not finite")

    def onset(self) -> Located | None:
        """Where the gradient began to explode, before anything was not finite; None if it did not."""
        onset = self._first_onset if self.found is None else self._onset
        if onset is None or (self.found is not None and onset.update >= self.found.update):
            return None
        return self._located(onset.update, onset.watched, onset.place, onset.usual)

    def last(self) -> Located | None:
        """The last update: where it is not finite, or where its gradient is largest."""
        return None if self._last is None else self._located(*self._last)

    def _look_at_gradient(self, watched: Watched, index: int, norm: float) -> None:
        usual = self._usual()
        if self._onset is None:
            if usual is not None and not norm <= _EXPLODING * usual:
                self._onset = _Onset(self.updates, watched, index, usual)
                self._first_onset = self._first_onset or self._onset
        elif norm <= _CALM * self._onset.usual:
            self._onset = None
        if self._onset is None and math.isfinite(norm):  # what explodes is not usual
            self._norms.append(norm)

    def _usual(self) -> float | None:
        """The median of gradients that did not explode."""
        return statistics.median(self._norms[-_MANY:]) if self._norms else None

    def _located(self, update: int, watched: Watched, index: int, usual: float | None = None) -> Located | None:
        step, arguments = watched.update(index)
        batch = arguments["batch"]
        rollout = arguments["inputs"].get("rollout")
        rows = len(batch["rewards"] if rollout is None else batch["indices"])
        trace = traced(step, arguments, batch="batch", rows=rows)
        origin = trace.first_not_finite() or trace.largest_gradient()
        if origin is None:
            return None
        place, columns = origin.row, batch
        if rollout is not None and place is not None:
            place, columns = int(min(batch["indices"][place], len(rollout["numbers"]) - 1)), _rollout_columns(rollout)
        return Located(
            update,
            origin,
            {} if place is None else _row(columns, place),
            watched.metrics[index].get("grad_norm"),
            self._usual() if usual is None else usual,
        )


def located_output(actor: Actor[Any], observations: Observations, updates: int) -> Located | None:
    """Where the output of a network for observations stops being finite; None if it is finite."""
    function, arguments = actor.computation(observations)
    rows = len(arguments["noise"])
    origin = traced(function, arguments, batch="observations", rows=rows).first_not_finite()
    if origin is None:
        return None
    transition = {} if origin.row is None else _row({"observations": arguments["observations"]}, origin.row)
    return Located(updates, origin, transition, None, None)


def _is_finite(state: Any) -> bool:
    arrays = [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(state)]
    return all(bool(np.isfinite(array).all()) for array in arrays if array.dtype.kind == "f")


def _rollout_columns(rollout: Mapping[str, Any]) -> dict[str, Any]:
    log_probs, values, advantages, returns = np.asarray(rollout["numbers"]).T
    numbers = {"log_probs": log_probs, "values": values, "advantages": advantages, "returns": returns}
    return {"observations": rollout["observations"], "actions": rollout["actions"], **numbers}


def _row(columns: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One row of a batch, by column; of a long one the largest numbers."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        if name in ("noise", "weights", "indices") or column is None:
            continue
        leaves = jax.tree_util.tree_leaves_with_path(column)
        for path, leaf in leaves:
            key = f"{name}{jax.tree_util.keystr(path)}"
            numbers = cast("Array", np.asarray(leaf)[row]).ravel()
            order = np.argsort(-np.abs(numbers.astype(np.float64)), kind="stable")[:_MOST_NUMBERS]
            found[key] = (numbers if numbers.size <= _MOST_NUMBERS else numbers[order]).tolist()
    return found

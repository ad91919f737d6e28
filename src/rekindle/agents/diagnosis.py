"""Watch the updates of an agent and locate the first NaN or exploding gradient: the layer and the row of the batch."""

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
"""The number of recent updates whose median gradient norm is the usual one."""
_EXPLODING, _CALM = 100.0, 10.0
"""A gradient explodes above this multiple of the usual norm, and is calm again below the second one."""
_MOST_NUMBERS = 16


@runtime_checkable
class Compiled(Protocol):
    """An agent whose updates and outputs are compiled by JAX."""

    def compiled(self) -> tuple[Dispatch[Any], Actor[Any]]:
        """The parts that compute updates and actions."""
        ...


class Located(NamedTuple):
    """The update and the operation where something went wrong."""

    update: int
    """The number of the update; 1 for the first of the training."""
    origin: Origin
    transition: dict[str, Any]
    """The row of the batch, by column; only the largest numbers of a long column."""
    grad_norm: float | None
    usual_grad_norm: float | None
    """The median gradient norm of the updates before."""


class _Onset(NamedTuple):
    """The update where the gradient began to explode."""

    update: int
    watched: Watched
    place: int
    usual: float


class UpdateWatcher:
    """Checks every update; raises `AgentError` after the first with metrics or weights that are not finite."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        """Updates made so far."""
        self.metrics: list[dict[str, float]] = []
        """The metrics of each update."""
        self.found: Located | None = None
        """The update whose result is not finite."""
        self._norms: list[float] = []
        self._onset: _Onset | None = None
        """The start of the current explosion; None if the gradient is calm."""
        self._first_onset: _Onset | None = None
        """The start of the first explosion, even if the gradient is calm again."""
        self._last: tuple[int, Watched, int] | None = None

    def __call__(self, watched: Watched) -> None:
        """Check the updates of a dispatch."""
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
        """Where the gradient began to explode, before the first NaN or infinity; None if it did not explode."""
        onset = self._first_onset if self.found is None else self._onset
        if onset is None or (self.found is not None and onset.update >= self.found.update):
            return None
        return self._located(onset.update, onset.watched, onset.place, onset.usual)

    def last(self) -> Located | None:
        """The last update: where it is not finite, otherwise where its gradient is largest."""
        return None if self._last is None else self._located(*self._last)

    def _look_at_gradient(self, watched: Watched, index: int, norm: float) -> None:
        usual = self._usual()
        if self._onset is None:
            if usual is not None and not norm <= _EXPLODING * usual:
                self._onset = _Onset(self.updates, watched, index, usual)
                self._first_onset = self._first_onset or self._onset
        elif norm <= _CALM * self._onset.usual:
            self._onset = None
        if self._onset is None and math.isfinite(norm):  # exploding gradients do not count as usual
            self._norms.append(norm)

    def _usual(self) -> float | None:
        """The median norm of recent gradients that did not explode."""
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
    """Where the output of a network first becomes NaN or infinite for these observations; None if it is finite."""
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
    """One row of a batch, by column; only the largest numbers of a long column."""
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

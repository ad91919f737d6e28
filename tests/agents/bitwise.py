"""What must be equal to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rekindle.agents.dispatch import Dispatch
from rekindle.agents.trees import placed
from rekindle.storage import codec


def same(first: Any, second: Any) -> bool:
    """Whether two states, or parts of them, are equal to the bit."""
    return codec.tree_digest({"tree": first}) == codec.tree_digest({"tree": second})


def check_one_dispatch(it: Any, batches: Sequence[dict[str, Any]]) -> None:
    """Updates on batches in one dispatch are equal to the bit to one at a time."""
    rows = len(batches[0]["rewards"]) if it.config.prioritised else 0

    def step(state: Any, batch: Any, schedules: Any) -> Any:
        state, metrics, surprise = it.update.step(state, it.see(batch), schedules)
        return state, metrics, surprise if rows else None

    def start() -> Any:
        return placed(it.update.start(), None)

    dispatch: Dispatch[Any] = Dispatch(step, it.update.metrics, example=batches[0], rows=rows)
    schedules = {name: np.float32(1e-2) for name in it.update.schedules}
    together, outcome = dispatch(start(), _joined(batches), len(batches), schedules)
    single, losses, surprises = start(), [], []
    for batch in batches:
        single, one = dispatch(single, batch, 1, schedules)
        losses.append(np.asarray(dispatch.metrics([one])["loss"]))
        surprises.append(one.rows())
    for first, second in zip(jax.tree_util.tree_leaves(together), jax.tree_util.tree_leaves(single), strict=True):
        np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(np.asarray(dispatch.metrics([outcome])["loss"]), np.concatenate(losses))
    np.testing.assert_array_equal(outcome.rows(), np.concatenate(surprises))


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: _joined([part[key] for part in parts]) for key in parts[0]}
    return None if parts[0] is None else np.concatenate(parts)

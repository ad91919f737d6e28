"""What tests of several agents compare with: random batches, and losses as their papers write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from rekindle.experience import Array

__all__ = ["random_batch", "reference_quantile_huber"]


def random_batch(rng: np.random.Generator, rows: int, size: int, actions: Array, **more: Any) -> dict[str, Any]:
    """A batch of observations of some size, with these actions; some transitions end an episode, or span two steps."""
    return {
        "observations": rng.normal(size=(rows, size)).astype(np.float32),
        "actions": actions,
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_observations": rng.normal(size=(rows, size)).astype(np.float32),
        "discounts": rng.choice([0.0, 0.9, 0.81], rows).astype(np.float32),
        **more,
    }


def reference_quantile_huber(predicted: list[float], taus: list[float], goals: list[float]) -> float:
    """Pair by pair, as in the paper, with kappa 1: the mean over goals and the sum over predictions."""
    total = 0.0
    for value, tau in zip(predicted, taus, strict=True):
        for goal in goals:
            error = goal - value
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            total += abs(tau - (1.0 if error < 0 else 0.0)) * huber / len(goals)
    return total

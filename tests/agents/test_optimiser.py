"""The optimiser is optax's clipping and Adam, in fewer operations."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

from rekindle.agents import DQNConfig
from rekindle.agents.optimiser import optimised, optimiser_of

RATE = 0.01


def gradients(count: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(7, np.float32), rng.standard_normal((3, 4), np.float32)) for _ in range(count)]


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 100.0])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_it_steps_as_that_of_optax_does(max_grad_norm: float | None, accumulation: int) -> None:
    clip = optax.identity() if max_grad_norm is None else optax.clip_by_global_norm(max_grad_norm)
    known = optax.MultiSteps(optax.chain(clip, optax.adam(RATE, eps=1e-5)), accumulation)
    ours = optimiser_of(DQNConfig(max_grad_norm=max_grad_norm, adam_eps=1e-5, gradient_accumulation=accumulation))
    expected: Any
    params: Any
    expected = params = (np.ones(7, np.float32), np.ones((3, 4), np.float32))
    known_state, state = known.init(expected), ours.init(params)
    step = jax.jit(lambda gradient, state, params: optimised(ours, gradient, state, params, RATE))
    for gradient in gradients(12):
        changes, known_state = known.update(gradient, known_state, expected)
        expected = optax.apply_updates(expected, changes)
        params, state = step(gradient, state, params)
        for one, other in zip(params, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_gradient_of_zero_is_not_clipped_to_nan() -> None:
    ours = optimiser_of(DQNConfig(max_grad_norm=0.5))
    params = np.ones(3, np.float32)
    after, _ = optimised(ours, np.zeros(3, np.float32), ours.init(params), params, RATE)
    assert np.array_equal(after, params)


def test_the_state_is_that_of_optax() -> None:
    params = (np.ones(2, np.float32), np.ones((2, 2), np.float32))
    known = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam())
    ours = optimiser_of(DQNConfig(max_grad_norm=0.5))
    assert jax.tree_util.tree_structure(ours.init(params)) == jax.tree_util.tree_structure(known.init(params))

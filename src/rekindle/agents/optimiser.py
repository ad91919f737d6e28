"""The Adam optimiser, with gradient clipping and gradient accumulation."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import optax

from rekindle.agents.configs import AgentConfig
from rekindle.agents.weights import norm
from rekindle.agents.xla import after

__all__ = ["optimised", "optimiser_of"]

_MEAN_DECAY, _SQUARE_DECAY = 0.9, 0.999

_each = jax.tree_util.tree_map


def optimiser_of(config: AgentConfig) -> optax.GradientTransformation:
    """Gradient clipping, then Adam, with gradient accumulation, as configured.

    Its updates are not yet scaled by the learning rate: `optimised` does that.
    """
    clip = optax.identity() if config.max_grad_norm is None else _clip(config.max_grad_norm)
    optimiser = optax.chain(clip, _adam(config.adam_eps))
    if config.gradient_accumulation > 1:
        return cast("Any", optax.MultiSteps(optimiser, config.gradient_accumulation).gradient_transformation())
    return optimiser


def optimised(
    optimiser: optax.GradientTransformation, gradient: Any, state: Any, params: Any, learning_rate: Any
) -> tuple[Any, Any]:
    """The parameters and the optimiser state after one gradient step."""
    step, state = optimiser.update(gradient, state, params)
    learning_rate = after(learning_rate, gradient)
    return _each(lambda before, along: before - learning_rate * along, params, step), state


# The same as in optax, with the same state, but with one division for each parameter instead of three: divisions take
# most of the time.


def _clip(most: float) -> optax.GradientTransformation:
    """Scale a gradient down if its norm is above `most`."""

    def clipped(gradient: Any, _: Any) -> Any:
        scale = jnp.minimum(1, most / norm(gradient))
        return _each(lambda slope: slope * scale, gradient)

    return optax.stateless(clipped)


def _adam(eps: float) -> optax.GradientTransformation:
    """The Adam update before it is scaled by the learning rate."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:  # noqa: ARG001
        count = optax.safe_increment(state.count)
        means = _each(lambda mean, slope: _MEAN_DECAY * mean + (1 - _MEAN_DECAY) * slope, state.mu, updates)
        squares = _each(
            lambda square, slope: _SQUARE_DECAY * square + (1 - _SQUARE_DECAY) * slope * slope, state.nu, updates
        )
        # Correct the bias of both averages towards 0, where they start.
        mean_scale, square_scale = 1 / (1 - jnp.array([_MEAN_DECAY, _SQUARE_DECAY]) ** count)
        step = _each(lambda mean, square: mean_scale * mean / (jnp.sqrt(square_scale * square) + eps), means, squares)
        return step, state._replace(count=count, mu=means, nu=squares)

    return optax.GradientTransformation(optax.scale_by_adam().init, update)

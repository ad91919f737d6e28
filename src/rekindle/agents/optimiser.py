"""What turns a gradient into a step."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any, cast

import jax
import optax

__all__ = ["optimised", "optimiser_of"]


def optimiser_of(config: Any) -> optax.GradientTransformation:
    """Adam, after clipping, of gradients that are averaged as the settings say; the step size comes later."""
    clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
    optimiser = optax.chain(clip, optax.scale_by_adam(eps=config.adam_eps))
    if config.gradient_accumulation > 1:
        return cast("Any", optax.MultiSteps(optimiser, config.gradient_accumulation).gradient_transformation())
    return optimiser


def optimised(
    optimiser: optax.GradientTransformation, gradient: Any, state: Any, params: Any, learning_rate: Any
) -> tuple[Any, Any]:
    """Parameters and the optimiser's state after a step along a gradient."""
    step, state = optimiser.update(gradient, state, params)
    return jax.tree_util.tree_map(lambda before, along: before - learning_rate * along, params, step), state

"""Weights in a few arrays are those of the network, and the quick gradient of a layer is the gradient."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box

from rekindle.agents import SAC
from rekindle.agents.networks import Activation, Dense, Sequential
from rekindle.agents.weights import Weights, norm
from rekindle.errors import StateError

LARGE = (256, 128)  # as many numbers as an array needs to stand by itself


def network(seed: int = 0) -> Sequential:
    rng = np.random.default_rng(seed)
    return Sequential([Dense(3, LARGE[0], rng=rng), Activation("relu"), Dense(*LARGE, rng=rng), Dense(128, 2, rng=rng)])


def leaves(tree: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(tree)]


def assert_same(some: Any, others: Any) -> None:
    assert all(np.array_equal(*pair) for pair in zip(leaves(some), leaves(others), strict=True))


def test_only_large_arrays_stand_by_themselves() -> None:
    weights = Weights(network())
    vector, *large = weights.initial
    assert [array.shape for array in large] == [LARGE]
    assert weights.size == vector.size + large[0].size
    small = Weights(Sequential([Dense(3, 8, rng=np.random.default_rng(0))]))
    assert small.initial.shape == (small.size,)


def test_parts_become_the_network_that_they_are_of() -> None:
    made = network()
    weights = Weights(made)
    for again in (weights.network(weights.initial), weights.views(weights.initial)):
        assert_same(again, made)


def test_all_arrays_may_be_large() -> None:
    class Matrix(eqx.Module):
        weight: Any

    weights = Weights(Matrix(np.ones(LARGE, np.float32)))
    assert [part.size for part in weights.initial] == [0, weights.size]
    for again in (weights.network(weights.initial), weights.views(weights.initial)):
        assert np.array_equal(again.weight, np.ones(LARGE))


def test_views_follow_when_the_parts_change() -> None:
    weights = Weights(network())
    seen = weights.views(weights.initial)
    for part in weights.initial:
        np.add(part, 1, out=part)
    assert_same(seen, [array + 1 for array in leaves(network())])


def test_a_state_gives_the_parts_back_and_is_independent_of_them() -> None:
    weights = Weights(network())
    state = weights.state(weights.initial)
    loaded = weights.from_state(state, "the weights")
    assert_same(loaded, weights.initial)
    for part in loaded:
        np.add(part, 1, out=part)
    assert_same(list(state.values()), network())
    name = next(iter(state))
    with pytest.raises(StateError, match="NaN or infinity"):
        weights.from_state({**state, name: np.full_like(state[name], np.nan)}, "the weights")


def test_the_norm_is_that_of_one_vector() -> None:
    one, other = Weights(network(0)).initial, Weights(network(1)).initial
    apart = jax.tree_util.tree_map(np.subtract, one, other)
    expected = np.linalg.norm(np.concatenate([part.ravel() for part in apart]))
    assert float(norm(apart)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (32, 2), (32, 8), (32, 16), (2, 32), (200, 180)])
@pytest.mark.parametrize("critics", [None, 3])
def test_the_gradient_of_a_layer_is_the_same_for_every_shape(inputs: int, outputs: int, critics: int | None) -> None:
    rng = np.random.default_rng(0)
    lead = () if critics is None else (critics,)
    weight, bias = (rng.standard_normal((*lead, *shape), np.float32) for shape in ((inputs, outputs), (outputs,)))
    rows, slope = (rng.standard_normal((*lead, 16, size), np.float32) for size in (inputs, outputs))

    def plain(weight: Any, bias: Any, rows: Any) -> Any:
        return (jnp.square(rows @ weight + bias[..., None, :]) * slope).sum()

    def layered(weight: Any, bias: Any, rows: Any) -> Any:
        def layer(weight: Any, bias: Any, rows: Any) -> Any:
            dense = Dense(inputs, outputs, rng=np.random.default_rng(0))
            object.__setattr__(dense, "weight", weight)
            object.__setattr__(dense, "bias", bias)
            return jax.vmap(dense)(rows)

        outputs_of = layer if critics is None else jax.vmap(layer)
        return (jnp.square(outputs_of(weight, bias, rows)) * slope).sum()

    found, expected = (jax.jit(jax.value_and_grad(f, (0, 1, 2)))(weight, bias, rows) for f in (layered, plain))
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_an_agent_with_large_layers_goes_on_from_its_state() -> None:
    spaces = Box(-1, 1, (3,), np.float32), Box(-1, 1, (2,), np.float32)
    agents = [SAC(*spaces, seed=seed, hidden_sizes=LARGE, batch_size=4, capacity=64) for seed in (0, 1)]
    agents[1].load_state(agents[0].state())
    seen = np.zeros((5, 3), np.float32)
    first, second = (agent.policy().act(seen) for agent in agents)
    assert np.array_equal(first, second)

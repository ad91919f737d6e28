"""The loss, its gradient and its targets against plain numpy, and many updates against one at a time."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from bitwise import check_one_dispatch
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from references import random_batch, reference_quantile_huber

from rekindle.agents import DQN, DQNConfig
from rekindle.agents.dqn import DQNUpdate, QNetwork
from rekindle.agents.returns import project
from rekindle.agents.updates import Minibatch
from rekindle.agents.weights import Weights
from rekindle.experience import Array
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer

ROWS, ACTIONS = 5, 3
SPACE = Box(-1, 1, (2,), np.float32)
CONFIGS: dict[str, dict[str, Any]] = {
    "double, huber": {},
    "single, mse": {"double": False, "loss": "mse"},
    "dueling, scaled, weighted": {"dueling": True, "reward_scale": 0.3, "prioritised": True},
    "atoms": {"atoms": 6, "v_min": -1.0, "v_max": 2.0, "dueling": True},
    "quantiles, weighted": {"quantiles": 5, "dueling": True, "prioritised": True},
    "conservative": {"cql_alpha": 2.0},
    "atoms, noisy": {"atoms": 4, "v_min": -1.0, "v_max": 2.0, "noisy": True, "double": False},
}


class Case:
    """An update, and its loss compiled."""

    def __init__(self, **config: Any) -> None:
        self.config = DQNConfig(hidden_sizes=(7, 6), **config)
        encoding = Encoding.of(SPACE)
        network = QNetwork(self.config, encoding, ACTIONS, None, np.random.default_rng(0))
        self.noise_size = network.noise_size
        self.weights = Weights(network)
        self.update = DQNUpdate(self.config, self.weights, noise_size=self.noise_size, first_action=0)
        self.see = lambda batch: Minibatch.of(batch, encoding, None, reward_scale=self.config.reward_scale)

        def loss(params: Any, target: Any, batch: dict[str, Any]) -> Any:
            return self.update.loss(params, target, self.see(batch))

        self.loss, self.gradient = jax.jit(loss), jax.jit(jax.grad(loss, has_aux=True))

    def vectors(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Weights of a network and of its target."""
        return tuple(rng.normal(0, 0.5, self.weights.size).astype(np.float32) for _ in range(2))  # type: ignore[return-value]

    def batch(self, rng: np.random.Generator) -> dict[str, Any]:
        return random_batch(
            rng,
            ROWS,
            2,
            rng.integers(ACTIONS, size=ROWS).astype(np.int32),
            weights=rng.random(ROWS).astype(np.float32) if self.config.prioritised else None,
            noise=rng.normal(size=(2, self.noise_size)).astype(np.float32) if self.noise_size else None,
        )


@functools.cache
def case(name: str) -> Case:
    return Case(**CONFIGS[name])


# The reference: one row after the other, in double precision


def run_layers(layers: list[Layer], x: Array, noise: list[float] | None) -> Array:
    for layer in layers:
        arrays = {name: array.astype(np.float64) for name, array in layer.arrays.items()}
        match layer.kind:
            case "dense":
                x = x @ arrays["weight"] + arrays["bias"]
            case "noisy_dense":
                assert noise is not None
                sizes = arrays["weight"].shape
                before, after = (
                    [math.copysign(math.sqrt(abs(value)), value) for value in (noise.pop(0) for _ in range(size))]
                    for size in sizes
                )
                weight = arrays["weight"] + arrays["weight_noise"] * np.outer(before, after)
                x = x @ weight + arrays["bias"] + arrays["bias_noise"] * after
            case "activation":
                x = np.where(x > 0, x, 0)
            case "dueling":
                value = run_layers(layer.value, x, noise).reshape(1, -1)
                advantage = run_layers(layer.advantage, x, noise).reshape(-1, layer.atoms)
                x = (value + advantage - advantage.mean(axis=0)).ravel()
            case _:
                raise AssertionError(layer.kind)
    return x


def reference_loss(case: Case, params: Array, target: Array, batch: dict[str, Any]) -> float:
    """Cross entropy or squared error, as the papers write it."""
    config = case.config
    online, frozen = (
        [layer for layer in case.weights.layers(vector) if layer.kind not in ("expectation", "mean")]
        for vector in (params, target)
    )
    atoms = config.quantiles or config.atoms
    support = np.linspace(config.v_min, config.v_max, config.atoms)
    noises = [None, None] if batch["noise"] is None else [noise.tolist() for noise in batch["noise"]]

    def outputs(layers: list[Layer], x: Array, noise: list[float] | None) -> Array:
        return run_layers(layers, x.astype(np.float64), None if noise is None else list(noise)).reshape(ACTIONS, atoms)

    def mean(output: Array) -> Array:
        if config.quantiles is not None or config.atoms == 1:
            return output.mean(axis=-1)
        return np.array([softmax(row) @ support for row in output])

    total = 0.0
    for row in range(ROWS):
        after = outputs(frozen, batch["next_observations"][row], noises[1])
        chooser = outputs(online, batch["next_observations"][row], noises[0]) if config.double else after
        future = after[np.argmax(mean(chooser))]
        every = outputs(online, batch["observations"][row], noises[0])
        now = every[batch["actions"][row]]
        reward, discount = float(batch["rewards"][row]) * config.reward_scale, float(batch["discounts"][row])
        if config.quantiles is not None:
            goals = [reward + discount * value for value in future]
            taus = [(index + 0.5) / atoms for index in range(atoms)]
            loss = reference_quantile_huber(now.tolist(), taus, goals)
        elif config.atoms == 1:
            error = now[0] - (reward + discount * future[0])
            squared = error**2 if config.loss == "mse" else 0.5 * error**2
            loss = squared if config.loss == "mse" or abs(error) <= 1 else abs(error) - 0.5
        else:
            goal = reference_projection(softmax(future), reward, discount, support)
            loss = -float(goal @ np.log(softmax(now)))
        gap = math.log(sum(math.exp(value) for value in mean(every))) - float(mean(now[None])[0])
        loss += config.cql_alpha * gap
        total += loss * (1.0 if batch["weights"] is None else float(batch["weights"][row]))
    return total / ROWS


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def reference_projection(probabilities: Array, reward: float, discount: float, support: Array) -> Array:
    """Atom by atom, as in the paper, but with the mass of an integer position kept."""
    projected = np.zeros(len(support))
    spacing = support[1] - support[0]
    for probability, atom in zip(probabilities, support, strict=True):
        position = (min(max(reward + discount * atom, support[0]), support[-1]) - support[0]) / spacing
        lower, upper = math.floor(position), math.ceil(position)
        if lower == upper:
            projected[lower] += probability
        else:
            projected[lower] += probability * (upper - position)
            projected[upper] += probability * (position - lower)
    return projected


@pytest.mark.parametrize("name", CONFIGS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_the_loss_is_that_of_the_reference(name: str, seed: int) -> None:
    rng, it = np.random.default_rng(seed), case(name)
    params, target = it.vectors(rng)
    batch = it.batch(rng)
    loss, _ = it.loss(params, target, batch)
    assert float(loss) == pytest.approx(reference_loss(it, params, target, batch), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ["double, huber", "atoms", "quantiles, weighted", "conservative"])
def test_the_gradient_is_that_of_small_differences(name: str) -> None:
    rng, it = np.random.default_rng(3), case(name)
    params, target = it.vectors(rng)
    batch = it.batch(rng)
    gradient = np.asarray(it.gradient(params, target, batch)[0])
    wide = params.astype(np.float64)
    for index in rng.choice(it.weights.size, 25, replace=False):
        step = np.zeros_like(wide)
        step[index] = 1e-6
        above, below = (reference_loss(it, wide + sign * step, target, batch) for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / 2e-6, rel=1e-3, abs=1e-5)


# The projection of C51

DISTRIBUTIONS = st.lists(st.floats(0.01, 1), min_size=5, max_size=5).map(lambda values: np.array(values) / sum(values))
_project: Callable[..., Any] = jax.jit(project)


def projected(probabilities: Array, reward: float, discount: float, support: Array) -> Array:
    arguments = (probabilities[None], np.array([reward]), np.array([discount]), support)
    return np.asarray(_project(*(argument.astype(np.float32) for argument in arguments)))[0]


@given(DISTRIBUTIONS, st.floats(-20, 20), st.floats(0, 1))
@settings(deadline=None)
def test_the_projection_is_that_of_the_reference_and_keeps_all_mass(
    probabilities: Array, reward: float, discount: float
) -> None:
    support = np.linspace(-3, 5, 5)
    found = projected(probabilities, reward, discount, support)
    np.testing.assert_allclose(found, reference_projection(probabilities, reward, discount, support), atol=1e-5)
    assert found.sum() == pytest.approx(1, abs=1e-5)


@given(DISTRIBUTIONS, st.integers(-6, 6))
@settings(deadline=None)
def test_what_lands_on_an_atom_keeps_its_mass(probabilities: Array, steps: int) -> None:
    support = np.linspace(0, 4, 5)
    expected = np.zeros(5)
    for index, probability in enumerate(probabilities):
        expected[min(max(index + steps, 0), 4)] += probability
    np.testing.assert_allclose(projected(probabilities, float(steps), 1.0, support), expected, atol=1e-6)
    np.testing.assert_allclose(
        projected(probabilities, 2.0, 0.0, support), np.eye(5)[2], atol=1e-6
    )  # after a termination


def test_a_priority_is_the_size_of_the_error_or_the_divergence() -> None:
    rng = np.random.default_rng(0)
    for name in ("double, huber", "atoms"):
        it = case(name)
        params, target = it.vectors(rng)
        batch = it.batch(rng)
        for row in range(ROWS):
            one = {
                key: None if value is None else np.repeat(value[row : row + 1], ROWS, 0) for key, value in batch.items()
            }
            loss, (_, surprise) = it.loss(params, target, one)
            if name == "atoms":
                assert 0 <= float(surprise[0]) <= float(loss) + 1e-6
            else:
                error = float(surprise[0])
                assert float(loss) == pytest.approx(0.5 * error**2 if error <= 1 else error - 0.5, rel=1e-5)


def test_dueling_takes_the_mean_off_the_advantages() -> None:
    it = case("dueling, scaled, weighted")
    vector, _ = it.vectors(np.random.default_rng(0))
    network = it.weights.network(vector)
    x = np.array([0.3, -0.2], np.float32)
    values = np.asarray(network(x))[:, 0]
    state = np.asarray(network.value(network.body(x)))  # type: ignore[misc]
    assert values.mean() == pytest.approx(float(state[0]), rel=1e-5)


# Many updates in one dispatch


@pytest.mark.parametrize("name", CONFIGS)
def test_updates_in_one_dispatch_are_equal_to_the_bit_to_one_at_a_time(name: str) -> None:
    it, rng = case(name), np.random.default_rng(0)
    check_one_dispatch(it, [it.batch(rng) for _ in range(11)])


@pytest.mark.slow
def test_the_same_holds_for_optimised_code() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", "in_one_dispatch and dueling", __file__]
    subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=3"})


def test_updates_are_split_by_how_many_are_due_and_by_nothing_else() -> None:
    learner = DQN(SPACE, Discrete(2), seed=0, batch_size=4)
    assert learner._dispatch.split(1) == [1]
    assert learner._dispatch.split(13) == [13]
    assert learner._dispatch.split(150) == [64, 64, 22]
    prioritised = DQN(SPACE, Discrete(2), seed=0, batch_size=4, prioritised=True)
    assert prioritised._dispatch.split(19) == [8, 8, 3]
    images = DQN(Box(0, 255, (4, 84, 84), np.uint8), Discrete(2), seed=0, batch_size=32, capacity=32)
    assert images._dispatch.split(3) == [1, 1, 1]

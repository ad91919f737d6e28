"""What IQN learns and how it acts; its loss against plain numpy, and many updates against one at a time."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from bitwise import check_one_dispatch
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from probes import (
    NUMBER,
    TERMINATED,
    TWO,
    constant_reward,
    cut_short,
    delayed_reward,
    numbers,
    reward_by_action,
    reward_by_observation,
    tell,
)
from references import random_batch, reference_quantile_huber

import rekindle.policy
from rekindle.agents import IQN
from rekindle.agents.returns import quantile_huber
from rekindle.agents.updates import Minibatch
from rekindle.errors import ConfigError
from rekindle.experience import ActMode, Array
from rekindle.policy.network import forward
from rekindle.policy.policy import NetworkPolicy

SMALL: dict[str, Any] = {
    "hidden_sizes": (16,),
    "learning_rate": 0.01,
    "adam_eps": 1e-8,
    "gamma": 0.5,
    "capacity": 64,
    "warmup_steps": 0,
    "batch_size": 16,
    "target_update_every": 10,
}


def agent(observation_space: Any = NUMBER, action_space: Any = TWO, **changes: Any) -> IQN:
    return IQN(observation_space, action_space, seed=0, **{**SMALL, **changes})


def policy_of(learner: IQN) -> NetworkPolicy:
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    return policy


@functools.cache
def learner() -> tuple[IQN, dict[str, Any]]:
    """One agent for all probes, as compiling it takes longer than all of them; and its state when it was new."""
    made = agent()
    return made, made.state()


def learned(moves: list[Any], *seen: float) -> Array:
    one, fresh = learner()
    one.load_state(fresh)
    for _ in range(4):
        tell(one, moves)
    for _ in range(60):
        one.update(8)
    return policy_of(one).output(numbers(*seen))


@pytest.mark.slow
def test_it_learns_the_values_of_worlds_where_they_are_known() -> None:
    assert learned(constant_reward(), 0) == pytest.approx(np.array([[1, 1]]), abs=0.1)
    assert learned(delayed_reward(), -1, 1) == pytest.approx(np.array([[0.5, 0.5], [1, 1]]), abs=0.1)
    assert learned(reward_by_action(), 0) == pytest.approx(np.array([[-1, 1]]), abs=0.1)
    assert learned(reward_by_observation(), -1, 1) == pytest.approx(np.array([[-1, -1], [1, 1]]), abs=0.1)
    assert learned(cut_short(), 0) == pytest.approx(np.array([[2, 2]]), abs=0.1)


@pytest.mark.slow
def test_it_learns_the_quantiles_of_a_return_that_is_left_to_chance() -> None:
    learned([(0, 0, reward, 0, TERMINATED) for reward in (-1, 3)], 0)
    one, _ = learner()
    network = one._algorithm.weights["params"].network(one._learned.params)
    taus = np.array([[0.05, 0.2, 0.8, 0.95]], np.float32)
    quantiles = np.asarray(network(numbers(0), taus))[0, 0]
    assert quantiles == pytest.approx([-1, -1, 3, 3], abs=0.5)


# How it acts


def test_numpy_compiled_and_exported_networks_act_alike(tmp_path: Path) -> None:
    one = agent(action_space=Discrete(5), hidden_sizes=(32, 32), normalise_observations=True)
    tell(one, [(x, 0, 1, x, TERMINATED) for x in (-0.5, 0.2, 1.5)])
    one.update(3)
    observations = np.linspace(-2, 2, 400, dtype=np.float32)[:, None]
    rekindle.policy.save(policy_of(one), tmp_path / "policy.mpk")
    exported = rekindle.policy.load(tmp_path / "policy.mpk")
    for seed in (None, 3):  # fixed quantiles, and the same random ones

        def rng(seed: int | None = seed) -> np.random.Generator | None:
            return None if seed is None else np.random.default_rng(seed)

        compiled = one._actor.output(observations, rng())
        np.testing.assert_allclose(compiled, exported.output(observations, rng()), rtol=1e-4, atol=1e-5)
    one_by_one = np.concatenate([one._actor.output(row[None], None) for row in observations])
    np.testing.assert_allclose(one._actor.output(observations, None), one_by_one, rtol=1e-4, atol=1e-5)


def test_random_quantiles_are_uniform_and_fixed_ones_are_midpoints() -> None:
    one = agent(policy_quantiles=4, cosines=2, hidden_sizes=(1,))
    network = one._algorithm.weights["params"].views(one._algorithm.weights["params"].initial)
    layer = network.layers()[-1]
    # The embedding passes on cos(pi * tau), and what follows it nothing but that.
    layer.arrays["weight"][:], layer.arrays["bias"][:] = [[0], [1]], 1
    layer.advantage[0].arrays["weight"][:], layer.advantage[0].arrays["bias"][:] = 1, 0
    run = forward([layer])
    fixed = [(index + 0.5) / 4 for index in range(4)]
    assert run(np.ones((1, 1), np.float32), None)[0, 0] == pytest.approx(
        sum(1 + math.cos(math.pi * tau) for tau in fixed) / 4, rel=1e-5
    )
    noise = np.random.default_rng(0).standard_normal((20_000, 4), np.float32)
    drawn = run(np.ones((20_000, 1), np.float32), noise)[:, 0] - 1
    assert drawn.mean() == pytest.approx(0, abs=0.01)
    assert drawn.var() == pytest.approx(0.5 / 4, rel=0.05)  # cos(pi * tau) of a uniform tau has a variance of 1/2


def test_exploit_is_the_same_each_time_and_explore_is_not() -> None:
    one = agent(epsilon_start=0.0, epsilon_end=0.0, policy_quantiles=1, action_space=Discrete(9))
    seen, streams = numbers(*np.linspace(-2, 2, 60)), np.arange(60)
    greedy = [one.act(seen, ActMode.EXPLOIT, streams).tolist() for _ in range(2)]
    assert greedy[0] == greedy[1]
    assert one.act(seen, ActMode.EXPLORE, streams).tolist() != one.act(seen, ActMode.EXPLORE, streams).tolist()


def test_the_mask_is_kept_when_acting_and_in_targets() -> None:
    space = Dict({"seen": NUMBER, "action_mask": Box(0, 1, (2,), np.int8)})
    one = agent(space)
    observation = {"seen": numbers(0.5), "action_mask": np.array([[0, 1]], np.int8)}
    for mode in ActMode:
        assert all(one.act(observation, mode, np.zeros(1, np.int64)).tolist() == [1] for _ in range(10))


@pytest.mark.parametrize("name", ["quantiles", "target_quantiles", "policy_quantiles", "cosines"])
def test_a_setting_out_of_range_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0: use a whole number of at least 1"):
        agent(**{name: 0})


def test_actions_that_are_not_discrete_are_refused() -> None:
    with pytest.raises(ConfigError, match="IQN needs a Discrete space"):
        agent(action_space=Box(-1, 1, (1,)))


# The loss

ROWS, ACTIONS = 5, 3
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "double, weighted, scaled": {"double": True, "prioritised": True, "reward_scale": 0.3, "tau": 0.1},
}


class Case:
    """An agent's update, and its loss compiled."""

    def __init__(self, **config: Any) -> None:
        sizes = {"hidden_sizes": (7, 6), "quantiles": 3, "target_quantiles": 4, "policy_quantiles": 5, "cosines": 6}
        made = IQN(Box(-1, 1, (2,)), Discrete(ACTIONS), seed=0, batch_size=ROWS, capacity=8, **sizes, **config)
        self.config = made.config
        self.update: Any = made._algorithm
        self.weights: Any = self.update.weights["params"]
        self.see = lambda batch: Minibatch.of(batch, made._encoding, None, reward_scale=self.config.reward_scale)

        def loss(params: Any, target: Any, batch: dict[str, Any]) -> Any:
            return self.update.loss(params, target, self.see(batch))

        self.loss, self.gradient = jax.jit(loss), jax.jit(jax.grad(loss, has_aux=True))

    def batch(self, rng: np.random.Generator) -> dict[str, Any]:
        return random_batch(
            rng,
            ROWS,
            2,
            rng.integers(ACTIONS, size=ROWS).astype(np.int32),
            weights=rng.random(ROWS).astype(np.float32) if self.config.prioritised else None,
            noise=self.update.noise(rng, 1),
        )


@functools.cache
def case(name: str) -> Case:
    return Case(**CASES[name])


def quantile(it: Case, vector: Array, x: Array, tau: float) -> Array:
    """The quantile of each action, in double precision."""
    network = it.weights._with(it.weights._views(vector))
    x = x.astype(np.float64)
    for module in network.body.modules[::2]:
        x = np.maximum(x @ module.weight.astype(np.float64) + module.bias, 0)
    cosines = np.array([math.cos(math.pi * index * tau) for index in range(it.config.cosines)])
    x = x * np.maximum(cosines @ network.embedding.weight.astype(np.float64) + network.embedding.bias, 0)
    *hidden, output = network.head.modules[::2]
    for module in hidden:
        x = np.maximum(x @ module.weight.astype(np.float64) + module.bias, 0)
    return x @ output.weight.astype(np.float64) + output.bias


def reference_loss(it: Case, params: Array, target: Array, batch: dict[str, Any]) -> float:
    config, total = it.config, 0.0
    for row in range(ROWS):
        drawn = batch["noise"][row].astype(np.float64)
        taus, target_taus, policy_taus = np.split(drawn, [config.quantiles, config.quantiles + config.target_quantiles])
        after = batch["next_observations"][row]
        chooser = params if config.double else target
        best = int(np.argmax(np.mean([quantile(it, chooser, after, tau) for tau in policy_taus], axis=0)))
        reward, discount = float(batch["rewards"][row]) * config.reward_scale, float(batch["discounts"][row])
        goals = [reward + discount * quantile(it, target, after, tau)[best] for tau in target_taus]
        action, x = batch["actions"][row], batch["observations"][row]
        loss = reference_quantile_huber([quantile(it, params, x, tau)[action] for tau in taus], taus.tolist(), goals)
        total += loss * (1.0 if batch["weights"] is None else float(batch["weights"][row]))
    return total / ROWS


def vectors(it: Case, rng: np.random.Generator) -> tuple[Array, Array]:
    first, second = (rng.normal(0, 0.5, it.weights.size).astype(np.float32) for _ in range(2))
    return first, second


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_the_loss_is_that_of_the_reference(name: str, seed: int) -> None:
    rng, it = np.random.default_rng(seed), case(name)
    (params, target), batch = vectors(it, rng), it.batch(rng)
    loss, (_, surprise) = it.loss(params, target, batch)
    assert float(loss) == pytest.approx(reference_loss(it, params, target, batch), rel=1e-3, abs=1e-4)
    assert surprise.shape == (ROWS,)


def test_the_gradient_is_that_of_small_differences() -> None:
    rng, it = np.random.default_rng(3), case("plain")
    (params, target), batch = vectors(it, rng), it.batch(rng)
    gradient = np.asarray(it.gradient(params, target, batch)[0])
    wide = params.astype(np.float64)
    for index in rng.choice(it.weights.size, 20, replace=False):
        step = np.zeros_like(wide)
        step[index] = 1e-6
        above, below = (reference_loss(it, wide + sign * step, target, batch) for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / 2e-6, rel=2e-3, abs=1e-4)


NUMBERS = st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3)


@given(NUMBERS, st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), NUMBERS)
@settings(deadline=None, max_examples=50)
def test_the_quantile_huber_loss_is_that_of_the_reference(
    predicted: list[float], taus: list[float], goals: list[float]
) -> None:
    found = quantile_huber(*(np.array([values], np.float32) for values in (predicted, taus, goals)))
    assert float(found[0]) == pytest.approx(reference_quantile_huber(predicted, taus, goals), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_updates_in_one_dispatch_are_equal_to_the_bit_to_one_at_a_time(name: str) -> None:
    it, rng = case(name), np.random.default_rng(0)
    check_one_dispatch(it, [it.batch(rng) for _ in range(7)])

"""The losses of SAC and TD3 and their gradients against plain numpy, and many updates against one at a time."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from bitwise import check_one_dispatch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.agents import SAC, TD3
from rekindle.agents.continuous import draw_pairs
from rekindle.agents.distributions import squashed_log_prob, to_unit
from rekindle.agents.updates import Minibatch
from rekindle.experience import Array

ROWS, DIMENSIONS = 5, 2
SPACE = Box(-1, 1, (3,), np.float32)
BOUNDS = Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32))
CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "sac": (SAC, {}),
    "sac, five critics, weighted": (SAC, {"critics": 5, "prioritised": True, "initial_temperature": 0.3}),
    "sac, one critic, scaled, fixed": (
        SAC,
        {"critics": 1, "layer_norm": True, "reward_scale": 0.3, "temperature": 0.7, "target_update_every": 3},
    ),
    "sac, delayed": (SAC, {"policy_delay": 3, "gradient_accumulation": 2, "max_grad_norm": 0.1}),
    "td3": (TD3, {"target_noise": 0.6, "target_noise_clip": 0.5}),
    "td3, three critics, weighted": (TD3, {"critics": 3, "prioritised": True, "policy_delay": 1, "layer_norm": True}),
}


class Case:
    """An agent's update, its losses compiled, and the reference for them."""

    def __init__(self, kind: type, config: dict[str, Any]) -> None:
        agent = kind(SPACE, BOUNDS, seed=0, hidden_sizes=(7, 6), batch_size=ROWS, capacity=8, **config)
        self.config, self.update, self.head = agent.config, agent._algorithm, agent._head(10**9)
        self.is_sac = kind is SAC
        self.critic_loss, self.actor_loss = jax.jit(self.update.critic_loss), jax.jit(self.update.actor_loss)
        self.see = lambda batch: Minibatch.of(batch, agent._encoding, None, reward_scale=self.config.reward_scale)
        self.see_unit = jax.jit(lambda batch: _unit(self.see(batch), self.head))
        self.start = agent._learned

    def state(self, rng: np.random.Generator) -> Any:
        """Random weights."""
        vectors = {
            name: rng.normal(0, 0.5, weights.size).astype(np.float32) for name, weights in self.update.weights.items()
        }
        return self.start._replace(**vectors)

    def batch(self, rng: np.random.Generator) -> dict[str, Any]:
        return {
            "observations": rng.normal(size=(ROWS, 3)).astype(np.float32),
            "actions": rng.uniform(BOUNDS.low, BOUNDS.high, (ROWS, DIMENSIONS)).astype(np.float32),
            "rewards": rng.normal(size=ROWS).astype(np.float32),
            "next_observations": rng.normal(size=(ROWS, 3)).astype(np.float32),
            "discounts": rng.choice([0.0, 0.9, 0.81], ROWS).astype(np.float32),
            "weights": rng.random(ROWS).astype(np.float32) if self.config.prioritised else None,
            "noise": self.update.noise(rng, 1),
        }


def _unit(batch: Minibatch, head: Any) -> Minibatch:
    return batch._replace(actions=to_unit(batch.actions, head))


@functools.cache
def case(name: str) -> Case:
    return Case(*CASES[name])


# The reference: one row after the other, in double precision


def actor(it: Case, vector: Array, x: Array) -> Array:
    for layer in it.update.weights["actor"].layers(vector):
        if layer.kind == "dense":
            x = x @ layer.arrays["weight"].astype(np.float64) + layer.arrays["bias"]
        else:
            x = np.maximum(x, 0)
    return x


def critic(it: Case, vector: Array, index: int, x: Array, action: Array) -> float:
    """What one critic says of an observation and an action from -1 to 1."""
    x = np.concatenate([x, action])
    # Not by the split of a vector, which rounds to single precision.
    weights = it.update.weights["critics"]
    bodies = weights._with(weights._views(vector)).bodies
    for module in bodies.modules:
        match type(module).__name__:
            case "Dense":
                x = x @ module.weight[index].astype(np.float64) + module.bias[index]
            case "LayerNorm":
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-5) * module.weight[index] + module.bias[index]
            case _:
                x = np.maximum(x, 0)
    return float(x[0])


def sample(it: Case, vector: Array, x: Array, noise: Array) -> tuple[Array, float]:
    """An action of SAC's policy and its log density: that of a Gaussian over the slope of tanh, 1 / cosh^2."""
    output = actor(it, vector, x)
    mean, std = output[:DIMENSIONS], np.exp(np.clip(output[DIMENSIONS:], -20, 2))
    before = mean + std * noise
    log_density = sum(
        -0.5 * ((b - m) / s) ** 2 - math.log(s * math.sqrt(2 * math.pi)) + 2 * math.log(math.cosh(b))
        for b, m, s in zip(before, mean, std, strict=True)
    )
    return np.tanh(before), log_density


def temperature(it: Case, state: Any) -> float:
    return math.exp(float(state.log_temperature)) if it.config.temperature == "auto" else it.config.temperature


def reference_target(it: Case, state: Any, batch: dict[str, Any], row: int) -> float:
    after, noise = batch["next_observations"][row].astype(np.float64), batch["noise"]["next"][row].astype(np.float64)
    pair = batch["noise"]["pair"]
    critics = range(it.config.critics) if pair is None else pair.tolist()
    if it.is_sac:
        action, log_prob = sample(it, state.actor, after, noise)
        future = min(critic(it, state.target, index, after, action) for index in critics)
        future -= temperature(it, state) * log_prob
    else:
        most = it.config.target_noise_clip
        blurred = np.tanh(actor(it, state.target_actor, after)) + np.clip(it.config.target_noise * noise, -most, most)
        action = np.clip(blurred, -1, 1)
        future = min(critic(it, state.target_critics, index, after, action) for index in critics)
    return float(batch["rewards"][row]) * it.config.reward_scale + float(batch["discounts"][row]) * future


def reference_critic_loss(it: Case, critics: Array, state: Any, batch: dict[str, Any]) -> float:
    total = 0.0
    for row in range(ROWS):
        unit = 2 * (batch["actions"][row] - BOUNDS.low) / (BOUNDS.high - BOUNDS.low) - 1
        goal, x = reference_target(it, state, batch, row), batch["observations"][row].astype(np.float64)
        squares = sum((critic(it, critics, index, x, unit) - goal) ** 2 for index in range(it.config.critics))
        weight = 1.0 if batch["weights"] is None else float(batch["weights"][row])
        total += weight * squares * (0.5 if it.is_sac else 1.0)
    return total / ROWS


def reference_actor_loss(it: Case, vector: Array, state: Any, batch: dict[str, Any]) -> float:
    total = 0.0
    for row in range(ROWS):
        x = batch["observations"][row].astype(np.float64)
        if it.is_sac:
            action, log_prob = sample(it, vector, x, batch["noise"]["now"][row].astype(np.float64))
            values = [critic(it, state.critics, index, x, action) for index in range(it.config.critics)]
            value = min(values) if it.config.critics <= 2 else sum(values) / len(values)
            total += temperature(it, state) * log_prob - value
        else:
            total -= critic(it, state.critics, 0, x, np.tanh(actor(it, vector, x)))
    return total / ROWS


@pytest.mark.parametrize("name", [name for name in CASES if name != "sac, delayed"])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_the_losses_are_those_of_the_reference(name: str, seed: int) -> None:
    rng, it = np.random.default_rng(seed), case(name)
    state, batch = it.state(rng), it.batch(rng)
    looked: Minibatch = it.see_unit(batch)
    critic_loss, (_, surprise) = it.critic_loss(state.critics, state, looked)
    actor_loss = it.actor_loss(state.actor, state, looked)
    actor_loss = actor_loss[0] if it.is_sac else actor_loss
    assert float(critic_loss) == pytest.approx(reference_critic_loss(it, state.critics, state, batch), rel=1e-3)
    assert float(actor_loss) == pytest.approx(reference_actor_loss(it, state.actor, state, batch), rel=1e-3, abs=1e-4)
    assert surprise.shape == (ROWS,)


@pytest.mark.parametrize("name", ["sac", "sac, five critics, weighted", "td3"])
def test_gradients_are_those_of_small_differences(name: str) -> None:
    rng, it = np.random.default_rng(3), case(name)
    state, batch = it.state(rng), it.batch(rng)
    looked = it.see_unit(batch)
    for field, compiled, reference in (
        ("critics", it.update.critic_loss, reference_critic_loss),
        ("actor", it.update.actor_loss, reference_actor_loss),
    ):
        vector = getattr(state, field)
        has_aux = it.is_sac or field == "critics"
        gradient = jax.jit(jax.grad(compiled, has_aux=has_aux))(vector, state, looked)
        gradient = np.asarray(gradient[0] if has_aux else gradient)
        wide = vector.astype(np.float64)
        for index in rng.choice(len(wide), 20, replace=False):
            step = np.zeros_like(wide)
            step[index] = 1e-6
            above, below = (reference(it, wide + sign * step, state, batch) for sign in (1, -1))
            assert gradient[index] == pytest.approx((above - below) / 2e-6, rel=2e-3, abs=1e-4)


@given(
    st.floats(-30, 30),
    st.floats(-20, 2),
    st.floats(-5, 5),
)
@settings(deadline=None)
def test_the_log_density_of_a_squashed_gaussian_is_exact_far_out(mean: float, log_std: float, noise: float) -> None:
    mean32, log_std32, noise32 = (np.array([[value]], np.float32) for value in (mean, log_std, noise))
    before = mean32 + np.exp(log_std32) * noise32
    found = float(squashed_log_prob(before, noise32, log_std32)[0])
    x, n, s = (float(value[0, 0]) for value in (before, noise32, log_std32))
    log_cosh = np.logaddexp(x, -x) - math.log(2)  # 1 - tanh^2 is 1 / cosh^2
    expected = -0.5 * n**2 - s - 0.5 * math.log(2 * math.pi) + 2 * log_cosh
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_the_density_of_a_squashed_gaussian_adds_up_to_one() -> None:
    before = np.linspace(-9, 9, 20_001)
    mean, log_std = 0.4, 0.2
    noise = (before - mean) / math.exp(log_std)
    arguments = (before[:, None], noise[:, None], np.full((len(before), 1), log_std))
    density = np.exp(np.asarray(squashed_log_prob(*(array.astype(np.float32) for array in arguments)), np.float64))
    assert np.trapezoid(density, np.tanh(before)) == pytest.approx(1, abs=1e-3)


@given(log_temperature=st.floats(-5, 2), log_prob=st.floats(-20, 20))
@settings(deadline=None)
def test_the_temperature_falls_while_there_is_more_entropy_than_wanted(log_temperature: float, log_prob: float) -> None:
    update = case("sac").update
    assert float(update.temperature_loss(np.float32(log_temperature), np.float32(log_prob))) == pytest.approx(
        -log_temperature * (log_prob - DIMENSIONS), rel=1e-4, abs=1e-4
    )
    gradient = float(jax.grad(update.temperature_loss)(np.float32(log_temperature), np.float32(log_prob)))
    assert gradient == pytest.approx(DIMENSIONS - log_prob, abs=1e-4)  # above 0 if the entropy is above -DIMENSIONS


def test_actions_are_learned_as_from_minus_one_to_one() -> None:
    it = case("sac")
    batch = it.batch(np.random.default_rng(0))
    batch["actions"] = np.array([[-1, 0], [3, 0.5], [1, 0.25], [0, 0.5], [9, -9]], np.float32)
    np.testing.assert_allclose(it.see_unit(batch).actions, [[-1, -1], [1, 1], [0, 0], [-0.5, 1], [1, -1]], atol=1e-6)


def test_a_pair_is_two_different_critics_and_every_pair_is_as_likely() -> None:
    pairs = draw_pairs(np.random.default_rng(0), 4, 6000)
    assert pairs is not None
    chosen, counts = np.unique(np.sort(pairs.reshape(-1, 2), axis=1), axis=0, return_counts=True)
    assert chosen.tolist() == [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    assert counts / 6000 == pytest.approx(np.full(6, 1 / 6), abs=0.02)
    assert draw_pairs(np.random.default_rng(0), 2, 5) is None


# Many updates in one dispatch


@pytest.mark.parametrize("name", CASES)
def test_updates_in_one_dispatch_are_equal_to_the_bit_to_one_at_a_time(name: str) -> None:
    it, rng = case(name), np.random.default_rng(0)
    check_one_dispatch(it, [it.batch(rng) for _ in range(7)])


@pytest.mark.exhaustive
def test_the_same_holds_for_optimised_code() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", "in_one_dispatch and (td3 or delayed)", __file__]
    subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=3"})

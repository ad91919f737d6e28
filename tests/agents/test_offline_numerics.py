"""The losses of BC, AWAC, IQL and TD3+BC against plain numpy, and many updates against one at a time."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
import pytest
from bitwise import check_one_dispatch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from references import random_batch

from rekindle.agents import AWAC, BC, IQL, TD3
from rekindle.agents.distributions import to_unit
from rekindle.agents.updates import Minibatch
from rekindle.experience import Array

ROWS = 5
SPACE = Box(-1, 1, (3,), np.float32)
BOUNDS = Box(np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32))
FOUR = Discrete(4, start=2)
CASES: dict[str, tuple[type, Any, dict[str, Any]]] = {
    "bc, gaussian": (BC, BOUNDS, {}),
    "bc, mse, weighted": (BC, BOUNDS, {"loss": "mse", "prioritised": True}),
    "bc, categorical": (BC, MultiDiscrete([3, 2]), {}),
    "awac": (AWAC, BOUNDS, {"advantage_scale": 2.0}),
    "iql": (IQL, BOUNDS, {"expectile": 0.9, "max_weight": 1.5}),
    "iql, discrete, weighted": (IQL, FOUR, {"prioritised": True, "critics": 3, "cosine_updates": 4}),
    "td3+bc": (TD3, BOUNDS, {"bc_alpha": 2.5}),
}
LOSSES = {BC: ("loss",), AWAC: ("critic_loss", "actor_loss"), TD3: ("actor_loss",)}
LOSSES[IQL] = ("value_loss", "critic_loss", "actor_loss")
FIELDS = {"loss": "actor", "actor_loss": "actor", "critic_loss": "critics", "value_loss": "value"}


class Case:
    """An agent's update, and its losses compiled."""

    def __init__(self, kind: type, space: Any, config: dict[str, Any]) -> None:
        agent = kind(SPACE, space, seed=0, hidden_sizes=(7, 6), batch_size=ROWS, capacity=8, **config)
        self.kind, self.space, self.config, self.update = kind, space, agent.config, agent._algorithm
        self.see = lambda batch: Minibatch.of(batch, agent._encoding, None, reward_scale=1.0)
        self.start = agent._learned
        head = agent._head(10**9)
        is_unit = kind in (AWAC, TD3)  # these two convert actions once for all losses

        def loss(name: str, params: Any, state: Any, batch: dict[str, Any]) -> Any:
            seen = self.see(batch)
            if is_unit:
                seen = seen._replace(actions=to_unit(seen.actions, head))
            of_batch = (params, seen) if kind is BC else (params, state, seen)
            value = getattr(self.update, name)(*of_batch)
            return value[0] if isinstance(value, tuple) else value

        self.losses = {name: jax.jit(jax.value_and_grad(functools.partial(loss, name))) for name in LOSSES[kind]}

    def state(self, rng: np.random.Generator) -> Any:
        """Random weights."""
        vectors = {
            name: rng.normal(0, 0.5, weights.size).astype(np.float32) for name, weights in self.update.weights.items()
        }
        return self.start._replace(**vectors)

    def batch(self, rng: np.random.Generator) -> dict[str, Any]:
        self.space.seed(int(rng.integers(1 << 30)))
        return random_batch(
            rng,
            ROWS,
            3,
            np.stack([self.space.sample() for _ in range(ROWS)]),
            weights=rng.random(ROWS).astype(np.float32) if self.config.prioritised else None,
            noise=self.update.noise(rng, 1),
        )


@functools.cache
def case(name: str) -> Case:
    return Case(*CASES[name])


# The reference: one row after the other, in double precision


def outputs(it: Case, vector: Array, x: Array) -> Array:
    """What the policy's network gives."""
    for layer in it.update.weights["actor"].layers(vector):
        arrays = {name: array.astype(np.float64) for name, array in layer.arrays.items()}
        if layer.kind == "dense":
            x = x @ arrays["weight"] + arrays["bias"]
        elif layer.kind == "deviations":
            width = arrays["most"] - arrays["least"]
            x = np.concatenate([x, arrays["least"] + width / (1 + np.exp(-arrays["raw"]))])
        else:
            x = np.maximum(x, 0)
    return x


def critic(it: Case, name: str, vector: Array, index: int, x: Array, action: Array) -> float:
    x = np.concatenate([x, action])
    weights = it.update.weights[name]
    for module in weights._with(weights._views(vector)).bodies.modules:
        if type(module).__name__ == "Dense":
            x = x @ module.weight[index].astype(np.float64) + module.bias[index]
        else:
            x = np.maximum(x, 0)
    return float(x[0])


def seen(it: Case, action: Any) -> Array:
    """An action as critics see it."""
    if it.space is FOUR:
        return np.eye(4)[int(action) - 2]
    return 2 * (action - BOUNDS.low) / (BOUNDS.high - BOUNDS.low) - 1


def log_prob(it: Case, output: Array, action: Any) -> float:
    if it.space is BOUNDS:
        mean, std = np.tanh(output[:2]), np.exp(output[2:])
        distances = (seen(it, action) - mean) / std
        return float((-0.5 * distances**2 - np.log(std * math.sqrt(2 * math.pi))).sum())
    groups = [output] if it.space is FOUR else [output[:3], output[3:]]
    chosen = [int(action) - 2] if it.space is FOUR else action.tolist()
    return sum(
        float(logits[index] - np.log(np.exp(logits).sum())) for logits, index in zip(groups, chosen, strict=True)
    )


def sampled(output: Array, noise: Array) -> Array:
    return np.clip(np.tanh(output[:2]) + np.exp(output[2:]) * noise, -1, 1)


def critics_of(it: Case, batch: dict[str, Any], *, pairs: bool = True) -> Any:
    pair = batch["noise"]["pair"] if pairs else None
    return range(it.config.critics) if pair is None else pair.tolist()


def reference(it: Case, name: str, vector: Array, state: Any, batch: dict[str, Any]) -> float:
    """A loss of a batch, for these weights of the network that it is of."""
    rows = [row_of(it, name, vector, state, batch, row) for row in range(ROWS)]
    if it.kind is AWAC and name == "actor_loss":
        advantages = np.array([advantage for _, advantage in rows]) * it.config.advantage_scale
        weights = np.exp(advantages - advantages.max())
        return -float(weights / weights.sum() @ np.array([log for log, _ in rows]))
    if it.kind is TD3:
        values, errors = (np.array([pair[index] for pair in rows]) for index in (0, 1))
        own = np.array([row_of(it, name, state.actor, state, batch, row)[0] for row in range(ROWS)])
        return float(-it.config.bc_alpha / np.abs(own).mean() * values.mean() + errors.mean())
    counted = np.ones(ROWS) if batch["weights"] is None else batch["weights"].astype(np.float64)
    return float((counted * np.array(rows)).mean())


def row_of(  # noqa: PLR0911 - one for each loss
    it: Case, name: str, vector: Array, state: Any, batch: dict[str, Any], row: int
) -> Any:
    config, action = it.config, batch["actions"][row]
    x, after = (batch[key][row].astype(np.float64) for key in ("observations", "next_observations"))
    reward, discount = float(batch["rewards"][row]), float(batch["discounts"][row])
    if it.kind is BC:
        output = outputs(it, vector, x)
        if config.loss == "mse":
            return float(((np.tanh(output) - seen(it, action)) ** 2).mean())
        return -log_prob(it, output, action)
    if it.kind is TD3:
        own = np.tanh(outputs(it, vector, x))
        distance = float(((own - seen(it, action)) ** 2).mean())
        return critic(it, "critics", state.critics, 0, x, own), distance
    if name == "critic_loss":
        if it.kind is IQL:
            future = critic(it, "value", state.value, 0, after, np.zeros(0))
        else:
            next_action = sampled(outputs(it, state.actor, after), batch["noise"]["next"][row])
            future = min(
                critic(it, "critics", state.target, index, after, next_action) for index in critics_of(it, batch)
            )
        goal = reward + discount * future
        every = critics_of(it, batch, pairs=False)
        return sum((critic(it, "critics", vector, index, x, seen(it, action)) - goal) ** 2 for index in every)
    if it.kind is AWAC:
        every = critics_of(it, batch, pairs=False)
        own = sampled(outputs(it, state.actor, x), batch["noise"]["now"][row])
        worth, own_worth = (
            min(critic(it, "critics", state.critics, index, x, act) for index in every)
            for act in (seen(it, action), own)
        )
        return log_prob(it, outputs(it, vector, x), action), worth - own_worth
    worth = min(critic(it, "critics", state.target, index, x, seen(it, action)) for index in critics_of(it, batch))
    if name == "value_loss":
        error = worth - critic(it, "value", vector, 0, x, np.zeros(0))
        return (config.expectile if error >= 0 else 1 - config.expectile) * error**2
    advantage = worth - critic(it, "value", state.value, 0, x, np.zeros(0))
    weight = min(math.exp(config.advantage_scale * advantage), config.max_weight)
    return -weight * log_prob(it, outputs(it, vector, x), action)


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=10, deadline=None)
def test_the_losses_are_those_of_the_reference(name: str, seed: int) -> None:
    rng, it = np.random.default_rng(seed), case(name)
    state, batch = it.state(rng), it.batch(rng)
    for loss, compiled in it.losses.items():
        vector = getattr(state, FIELDS[loss])
        found, _ = compiled(vector, state, batch)
        assert float(found) == pytest.approx(reference(it, loss, vector, state, batch), rel=1e-3, abs=1e-4), loss


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_small_differences(name: str) -> None:
    rng, it = np.random.default_rng(3), case(name)
    state, batch = it.state(rng), it.batch(rng)
    for loss, compiled in it.losses.items():
        vector = getattr(state, FIELDS[loss])
        gradient = np.asarray(compiled(vector, state, batch)[1])
        wide = vector.astype(np.float64)
        for index in rng.choice(len(wide), 15, replace=False):
            step = np.zeros_like(wide)
            step[index] = 1e-6
            above, below = (reference(it, loss, wide + sign * step, state, batch) for sign in (1, -1))
            assert gradient[index] == pytest.approx((above - below) / 2e-6, rel=2e-3, abs=2e-4), loss


@pytest.mark.parametrize("name", ["bc, gaussian", "awac", "iql, discrete, weighted"])
def test_updates_in_one_dispatch_are_equal_to_the_bit_to_one_at_a_time(name: str) -> None:
    it, rng = case(name), np.random.default_rng(0)
    check_one_dispatch(it, [it.batch(rng) for _ in range(7)])

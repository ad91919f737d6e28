"""From the same weights and the same batch, DQN's loss and gradients are those of Stable-Baselines3."""

from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from stable_baselines import (
    Arrays,
    Spaces,
    assert_same,
    batch_of,
    dense,
    fill,
    load,
    logged,
    make_model,
    random_transitions,
    stable_baselines3,
    train,
)

from rekindle.agents import DQN
from rekindle.experience import Array, Transitions

pytestmark = pytest.mark.exhaustive

OBSERVATIONS, ACTIONS = Box(-2, 2, (3,), np.float32), Discrete(4)
HIDDEN = (16, 24)
ROWS = 64
GAMMA = 0.9


def named(agent: DQN, vector: Array) -> Arrays:
    weights = agent._algorithm.weights["params"]
    return dense(weights.layers(vector), ["q_net.0", "q_net.2", "q_net.4"])


def ours(agent: DQN, params: Array, target: Array, transitions: Transitions) -> tuple[float, Arrays]:
    update: Any = agent._algorithm
    loss = jax.value_and_grad(update.loss, has_aux=True)
    (value, _), gradient = loss(params, target, batch_of(agent, transitions))
    return float(value), named(agent, np.asarray(gradient))


def theirs(agent: DQN, params: Array, target: Array, transitions: Transitions) -> tuple[float, Arrays]:
    model = make_model(
        stable_baselines3().DQN,
        Spaces(OBSERVATIONS, ACTIONS),
        HIDDEN,
        buffer_size=ROWS,
        gamma=GAMMA,
        n_steps=agent.config.n_step,
        max_grad_norm=np.inf,
    )
    load(model.q_net, named(agent, params))
    load(model.q_net_target, named(agent, target))
    fill(model, transitions)
    gradients = train(model, {"q_net": (model.policy.optimizer, dict(model.q_net.named_parameters()))}, 1, ROWS)
    return logged(model, "loss"), gradients["q_net"]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_and_the_gradients_of_dqn(seed: int, n_step: int) -> None:
    agent = DQN(OBSERVATIONS, ACTIONS, seed=seed, hidden_sizes=HIDDEN, gamma=GAMMA, double=False, n_step=n_step)
    params = np.asarray(agent._learned.params)
    target = np.random.default_rng(seed).normal(0, 0.3, params.size).astype(np.float32)
    given = (agent, params, target, random_transitions(OBSERVATIONS, ACTIONS, ROWS, seed=seed))
    (loss, gradients), (peer_loss, peer_gradients) = ours(*given), theirs(*given)
    assert loss == pytest.approx(peer_loss, rel=1e-4)
    assert_same(gradients, peer_gradients)

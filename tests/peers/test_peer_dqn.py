"""From the same weights and the same batch, DQN's loss and gradients are those of Stable-Baselines3."""

from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from stable_baselines import (
    Gradients,
    assert_same,
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
from rekindle.agents.dqn import _columns
from rekindle.experience import Array, Transitions

pytestmark = pytest.mark.exhaustive

OBSERVATIONS, ACTIONS = Box(-2, 2, (3,), np.float32), Discrete(4)
HIDDEN = (16, 24)
ROWS = 64
GAMMA = 0.9


def ours(agent: DQN, params: Array, target: Array, transitions: Transitions) -> tuple[float, Gradients]:
    agent.observe(transitions, np.zeros(len(transitions), np.int64))
    memory: Any = agent.replay()
    rows = np.arange(memory.end)
    batch = memory.gather(rows[memory.can_sample(rows)], n_step=agent.config.n_step, gamma=agent.config.gamma)
    loss = jax.value_and_grad(agent._learner.loss, has_aux=True)
    (value, _), gradient = loss(params, target, _columns(batch, None, None), agent._inputs())
    return float(value), dense(agent._weights.layers(np.asarray(gradient)), "q_net.")


def theirs(agent: DQN, params: Array, target: Array, transitions: Transitions) -> tuple[float, Gradients]:
    model = make_model(
        stable_baselines3().DQN,
        OBSERVATIONS,
        ACTIONS,
        buffer_size=ROWS,
        gamma=GAMMA,
        n_steps=agent.config.n_step,
        max_grad_norm=np.inf,
        policy_kwargs={"net_arch": list(HIDDEN)},
    )
    for network, vector in ((model.q_net, params), (model.q_net_target, target)):
        load(network, dense(agent._weights.layers(vector), "q_net."))
    fill(model, transitions)
    gradients = train(model, {"q_net": (model.policy.optimizer, model.q_net)}, 1, ROWS)
    return logged(model, "loss"), gradients["q_net"]


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_loss_and_the_gradients_of_dqn(seed: int, n_step: int) -> None:
    agent = DQN(OBSERVATIONS, ACTIONS, seed=seed, hidden_sizes=HIDDEN, gamma=GAMMA, double=False, n_step=n_step)
    target = np.random.default_rng(seed).normal(0, 0.3, agent._weights.size).astype(np.float32)
    given = (agent, agent._weights.initial, target, random_transitions(OBSERVATIONS, ACTIONS, ROWS, seed=seed))
    (loss, gradients), (peer_loss, peer_gradients) = ours(*given), theirs(*given)
    assert loss == pytest.approx(peer_loss, rel=1e-4)
    assert_same(gradients, peer_gradients)

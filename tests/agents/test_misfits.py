"""States of another form: every agent refuses them with `StateError`, whatever stands where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from misfits import misfits

pytest.importorskip("jax")

from rekindle import ActMode, Transitions
from rekindle.agents import DQN, IQL, IQN, PPO, SAC, TD3, Tabular, rainbow
from rekindle.errors import StateError

SEEN, CHOICES, MOVES = Box(-1, 1, (2,), np.float32), Discrete(3), Box(-1, 1, (2,), np.float32)
SMALL = {"hidden_sizes": (4,), "capacity": 50, "warmup_steps": 4, "batch_size": 4}
AGENTS: dict[str, Callable[[], Any]] = {
    "tabular": lambda: Tabular(Discrete(4), CHOICES, seed=0, method="sarsa"),
    "dqn": lambda: DQN(SEEN, CHOICES, seed=0, **rainbow(**SMALL)),
    "ppo": lambda: PPO(
        SEEN,
        CHOICES,
        seed=0,
        hidden_sizes=(4,),
        rollout_steps=8,
        minibatch_size=4,
        epochs=1,
        normalise_observations=True,
        normalise_rewards=True,
    ),
    "sac": lambda: SAC(SEEN, MOVES, seed=0, **SMALL),
    "td3": lambda: TD3(SEEN, MOVES, seed=0, **SMALL),
    "iqn": lambda: IQN(SEEN, CHOICES, seed=0, **SMALL),
    "iql": lambda: IQL(SEEN, MOVES, seed=0, **SMALL),
}


def trained(name: str) -> Any:
    """An agent that has seen and learned a little."""
    agent = AGENTS[name]()
    space, streams = Discrete(4, seed=0) if name == "tabular" else Box(-1, 1, (2,), np.float32, seed=0), np.arange(2)
    for _ in range(11):
        seen = np.stack([space.sample(), space.sample()])
        actions = agent.act(seen, ActMode.EXPLORE, streams)
        agent.observe(Transitions(seen, actions, np.ones(2), seen, np.zeros(2, np.uint8)), streams)
        if due := agent.updates_due():
            agent.update(due)
    return agent


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_a_state_of_another_form_is_a_state_error(name: str) -> None:
    agent = trained(name)
    refused = 0
    for at, state in misfits(agent.state()):
        try:
            agent.load_state(state)
        except StateError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{at}: {error!r}") from error
    assert refused > 100


def test_a_table_in_the_place_of_the_weights_is_a_state_error() -> None:
    agent = Tabular(Discrete(4), CHOICES, seed=0)
    with pytest.raises(StateError, match="not the state of a Tabular"):
        agent.load_state({**agent.state(), "weights": np.zeros((4, 3))})

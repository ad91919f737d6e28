"""An agent that has diverged says so before it hands out an action, and nobody else gets the blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rekindle import TrainingSession
from rekindle.agents import DQN, SAC, TD3
from rekindle.agents.networks import Dense, Sequential
from rekindle.agents.weights import Weights
from rekindle.checkpoint.store import list_steps
from rekindle.errors import AgentError
from rekindle.experience import ActMode, Array
from rekindle.run.reader import RunReader
from rekindle.training import Trainer

# What overflows on the way is what is looked for here.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "learning_rate": 1e30, "max_grad_norm": None}
OFF_POLICY: dict[str, Any] = {**SMALL, "warmup_steps": 40, "batch_size": 8}
DIVERGING: dict[str, tuple[str, dict[str, Any]]] = {
    "dqn": ("CartPole-v1", {**OFF_POLICY, "loss": "mse"}),
    "iqn": ("CartPole-v1", OFF_POLICY),
    "sac": ("Pendulum-v1", OFF_POLICY),
    "td3": ("Pendulum-v1", OFF_POLICY),
    "ppo": ("CartPole-v1", {**SMALL, "rollout_steps": 50, "minibatch_size": 10}),
}


@pytest.mark.parametrize("algorithm", DIVERGING)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_training_ends_at_once_and_names_the_agent(tmp_path: Path, algorithm: str, num_envs: int) -> None:
    env, settings = DIVERGING[algorithm]
    trainer = Trainer(
        *(env, algorithm),
        steps=2_000,
        name="t",
        root=tmp_path,
        agent_settings=settings,
        num_envs=num_envs,
        metrics_every=None,
        checkpoint_every=20,
        eval_episodes=0,
        determinism="repeats",
    )
    with pytest.raises(AgentError, match=rf"^{algorithm.upper()}: the weights .*: training has diverged"):
        trainer.train()
    reader = RunReader(tmp_path / "t")
    assert reader.status == "failed"
    assert 40 <= trainer.agent.env_steps < 60
    assert max(list_steps(reader.path / "checkpoints")) <= 40


def test_a_host_gets_no_action_that_is_not_a_number() -> None:
    env = gymnasium.make("Pendulum-v1")
    agent = SAC(env.observation_space, env.action_space, seed=0, **OFF_POLICY)
    actions: list[Array] = []

    def train() -> None:
        with TrainingSession(agent, max_steps=1_000, metrics_every=None) as session:
            stream = session.stream()
            while not session.is_done:
                action = stream.begin(stream.reset(env))
                while action is not None:
                    actions.append(action)
                    # A robot that takes no nonsense seriously.
                    observation, reward, terminated, truncated, _ = env.step(np.nan_to_num(action))
                    action = stream.step(observation, float(reward), terminated, truncated)

    with pytest.raises(AgentError, match="SAC: the weights"):
        train()
    assert len(actions) >= 40
    assert np.isfinite(actions).all()


def spoil(agent: Any, value: float | Array) -> None:
    """Give an agent other weights, as an update would."""
    network = agent.state()["weights"]["network"]
    weights = {name: np.resize(np.float32(value), array.shape) for name, array in network.items()}
    acting = agent._algorithm.weights[agent._algorithm.acting[0]]
    params = acting._parts([weights[path] for path in acting._paths])
    agent._learned = agent._learned._replace(**dict.fromkeys(agent._algorithm.acting, params))
    agent._publish()


SEEN = Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize("rows", [1, 5, 300], ids=["one", "few", "compiled"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("mode", list(ActMode))
def test_whoever_acts_with_new_weights_looks_at_them(rows: int, value: float, mode: ActMode) -> None:
    agent = DQN(SEEN, Discrete(2), seed=0, hidden_sizes=(8, 8), warmup_steps=0)
    observations, streams = np.ones((rows, 3), np.float32), np.arange(rows)
    agent.act(observations, mode, streams)
    spoil(agent, value)
    for _ in range(2):
        with pytest.raises(AgentError, match="DQN: the weights"):
            agent.act(observations, mode, streams)


def test_a_policy_of_diverged_weights_is_not_published() -> None:
    agent = TD3(SEEN, Box(-1, 1, (2,), np.float32), seed=0, hidden_sizes=(8,))
    agent.policy()
    spoil(agent, np.nan)
    with pytest.raises(AgentError, match="TD3: the weights"):
        agent.policy()


@pytest.mark.parametrize("rows", [1, 300], ids=["one", "compiled"])
def test_weights_that_are_finite_but_give_no_number_are_noticed_in_the_output(rows: int) -> None:
    agent = DQN(SEEN, Discrete(2), seed=0, hidden_sizes=(8, 8), warmup_steps=0)
    spoil(agent, np.array([1e17, 1e17, -1e17], np.float32))
    with pytest.raises(AgentError, match="DQN: the output of its network is not finite"):
        agent.act(np.ones((rows, 3), np.float32), ActMode.EXPLOIT, np.arange(rows))


def test_what_diverged_is_named() -> None:
    rng = np.random.default_rng(0)
    weights = Weights(Sequential([Dense(3, 4, rng=rng), Dense(4, 2, rng=rng)]))
    parts = weights.initial.copy()
    assert weights.diverged(parts) is None
    parts[-1] = np.nan
    assert weights.diverged(parts) == "the weights modules[1].bias are not finite"
    parts[:] = 1e25
    assert weights.diverged(parts) == "the weights are as large as 1e+25"

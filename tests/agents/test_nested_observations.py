"""Tuple and nested Dict observations: in their structure for the host, and as a flat dict for every agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from rekindle.agents import BC, DQN, IQN, PPO, SAC, TD3
from rekindle.envs import EnvFactory, check_env
from rekindle.errors import InputError
from rekindle.experience import ActMode, EpisodeStatus, Experience
from rekindle.policy import load, save
from rekindle.session.session import TrainingSession
from rekindle.training import Trainer

SEEN = Tuple(
    [Box(-1, 1, (2,), np.float32), Dict({"gear": Discrete(3), "lamps": Tuple([MultiBinary(2), Box(0, 1, (1, 2))])})]
)
NAMES = ["0", "1/gear", "1/lamps/0", "1/lamps/1"]
REPLAY: dict[str, Any] = {"warmup_steps": 8, "batch_size": 4, "capacity": 100}
AGENTS: dict[type, dict[str, Any]] = {
    DQN: REPLAY,
    PPO: {"rollout_steps": 12, "minibatch_size": 6, "epochs": 2, "normalise_observations": True},
    BC: REPLAY,
    IQN: REPLAY,
    SAC: REPLAY,
    TD3: REPLAY,
}


class World(gymnasium.Env[Any, Any]):
    """Shows anything at all, for five steps."""

    def __init__(self, action_space: Any = None) -> None:
        self.observation_space = SEEN
        self.action_space = Discrete(2) if action_space is None else action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._steps += 1
        observation = self._observation()
        return observation, float(observation[0].sum()), self._steps == 5, False, {}

    def _observation(self) -> Any:
        random = self.np_random
        lamps = (random.integers(2, size=2).astype(np.int8), random.random((1, 2)).astype(np.float32))
        place = random.uniform(-1, 1, 2).astype(np.float32)
        return place, {"gear": random.integers(3), "lamps": lamps}


def made(kind: type) -> Any:
    actions = Box(-1, 1, (1,), np.float32) if kind in (SAC, TD3) else Discrete(2)
    agent = kind(SEEN, actions, seed=0, hidden_sizes=(8,), **AGENTS[kind])
    agent.warm_up = lambda: None  # compile what is needed, and not what could be
    return agent


@pytest.mark.parametrize("kind", AGENTS)
def test_every_agent_learns_from_them_and_its_policy_takes_them(kind: type, tmp_path: Path) -> None:
    agent = made(kind)
    env = World(agent.action_space)
    with TrainingSession(agent, seed=1) as session:
        stream = session.stream()
        for _ in range(5):
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, reward, terminated, truncated)
        observation, _ = env.reset(seed=4)
        greedy = session.act(observation, "exploit")
    assert agent.updates > 0
    save(agent.policy(), tmp_path / "policy.mpk")
    exported = load(tmp_path / "policy.mpk")
    chosen = exported.act(observation)
    np.testing.assert_allclose(chosen, greedy, rtol=1e-4, atol=1e-5)
    flat = dict(zip(NAMES, (observation[0], observation[1]["gear"], *observation[1]["lamps"]), strict=True))
    np.testing.assert_array_equal(exported.act(flat), chosen)
    batch = {name: np.asarray(part)[None] for name, part in flat.items()}
    np.testing.assert_allclose(
        agent.act(batch, ActMode.EXPLOIT, np.zeros(1, np.int64))[0], chosen, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_trainer_takes_them_and_goes_on_exactly(tmp_path: Path, num_envs: int) -> None:
    def train(root: Path, steps: int) -> Any:
        trainer = Trainer(
            World, made(PPO), steps=steps, name="t", root=root, num_envs=num_envs, eval_every=30, eval_episodes=2
        )
        trainer.train()
        return trainer

    whole = train(tmp_path / "whole", 61)
    train(tmp_path / "cut", 32)
    parts = train(tmp_path / "cut", 61)
    assert same(whole.agent.state(), parts.agent.state())


def test_rewards_may_be_processed(tmp_path: Path) -> None:
    seen: list[Any] = []

    def halved(transitions: Any, streams: Any) -> Any:
        seen.append(transitions)
        return transitions.rewards / 2

    Trainer(World, made(PPO), steps=12, name="t", root=tmp_path, num_envs=2, step_processor=halved).train()
    assert all(list(transitions.observations) == NAMES for transitions in seen)


def test_a_session_takes_single_ones_batches_and_flat_dicts() -> None:
    session = TrainingSession(made(PPO), seed=1)
    observation, _ = World().reset(seed=0)
    for given in (
        observation,
        dict(zip(NAMES, (observation[0], observation[1]["gear"], *observation[1]["lamps"]), strict=True)),
    ):
        assert session.act(given, "exploit") in (0, 1)
    place, rest = observation
    lamps = tuple(np.stack([lamp] * 2) for lamp in rest["lamps"])
    batch = (np.stack([place] * 2), {"gear": np.full(2, rest["gear"]), "lamps": lamps})
    assert session.act_many(batch).shape == (2,)
    with pytest.raises(InputError, match=r"observation '1/lamps' must be a tuple of 2"):
        session.act((place, {**rest, "lamps": np.zeros(2)}), stream=7)
    with pytest.raises(InputError, match=r"observations '1/gear' has the shape \(3,\), expected \(2,\)"):
        session.act_many((batch[0], {**batch[1], "gear": np.zeros(3, np.int64)}))
    session.close()


def test_what_is_brought_back_has_the_structure_of_the_space(tmp_path: Path) -> None:
    env = World()
    with TrainingSession.open("t", made(PPO), root=tmp_path) as session:
        observation, _ = env.reset(seed=0)
        action = session.act(observation)
        following, reward, *_ = env.step(action)
        session.observe(Experience(observation, action, reward, following, EpisodeStatus.CONTINUING))
        session.stop("enough")
    with TrainingSession.open("t", made(PPO), root=tmp_path) as session:
        again = session.stream().bring_back()
        np.testing.assert_equal(
            again, (following[0], {"gear": np.array(following[1]["gear"]), "lamps": following[1]["lamps"]})
        )
        assert session.stream().begin(again) is not None
        session.stop("enough")


def test_a_check_finds_nothing_wrong_with_them() -> None:
    assert not [finding for finding in check_env(EnvFactory(World)) if finding.level == "error"]

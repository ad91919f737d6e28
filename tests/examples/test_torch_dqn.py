"""An agent in PyTorch resumes as exactly as one in numpy, and learns."""

import re
import time
import warnings
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from example_runs import load, run, run_with_kills

from rekindle import ActMode, TrainingSession, verify
from rekindle.policy.policy import load as load_policy
from rekindle.policy.policy import save as save_policy
from rekindle.run.finding import find_runs
from rekindle.storage import codec

pytestmark = pytest.mark.slow

STEPS = 4_000
OBSERVATIONS = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)


@cache
def example() -> ModuleType:
    """Only when it is used, as it takes a second to import torch."""
    return load("torch_dqn")


def make(seed: int = 0, **settings: Any) -> Any:
    env = gymnasium.make("CartPole-v1")
    few = {"hidden": 16, "warmup_steps": 50, "capacity": 200, "target_update_every": 30, "epsilon_steps": 100}
    return example().TorchDQN(env.observation_space, env.action_space, seed=seed, **{**few, **settings})


def train(agent: Any, root: Path, steps: int, **options: Any) -> TrainingSession:
    env = gymnasium.make("CartPole-v1")
    with TrainingSession.open("torch", agent, root=root, max_steps=steps, **options) as session:
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    return session


def saved(agent: Any) -> Any:
    """What a file would give back of the state."""
    return codec.decode(bytearray(b"".join(codec.encode(agent.state()))), name="state")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    runs = tmp_path_factory.mktemp("uninterrupted")
    told = run("torch_dqn", runs, "--steps", str(STEPS))
    return find_runs(runs)[0], told


def test_a_run_killed_while_it_warms_up_and_while_it_learns_ends_like_one_that_was_not(
    tmp_path: Path, uninterrupted: tuple[Path, str]
) -> None:
    told = run_with_kills("torch_dqn", tmp_path, STEPS, kills=[500, 2_000])
    assert re.match(r"going on from step \d+ \(exact\)\n", told)
    assert verify(find_runs(tmp_path)[0]).digests == verify(uninterrupted[0]).digests


def test_it_tells_how_it_gets_on_and_learns_to_balance(uninterrupted: tuple[Path, str]) -> None:
    lines = re.findall(r"^ +(\d+) steps +(\d+) upright", uninterrupted[1], re.MULTILINE)
    steps, upright = np.array(lines, int).T.tolist()
    assert steps == [1_000, 2_000, 3_000, 4_000]
    assert upright[-1] > 2 * upright[0]  # after the warm-up, in which all actions are as good as random


def test_two_agents_are_the_same_after_one_has_loaded_the_state_of_the_other_from_a_file(tmp_path: Path) -> None:
    first, second = make(seed=0), make(seed=1)
    train(first, tmp_path, 300)
    memory = first.replay()
    with warnings.catch_warnings(action="error"):
        second.load_state(saved(first))
    second.replay().restore(memory.first, memory.read(memory.first, memory.end))
    assert codec.tree_digest(second.state()) == codec.tree_digest(first.state())
    assert set(first.state()["optimiser"]["state"]["0"]) == {"step", "exp_avg", "exp_avg_sq"}
    losses = [agent.update(40)["loss"] for agent in (first, second)]  # over a copy to the target
    np.testing.assert_array_equal(*losses)
    acts = [agent.act(OBSERVATIONS, ActMode.EXPLORE, np.arange(50)) for agent in (first, second)]
    np.testing.assert_array_equal(*acts)
    assert codec.tree_digest(second.state()) == codec.tree_digest(first.state())


def test_a_state_never_changes_afterwards(tmp_path: Path) -> None:
    agent = make()
    train(agent, tmp_path, 300)
    state = agent.state()
    digest = codec.tree_digest(state)
    agent.update(40)
    assert codec.tree_digest(state) == digest != codec.tree_digest(agent.state())


def test_a_state_of_another_network_is_refused_and_changes_nothing() -> None:
    agent = make()
    digest = codec.tree_digest(agent.state())
    with pytest.raises(RuntimeError, match="size mismatch"):
        agent.load_state(make(hidden=8).state())
    assert codec.tree_digest(agent.state()) == digest


def test_exploiting_draws_no_random_number_and_agrees_with_torch(tmp_path: Path) -> None:
    agent = make()
    train(agent, tmp_path, 300)
    digest = codec.tree_digest(agent.state())
    actions = agent.act(OBSERVATIONS, ActMode.EXPLOIT, np.arange(50))
    assert codec.tree_digest(agent.state()) == digest
    values = agent._network(example().torch.from_numpy(OBSERVATIONS)).detach().numpy()
    np.testing.assert_allclose(agent.policy().output(OBSERVATIONS), values, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(actions, values.argmax(axis=1))


def test_a_policy_does_not_change_when_the_agent_learns_on_and_can_be_exported(tmp_path: Path) -> None:
    agent = make()
    train(agent, tmp_path, 300)
    policy = agent.policy()
    save_policy(policy, tmp_path / "policy.mpk")
    values = policy.output(OBSERVATIONS)
    agent.update(40)
    np.testing.assert_array_equal(policy.output(OBSERVATIONS), values)
    assert np.abs(agent.policy().output(OBSERVATIONS) - values).max() > 0
    # A file holds rows of weights one after the other, which sums in another order.
    np.testing.assert_allclose(load_policy(tmp_path / "policy.mpk").output(OBSERVATIONS), values, rtol=1e-4, atol=1e-6)


def test_it_learns_in_the_background(tmp_path: Path) -> None:
    agent, env = make(), gymnasium.make("CartPole-v1")
    with TrainingSession.open("torch", agent, root=tmp_path, max_steps=400, learner="background") as session:
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
        while agent.updates == 0:  # on a busy machine the learner may not have had a turn yet
            time.sleep(0.001)
    assert session.total_steps == agent.env_steps == 400
    assert agent.updates > 0
    assert agent.updates + agent.updates_due() + session.skipped_updates == (400 - 50) // 2

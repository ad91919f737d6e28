"""Stable-Baselines3's own training step, on weights and transitions of ours.

Its learning rates are 0 and its gradients not clipped, so that a step changes nothing and its gradients can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Space

from rekindle.agents.updates import Minibatch
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.policy.network import Layer

Arrays = dict[str, Array]
"""Weights, or their gradients, by the names that they have in the peer."""


def stable_baselines3() -> Any:
    """The package; the test is skipped where it is not installed."""
    return pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed: pip install .[peers]")


class Spaces(gymnasium.Env[Any, Any]):
    """What a model asks of an environment before it acts in one."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def make_model(kind: Any, env: Any, hidden: Sequence[int], **settings: Any) -> Any:
    """A model whose training steps change no weight."""
    from stable_baselines3.common.logger import Logger

    # It changes what it is given as policy_kwargs.
    policy = {"net_arch": list(hidden)}
    model = kind("MlpPolicy", env, learning_rate=0.0, device="cpu", policy_kwargs=policy, **settings)
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def fill(model: Any, transitions: Transitions) -> None:
    """Put transitions into its memory, and let it learn from each of them once, in their order."""
    memory, actions = model.replay_buffer, transitions.actions
    observations: Any = transitions.observations
    next_observations: Any = transitions.next_observations
    if isinstance(model.action_space, Box):
        actions = model.policy.scale_action(actions)
    for row in range(len(transitions)):
        status = transitions.statuses[row]
        memory.add(
            observations[row : row + 1],
            next_observations[row : row + 1],
            actions[row : row + 1],
            transitions.rewards[row : row + 1],
            np.array([status != EpisodeStatus.CONTINUING]),
            [{"TimeLimit.truncated": bool(status == EpisodeStatus.TRUNCATED)}],
        )
    memory.sample = lambda batch_size, env=None: memory._get_samples(np.arange(batch_size), env)


def train(model: Any, optimisers: Mapping[str, tuple[Any, Mapping[str, Any]]], *arguments: int) -> dict[str, Arrays]:
    """Let it train, and tell what gradients of these parameters each optimiser was given."""
    found: dict[str, Arrays] = {}

    def reader(name: str, parameters: Mapping[str, Any]) -> Any:
        def read(*_: Any) -> None:
            assert name not in found, f"there was more than one step of {name}"
            found[name] = {key: parameter.grad.numpy().copy() for key, parameter in parameters.items()}

        return read

    for name, (optimiser, parameters) in optimisers.items():
        optimiser.register_step_pre_hook(reader(name, parameters))
    model.train(*arguments)
    return found


def logged(model: Any, name: str) -> float:
    """What it has logged of its last training step."""
    return float(model.logger.name_to_value[f"train/{name}"])


def dense(layers: Iterable[Layer], names: Sequence[str]) -> Arrays:
    """The dense layers of a network of ours, by the names that they have in the peer."""
    found = [layer for layer in layers if layer.kind == "dense"]
    named: Arrays = {}
    for name, layer in zip(names, found, strict=True):
        named[f"{name}.weight"], named[f"{name}.bias"] = layer.arrays["weight"].T, layer.arrays["bias"]
    return named


def load(module: Any, arrays: Arrays) -> None:
    """Use arrays as the weights of a module, all of them."""
    import torch

    module.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})


def assert_same(ours: Arrays, theirs: Arrays, relative: float = 1e-4) -> None:
    """Every array is that of the peer, to a fraction of its largest number."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        largest = float(np.abs(expected).max())
        assert largest > 0, f"the gradient of {name} is 0"
        np.testing.assert_allclose(ours[name], expected, rtol=0, atol=relative * largest, err_msg=name)


def random_transitions(
    observation_space: Space[Any], action_space: Space[Any], count: int, *, seed: int
) -> Transitions:
    """Transitions of one stream, some of which terminate or truncate an episode."""
    observation_space.seed(seed)
    action_space.seed(seed)
    rng = np.random.default_rng(seed)
    seen = np.stack([observation_space.sample() for _ in range(count + 1)])
    statuses = rng.choice(np.array([*EpisodeStatus], np.uint8), size=count, p=[0.6, 0.2, 0.2])
    assert set(statuses.tolist()) == set(EpisodeStatus)
    actions = np.stack([action_space.sample() for _ in range(count)])
    return Transitions(seen[:-1], actions, rng.normal(0, 2, count), seen[1:], statuses)


def batch_of(agent: Any, transitions: Transitions, noise: Any = None) -> Minibatch:
    """What an update of an agent with a memory takes, when it draws each of these transitions once, in their order."""
    agent.observe(transitions, np.zeros(len(transitions), np.int64))
    memory, config = agent.replay(), agent.config
    rows = np.arange(memory.end)
    batch = memory.gather(rows[memory.can_sample(rows)], n_step=config.n_step, gamma=config.gamma)
    np.testing.assert_array_equal(batch.observations, transitions.observations)
    return Minibatch.of(agent._columns(batch, None, noise), agent._encoding, None, reward_scale=config.reward_scale)

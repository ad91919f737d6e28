"""Stable-Baselines3's own training step, on weights and transitions of ours.

Its learning rates are 0 and its gradients not clipped, so that a step changes nothing and its gradients can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Space

from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.policy import Layer

Gradients = dict[str, Array]
"""By the name of a parameter."""


def stable_baselines3() -> Any:
    """The package; the test is skipped where it is not installed."""
    return pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed: pip install .[peers]")


class Spaces(gymnasium.Env[Any, Any]):
    """What a model asks of an environment before it acts in one."""

    def __init__(self, observation_space: Space[Any], action_space: Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def make_model(kind: Any, observation_space: Space[Any], action_space: Space[Any], **settings: Any) -> Any:
    """A model whose training steps change no weight."""
    from stable_baselines3.common.logger import Logger

    env = Spaces(observation_space, action_space)
    model = kind("MlpPolicy", env, learning_rate=0.0, device="cpu", **settings)
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def fill(model: Any, transitions: Transitions) -> None:
    """Put transitions into its memory, and let it learn from each of them once, in their order."""
    memory = model.replay_buffer
    for row in range(len(transitions)):
        status = transitions.statuses[row]
        memory.add(
            transitions.observations[row : row + 1],
            transitions.next_observations[row : row + 1],
            transitions.actions[row : row + 1],
            transitions.rewards[row : row + 1],
            np.array([status != EpisodeStatus.CONTINUING]),
            [{"TimeLimit.truncated": bool(status == EpisodeStatus.TRUNCATED)}],
        )
    memory.sample = lambda batch_size, env=None: memory._get_samples(np.arange(batch_size), env)


def train(model: Any, optimised: Mapping[str, tuple[Any, Any]], *arguments: int) -> dict[str, Gradients]:
    """Let it train, and tell what the optimiser of each module was given for the parameters of that module."""
    found: dict[str, Gradients] = {}

    def reader(name: str, module: Any) -> Any:
        def read(*_: Any) -> None:
            assert name not in found, f"there was more than one step of {name}"
            found[name] = {key: parameter.grad.numpy().copy() for key, parameter in module.named_parameters()}

        return read

    hooks = [optimiser.register_step_pre_hook(reader(name, module)) for name, (optimiser, module) in optimised.items()]
    model.train(*arguments)
    for hook in hooks:
        hook.remove()
    return found


def logged(model: Any, name: str) -> float:
    """What it has logged of its last training step."""
    return float(model.logger.name_to_value[f"train/{name}"])


def dense(layers: Iterable[Layer], prefix: str = "") -> Gradients:
    """The dense layers of a network of ours by the names that they have in an `nn.Sequential` with activations."""
    named: Gradients = {}
    for index, layer in enumerate(layer for layer in layers if layer.kind == "dense"):
        named[f"{prefix}{2 * index}.weight"] = layer.arrays["weight"].T
        named[f"{prefix}{2 * index}.bias"] = layer.arrays["bias"]
    return named


def load(module: Any, arrays: Mapping[str, Array]) -> None:
    """Use arrays as the weights of a module, all of them."""
    import torch

    module.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})


def assert_same(ours: Gradients, theirs: Gradients, relative: float = 1e-4) -> None:
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

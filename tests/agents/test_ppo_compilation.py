"""After the warm-up nothing compiles, whatever the number of updates, streams or steps."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from rekindle.agents import PPO, Linear
from rekindle.experience import ActMode, Transitions

SPACE = Box(-1, 1, (3,), np.float32)
MASKED = Dict({"seen": SPACE, "action_mask": MultiBinary(3)})
SETTINGS: dict[str, Any] = {"hidden_sizes": (8,), "rollout_steps": 50, "minibatch_size": 8, "epochs": 20}


@pytest.mark.parametrize(
    ("observation_space", "action_space", "settings"),
    [
        (MASKED, Discrete(3), {"learning_rate": Linear(1e-3, 0.0, 100), "target_kl": 1e-3}),
        (
            SPACE,
            Box(-1, 1, (2,), np.float32),
            {
                "normalise_observations": True,
                "normalise_rewards": True,
                "clip": Linear(0.2, 0.0, 200),
                "acting_device": "cpu",
                "learning_device": "cpu",
            },
        ),
    ],
    ids=["discrete", "continuous"],
)
def test_nothing_compiles_after_the_warm_up(
    observation_space: Any, action_space: Any, settings: dict[str, Any], compilations: list[str]
) -> None:
    learner = PPO(observation_space, action_space, seed=0, **{**SETTINGS, **settings})
    before = learner.state()["weights"]["network"]
    learner.warm_up()
    assert compilations
    for name, array in learner.state()["weights"]["network"].items():
        np.testing.assert_array_equal(array, before[name])
    compilations.clear()
    rng, sizes = np.random.default_rng(0), itertools.cycle([1, 2, 3, 7, 8, 9, 63, 64, 65, 130])
    for streams in (1, 2, 3, 5, 8, 40, 65, 100):
        observations: Any = rng.normal(size=(streams, 3)).astype(np.float32)
        if observation_space is MASKED:
            observations = {"seen": observations, "action_mask": rng.integers(2, size=(streams, 3)).astype(np.int8)}
        slots = np.arange(streams)
        for _ in range(8):
            learner.act(observations, ActMode.EXPLOIT, slots)
            actions = learner.act(observations, ActMode.EXPLORE, slots)
            rewards, statuses = rng.normal(size=streams), rng.integers(3, size=streams).astype(np.uint8)
            learner.observe(Transitions(observations, actions, rewards, observations, statuses), slots)
            while learner.updates_due():
                np.asarray(learner.update(next(sizes))["loss"])
                learner.load_state(learner.state())
        learner.policy().act(observations)
    assert learner.policy_version > 8
    learner.episode_extras()
    assert compilations == []


def test_a_second_warm_up_compiles_nothing(compilations: list[str]) -> None:
    learner = PPO(SPACE, Discrete(3), seed=0, **SETTINGS)
    learner.warm_up()
    compilations.clear()
    learner.warm_up()
    assert compilations == []

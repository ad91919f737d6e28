"""After the warm-up nothing compiles, whatever the number of updates, streams or steps."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from rekindle.agents import AWAC, BC, DQN, IQL, IQN, SAC, TD3, Linear, rainbow
from rekindle.experience import ActMode, Transitions

SPACE = Box(-1, 1, (3,), np.float32)
SETTINGS: dict[str, Any] = {"hidden_sizes": (8,), "capacity": 2000, "batch_size": 4}


CASES: dict[str, tuple[type, dict[str, Any]]] = {
    "plain": (DQN, {"learning_rate": Linear(1e-3, 0.0, 100), "normalise_observations": True}),
    "rainbow": (DQN, rainbow(**SETTINGS, priority_beta=Linear(0.4, 1.0, 50))),
    "sac": (SAC, {"learning_rate": Linear(1e-3, 0.0, 100), "normalise_observations": True, "warmup_steps": 7}),
    "sac, four critics, prioritised": (SAC, {"critics": 4, "prioritised": True, "policy_delay": 2, "n_step": 3}),
    "iqn": (IQN, {"learning_rate": Linear(1e-3, 0.0, 100), "prioritised": True, "double": True}),
    "bc": (BC, {"normalise_observations": True}),
    "awac": (AWAC, {"learning_rate": Linear(1e-3, 0.0, 100)}),
    "iql": (IQL, {"cosine_updates": 50, "policy_delay": 2}),
    "td3": (TD3, {"priority_beta": Linear(0.4, 1.0, 50), "prioritised": True}),
}


LIKE_OTHERS = {"awac": pytest.mark.exhaustive}
"""Made of the parts of SAC and IQL."""


@pytest.mark.parametrize("name", [pytest.param(name, marks=LIKE_OTHERS.get(name, ())) for name in CASES])
def test_nothing_compiles_after_the_warm_up(name: str, compilations: list[str]) -> None:
    kind, settings = CASES[name]
    space = Discrete(3) if kind in (DQN, IQN, IQL) else Box(-1, 3, (2,), np.float32)
    learner: Any = kind(SPACE, space, seed=0, **{**SETTINGS, **settings})
    before = learner.state()["weights"]["network"]
    learner.warm_up()
    assert compilations
    for path, array in learner.state()["weights"]["network"].items():
        np.testing.assert_array_equal(array, before[path])
    compilations.clear()
    rng = np.random.default_rng(0)
    for streams in (1, 2, 3, 5, 8, 100, 129, 200, 300):
        observations = rng.normal(size=(streams, 3)).astype(np.float32)
        slots = np.arange(streams)
        learner.act(observations, ActMode.EXPLOIT, slots)
        actions = learner.act(observations, ActMode.EXPLORE, slots)
        rewards, statuses = rng.normal(size=streams), rng.integers(3, size=streams).astype(np.uint8)
        learner.observe(Transitions(observations, actions, rewards, observations, statuses), slots)
        for n in (1, 2, 3, 7, 8, 9, 63, 64, 65, 130):
            metrics = learner.update(n)
            assert len(np.asarray(metrics["loss"])) == n
        learner.policy().act(observations)
    state = learner.state()
    learner.load_state(state)
    learner.episode_extras()
    assert compilations == []


def test_a_second_warm_up_compiles_nothing(compilations: list[str]) -> None:
    learner = DQN(SPACE, Discrete(3), seed=0, **SETTINGS)
    learner.warm_up()
    compilations.clear()
    learner.warm_up()
    assert compilations == []

"""From the same weights, batch and noise, losses and gradients of agents that learn from data are those of d3rlpy.

d3rlpy needs another version of Gymnasium, so it answers from an environment of its own, which is installed first.
"""

import importlib
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from d3rlpy_steps import HIDDEN
from gymnasium.spaces import Box, Discrete
from stable_baselines import Arrays, assert_same, batch_of, dense, random_transitions

from rekindle.agents import AWAC, BC, DQN, IQL, TD3
from rekindle.agents.distributions import to_unit
from rekindle.agents.networks import layers_of
from rekindle.agents.updates import Minibatch
from rekindle.experience import Array, EpisodeStatus

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1_800)]

OBSERVATIONS = Box(-2, 2, (3,), np.float32)
BOX, THREE = Box(-1, 1, (2,), np.float32), Discrete(3)
ROWS, GAMMA, SEED = 64, 0.9, 0
LAYERS = ("_encoder._layers.0", "_encoder._layers.2")


@pytest.fixture(scope="module")
def d3rlpy() -> Path:
    """The interpreter of the environment with d3rlpy."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    venvs = importlib.import_module("venvs")
    try:
        return venvs.python_of("d3rlpy")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"d3rlpy cannot be installed: {error}")


class Comparison:
    """An agent, a batch for it, and what d3rlpy says of both."""

    def __init__(
        self, agent: Any, algorithm: str, *targets: str, seed: int, noise: Any = None, **settings: Any
    ) -> None:
        self.update = agent._algorithm
        rng = np.random.default_rng(seed)
        state = jax.tree_util.tree_map(np.asarray, agent._learned)
        blurred = {name: getattr(state, name) for name in targets}
        self.state = state._replace(
            **{name: array + rng.normal(0, 0.1, array.shape).astype(np.float32) for name, array in blurred.items()}
        )
        transitions = random_transitions(OBSERVATIONS, agent.action_space, ROWS, seed=seed)
        self.noise = noise or {}
        self.batch: Minibatch = batch_of(
            agent, transitions, {**self.noise, "pair": None} if noise is not None else None
        )
        self._asked = {
            "algorithm": algorithm,
            "actions": 2 if agent.action_space is BOX else 3,
            "settings": settings,
        }
        actions: Any = transitions.actions
        self._columns = {
            "observations": transitions.observations,
            "actions": actions if agent.action_space is BOX else actions[:, None],
            "rewards": transitions.rewards[:, None].astype(np.float32),
            "next_observations": transitions.next_observations,
            "terminals": (transitions.statuses == EpisodeStatus.TERMINATED)[:, None].astype(np.float32),
        }

    def answer(self, python: Path, tmp_path: Path, weights: Mapping[str, Arrays], **noise: Array) -> dict[str, Array]:
        """Losses and gradients of d3rlpy, with weights by module."""
        request = {f"{module}:{name}": array for module, arrays in weights.items() for name, array in arrays.items()}
        request |= {f"batch:{name}": np.asarray(column) for name, column in self._columns.items()}
        request |= {f"noise:{step}": numbers for step, numbers in noise.items()}
        np.savez(tmp_path / "request.npz", asked=json.dumps(self._asked), **request)  # pyright: ignore[reportArgumentType]
        script = Path(__file__).with_name("d3rlpy_steps.py")
        command = [
            str(python),
            "-W",
            "ignore",
            str(script),
            *(str(tmp_path / f"{name}.npz") for name in ("request", "answer")),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env={})
        assert done.returncode == 0, done.stderr
        return dict(np.load(tmp_path / "answer.npz"))

    def actor(self, vector: Array, last: str) -> Arrays:
        """A policy, or its gradient, by the names of d3rlpy."""
        layers = self.update.weights["actor"].layers(vector)
        arrays = dense(layers, (*LAYERS, last))
        deviations = [layer.arrays["raw"][None] for layer in layers if layer.kind == "deviations"]
        return arrays | ({"_logstd": deviations[0]} if deviations else {})

    def critics(self, name: str, vector: Array, module: str) -> dict[str, Arrays]:
        """Critics, or their gradients, by module and the names of d3rlpy."""
        bodies: Any = self.update.weights[name].views(vector).bodies
        count = jax.tree_util.tree_leaves(bodies)[0].shape[0]
        each = [jax.tree_util.tree_map(lambda array, index=index: array[index], bodies) for index in range(count)]
        named = [dense(layers_of(body), (*LAYERS, "_fc")) for body in each]
        return {f"{module}{index}" if module.endswith("s") else module: arrays for index, arrays in enumerate(named)}

    def unit_batch(self) -> Minibatch:
        return self.batch._replace(actions=to_unit(self.batch.actions, self.update._head))


def assert_same_gradients(ours: Mapping[str, Arrays], theirs: dict[str, Array]) -> None:
    for module, arrays in ours.items():
        prefix = f"{module}:"
        expected = {name.removeprefix(prefix): array for name, array in theirs.items() if name.startswith(prefix)}
        assert_same({name: np.asarray(array) for name, array in arrays.items()}, expected)


def normals(seed: int) -> Array:
    return np.random.default_rng(seed + 100).standard_normal((ROWS, 2)).astype(np.float32)


@pytest.mark.parametrize("kind", ["mse", "categorical"])
def test_the_loss_and_the_gradient_of_bc(d3rlpy: Path, tmp_path: Path, kind: str) -> None:
    # With discrete actions it adds a penalty on logits, which ours has not.
    space, settings, peer, theirs_settings = {
        "mse": (BOX, {"loss": "mse"}, "BC", {}),
        "categorical": (THREE, {}, "DiscreteBC", {"beta": 0.0}),
    }[kind]
    agent = BC(OBSERVATIONS, space, seed=SEED, hidden_sizes=HIDDEN, **settings)
    it = Comparison(agent, peer, seed=SEED, **theirs_settings)
    theirs = it.answer(d3rlpy, tmp_path, {"imitator": it.actor(it.state.actor, "_fc")})
    (loss, _), gradient = jax.value_and_grad(it.update.loss, has_aux=True)(it.state.actor, it.batch)
    assert float(loss) == pytest.approx(float(theirs["loss:loss"]), rel=1e-4)
    assert_same_gradients({"imitator": it.actor(np.asarray(gradient), "_fc")}, theirs)


def test_the_losses_and_the_gradients_of_iql(d3rlpy: Path, tmp_path: Path) -> None:
    agent = IQL(OBSERVATIONS, BOX, seed=SEED, hidden_sizes=HIDDEN, gamma=GAMMA, expectile=0.8, max_weight=1.2)
    ours: dict[str, Any] = {"gamma": GAMMA, "expectile": 0.8, "max_weight": 1.2, "weight_temp": 3.0}
    it = Comparison(agent, "IQL", "target", seed=SEED, noise={}, **ours)
    state, update = it.state, it.update
    weights = {
        "policy": it.actor(state.actor, "_mu"),
        **it.critics("value", state.value, "value_func"),
        **it.critics("critics", state.critics, "q_funcs"),
        **it.critics("target", state.target, "targ_q_funcs"),
    }
    theirs = it.answer(d3rlpy, tmp_path, weights, critic=np.zeros(0), actor=np.zeros(0))
    (value_loss, _), of_value = jax.value_and_grad(update.value_loss, has_aux=True)(state.value, state, it.batch)
    (critic_loss, _), of_critics = jax.value_and_grad(update.critic_loss, has_aux=True)(state.critics, state, it.batch)
    actor_loss, of_actor = jax.value_and_grad(update.actor_loss)(state.actor, state, it.batch)
    assert float(value_loss) == pytest.approx(float(theirs["critic:v_loss"]), rel=1e-4)
    assert float(critic_loss) == pytest.approx(float(theirs["critic:q_loss"]), rel=1e-4)
    assert float(actor_loss) == pytest.approx(float(theirs["actor:actor_loss"]), rel=1e-4)
    gradients = {
        "policy": it.actor(np.asarray(of_actor), "_mu"),
        **it.critics("value", np.asarray(of_value), "value_func"),
        **it.critics("critics", np.asarray(of_critics), "q_funcs"),
    }
    assert_same_gradients(gradients, theirs)


def test_the_losses_and_the_gradients_of_awac(d3rlpy: Path, tmp_path: Path) -> None:
    agent = AWAC(OBSERVATIONS, BOX, seed=SEED, hidden_sizes=HIDDEN, gamma=GAMMA, advantage_scale=2.0)
    # For targets it draws from a policy that is squashed, unlike the one that acts: without noise the two are the same.
    noise = {"next": np.zeros((ROWS, 2), np.float32), "now": normals(SEED)}
    it = Comparison(agent, "AWAC", "target", seed=SEED, noise=noise, gamma=GAMMA, lam=0.5)
    state, update, batch = it.state, it.update, it.unit_batch()
    weights = {
        "policy": it.actor(state.actor, "_mu"),
        **it.critics("critics", state.critics, "q_funcs"),
        **it.critics("target", state.target, "targ_q_funcs"),
    }
    theirs = it.answer(d3rlpy, tmp_path, weights, critic=noise["next"], actor=noise["now"])
    (critic_loss, _), of_critics = jax.value_and_grad(update.critic_loss, has_aux=True)(state.critics, state, batch)
    actor_loss, of_actor = jax.value_and_grad(update.actor_loss)(state.actor, state, batch)
    assert float(critic_loss) == pytest.approx(float(theirs["critic:critic_loss"]), rel=1e-4)
    # Its weights add up to the size of the batch, ours to 1.
    assert ROWS * float(actor_loss) == pytest.approx(float(theirs["actor:actor_loss"]), rel=1e-4)
    gradients = {
        "policy": it.actor(ROWS * np.asarray(of_actor), "_mu"),
        **it.critics("critics", np.asarray(of_critics), "q_funcs"),
    }
    assert_same_gradients(gradients, theirs)


def test_the_losses_and_the_gradients_of_td3_with_bc(d3rlpy: Path, tmp_path: Path) -> None:
    ours: dict[str, Any] = {"target_noise": 0.2, "target_noise_clip": 0.3, "bc_alpha": 2.0}
    agent = TD3(OBSERVATIONS, BOX, seed=SEED, hidden_sizes=HIDDEN, gamma=GAMMA, **ours)
    noise = {"next": normals(SEED)}
    smoothing: dict[str, Any] = {"target_smoothing_sigma": 0.2, "target_smoothing_clip": 0.3, "alpha": 2.0}
    targets = ("target_actor", "target_critics")
    it = Comparison(agent, "TD3PlusBC", *targets, seed=SEED, noise=noise, gamma=GAMMA, **smoothing)
    state, update, batch = it.state, it.update, it.unit_batch()
    weights = {
        "policy": it.actor(state.actor, "_fc"),
        "targ_policy": it.actor(state.target_actor, "_fc"),
        **it.critics("critics", state.critics, "q_funcs"),
        **it.critics("target_critics", state.target_critics, "targ_q_funcs"),
    }
    theirs = it.answer(d3rlpy, tmp_path, weights, critic=noise["next"], actor=noise["next"])
    (critic_loss, _), of_critics = jax.value_and_grad(update.critic_loss, has_aux=True)(state.critics, state, batch)
    actor_loss, of_actor = jax.value_and_grad(update.actor_loss)(state.actor, state, batch)
    assert float(critic_loss) == pytest.approx(float(theirs["critic:critic_loss"]), rel=1e-4)
    assert float(actor_loss) == pytest.approx(float(theirs["actor:actor_loss"]), rel=1e-4)
    gradients = {
        "policy": it.actor(np.asarray(of_actor), "_fc"),
        **it.critics("critics", np.asarray(of_critics), "q_funcs"),
    }
    assert_same_gradients(gradients, theirs)


VALUES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "cql": ("DiscreteCQL", {"cql_alpha": 0.7}, {"alpha": 0.7}),
    "qr-dqn": ("DoubleDQN", {"quantiles": 5}, {"quantiles": 5}),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_loss_and_the_gradient_of_dqn(d3rlpy: Path, tmp_path: Path, name: str) -> None:
    algorithm, ours, settings = VALUES[name]
    agent = DQN(OBSERVATIONS, THREE, seed=SEED, hidden_sizes=HIDDEN, gamma=GAMMA, **ours)
    it = Comparison(agent, algorithm, "target", seed=SEED, gamma=GAMMA, **settings)

    def network(vector: Array) -> Arrays:
        return dense(it.update.weights["params"].layers(vector), (*LAYERS, "_fc"))

    weights = {"q_funcs0": network(it.state.params), "targ_q_funcs0": network(it.state.target)}
    theirs = it.answer(d3rlpy, tmp_path, weights)
    (loss, _), gradient = jax.value_and_grad(it.update.loss, has_aux=True)(it.state.params, it.state.target, it.batch)
    assert float(loss) == pytest.approx(float(theirs["loss:loss"]), rel=1e-4)
    assert_same_gradients({"q_funcs0": network(np.asarray(gradient))}, theirs)

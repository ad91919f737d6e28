"""Networks of the user's own: they learn, and those whose layers are known are run by numpy, saved and exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("jax")

import equinox as eqx
import jax
import jax.numpy as jnp
import own_networks

from rekindle.agents import DQN, PPO, SAC, equinox_layers
from rekindle.errors import ConfigError
from rekindle.policy import Layer, NetworkPolicy, load, save
from rekindle.training import Trainer

KEY = jax.random.key(0)
OBSERVATIONS = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
DISCRETE, CONTINUOUS = gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(-2, 2, (2,), np.float32)
ROWS = np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32)

EXPORTABLE: dict[str, Any] = {
    "linear": eqx.nn.Linear(3, 5, key=KEY),
    "linear without bias": eqx.nn.Linear(3, 5, use_bias=False, key=KEY),
    "mlp": eqx.nn.MLP(3, 5, 8, 2, key=KEY),
    "mlp of tanh": eqx.nn.MLP(3, 5, 8, 2, jnp.tanh, jax.nn.relu, key=KEY),
    "sequential": eqx.nn.Sequential(
        [eqx.nn.Linear(3, 8, key=KEY), eqx.nn.LayerNorm(8), eqx.nn.Lambda(jax.nn.tanh), eqx.nn.Identity()]
    ),
    "own layers": own_networks.WithLayers,
}
COMPILED: dict[str, Any] = {
    "own call": own_networks.Wide,
    "gelu": eqx.nn.MLP(3, 5, 8, 2, jax.nn.gelu, key=KEY),
    "relu6": eqx.nn.MLP(3, 5, 8, 2, jax.nn.relu6, key=KEY),
    "another epsilon": eqx.nn.Sequential([eqx.nn.Linear(3, 8, key=KEY), eqx.nn.LayerNorm(8, eps=1e-3)]),
}


@pytest.mark.parametrize("network", EXPORTABLE.values(), ids=EXPORTABLE)
def test_known_layers_are_run_by_numpy_and_saved(network: Any, tmp_path: Path) -> None:
    agent = DQN(OBSERVATIONS, DISCRETE, seed=0, network=network)
    policy = agent.policy()
    assert isinstance(policy, NetworkPolicy)
    save(policy, tmp_path / "policy.mpk")
    body: Any = network if isinstance(network, eqx.Module) else None
    if body is not None:
        features = np.asarray(jax.vmap(body)(ROWS))
        again = NetworkPolicy(policy.encoding, equinox_layers(body), policy.head)
        np.testing.assert_allclose(again.output(ROWS), features, atol=1e-5)
    np.testing.assert_array_equal(load(tmp_path / "policy.mpk").act(ROWS), agent.predict(ROWS))


@pytest.mark.parametrize("network", COMPILED.values(), ids=COMPILED)
def test_other_networks_are_compiled_and_not_exported(network: Any, tmp_path: Path) -> None:
    from rekindle.policy import save_onnx

    policy: Any = DQN(OBSERVATIONS, DISCRETE, seed=0, network=network).policy()
    assert type(policy).__name__ == "CompiledPolicy"
    for write in (save, save_onnx):
        with pytest.raises(ConfigError, match=r"a CompiledPolicy cannot be exported: .* without a method layers\(\)"):
            write(policy, tmp_path / "policy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "actions"), [(PPO, CONTINUOUS), (SAC, CONTINUOUS)])
def test_every_agent_exports_a_network_of_known_layers(kind: Any, actions: Any) -> None:
    agent = kind(OBSERVATIONS, actions, seed=0, network=own_networks.WithLayers)
    assert isinstance(agent.policy(), NetworkPolicy)
    np.testing.assert_allclose(agent.policy().act(ROWS), agent.predict(ROWS), atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([Layer("activation", name="relu")], "give another output than the network itself"),
        ([Layer("dense", {"weight": np.zeros((7, 2)), "bias": np.zeros(2)})], "cannot be run"),
    ],
)
def test_layers_that_are_not_those_of_the_network_are_refused(layers: list[Layer], message: str) -> None:
    class Wrong(eqx.Module):
        def __call__(self, x: Any) -> Any:
            return x + 1

        def layers(self) -> list[Layer]:
            return layers

    with pytest.raises(ConfigError, match=rf"layers\(\) of Wrong {message}"):
        DQN(OBSERVATIONS, DISCRETE, seed=0, network=Wrong())


class TestInATrainer:
    def test_a_class_is_stored_by_its_name(self) -> None:
        settings = {"network": own_networks.Wide}
        trainer = Trainer("CartPole-v1", "dqn", agent_settings=settings)
        assert trainer.config.agent["network"] == "own_networks:Wide"
        assert isinstance(Trainer("CartPole-v1", "dqn", agent_settings=trainer.config.agent).agent, DQN)

    @pytest.mark.parametrize("network", [eqx.nn.MLP(4, 5, 8, 2, key=KEY), lambda shape, key: eqx.nn.Identity()])
    def test_one_without_a_name_is_refused_with_what_to_do(self, network: Any) -> None:
        with pytest.raises(ConfigError, match="no name imports it: use 'module:Name' of a class or function, or give"):
            Trainer("CartPole-v1", "dqn", agent_settings={"network": network})
        agent = Trainer("CartPole-v1", lambda space, actions: DQN(space, actions, seed=0, network=network)).agent
        assert isinstance(agent, DQN)


class Sized(eqx.Module):
    first: eqx.nn.Linear

    def __init__(self, shape: Any, *, key: Any, inputs: int = 7) -> None:
        self.first = eqx.nn.Linear(inputs, 5, key=key)

    def __call__(self, x: Any) -> Any:
        return self.first(x)


class Pair(Sized):
    def __init__(self, shape: Any, *, key: Any) -> None:
        super().__init__(shape, key=key, inputs=3)

    def __call__(self, x: Any) -> Any:
        return self.first(x), x


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Sized, r"Sized, which cannot be called with one observation of the shape \(3,\): .* \(test_own_networks.py:"),
        (eqx.nn.Dropout(), r"Dropout, which cannot be called with one observation .* requires a key"),
        (
            lambda shape: eqx.nn.Identity(),
            r"could not be called with \(3,\) and key=.*unexpected keyword argument",
        ),
        (Pair, r"Pair: it returns .*must return one array"),
    ],
)
@pytest.mark.parametrize(("kind", "actions"), [(DQN, DISCRETE), (PPO, DISCRETE), (SAC, CONTINUOUS)])
def test_a_network_that_fails_is_named_in_one_line(kind: Any, actions: Any, network: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        kind(OBSERVATIONS, actions, seed=0, network=network)
    assert "\n" not in str(raised.value)

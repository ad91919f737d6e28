"""`predict`, `save` and `load`: an agent in a file, which acts as it did and goes on learning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from rekindle import ActMode
from rekindle import agents as agents_package
from rekindle.agents import Tabular, load
from rekindle.errors import ConfigError, FileRefused, InputError
from rekindle.storage import codec
from rekindle.training import Trainer

VECTOR = Box(-1, 1, (3,), np.float32)
CONTINUOUS, DISCRETE = Box(-2, 2, (2,), np.float32), Discrete(4, start=1)
KINDS = {
    "AWAC": CONTINUOUS,
    "BC": CONTINUOUS,
    "DQN": DISCRETE,
    "IQL": CONTINUOUS,
    "IQN": DISCRETE,
    "PPO": CONTINUOUS,
    "SAC": CONTINUOUS,
    "TD3": CONTINUOUS,
    "Tabular": DISCRETE,
}


def made(kind: str, **settings: Any) -> Any:
    if kind == "Tabular":
        return Tabular(Discrete(5), DISCRETE, seed=3, **settings)
    pytest.importorskip("jax")
    return getattr(agents_package, kind)(VECTOR, KINDS[kind], seed=3, **{"hidden_sizes": (8,), **settings})


def observations(agent: Any, rows: int = 6) -> Any:
    space = agent.observation_space
    space.seed(0)
    return np.stack([space.sample() for _ in range(rows)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_agent_predicts_the_same_and_has_the_same_settings(kind: str, tmp_path: Path) -> None:
    agent = made(kind)
    agent.save(tmp_path / "agent.mpk")
    again = load(tmp_path / "agent.mpk", seed=9)
    assert type(again) is type(agent)
    assert again.config == agent.config
    batch = observations(agent)
    np.testing.assert_array_equal(agent.predict(batch), again.predict(batch))
    kept = ("weights", "optimiser", "moments", "env_steps", "updates")
    before, after = agent.state(), again.state()
    digests = [codec.tree_digest({name: state[name] for name in kept if name in state}) for state in (before, after)]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("kind", KINDS)
def test_one_observation_is_predicted_like_a_row_of_a_batch(kind: str) -> None:
    agent = made(kind)
    batch = observations(agent)
    rows = agent.predict(batch)
    np.testing.assert_array_equal(rows, agent.act(batch, ActMode.EXPLOIT, np.arange(len(batch))))
    one = agent.predict(batch[2])
    assert agent.action_space.contains(one)
    np.testing.assert_allclose(one, rows[2], rtol=1e-5)


def test_predict_refuses_another_shape() -> None:
    with pytest.raises(InputError, match="a single one has"):
        made("DQN").predict(np.zeros(5, np.float32))


def test_a_dict_of_observations_is_predicted_as_it_is() -> None:
    pytest.importorskip("jax")
    space = Dict({"a": VECTOR, "b": Discrete(3)})
    agent = agents_package.DQN(space, Discrete(2), seed=0, hidden_sizes=(8,))
    assert agent.predict({"a": np.zeros(3, np.float32), "b": 2}) in (0, 1)


def test_a_loaded_agent_goes_on_learning(tmp_path: Path) -> None:
    first = Trainer("FrozenLake-v1", "tabular", steps=300, eval_episodes=0, agent_settings={"epsilon_steps": 0.5})
    first.train()
    agent: Any = first.agent
    agent.save(tmp_path / "lake.mpk")
    again = load(tmp_path / "lake.mpk")
    assert (again.env_steps, again.updates) == (300, 300)
    report = Trainer("FrozenLake-v1", again, steps=500, eval_episodes=0, name="on", root=tmp_path).train()
    assert (report.env_steps, again.env_steps, again.updates) == (500, 500, 500)


@pytest.mark.exhaustive
def test_a_loaded_network_goes_on_learning(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    settings: dict[str, Any] = {"hidden_sizes": (8,), "warmup_steps": 10, "batch_size": 4}
    first = Trainer("CartPole-v1", "dqn", steps=40, eval_episodes=0, agent_settings=settings)
    first.train()
    agent: Any = first.agent
    agent.save(tmp_path / "pole.mpk")
    again = load(tmp_path / "pole.mpk")
    assert again.updates == agent.updates > 0
    Trainer("CartPole-v1", again, steps=80, eval_episodes=0).train()
    assert again.updates > agent.updates


class TestRefusals:
    def test_what_is_not_an_agent(self, tmp_path: Path) -> None:
        path = tmp_path / "x.mpk"
        with pytest.raises(FileRefused, match="missing"):
            load(path)
        for document, message in (
            ({"kind": "policy"}, "not a saved agent"),
            ({"kind": "agent"}, "not an agent that this version"),
            (_document(agent="Path"), "there is no agent 'Path'"),
            (_document(settings={"gamma": "much"}), "gamma"),
            (_document(settings={"gamma": 7.0}), "gamma is 7.0"),
            (_document(spaces=["{}", "{}"]), "the observation space is not a space"),
            (_document(state={}), "weights"),
            (_document(spaces=['{"type": "Discrete", "n": 7, "start": 0}'] * 2), "the table is"),
        ):
            path.write_bytes(b"".join(map(bytes, codec.encode(document))))
            with pytest.raises(FileRefused, match=message):
                load(path)

    def test_a_module_is_imported_only_if_it_is_named(self, tmp_path: Path) -> None:
        made("DQN", network="own_networks:Wide").save(tmp_path / "own.mpk")
        with pytest.raises(ConfigError, match=r"load\(path, modules=\['own_networks'\]\)"):
            load(tmp_path / "own.mpk")
        again = load(tmp_path / "own.mpk", modules=["own_networks"])
        batch = observations(again)
        np.testing.assert_array_equal(again.predict(batch), made("DQN", network="own_networks:Wide").predict(batch))

    def test_a_network_of_a_script_is_given_again(self, tmp_path: Path) -> None:
        pytest.importorskip("jax")
        import own_networks

        def local(shape: tuple[int, ...], *, key: Any) -> Any:
            return own_networks.Wide(shape, key=key)

        made("DQN", network=local).save(tmp_path / "own.mpk")
        with pytest.raises(FileRefused, match="pass network="):
            load(tmp_path / "own.mpk")
        assert load(tmp_path / "own.mpk", network=local).predict(np.zeros(3, np.float32)) in DISCRETE


def _document(**changes: Any) -> dict[str, Any]:
    agent = made("Tabular")
    spaces = ['{"type": "Discrete", "n": 5, "start": 0}', '{"type": "Discrete", "n": 4, "start": 1}']
    saved = {"kind": "agent", "agent": "Tabular", "settings": {}, "spaces": spaces, "state": agent.state()}
    return {**saved, **changes}


def test_gymnasium_accepts_what_is_predicted() -> None:
    env = gymnasium.make("FrozenLake-v1")
    agent = Tabular(env.observation_space, env.action_space, seed=0)
    observation, _ = env.reset(seed=0)
    env.step(agent.predict(observation))

"""Images alone, stacked, and among other parts of an observation: seen by convolutions, whoever acts or learns."""

# JAX's types are partial.
# pyright: reportPossiblyUnboundVariable=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

from rekindle import policy
from rekindle.agents import AWAC, BC, DQN, IQL, IQN, PPO, SAC, TD3, ppo
from rekindle.agents.encoders import encoder, feature_size
from rekindle.agents.networks import Sequential, layers_of
from rekindle.errors import ConfigError
from rekindle.experience import ActMode, Array, Transitions
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import forward

EXPLOIT, EXPLORE = ActMode.EXPLOIT, ActMode.EXPLORE


def pixels(*shape: int) -> Box:
    return Box(0, 255, shape, np.uint8)


def module_of(space: Any) -> tuple[Encoding, Sequential]:
    encoding = Encoding.of(space)
    return encoding, Sequential(encoder(encoding, rng=np.random.default_rng(0)))


# Convolutions


@pytest.mark.parametrize(
    ("space", "features"),
    [
        (pixels(7, 7, 3), 32 * 3 * 3),
        (MultiBinary((10, 10, 4)), 32 * 6 * 6),
        (pixels(3, 9, 21), 32 * 5 * 17),
        (pixels(17, 22), 32 * 7 * 9),
        (pixels(35, 35, 3), 64 * 6 * 6),
        (pixels(7, 400), 64 * 1 * 97),
        (pixels(4, 84, 84), 64 * 7 * 7),
        (pixels(4, 40, 36, 3), 64 * 1 * 1),
        (Dict({"a": pixels(8, 8), "b": Box(-1, 1, (3,)), "c": pixels(20, 17, 3)}), 256 + 256 + 3),
    ],
)
def test_numpy_and_jax_see_the_same_in_images_of_any_size(space: Any, features: int) -> None:
    encoding, module = module_of(space)
    assert feature_size(module, encoding) == features
    space.seed(0)
    rows = [space.sample() for _ in range(2)]
    batch = {name: np.stack([row[name] for row in rows]) for name in space} if encoding.is_dict else np.stack(rows)
    compiled = jax.jit(lambda given, module=module: jax.vmap(module)(given))(
        encoding.encode(encoding.narrow(batch), jax.numpy)
    )
    by_numpy = forward(layers_of(module))(encoding.encode(batch), None)
    np.testing.assert_allclose(by_numpy, compiled, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "shape", [(7, 7), (8, 15), (16, 16), (17, 22), (19, 23), (24, 25), (35, 34), (11, 60), (7, 64)]
)
def test_every_pixel_of_a_small_image_counts(shape: tuple[int, int]) -> None:
    encoding, module = module_of(pixels(*shape))
    run = forward(layers_of(module))
    black = np.zeros(shape, np.uint8)
    edge = [*((row, shape[1] - 1) for row in range(shape[0])), *((shape[0] - 1, column) for column in range(shape[1]))]
    images = np.repeat(black[None], len(edge) + 1, axis=0)
    for image, place in zip(images, edge, strict=False):
        image[place] = 255
    *changed, unchanged = run(encoding.encode(images), None)
    assert all((one != unchanged).any() for one in changed)


# CarRacing with four stacked frames, without Box2D

CAR = pixels(4, 96, 96, 3)
CONVOLUTIONS = (12 * 8 * 8 * 32 + 32) + (32 * 4 * 4 * 64 + 64) + (64 * 3 * 3 * 64 + 64)
FEATURES = 64 * 8 * 8


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        (DQN, CONVOLUTIONS + (FEATURES * 512 + 512) + (512 * 5 + 5)),
        (PPO, CONVOLUTIONS + (FEATURES * 512 + 512) + (512 * 5 + 5) + (512 + 1)),
        (SAC, CONVOLUTIONS + (FEATURES * 256 + 256) + (256 * 256 + 256) + (256 * 6 + 6)),
        (TD3, CONVOLUTIONS + (FEATURES * 400 + 400) + (400 * 300 + 300) + (300 * 3 + 3)),
    ],
)
def test_stacked_colour_frames_become_channels(kind: Any, weights: int) -> None:
    is_discrete = kind in (DQN, PPO)
    actions = Discrete(5) if is_discrete else Box(np.array([-1, 0, 0], np.float32), np.ones(3, np.float32))
    settings = {} if kind is PPO else {"capacity": 300, "frame_stack": 4}
    agent = kind(CAR, actions, seed=0, **settings)
    network = agent.state()["weights"]["network"]
    assert sum(array.size for array in network.values()) == weights
    assert [array.shape for array in network.values() if array.ndim == 4] == [
        (32, 12, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]


# Images among other parts

MIXED = Dict(
    {
        "camera": pixels(2, 7, 8, 3),
        "gear": Discrete(3),
        "grid": MultiBinary((7, 7, 2)),
        "place": Box(-9, 9, (2,), np.float64),
    }
)
REPLAY: dict[str, Any] = {"warmup_steps": 4, "batch_size": 4, "capacity": 50}
SETTINGS: dict[Any, dict[str, Any]] = {
    PPO: {"rollout_steps": 8, "minibatch_size": 4, "epochs": 2},
    TD3: {**REPLAY, "policy_delay": 1},
}


def made(kind: Any, space: Any = MIXED, **settings: Any) -> Any:
    actions = Discrete(3) if kind in (DQN, IQN, PPO, IQL) else Box(-1, 1, (2,), np.float32)
    return kind(space, actions, seed=0, **{"hidden_sizes": (8,), **SETTINGS.get(kind, REPLAY), **settings})


def sampled(rows: int, *, seed: int = 0) -> dict[str, Array]:
    MIXED.seed(seed)
    samples = [MIXED.sample() for _ in range(rows)]
    return {name: np.stack([np.asarray(sample[name]) for sample in samples]) for name in MIXED.spaces}


def teach(agent: Any, rows: int = 8) -> None:
    before, after, slots = sampled(rows), sampled(rows, seed=1), np.arange(rows)
    actions = agent.act(before, EXPLORE, slots)
    agent.observe(Transitions(before, actions, np.linspace(0, 1, rows), after, np.ones(rows, np.uint8)), slots)
    agent.update(agent.updates_due())


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [DQN, PPO, SAC, IQN, *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in (TD3, BC, IQL, AWAC))],
)
def test_each_image_of_a_dict_has_convolutions_and_the_rest_is_a_vector(kind: Any, tmp_path: Path) -> None:
    agent = made(kind, normalise_observations=True)
    before = agent.state()["weights"]["network"]
    teach(agent)
    after = agent.state()["weights"]
    convolutions = [name for name, array in before.items() if array.ndim == 4]
    assert [before[name].shape for name in convolutions] == [
        (16, 6, 3, 3),
        (32, 16, 3, 3),
        (16, 2, 3, 3),
        (32, 16, 3, 3),
    ]
    assert all((after["network"][name] != before[name]).any() for name in convolutions)
    assert after["normaliser"]["mean"].shape == (5,)

    policy.save(agent.policy(), tmp_path / "policy.mpk")
    exported, observations = policy.load(tmp_path / "policy.mpk"), sampled(5, seed=2)
    compiled = agent._actor.output(observations, None)
    np.testing.assert_allclose(exported.output(observations), compiled, rtol=1e-4, atol=1e-5)
    one = {name: array[3] for name, array in observations.items()}
    np.testing.assert_allclose(exported.output(one), compiled[3], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        exported.act(observations), agent.act(observations, EXPLOIT, np.arange(5)), rtol=1e-4, atol=1e-4
    )


def test_a_rollout_is_scored_as_it_was_acted_on() -> None:
    agent = made(PPO, normalise_observations=True, epochs=1, minibatch_size=8)
    teach(agent)
    before, slots = sampled(8, seed=3), np.arange(8)
    actions = agent.act(before, EXPLORE, slots)
    agent.observe(Transitions(before, actions, np.zeros(8), before, np.ones(8, np.uint8)), slots)
    assert abs(np.asarray(agent.update(1)["kl"])[0]) < 1e-6


def test_the_gradient_of_many_images_is_the_sum_of_those_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    def learned(most_images: int) -> Array:
        monkeypatch.setattr(ppo, "_MOST_IMAGES", most_images)
        agent = made(PPO, epochs=1, minibatch_size=8)
        teach(agent)
        return np.concatenate([array.ravel() for array in agent.state()["weights"]["network"].values()])

    whole, pieces = learned(8), learned(3)
    np.testing.assert_allclose(pieces, whole, rtol=1e-4, atol=1e-5)
    assert not np.array_equal(pieces, whole)  # they were computed in another order


@pytest.mark.slow
def test_an_update_on_atari_images_needs_no_memory_that_the_system_takes_back_after_each() -> None:
    """The C library keeps what was freed for the next time if it was at most 32 MiB."""
    agent = PPO(pixels(4, 84, 84), Discrete(6), seed=0, rollout_steps=512, minibatch_size=256)
    dispatch: Any = agent._dispatch
    inputs = agent._inputs(agent._scorer.zeros(512), 0)
    packed = dispatch._packing.pack(dispatch._example, 1, 1)
    compiled = dispatch._run.lower(agent._learned, packed, dispatch._counts[1], inputs).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 32 << 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DQN, pytest.param(PPO, marks=pytest.mark.exhaustive)])
def test_nothing_compiles_after_the_warm_up(kind: Any, compilations: list[str]) -> None:
    agent = made(kind)
    agent.warm_up()
    compilations.clear()
    for rows in (1, 2, 3, 8, 64, 65):
        agent.act(sampled(rows), EXPLORE, np.arange(rows))
    teach(agent)
    agent.load_state(agent.state())
    agent.policy().act(sampled(2))
    assert compilations == []


def test_a_setting_says_what_is_an_image() -> None:
    def inputs(**settings: Any) -> Any:
        return made(DQN, **settings)._encoding.shape

    assert inputs() == ((6, 7, 8), (2, 7, 7), (5,))
    assert inputs(convolutions="never") == (2 * 7 * 8 * 3 + 7 * 7 * 2 + 5,)
    assert made(DQN, Box(-1, 1, (9, 9)), convolutions="always")._encoding.shape == (1, 9, 9)
    with pytest.raises(ConfigError, match="convolutions is 'sometimes': use one of auto, always, never"):
        made(DQN, convolutions="sometimes")


def test_what_is_not_seen_by_convolutions_is_scaled_all_the_same() -> None:
    agent = made(DQN, pixels(9, 9), convolutions="never")
    images = np.full((1, 9, 9), 255, np.uint8)
    np.testing.assert_allclose(agent._encoding.encode(images), np.ones((1, 81)), rtol=1e-6)
    several = np.repeat(images, 300, axis=0)
    np.testing.assert_allclose(agent._actor.output(several, None)[:1], agent._actor.output(images, None), rtol=1e-4)


class Mean(eqx.Module):
    """A user's network: the mean of each input."""

    scale: Any

    def __init__(self, shape: Any, *, key: Any) -> None:
        assert shape == ((6, 7, 8), (2, 7, 7), (5,))
        self.scale = np.ones(len(shape), np.float32)

    def __call__(self, inputs: Any) -> Any:
        return self.scale * jax.numpy.stack([part.astype(np.float32).mean() for part in inputs])


def test_a_network_of_your_own_gets_a_tuple_of_images_and_vector() -> None:
    agent = made(PPO, network=Mean)
    teach(agent)
    assert agent.act(sampled(2), EXPLOIT, np.arange(2)).shape == (2,)


def test_only_images_cannot_be_normalised() -> None:
    with pytest.raises(ConfigError, match=r"images are scaled to 0\.\.1 and cannot be normalised"):
        made(DQN, Dict({"a": pixels(8, 8), "b": pixels(8, 8)}), normalise_observations=True)


@pytest.mark.parametrize("kind", [DQN, PPO])
def test_a_state_comes_back_and_goes_on_the_same(kind: Any) -> None:
    agent, other = made(kind), made(kind)
    teach(agent)
    other.load_state(agent.state())
    if kind is DQN:
        other.replay().restore(0, agent.replay().read(0, agent.replay().end))
    for each in (agent, other):
        teach(each)
    assert same(agent.state(), other.state())


# Numbers of 64 bits

WIDE = Box(0, 2**40, (1,), np.int64)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_wide_numbers_are_learned_from_as_they_are_acted_on(dtype: Any) -> None:
    # The lower 32 bits of both are 0.
    few, many = np.array([[2**33]], dtype), np.array([[2**34]], dtype)
    agent = DQN(
        Box(0, 2**40, (1,), dtype),
        Discrete(2),
        seed=0,
        **{**REPLAY, "hidden_sizes": (16,), "learning_rate": 0.01, "normalise_observations": True},
    )
    for action in (0, 1):
        for seen, reward in ((few, -1.0), (many, 1.0)):
            transitions = Transitions(seen, np.array([action]), np.array([reward]), seen, np.ones(1, np.uint8))
            agent.observe(transitions, np.zeros(1, np.int64))
    agent.update(200)
    by_numpy = np.concatenate([agent._actor.output(seen, None) for seen in (few, many)])
    np.testing.assert_allclose(by_numpy, [[-1, -1], [1, 1]], atol=0.1)
    compiled = agent._actor.output(np.repeat(np.concatenate([few, many]), 300, axis=0), None)
    np.testing.assert_allclose(compiled[::300], by_numpy, rtol=1e-4, atol=1e-4)


def test_ppo_acts_on_many_wide_numbers_as_on_few() -> None:
    agent = PPO(WIDE, Discrete(2), seed=0, hidden_sizes=(8,), rollout_steps=8, minibatch_size=4)
    seen = np.array([[2**33 + 5], [2**34]])
    few = agent._actor.output(seen, None)
    np.testing.assert_allclose(agent._actor.output(np.repeat(seen, 300, axis=0), None)[::300], few, rtol=1e-4)

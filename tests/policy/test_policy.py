"""Policies that act with numpy alone, and the files they are kept in."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

from rekindle.errors import FileRefused, InputError
from rekindle.experience import ActMode
from rekindle.policy import network, policy
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, Normaliser
from rekindle.policy.policy import NetworkPolicy
from rekindle.storage import codec

EXPLORE, EXPLOIT = ActMode
LOW, HIGH = np.array([-1, 0], np.float32), np.array([3, 0.5], np.float32)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def head(kind: Any, **fields: Any) -> ActionHead:
    discrete = kind in {"greedy", "softmax", "categorical"}
    if discrete:
        return ActionHead(kind, "<i8", [], **{"counts": [3], "starts": [0], **fields})
    return ActionHead(kind, "<f4", [2], low=LOW, high=HIGH, **fields)


def dense(inputs: int, outputs: int, seed: int = 0) -> Layer:
    generator = rng(seed)
    weight = generator.normal(size=(inputs, outputs)).astype(np.float32)
    return Layer("dense", {"weight": weight, "bias": generator.normal(size=outputs).astype(np.float32)})


# Heads


def test_greedy_takes_the_best_and_softmax_at_zero_too() -> None:
    values = np.array([[0, 2, 1], [5, 2, 1]], np.float32)
    for kind in ("greedy", "softmax"):
        assert head(kind).choose(values, None, None).tolist() == [1, 0]
        assert head(kind).choose(values, None, rng()).tolist() == [1, 0]
        assert head(kind, starts=[4]).choose(values, None, None).tolist() == [5, 4]


def test_a_mask_forbids_whatever_the_values_are() -> None:
    values = np.tile(np.array([[9, 2, 1]], np.float32), (500, 1))
    mask = np.tile([[False, True, True]], (500, 1))
    for kind, exploration in (("greedy", 1.0), ("softmax", 10.0), ("categorical", 0.0)):
        assert set(head(kind).choose(values, mask, None)) == {1}
        assert set(head(kind, exploration=exploration).choose(values, mask, rng())) == {1, 2}


def test_categorical_draws_by_the_softmax_of_each_part() -> None:
    logits = np.tile(np.log(np.array([[0.2, 0.8, 0.5, 0.25, 0.25]], np.float32)), (4000, 1))
    both = ActionHead("categorical", "<i8", [2], counts=[2, 3], starts=[0, 10])
    drawn = both.choose(logits, None, rng())
    assert drawn.shape == (4000, 2)
    assert np.mean(drawn[:, 0] == 1) == pytest.approx(0.8, abs=0.03)
    assert np.bincount(drawn[:, 1] - 10) / 4000 == pytest.approx([0.5, 0.25, 0.25], abs=0.03)
    assert both.choose(logits[:1], None, None).tolist() == [[1, 10]]


def test_a_gaussian_is_clipped_to_the_bounds() -> None:
    mean = np.zeros((3000, 2), np.float32)
    drawn = head("gaussian", scale=np.array([0.3, 5], np.float32)).choose(mean, None, rng())
    assert drawn[:, 0].std() == pytest.approx(0.3, rel=0.1)
    assert (drawn >= LOW).all()
    assert (drawn <= HIGH).all()
    np.testing.assert_array_equal(head("gaussian").choose(mean[:1] + 9, None, None), [HIGH])


def test_tanh_heads_reach_the_bounds_and_stay_inside() -> None:
    for kind, outputs in (("noisy_tanh", 2), ("squashed", 4)):
        output = np.zeros((2000, outputs), np.float32)
        np.testing.assert_allclose(head(kind).choose(output[:1], None, None), [(LOW + HIGH) / 2])
        np.testing.assert_allclose(head(kind).choose(output[:1] + 20, None, None), [HIGH])
        drawn = head(kind, exploration=0.5).choose(output, None, rng())
        assert (drawn >= LOW).all()
        assert (drawn <= HIGH).all()
        assert drawn.std(axis=0).min() > 0.05


@pytest.mark.parametrize("kind", ["noisy_tanh", "squashed"])
def test_a_head_can_explore_anywhere_in_the_bounds(kind: str) -> None:
    output = np.full((4000, 4), 20, np.float32)
    drawn = head(kind, anywhere=True).choose(output[:, : 2 if kind == "noisy_tanh" else 4], None, rng())
    assert (drawn >= LOW).all()
    assert (drawn <= HIGH).all()
    # The mean and the standard deviation of a uniform distribution.
    np.testing.assert_allclose(drawn.mean(axis=0), (LOW + HIGH) / 2, atol=0.05)
    np.testing.assert_allclose(drawn.std(axis=0), (HIGH - LOW) / np.sqrt(12), rtol=0.05)
    np.testing.assert_allclose(head(kind, anywhere=True).choose(output[:1, :2], None, None), [HIGH])


# Layers


def test_layers_do_not_write_to_what_they_are_given() -> None:
    for layers in ([Layer("activation", name="relu")], [Layer("flatten"), Layer("activation", name="tanh")]):
        values = np.array([[-1, 2]], np.float32)
        network.forward(layers)(values, None)
        assert values.tolist() == [[-1, 2]]


def test_a_convolution_is_a_sum_over_windows() -> None:
    weight = rng().normal(size=(4, 2, 3, 3)).astype(np.float32)
    images = rng(1).normal(size=(2, 2, 9, 7)).astype(np.float32)
    layer = Layer("conv", {"weight": weight, "bias": np.arange(4, dtype=np.float32)}, stride=2)
    found = network.forward([layer])(images, None)
    assert found.shape == (2, 4, 4, 3)
    for row, column in ((0, 0), (3, 2), (1, 2)):
        window = images[1, :, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
        expected = [(window * weight[output]).sum() + output for output in range(4)]
        np.testing.assert_allclose(found[1, :, row, column], expected, rtol=1e-4, atol=1e-5)


def test_layer_norm_has_mean_zero_and_variance_one() -> None:
    arrays = {"weight": np.full(5, 2, np.float32), "bias": np.full(5, 3, np.float32)}
    found = network.forward([Layer("layer_norm", arrays)])(rng().normal(size=(3, 5)).astype(np.float32), None)
    np.testing.assert_allclose(found.mean(axis=1), np.full(3, 3), atol=1e-5)
    np.testing.assert_allclose(found.std(axis=1), np.full(3, 2), rtol=1e-3)


# Policies


def small(**options: Any) -> NetworkPolicy:
    encoding = Encoding.of(Box(-1, 1, (2,), np.float32))
    layers = [dense(2, 8), Layer("activation", name="tanh"), dense(8, 3, 1)]
    return NetworkPolicy(encoding, layers, head("greedy", exploration=0.5), **options)


def test_exploring_needs_a_generator_and_exploiting_does_not_use_one() -> None:
    generator = rng()
    before = generator.bit_generator.state
    small().act(np.zeros((1, 2), np.float32), EXPLOIT, generator)
    assert generator.bit_generator.state == before
    with pytest.raises(InputError, match="random generator"):
        small().act(np.zeros((1, 2), np.float32), EXPLORE)


def policy_of(space: Any, chosen: ActionHead) -> NetworkPolicy:
    encoding = Encoding.of(space)
    image = [Layer("scale"), Layer("flatten")] if encoding.is_image else []
    outputs = 3 if chosen.kind in {"greedy", "categorical"} else 2
    return NetworkPolicy(encoding, [*image, dense(int(np.prod(encoding.shape)), outputs)], chosen)


SPACES = {
    "vector": Box(-1, 1, (2,), np.float32),
    "vector of one": Box(-1, 1, (1,), np.float32),
    "matrix": Box(-1, 1, (2, 3), np.float64),
    "number": Box(-1, 1, (), np.float32),
    "discrete": Discrete(5, start=2),
    "several": MultiDiscrete([2, 3]),
    "bits": MultiBinary(4),
    "image": Box(0, 255, (40, 36, 3), np.uint8),
    "dict": Dict({"place": Box(-1, 1, (2,), np.float32), "level": Discrete(3)}),
    "nested": Dict({"arm": Tuple([Box(-1, 1, (2,), np.float32), Discrete(3)]), "at": Dict({"x": MultiBinary(2)})}),
    "tuple": Tuple([Discrete(4), Box(-1, 1, (3,), np.float32)]),
    "masked": Dict({"place": Box(-1, 1, (2,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)}),
}


BOX = head("gaussian", scale=np.ones(2, np.float32))
ASKED = [(kind, head("greedy")) for kind in SPACES] + [(kind, BOX) for kind in SPACES if kind != "masked"]


def batch_of(space: Any, singles: list[Any]) -> Any:
    """A batch in the structure of a space."""
    return concatenate(space, singles, create_empty_array(space, len(singles)))


@pytest.mark.parametrize(("kind", "chosen"), ASKED, ids=[f"{kind}, {chosen.kind}" for kind, chosen in ASKED])
def test_one_observation_gives_one_action_and_a_batch_gives_a_batch(kind: str, chosen: ActionHead) -> None:
    space = SPACES[kind]
    space.seed(4)
    singles = [space.sample() for _ in range(5)]
    acting = policy_of(space, chosen)
    batch = batch_of(space, singles)
    actions, outputs = acting.act(batch), acting.output(batch)
    assert actions.shape == (5, *chosen.shape)
    for row, single in enumerate(singles):
        action = acting.act(single)
        assert np.shape(action) == tuple(chosen.shape)
        np.testing.assert_allclose(action, actions[row], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(acting.output(single), outputs[row], rtol=1e-4, atol=1e-4)
        explored = acting.act(single, "explore", rng(row))
        np.testing.assert_array_equal(explored, acting.act(batch_of(space, [single]), EXPLORE, rng(row))[0])


@pytest.mark.parametrize(
    ("kind", "observation", "message"),
    [
        ("vector", np.zeros(3), r"the shape \(3,\): a single one has \(2,\), and a batch \(rows, 2\)"),
        ("vector", np.zeros((4, 1, 2)), r"\(4, 1, 2\): a single one has \(2,\)"),
        ("vector", (np.zeros(2), {}), r"not an array: .* env.reset\(\) returns an observation and an info"),
        ("vector", 0.5, r"\(\): a single one has \(2,\)"),
        ("discrete", np.zeros((1, 1), int), r"\(1, 1\): a single one has \(\), and a batch \(rows\)"),
        ("image", np.zeros((36, 40, 3), np.uint8), r"one has \(40, 36, 3\)"),
        ("dict", np.zeros(2), r"a dict with the keys \['level', 'place'\]"),
        ("dict", {"place": np.zeros(2)}, "has no 'level'"),
        ("tuple", (1, np.zeros(3), 2), r"the observation must be a tuple of 2, got"),
        ("nested", {"arm": (np.zeros(2), 1)}, r"the observation must be a dict with the keys \['arm', 'at'\]"),
        ("nested", {"arm": (1,), "at": {"x": np.zeros(2)}}, "the observation 'arm' must be a tuple of 2"),
        ("nested", {"arm": (np.zeros(2), 1), "at": {"x": np.zeros(3)}}, r"the observation 'at/x' has the shape \(3,\)"),
        ("dict", {"place": np.zeros((3, 2)), "level": 1}, "'level' is a single observation, but the rest is a batch"),
    ],
)
def test_what_is_neither_one_observation_nor_a_batch_is_refused(kind: str, observation: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        policy_of(SPACES[kind], head("greedy")).act(observation)


def test_a_mode_may_be_a_word_and_must_be_one_of_two() -> None:
    with pytest.raises(InputError, match="'best' is not one of"):
        small().act(np.zeros(2), "best")
    assert small().act(np.zeros(2), "exploit") == small().act(np.zeros(2))
    with pytest.raises(InputError, match="random generator"):
        small().act(np.zeros(2), "explore")


def test_a_normaliser_is_applied_and_clips() -> None:
    normaliser = Normaliser(np.array([1, 0], np.float32), np.array([4, 1], np.float32), 3.0)
    there = small(normaliser=normaliser).output(np.array([[5, 100]], np.float32))
    np.testing.assert_allclose(there, small().output(np.array([[2, 3]], np.float32)), rtol=1e-5)


def test_a_policy_comes_back_from_its_file_and_runs_without_jax(tmp_path: Path) -> None:
    normaliser = Normaliser(np.array([1, 0], np.float32), np.array([4, 1], np.float32), 3.0)
    original = small(normaliser=normaliser, algorithm="dqn")
    path = tmp_path / "policy.mpk"
    policy.save(original, path)
    loaded = policy.load(path)
    seen = rng(2).normal(size=(50, 2)).astype(np.float32)
    assert loaded.algorithm == "dqn"
    np.testing.assert_array_equal(loaded.output(seen), original.output(seen))
    np.testing.assert_array_equal(loaded.act(seen, EXPLORE, rng(7)), original.act(seen, EXPLORE, rng(7)))
    program = f"""if True:
        import sys
        sys.modules["jax"] = sys.modules["gymnasium"] = None
        import numpy, rekindle.policy
        print(rekindle.policy.load({str(path)!r}).act(numpy.zeros((1, 2), "f4")).tolist())"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(original.act(np.zeros((1, 2), np.float32)).tolist())


def test_a_file_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.mpk"
    policy.save(small(), path)
    good = codec.read_file(path)
    wrong = [
        {"kind": "checkpoint"},
        {"kind": "policy"},
        {**good, "policy": {**good["policy"], "head": {}}},
        {**good, "policy": {**good["policy"], "layers": [{"kind": "dense"}]}},
        {**good, "policy": {**good["policy"], "layers": [{"kind": "activation", "name": "exec"}]}},
    ]
    for tree in wrong:
        path.write_bytes(b"".join(codec.encode(tree)))
        with pytest.raises(FileRefused, match="policy"):
            policy.load(path)


def test_a_dqn_is_exported_whole(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from rekindle.agents import DQN, rainbow

    agent = DQN(Box(-1, 1, (3,), np.float32), Discrete(4), seed=0, **rainbow(hidden_sizes=(8,), capacity=32))
    exported = agent.policy()
    assert isinstance(exported, NetworkPolicy)
    policy.save(exported, tmp_path / "dqn.mpk")
    seen = rng().normal(size=(20, 3)).astype(np.float32)
    streams = np.arange(20)
    np.testing.assert_array_equal(policy.load(tmp_path / "dqn.mpk").act(seen), agent.act(seen, EXPLOIT, streams))


def test_a_policy_runs_where_there_is_no_fcntl(tmp_path: Path) -> None:
    """As on Windows: importing, saving and loading a policy need nothing that only POSIX has."""
    path = tmp_path / "policy.mpk"
    policy.save(small(), path)
    program = f"""if True:
        import os, sys
        sys.modules["fcntl"] = None  # from now on importing it fails
        flags = ("O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY", "O_NONBLOCK", "O_NOCTTY")
        for name in (*flags, "fork", "register_at_fork", "pread", "readv"):
            delattr(os, name)
        import numpy, rekindle, rekindle.policy
        policy = rekindle.policy.load({str(path)!r})
        print(policy.act(numpy.zeros((1, 2), "f4")).tolist())
        rekindle.policy.save(policy, {str(tmp_path / "again.mpk")!r})
        assert not any(name.startswith(("rekindle.run", "rekindle.session")) for name in sys.modules)"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.mpk").read_bytes() == path.read_bytes()

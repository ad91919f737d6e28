"""Policies from files: what does not fit together is refused, and no file asks for more memory than it holds."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

from rekindle.errors import FileRefused
from rekindle.experience import ActMode
from rekindle.policy import policy
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, Normaliser
from rekindle.policy.policy import NetworkPolicy
from rekindle.storage import codec

RNG = np.random.default_rng(0)
HUGE = 2**40


def array(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def dense(inputs: int, outputs: int) -> Layer:
    return Layer("dense", {"weight": array(inputs, outputs), "bias": array(outputs)})


def noisy(inputs: int, outputs: int) -> Layer:
    names = ("weight", "bias", "weight_noise", "bias_noise")
    shapes = ((inputs, outputs), (outputs,)) * 2
    return Layer("noisy_dense", {name: array(*shape) for name, shape in zip(names, shapes, strict=True)})


def discrete(kind: Any, *counts: int) -> ActionHead:
    shape = [] if len(counts) == 1 else [len(counts)]
    return ActionHead(kind, "<i8", shape, list(counts), [0] * len(counts), exploration=0.5)


def continuous(kind: Any, size: int) -> ActionHead:
    bounds: dict[str, Any] = {"low": np.full(size, -1, np.float32), "high": np.full(size, 2, np.float32)}
    return ActionHead(kind, "<f4", [size], **bounds, scale=np.ones(size, np.float32))


def composite() -> ActionHead:
    parts = [discrete("categorical", 2), continuous("gaussian", 2), discrete("categorical", 2, 3)]
    return ActionHead("product", "<f4", [5], parts=parts, nesting=[None, {"b": None}, None])


VECTOR = Box(-1, 1, (2,), np.float32)
IMAGE = Box(0, 255, (40, 36), np.uint8)
NAMED = Dict({"a": Discrete(3), "b": MultiDiscrete([2, 4]), "action_mask": Box(0, 1, (3,), np.int8)})
NESTED = Dict({"a": Tuple([Discrete(3), Dict({"c": MultiBinary(3)})]), "action_mask": Box(0, 1, (3,), np.int8)})
BY_PART = Dict({"a": Discrete(3), "action_mask": Tuple([Box(0, 1, (2,), np.int8), Box(0, 1, (5,), np.int8)])})
WITH_NOTHING = Dict({"nothing": Box(-1, 1, (3, 0), np.float32), "place": VECTOR})
RAINBOW = [
    dense(2, 8),
    Layer("layer_norm", {"weight": array(8), "bias": array(8)}),
    Layer("activation", name="relu"),
    Layer("dueling", value=[noisy(8, 5)], advantage=[noisy(8, 15)], atoms=5),
    Layer("expectation", {"support": array(5)}, atoms=5),
]
IMPLICIT = [
    dense(2, 4),
    Layer("implicit_quantiles", {"weight": array(6, 4), "bias": array(4)}, advantage=[dense(4, 3)], atoms=5),
]
DEVIATIONS = [
    dense(2, 3),
    Layer("deviations", {"raw": array(3), "least": np.full(3, -5, np.float32), "most": np.full(3, 2, np.float32)}),
]
CONVOLUTION = [
    Layer("scale"),
    Layer("conv", {"weight": array(4, 1, 8, 8), "bias": array(4)}, stride=4),
    Layer("flatten"),
    dense(4 * 9 * 8, 3),
]
NORMALISER = Normaliser(array(2), np.ones(2, np.float32), 3.0)
CAMERA = Dict({"camera": Box(0, 255, (2, 7, 8, 3), np.uint8), "place": VECTOR})
BRANCHES = [
    Layer(
        "branches",
        branches=[
            [
                Layer("scale"),
                Layer("pad", rows=1, columns=2),
                Layer("conv", {"weight": array(4, 6, 4, 4), "bias": array(4)}, stride=2),
                Layer("flatten"),
                noisy(4 * 3 * 4, 2),
            ],
            [],
        ],
    ),
    noisy(4, 3),
]
POLICIES = {
    "rainbow": (VECTOR, NetworkPolicy(Encoding.of(VECTOR), RAINBOW, discrete("greedy", 3))),
    "quantiles": (
        VECTOR,
        NetworkPolicy(Encoding.of(VECTOR), [dense(2, 15), Layer("mean", atoms=5)], discrete("greedy", 3)),
    ),
    "implicit quantiles": (VECTOR, NetworkPolicy(Encoding.of(VECTOR), IMPLICIT, discrete("greedy", 3))),
    "deviations": (VECTOR, NetworkPolicy(Encoding.of(VECTOR), DEVIATIONS, continuous("tanh_gaussian", 3))),
    "image": (IMAGE, NetworkPolicy(Encoding.of(IMAGE), CONVOLUTION, discrete("softmax", 3))),
    "camera": (
        CAMERA,
        NetworkPolicy(Encoding.of(CAMERA), BRANCHES, discrete("greedy", 3), normaliser=NORMALISER),
    ),
    "named": (NAMED, NetworkPolicy(Encoding.of(NAMED), [dense(9, 3)], discrete("categorical", 3))),
    "nested": (NESTED, NetworkPolicy(Encoding.of(NESTED), [dense(6, 3)], discrete("categorical", 3))),
    "nothing": (WITH_NOTHING, NetworkPolicy(Encoding.of(WITH_NOTHING), [dense(2, 3)], discrete("greedy", 3))),
    "composite": (BY_PART, NetworkPolicy(Encoding.of(BY_PART), [dense(3, 9)], composite())),
    "several": (VECTOR, NetworkPolicy(Encoding.of(VECTOR), [dense(2, 5)], discrete("categorical", 2, 3))),
    "gaussian": (
        VECTOR,
        NetworkPolicy(Encoding.of(VECTOR), [dense(2, 3)], continuous("gaussian", 3), normaliser=NORMALISER),
    ),
    "squashed": (VECTOR, NetworkPolicy(Encoding.of(VECTOR), [dense(2, 6)], continuous("squashed", 3))),
    "tanh": (VECTOR, NetworkPolicy(Encoding.of(VECTOR), [dense(2, 3)], continuous("noisy_tanh", 3))),
}


def rows(space: Any) -> Any:
    """Two observations of a space."""
    return concatenate(space, [space.sample()] * 2, create_empty_array(space, 2))


@pytest.fixture(params=POLICIES)
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Any, Path]:
    """A space, a policy for it as the tree of its file, and the file."""
    space, sound = POLICIES[request.param]
    policy.save(sound, tmp_path / "policy.mpk")
    return space, codec.read_file(tmp_path / "policy.mpk"), tmp_path / "policy.mpk"


def test_policies_that_fit_come_back(saved: tuple[Any, Any, Path]) -> None:
    space, _, path = saved
    loaded = policy.load(path)
    assert count(loaded.act(rows(space), ActMode.EXPLORE, np.random.default_rng(0))) == 2


def count(actions: Any) -> int:
    """How many actions there are in a batch."""
    while isinstance(actions, dict | tuple):
        actions = next(iter(actions.values() if isinstance(actions, dict) else actions))
    return len(actions)


Place = tuple[Any, ...]


def places(tree: Any, at: Place = ()) -> Iterator[Place]:
    yield at
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from places(value, (*at, key))
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from places(value, (*at, index))


def changed(tree: Any, at: Place, change: Callable[[Any], Any]) -> Any:
    copied = copy.deepcopy(tree)
    target = copied
    for key in at[:-1]:
        target = target[key]
    target[at[-1]] = change(target[at[-1]])
    return copied


def others(value: Any) -> Iterator[Any]:
    """What may stand in the place of a value."""
    yield from (None, "x", "V99999999", -1, 0, 2, HUGE, float("nan"), True, [], {}, [HUGE])
    yield from (np.array(1, np.float32), np.zeros((HUGE, 0), np.float32))
    if isinstance(value, np.ndarray):
        yield from (value[None], value.ravel(), value[:-1] if value.ndim else value, value.astype(np.int64))
        yield from (value.T, np.ones(7, np.float32), value.astype(np.complex64), np.ones((4, 1, 1), np.float32))
    if isinstance(value, list) and value:
        yield from (value[:-1], value[::-1], [*value, value[0]])


def test_a_changed_file_is_refused_or_acts_within_its_means(saved: tuple[Any, Any, Path]) -> None:
    space, tree, path = saved
    seen = rows(space)
    refused = acted = 0
    for at in list(places(tree["policy"]))[1:]:
        original: Any = tree["policy"]
        for key in at:
            original = original[key]
        for other in others(original):
            wrong = {**tree, "policy": changed(tree["policy"], at, lambda _, other=other: other)}
            path.write_bytes(b"".join(codec.encode(wrong)))
            try:
                loaded = policy.load(path)
            except FileRefused:
                refused += 1
                continue
            if loaded.encoding == Encoding.of(space):  # or these are not its observations
                for generator in (None, np.random.default_rng(0)):
                    mode = ActMode.EXPLOIT if generator is None else ActMode.EXPLORE
                    with np.errstate(all="ignore"):
                        assert count(loaded.act(seen, mode, generator)) == 2, (at, other)
                acted += 1
    assert refused > acted > 0


def test_a_noisy_weight_without_axes_is_refused(tmp_path: Path) -> None:
    layer = Layer(
        "noisy_dense", dict.fromkeys(("weight", "bias", "weight_noise", "bias_noise"), np.array(1, np.float32))
    )
    tree = policy_tree(tmp_path, layers=[{"kind": "noisy_dense", "arrays": layer.arrays}])
    with pytest.raises(FileRefused, match=r"a layer noisy_dense .* does not fit inputs of the shape \(2,\)"):
        policy.load(tree)


def test_a_small_file_cannot_ask_for_terabytes(tmp_path: Path) -> None:
    part = {"name": "", "kind": "discrete", "shape": [], "counts": [2**30], "starts": [0]}
    head = {"kind": "greedy", "dtype": "<i8", "shape": [], "counts": [2**30], "starts": [0]}
    path = policy_tree(tmp_path, encoding={"parts": [part]}, layers=[], head=head)
    assert path.stat().st_size < 1000
    with pytest.raises(FileRefused, match="inputs are more than the 0 numbers of the network"):
        policy.load(path)


def policy_tree(directory: Path, **changes: Any) -> Path:
    """The file of a policy with some fields changed."""
    path = directory / "policy.mpk"
    policy.save(NetworkPolicy(Encoding.of(VECTOR), [dense(2, 3)], discrete("greedy", 3)), path)
    tree = codec.read_file(path)
    path.write_bytes(b"".join(codec.encode({**tree, "policy": {**tree["policy"], **changes}})))
    return path


def test_padding_cannot_ask_for_many_times_the_image(tmp_path: Path) -> None:
    encoding = Encoding.of(IMAGE)
    for rows, columns in ((81, 0), (0, 73), (-1, 0), (2**20, 2**20)):
        layers = [Layer("scale"), Layer("pad", rows=rows, columns=columns), Layer("flatten"), dense(3, 3)]
        policy.save(NetworkPolicy(encoding, layers, discrete("greedy", 3)), tmp_path / "policy.mpk")
        with pytest.raises(FileRefused, match=r"a layer pad \(\) does not fit inputs of the shape \(1, 40, 36\)"):
            policy.load(tmp_path / "policy.mpk")

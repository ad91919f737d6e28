"""Policies exported to ONNX choose the actions that they choose with numpy."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector.utils import concatenate, create_empty_array

from rekindle import agents
from rekindle.agents.dqn import rainbow
from rekindle.errors import MissingExtra
from rekindle.experience import Array
from rekindle.policy import Layer, NetworkPolicy, Normaliser, save_onnx

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

ROWS = 1000
MOST_DIFFERENCE = 1e-5

VECTOR = Box(-2, 2, (6,))
SQUARE = Box(-1, 1, (2,))
UNEVEN = Box(np.array([[-1, 0], [2, -5]], np.float32), np.array([[3, 0.5], [2.5, 5]], np.float32))
IMAGE = Box(0, 255, (20, 22, 3), np.uint8)
STACKED = Box(0, 255, (2, 12, 12, 3), np.uint8)
MIXED = Dict(
    {
        "camera": Box(0, 255, (10, 10), np.uint8),
        "pose": Box(-3, 3, (2, 3), np.float64),
        "floor": Discrete(4, start=-1),
        "parts": Tuple((MultiDiscrete([2, 5], start=[0, 3]), MultiBinary(3))),
        "bytes": Box(0, 255, (5,), np.uint8),
    }
)
MASKED = Dict({"place": VECTOR, "action_mask": MultiBinary(3)})
COMPOSITE = Dict({"move": UNEVEN, "tool": Discrete(3, start=2), "arm": Tuple((Discrete(4), MultiBinary(2)))})
MASKED_PARTS = Dict(
    {
        "place": VECTOR,
        "action_mask": Dict({"tool": MultiBinary(3), "arm": Tuple((MultiBinary(4), MultiBinary((2, 2))))}),
    }
)
MASKED_ROW = Dict({"place": VECTOR, "action_mask": MultiBinary(11)})
WITH_NOTHING = Dict({"place": VECTOR, "nothing": Box(-1, 1, (0,))})
SMALL: dict[str, Any] = {"hidden_sizes": (16, 16)}

POLICIES: dict[str, tuple[str, Any, Any, dict[str, Any]]] = {
    "dqn": ("DQN", VECTOR, Discrete(4, start=3), SMALL),
    "dqn-dueling": ("DQN", VECTOR, Discrete(4), {"dueling": True, **SMALL}),
    "dqn-c51": ("DQN", VECTOR, Discrete(3), {"atoms": 21, **SMALL}),
    "dqn-quantiles": ("DQN", VECTOR, Discrete(3), {"quantiles": 21, **SMALL}),
    "dqn-rainbow": ("DQN", VECTOR, Discrete(3), rainbow(**SMALL)),
    "dqn-images": ("DQN", IMAGE, Discrete(3), {"dueling": True, "quantiles": 11}),
    "dqn-masked": ("DQN", MASKED, Discrete(3), SMALL),
    "dqn-discrete-observations": ("DQN", MultiDiscrete([3, 4], start=[2, 0]), Discrete(9), SMALL),
    "iqn": ("IQN", VECTOR, Discrete(4), SMALL),
    "ppo-masked": ("PPO", MASKED, Discrete(3, start=1), SMALL),
    "ppo-several": ("PPO", VECTOR, MultiDiscrete([2, 3, 4], start=[0, 1, 7]), SMALL),
    "ppo-binary": ("PPO", VECTOR, MultiBinary(5), SMALL),
    "ppo-clipped": ("PPO", VECTOR, UNEVEN, SMALL),
    "ppo-unbounded": ("PPO", VECTOR, Box(-np.inf, np.inf, (3,)), SMALL),
    "ppo-composite": ("PPO", MIXED, COMPOSITE, {}),
    "ppo-composite-masked": ("PPO", MASKED_PARTS, COMPOSITE, SMALL),
    "ppo-composite-masked-row": ("PPO", MASKED_ROW, COMPOSITE, SMALL),
    "ppo-stacked-images": ("PPO", STACKED, Discrete(3), {}),
    "ppo-part-without-numbers": ("PPO", WITH_NOTHING, Discrete(3), SMALL),
    "sac": ("SAC", VECTOR, UNEVEN, SMALL),
    "sac-64-bits": ("SAC", VECTOR, Box(-2, 7, (3,), np.float64), SMALL),
    "td3": ("TD3", VECTOR, SQUARE, SMALL),
    "bc": ("BC", VECTOR, UNEVEN, SMALL),
    "awac": ("AWAC", VECTOR, UNEVEN, SMALL),
    "iql": ("IQL", VECTOR, SQUARE, SMALL),
}


def trained(name: str) -> NetworkPolicy:
    """The policy of an agent, with weights and a normaliser as after a training."""
    algorithm, observation_space, action_space, settings = POLICIES[name]
    made = getattr(agents, algorithm)(observation_space, action_space, seed=1, **settings).policy()
    assert isinstance(made, NetworkPolicy)
    rng = np.random.default_rng(2)
    for array in arrays_of(made.layers):
        array[...] += rng.normal(scale=0.3 / np.sqrt(len(array)), size=array.shape)
    normaliser = None
    if size := made.encoding.vector_size:
        mean, variance = rng.normal(size=size), rng.exponential(size=size)
        normaliser = Normaliser(mean.astype(np.float32), variance.astype(np.float32), clip=2.5)
    return NetworkPolicy(made.encoding, made.layers, made.head, normaliser=normaliser, algorithm=algorithm)


def arrays_of(layers: list[Layer]) -> Iterator[Array]:
    for layer in layers:
        yield from layer.arrays.values()
        for inner in (*layer.branches, layer.value, layer.advantage):
            yield from arrays_of(inner)


def sampled(space: Any, rows: int) -> Any:
    space.seed(3)
    values = [space.sample() for _ in range(rows)]
    batch = concatenate(space, values, create_empty_array(space, rows))
    if isinstance(space, Dict) and "action_mask" in space.spaces:
        for mask in leaves({"mask": cast("dict[str, Any]", batch)["action_mask"]}).values():
            mask.reshape(rows, -1)[:, 0] = 1  # a mask allows something
    return batch


def leaves(value: Any, name: str = "") -> dict[str, Array]:
    """The arrays of a nested batch, by name."""
    if isinstance(value, dict | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: array for part, inner in items for key, array in leaves(inner, f"{name}/{part}").items()}
    return {name: value}


def run(file: Path, observations: Any, *outputs: str) -> list[Array]:
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return cast("list[Array]", session.run(list(outputs), inputs_of(file, observations)))


def inputs_of(file: Path, observations: Any) -> dict[str, Array]:
    """The inputs of a graph, with its types and shapes."""
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8, "tensor(bool)": bool}
    arrays = leaves(observations, "observation")
    given = {
        item.name: arrays[item.name].astype(kinds[item.type]).reshape(len(arrays[item.name]), *item.shape[1:])
        for item in session.get_inputs()
    }
    assert given.keys() == arrays.keys()
    return given


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.exhaustive) if name == "ppo-stacked-images" else name for name in POLICIES],
)
def test_an_exported_policy_chooses_the_same_actions_in_onnxruntime(name: str, tmp_path: Path) -> None:
    policy = trained(name)
    save_onnx(policy, tmp_path / "policy.onnx")
    onnx.checker.check_model(onnx.load(tmp_path / "policy.onnx"), full_check=True)
    observations = sampled(POLICIES[name][1], ROWS)
    expected = policy.output(observations)
    actions = actions_for(policy, expected, observations)
    output, *found = run(tmp_path / "policy.onnx", observations, "output", *actions)
    assert output.shape == expected.shape
    np.testing.assert_allclose(output, expected, rtol=0, atol=MOST_DIFFERENCE)
    # Its own output, so that values that are equal but for rounding are no tie.
    chosen = actions_for(policy, output, observations)
    for (part, action), value in zip(actions.items(), found, strict=True):
        assert (value.dtype, value.shape) == (action.dtype, action.shape), part
        if action.dtype.kind == "f":
            np.testing.assert_allclose(value, action, rtol=0, atol=MOST_DIFFERENCE, err_msg=part)
        else:
            np.testing.assert_array_equal(value, chosen[part], err_msg=part)
            assert np.mean(value == action) > 0.999, part
            assert len(np.unique(value)) > 1, part


def actions_for(policy: NetworkPolicy, output: Array, observations: Any) -> dict[str, Array]:
    """The greedy actions for an output of the network."""
    batch = observations
    if policy.encoding.is_dict:
        batch = {name.removeprefix("/"): array for name, array in leaves(observations).items()}
    rows = policy.head.choose(output, policy.encoding.mask(batch), None)
    structure = policy.head.structure
    return leaves(rows if structure is None else structure.nested(rows), "action")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["dqn-images", "ppo-composite-masked", "sac"])
def test_an_exported_policy_chooses_the_same_actions_in_onnxruntime_web(name: str, tmp_path: Path) -> None:
    install_onnxruntime_web(tmp_path)
    policy = trained(name)
    save_onnx(policy, tmp_path / "policy.onnx")
    observations = sampled(POLICIES[name][1], ROWS)
    values = policy.output(observations)
    expected = actions_for(policy, values, observations)
    given = inputs_of(tmp_path / "policy.onnx", observations)
    for index, array in enumerate(given.values()):
        (tmp_path / f"{index}.bin").write_bytes(array.tobytes())
    inputs = [[key, array.dtype.name, array.shape] for key, array in given.items()]
    (tmp_path / "inputs.json").write_text(json.dumps(inputs))
    (tmp_path / "main.mjs").write_text(PROGRAM)
    subprocess.run(["node", "main.mjs"], cwd=tmp_path, check=True, timeout=300)
    found = json.loads((tmp_path / "outputs.json").read_text())
    assert found.keys() == {"output", *expected}
    output = np.array(found["output"], np.float32).reshape(values.shape)
    np.testing.assert_allclose(output, values, rtol=0, atol=MOST_DIFFERENCE)
    chosen = actions_for(policy, output, observations)
    for part, action in expected.items():
        value = np.array(found[part], np.float64).reshape(action.shape)
        if action.dtype.kind == "f":
            np.testing.assert_allclose(value, action, rtol=0, atol=MOST_DIFFERENCE, err_msg=part)
        else:
            np.testing.assert_array_equal(value, chosen[part], err_msg=part)
            assert np.mean(value == action) > 0.999, part


PROGRAM = """
import fs from "node:fs";
import * as ort from "onnxruntime-web";

const arrays = { float32: Float32Array, int64: BigInt64Array, uint8: Uint8Array, bool: Uint8Array };
const feeds = {};
for (const [index, [name, type, shape]] of JSON.parse(fs.readFileSync("inputs.json")).entries()) {
    const bytes = new Uint8Array(fs.readFileSync(`${index}.bin`));
    feeds[name] = new ort.Tensor(type, new arrays[type](bytes.buffer), shape);
}
const session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync("policy.onnx")));
const outputs = await session.run(feeds);
const plain = {};
for (const [name, value] of Object.entries(outputs)) plain[name] = Array.from(value.data, Number);
fs.writeFileSync("outputs.json", JSON.stringify(plain));
"""


def install_onnxruntime_web(directory: Path) -> None:
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"onnxruntime-web needs {program}, which is not installed")
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "onnxruntime-web@1.20.1"]
    done = subprocess.run(command, cwd=directory, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"npm cannot install onnxruntime-web: {done.stderr.strip()[-300:]}")


def test_a_policy_acts_on_any_number_of_rows(tmp_path: Path) -> None:
    policy = trained("iqn")
    save_onnx(policy, tmp_path / "policy.onnx")
    for rows in (1, 3):
        (action,) = run(tmp_path / "policy.onnx", sampled(VECTOR, rows), "action")
        assert action.shape == (rows,)


def test_the_file_says_what_made_it_and_needs_only_opset_15(tmp_path: Path) -> None:
    save_onnx(trained("sac"), tmp_path / "policy.onnx")
    model = onnx.load(tmp_path / "policy.onnx")
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 15)]
    assert (model.producer_name, model.ir_version) == ("rekindle", 8)
    assert {item.key: item.value for item in model.metadata_props} == {"algorithm": "SAC"}
    before = (tmp_path / "policy.onnx").read_bytes()
    save_onnx(trained("sac"), tmp_path / "policy.onnx")
    assert (tmp_path / "policy.onnx").read_bytes() == before


def test_without_onnx_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r'pip install "rekindle-rl\[onnx\]"'):
        save_onnx(trained("td3"), tmp_path / "policy.onnx")
    assert not list(tmp_path.iterdir())

"""The scripts of the page, in Node."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from node import run_node

from rekindle.agents import DQN, PPO
from rekindle.game import hosting
from rekindle.policy import policy as policies

HERE = Path(__file__).parent
OBSERVATIONS, ACTIONS = gym.spaces.Box(-2, 2, (6,), np.float32), gym.spaces.Discrete(3, start=1)


def test_the_world_and_the_pilot_of_the_game(static: Path) -> None:
    assert int(run_node(HERE / "world.mjs", static)) == 6


def output_of(static: Path, directory: Path, content: bytes | None, rows: np.ndarray) -> dict[str, Any]:
    if content is not None:
        (directory / "policy.mpk").write_bytes(content)
    (directory / "rows.bin").write_bytes(rows.tobytes())
    return json.loads(
        run_node(HERE / "policy.mjs", static, directory / "policy.mpk", directory / "rows.bin", len(rows))
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"hidden_sizes": (16, 8)},
        {"hidden_sizes": (16,), "dueling": True, "atoms": 5, "noisy": True, "normalise_observations": True},
        {"hidden_sizes": (16,), "dueling": True, "quantiles": 4},
    ],
    ids=["dense", "rainbow", "quantiles"],
)
def test_the_page_runs_an_exported_policy_as_numpy_does(static: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    policy = DQN(OBSERVATIONS, ACTIONS, seed=3, **settings).policy()
    assert isinstance(policy, policies.NetworkPolicy)
    policies.save(policy, tmp_path / "policy.mpk")
    rows = np.random.default_rng(0).uniform(-2, 2, (40, 6)).astype(np.float32)
    made = output_of(static, tmp_path, None, rows)
    np.testing.assert_allclose(made["outputs"], policy.output(rows), rtol=1e-4, atol=1e-5)
    assert made["actions"] == policy.act(rows).tolist()


def test_the_page_refuses_a_policy_that_it_cannot_run_or_that_is_damaged(static: Path, tmp_path: Path) -> None:
    rows = np.zeros((1, 6), np.float32)
    policy = PPO(OBSERVATIONS, gym.spaces.Box(-1, 1, (2,), np.float32), seed=0).policy()
    assert isinstance(policy, policies.NetworkPolicy)
    policies.save(policy, tmp_path / "policy.mpk")
    assert "gaussian" in output_of(static, tmp_path, None, rows)["error"]
    content = bytearray((tmp_path / "policy.mpk").read_bytes())
    content[-1] ^= 1
    assert output_of(static, tmp_path, bytes(content), rows) == {"error": "the file is damaged"}
    assert output_of(static, tmp_path, bytes(content[:-1]), rows) == {"error": "the file is not complete"}
    assert output_of(static, tmp_path, b"no policy", rows) == {"error": "this is no file of rekindle"}


def test_the_page_and_the_server_agree_on_spaces_and_exploration(static: Path) -> None:
    world, main = ((static / name).read_text() for name in ("world.js", "main.js"))
    spaces = json.loads((Path(hosting.__file__).parent / "spaces.json").read_text())
    constants = {name: int(value) for name, value in re.findall(r"const (SECTORS|CHANNELS) = (\d+);", world)}
    assert spaces["observation_space"]["shape"] == [constants["SECTORS"] * constants["CHANNELS"]]
    turns = re.search(r"const TURNS = \[(.*)\];", world)
    assert turns is not None
    assert spaces["action_space"]["n"] == len(turns[1].split(","))
    shown = re.search(r"const EXPLORATION = \{ start: 1, end: (.*), steps: (.*) \};", main)
    assert shown is not None
    command = hosting.serve_command(Path("runs"), "v1", 0, 1, 2)
    assert command[command.index("--agent.epsilon-end") + 1] == shown[1]
    assert command[command.index("--agent.epsilon-steps") + 1] == shown[2].replace("_", "")

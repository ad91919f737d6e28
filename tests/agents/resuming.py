"""A training cut in two, for every kind of memory and noise; run by test_agent_resume.py in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import rekindle
from rekindle.agents import AWAC, BC, DQN, IQL, IQN, SAC, TD3, rainbow
from rekindle.experience import Array
from rekindle.session.session import TrainingSession

STEPS, CUT = 70, 37
SETTINGS: dict[str, Any] = {
    "hidden_sizes": (8,),
    "capacity": 48,
    "warmup_steps": 9,
    "batch_size": 4,
    "update_every": 4,
    "updates_each": 2,
}
KINDS: dict[str, Any] = {"dqn": DQN, "sac": SAC, "td3": TD3, "bc": BC, "awac": AWAC, "iql": IQL, "iqn": IQN}
_RING: dict[str, Any] = {"normalise_observations": True, "gradient_accumulation": 2}
_FRAMES: dict[str, Any] = {"frame_stack": 3, "n_step": 2}
_DQN: dict[str, Any] = {**SETTINGS, "target_update_every": 5, "epsilon_steps": 40}
MEMORIES: dict[str, dict[str, dict[str, Any]]] = {
    "dqn": {
        "ring": {**_DQN, **_RING},
        "n-step": {**_DQN, "n_step": 3, "tau": 0.1},
        "prioritised": rainbow(**{**_DQN, "n_step": 2, "atoms": 5, "v_min": -5.0, "v_max": 5.0}),
        "frames": {**_DQN, **_FRAMES},
        "quantiles": {**_DQN, "quantiles": 5, "cql_alpha": 0.5},
        "iqn": {**_DQN, "prioritised": True, "policy_quantiles": 4},
        "bc": {**SETTINGS, "n_step": 2},
        "iql": {**SETTINGS, "cosine_updates": 9, "policy_delay": 2},
    },
    "sac": {
        "ring": {**SETTINGS, **_RING},
        "n-step": {**SETTINGS, "n_step": 3, "policy_delay": 2, "target_update_every": 3},
        "prioritised": {**SETTINGS, "prioritised": True, "critics": 3, "layer_norm": True},
        "frames": {**SETTINGS, **_FRAMES, "temperature": 0.1},
        "pink-noise": {**SETTINGS, "noise": "pink"},
    },
    "td3": {
        "ring": {**SETTINGS, **_RING},
        "n-step": {**SETTINGS, "n_step": 3, "policy_delay": 3},
        "prioritised": {**SETTINGS, "prioritised": True, "critics": 3},
        "frames": {**SETTINGS, **_FRAMES},
        "ou-noise": {**SETTINGS, "noise": "ou"},
        "cloning": {**SETTINGS, "bc_alpha": 2.5},
        "bc": {**SETTINGS, "loss": "mse"},
        "awac": {**SETTINGS, "noise": "pink"},
        "iql": {**SETTINGS, **_RING, "critics": 3},
    },
}


def memories(algorithm: str, network: str) -> list[str]:
    """The kinds of memory, and agents by name.

    On images there are no agents by name, as the network is that of others; frames of a Dict cannot be stored one by
    one.
    """
    without = {"mlp": (), "cnn": KINDS, "dict": (*KINDS, "frames")}[network]
    return [memory for memory in MEMORIES[algorithm] if memory not in without]


class Track:
    """A walk on a line, seen as numbers or as a picture; three frames of it if they are stacked."""

    def __init__(self, algorithm: str, *, is_image: bool, is_stacked: bool) -> None:
        self._is_image, self._is_stacked = is_image, is_stacked
        shape, dtype = ((36, 36), np.uint8) if is_image else ((2,), np.float32)
        frames = (3,) if is_stacked else (1,) if is_image else ()
        self.observation_space = Box(0 if is_image else -9, 255 if is_image else 9, (*frames, *shape), dtype)
        self.action_space = Discrete(2) if algorithm == "dqn" else Box(-0.5, 1.5, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._rng = np.random.default_rng(seed)
        self._place, self._steps = float(self._rng.normal(0, 0.5)), 0
        self._frames = [self._frame()] * 3
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._place += float(np.sum(action)) - 0.5 + float(self._rng.normal(0, 0.4))
        self._steps += 1
        self._frames = [*self._frames[1:], self._frame()]
        return self._observation(), -abs(self._place), abs(self._place) > 2, self._steps >= 9, {}

    def _frame(self) -> Array:
        if not self._is_image:
            return np.array([self._place, self._steps / 9], np.float32)
        frame = np.zeros((36, 36), np.uint8)
        frame[:, int(np.clip(self._place * 8 + 18, 0, 35))] = 255
        frame[self._steps] = 128
        return frame

    def _observation(self) -> Array:
        if self._is_stacked:
            return np.stack(self._frames)
        return self._frames[-1][None] if self._is_image else self._frames[-1]


class Pictures(Track):
    """The walk as a Dict: numbers, and a picture with two frames of two colours."""

    def __init__(self, algorithm: str) -> None:
        super().__init__(algorithm, is_image=False, is_stacked=False)
        self.observation_space: Any = Dict(
            {"place": self.observation_space, "picture": Box(0, 255, (2, 7, 9, 2), np.uint8)}
        )

    def _observation(self) -> Any:
        picture = np.zeros((2, 7, 9, 2), np.uint8)
        for frame, (place, steps) in zip(picture, self._frames[-2:], strict=True):
            frame[:, int(np.clip(place * 2 + 4, 0, 8)), 0] = 255
            frame[int(steps * 6), :, 1] = 128
        return {"place": self._frames[-1], "picture": picture}


def world_of(algorithm: str, memory: str, network: str) -> Track:
    """The world for a kind of memory, seen by an `mlp`, a `cnn`, or as a `dict`."""
    if network == "dict":
        return Pictures(algorithm)
    return Track(algorithm, is_image=network == "cnn", is_stacked=memory == "frames")


def make(algorithm: str, memory: str, *, network: str) -> Any:
    """An agent for a kind of memory; one that is named as an algorithm is for the same actions, but of that one."""
    world = world_of(algorithm, memory, network)
    settings = dict(MEMORIES[algorithm][memory])
    if network == "cnn":
        settings.pop("normalise_observations", None)
    agent = KINDS[memory if memory in KINDS else algorithm](
        world.observation_space, world.action_space, seed=3, **settings
    )
    agent.warm_up = lambda: None  # compile what is needed, and not what could be
    return agent


def train(
    path: Path, agent: Any, worlds: list[Track], *, steps: int, until: int, at_cut: Callable[[], None] = lambda: None
) -> None:
    """Continue a run of this many steps, a stream for each world in turns, until a step."""
    with TrainingSession.open(path.name, agent, root=path.parent, seed=5, max_steps=steps, metrics_every=20) as session:
        streams = [session.stream(index) for index in range(len(worlds))]
        actions = [stream.begin(stream.reset(world)) for stream, world in zip(streams, worlds, strict=True)]
        while session.total_steps < until:
            # The stream whose turn it is follows from the step alone, so that a resume takes the same one.
            turn = session.total_steps % len(worlds)
            observation, reward, terminated, truncated, _ = worlds[turn].step(actions[turn])
            actions[turn] = streams[turn].step(observation, reward, terminated, truncated)
            if actions[turn] is None and not session.is_done:
                actions[turn] = streams[turn].begin(streams[turn].reset(worlds[turn]))
        if not session.is_done:
            at_cut()
            session.stop("cut")
    assert session.resumed is None or session.resumed.grade == "exact", session.resumed


def train_part(root: Path, name: str, part: str, agent: Any, *, cut: int, **training: Any) -> None:
    """Train whole and up to the cut, or the rest."""
    if part == "first":
        fresh = agent.state()
        train(root / "whole" / name, agent, until=training["steps"], **training)
        agent.load_state(fresh)  # not another agent, which would compile everything again
        train(root / "cut" / name, agent, until=cut, **training)
    else:
        train(root / "cut" / name, agent, until=training["steps"], **training)


def check_exact(script: str, root: Path, *arguments: str, network: str, names: Iterable[str]) -> None:
    """Run both parts of a script, each in a process of its own: the runs that were cut end as those that were not."""
    for part in ("first", "rest"):
        command = [sys.executable, script, str(root), *arguments, network, part]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    for name in names:
        whole, cut = (rekindle.verify(root / kind / name) for kind in ("whole", "cut"))
        assert whole.ok
        assert cut.ok
        assert cut.digests == whole.digests, name


def main(root: Path, algorithm: str, network: str, part: str) -> None:
    """Train with every kind of memory."""
    for memory in memories(algorithm, network):
        worlds = [world_of(algorithm, memory, network) for _ in range(2)]
        agent = make(algorithm, memory, network=network)
        train_part(root, memory, part, agent, cut=CUT, worlds=worlds, steps=STEPS)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

"""Environments of every character, small and quick: well-behaved, leaky, moody, and wrong in one way each."""

from __future__ import annotations

import itertools
import os
import pathlib
import signal
import subprocess
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rekindle.envs import worker
from rekindle.rng import generator_from_state, generator_state

Answer = tuple[Any, float, bool, bool, dict[str, Any]]


class Path(gymnasium.Env[Any, Any]):
    """A noisy walk: terminated at either wall, truncated after `limit` steps."""

    def __init__(self, *, limit: int = 9, wall: float = 1.5, named: bool = False) -> None:
        self._limit, self._wall, self._named = limit, wall, named
        place = Box(-9, 9, (2,), np.float32)
        self.observation_space = Dict({"place": place, "level": Discrete(10)}) if named else place
        self.action_space = Discrete(2)
        self._level = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._level = (options or {}).get("level", 0)
        self._place, self._steps = float(self.np_random.normal(0, 0.3)), 0
        return self._observation(), {}

    def step(self, action: Any) -> Answer:
        self._place += (0.4 if int(action) else -0.4) + float(self.np_random.normal(0, 0.3))
        self._steps += 1
        terminated, truncated = abs(self._place) > self._wall, self._steps >= self._limit
        return (
            self._observation(),
            self._place,
            terminated,
            truncated,
            {"is_success": self._place > self._wall, "text": "x"},
        )

    def _observation(self) -> Any:
        place = np.array([self._place, self._steps + self._level], np.float32)
        return {"place": place, "level": self._level} if self._named else place


class Nested(Path):
    """The walk, seen through a Dict in a Dict and a Tuple."""

    def __init__(self, *, limit: int = 9) -> None:
        super().__init__(limit=limit)
        walk = Dict({"place": Box(-9, 9, (1,), np.float32), "steps": Discrete(50)})
        self.observation_space = Dict({"walk": walk, "signs": Tuple([Discrete(3), Box(-9, 9, (2,), np.float32)])})

    def _observation(self) -> Any:
        place = np.array([self._place], np.float32)
        signs = (int(np.sign(self._place)) + 1, np.array([self._place, -self._place], np.float32))
        return {"signs": signs, "walk": {"place": place, "steps": self._steps}}


class Camera(Path):
    """The walk, seen as a picture of the place, and as the number of steps."""

    def __init__(self, *, limit: int = 9) -> None:
        super().__init__(limit=limit)
        self.observation_space = Dict(
            {"picture": Box(0, 255, (7, 9, 1), np.uint8), "steps": Box(0, 50, (1,), np.float32)}
        )

    def _observation(self) -> Any:
        picture = np.zeros((7, 9, 1), np.uint8)
        picture[self._steps % 7, int(np.clip(self._place * 3 + 4, 0, 8))] = 255
        return {"picture": picture, "steps": np.array([self._steps], np.float32)}


class Both(gymnasium.Env[Any, Any]):
    """Shows a side and a force. Choosing both earns 1 a step; another force earns less, and the other side costs 1."""

    def __init__(self, *, limit: int = 5) -> None:
        self._limit = limit
        self.observation_space = Dict(
            {"force": Dict({"x": Box(-1, 1, (1,), np.float32)}), "side": Tuple([Discrete(2)])}
        )
        self.action_space = Dict({"push": Tuple([Box(-2, 2, (1,), np.float32)]), "side": Discrete(2, start=3)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Answer:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not an action")
        distance = abs(float(action["push"][0][0]) - self._force)
        reward = 1 - distance if action["side"] == 3 + self._side else -1.0
        self._steps += 1
        return self._observation(), reward, False, self._steps >= self._limit, {}

    def _observation(self) -> Any:
        self._force, self._side = float(self.np_random.choice([-1, 1])), int(self.np_random.integers(2))
        return {"force": {"x": np.array([self._force], np.float32)}, "side": (self._side,)}


class Chatty(Path):
    """Says in its infos what no process can send to another."""

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**options)[0], {"self": lambda: self}

    def step(self, action: Any) -> Answer:
        *answer, info = super().step(action)
        return (*answer, {**info, "self": lambda: self})  # type: ignore[return-value]


class Saved(Path):
    """Says where it is, and can be brought back there without living its episode again."""

    steps_in_all = 0

    def step(self, action: Any) -> Answer:
        Saved.steps_in_all += 1
        return super().step(action)

    def get_state(self) -> dict[str, Any]:
        return {"rng": generator_state(self.np_random), "at": [self._place, self._steps, self._level]}

    def set_state(self, state: dict[str, Any]) -> None:
        self.np_random = generator_from_state(state["rng"])
        self._place, self._steps, self._level = state["at"]


class Leaky(Path):
    """Episodes of one instance drift apart from those of another."""

    _drift = 0.0

    def step(self, action: Any) -> Answer:
        self._drift += 0.01
        self._place += self._drift
        return super().step(action)


class Moody(Path):
    """No episode is like another, whatever the seed."""

    _moods = itertools.count()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=next(self._moods), options=options)


class Unseeded(Path):
    """The seed does nothing, and nothing is random."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=7, options=options)


class Masked(gymnasium.Env[Any, Any]):
    """Allows half of its actions in each step, and insists on that."""

    def __init__(self, space: Any = None, *, seeded: bool = True) -> None:
        self.action_space = Discrete(6, start=3) if space is None else space
        self._counts, self._starts = {
            "Discrete": lambda: ([6], [3]),
            "MultiDiscrete": lambda: ([4, 2], [0, 0]),
            "MultiBinary": lambda: ([2, 2, 2], [0, 0, 0]),
        }[type(self.action_space).__name__]()
        self._seeded = seeded
        self.observation_space = Dict({"place": Box(0, 1, (2,)), "action_mask": MultiBinary(sum(self._counts))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed if self._seeded else None)
        self._steps = 0
        return self._observation(), {}

    def step(self, action: Any) -> Answer:
        places = np.ravel(action) - self._starts
        assert all(part[place] for part, place in zip(self._mask, places, strict=True)), "a forbidden action"
        self._steps += 1
        return self._observation(), 1.0, False, self._steps >= 20, {}

    def _observation(self) -> dict[str, Any]:
        self._mask = [np.zeros(count, np.int8) for count in self._counts]
        for part in self._mask:
            part[self.np_random.permutation(len(part))[: len(part) // 2]] = 1
        return {"place": self.np_random.random(2).astype(np.float32), "action_mask": np.concatenate(self._mask)}


class MaskedParts(Masked):
    """Actions with a number and two discrete parts, and a mask for each of these, or one for both."""

    def __init__(self, *, by_part: bool) -> None:
        super().__init__(MultiDiscrete([4, 2]))
        self._by_part = by_part
        self.action_space = Tuple([Box(-1, 1, (2,), np.float32), Dict({"a": Discrete(4), "b": Discrete(2, start=1)})])
        if by_part:
            masks = Tuple([Dict({"a": MultiBinary(4), "b": MultiBinary(2)})])
            self.observation_space = Dict({"place": Box(0, 1, (2,)), "action_mask": masks})

    def step(self, action: Any) -> Answer:
        if not self.action_space.contains(action):
            raise ValueError(f"{action} is not an action")
        return super().step([action[1]["a"], action[1]["b"] - 1])

    def _observation(self) -> dict[str, Any]:
        observation = super()._observation()
        masks = ({"a": self._mask[0], "b": self._mask[1]},)
        return {**observation, "action_mask": masks} if self._by_part else observation


class DrawsFromItsActions(gymnasium.Env[Any, Any]):
    """Is random by what it draws from its own action space, which no reset seeds."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = Discrete(100)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.action_space.sample(), {}

    def step(self, action: Any) -> Answer:
        return self.action_space.sample(), 0.0, False, False, {}


class Counted(gymnasium.Env[Any, Any]):
    """Counts its instances and their steps, and carries the latter over from one episode to the next if told so."""

    instances = steps_in_all = 0
    observation_space, action_space = Discrete(1_000_000), Discrete(2)

    def __init__(self, *, leaks: bool = False, repeats: bool = True) -> None:
        Counted.instances += 1
        self._leaks, self._repeats = leaks, repeats
        self._count = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = self._count if self._leaks else 0
        return self._count, {}

    def step(self, action: Any) -> Answer:
        Counted.steps_in_all += 1
        self._count += 1
        return self._count if self._repeats else Counted.steps_in_all, 0.0, False, False, {}


class Broken(Path):
    """Goes wrong in its fourth step, in a way that can be chosen, unless it is mended; its episodes never end."""

    def __init__(self, *, how: str) -> None:
        super().__init__(limit=50)
        self._how = how
        self._count = 0

    def step(self, action: Any) -> Any:
        self._count += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self._count != 4 or self._how == "mended":
            return observation, reward, False, False, info
        if self._how == "raises":
            raise ZeroDivisionError("by nothing")
        if self._how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return {
            "shape": (observation[:1], reward, terminated, truncated, info),
            "nan": (observation * np.nan, reward, terminated, truncated, info),
            "reward": (observation, float("inf"), terminated, truncated, info),
            "outside": (observation + 100, reward, terminated, truncated, info),
            "four values": (observation, reward, terminated, info),
            "flag": (observation, reward, "no", truncated, info),
        }[self._how]


class Deadly(gymnasium.Env[Any, Any]):
    """A noisy walk on a ring without an end; kills its process in the step that the environment variable says."""

    steps_in_all = 0
    observation_space, action_space = Discrete(20), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._place = int(self.np_random.integers(20))
        return self._place, {}

    def step(self, action: int) -> Answer:
        Deadly.steps_in_all += 1
        if str(Deadly.steps_in_all) == os.environ.get("DEADLY_STEP"):
            os.kill(os.getpid(), signal.SIGKILL)
        self._place = (self._place + (1 if action else -1) + int(self.np_random.integers(-1, 2))) % 20
        return self._place, float(self._place == 0), False, False, {}


class Simulated(Path):
    """The walk, beside a process of a simulator, which it terminates when it is closed."""

    def __init__(self, *, directory: str) -> None:
        super().__init__()
        self._simulator = subprocess.Popen(["sleep", "600"])
        self._file = pathlib.Path(directory) / str(self._simulator.pid)
        self._file.touch()

    def close(self) -> None:
        self._simulator.terminate()
        self._simulator.wait()
        self._file.unlink()


class Stuck(Path):
    """Hangs in its first step, in a worker that gets little time to end."""

    def __init__(self) -> None:
        super().__init__()
        worker.GRACE = 0.1

    def step(self, action: Any) -> Answer:
        time.sleep(600)
        return super().step(action)


class Endless(gymnasium.Env[Any, Any]):
    """Never ends an episode. Environment variables let a test know where it is, and hold it there.

    `ENDLESS_MARK` is `STEP:FILE`: an instance that makes so many steps makes the file. Then, if there is
    `ENDLESS_HOLD`, it waits until that file is there.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium has it
    observation_space, action_space = Discrete(3), Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Answer:
        self._steps += 1
        step, _, mark = os.environ.get("ENDLESS_MARK", "").partition(":")
        if str(self._steps) == step:
            pathlib.Path(mark).touch()
            hold = os.environ.get("ENDLESS_HOLD")
            while hold and not os.path.exists(hold):
                time.sleep(0.01)
        return int(self.np_random.integers(3)), 1.0, False, False, {}

    def render(self) -> Any:
        return np.zeros((8, 8, 3), np.uint8)


def normalised_rewards() -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.NormalizeReward(gymnasium.make("CartPole-v1"))


def many(num_envs: int, *, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> SyncVectorEnv:
    """A vector environment with composite actions and nested observations."""
    return SyncVectorEnv([Both] * num_envs, autoreset_mode=mode)


def no_env() -> str:
    return "not an environment"


gymnasium.register("rekindle-tests/Path-v0", entry_point="env_worlds:Path")


def paths(num_envs: int, *, mode: AutoresetMode = AutoresetMode.NEXT_STEP, **arguments: Any) -> SyncVectorEnv:
    """A vector environment of somebody's own."""
    return SyncVectorEnv([lambda: Path(**arguments)] * num_envs, autoreset_mode=mode)

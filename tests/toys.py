"""A small world and small agents, deterministic from their seeds, for tests of what goes on around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rekindle.agent import State
from rekindle.experience import ActMode, Array, Experience, Observations, Transitions
from rekindle.rng import generator_from_state, generator_state
from rekindle.session.session import TrainingSession
from rekindle.spaces import ArraySpec


class Corridor:
    """A noisy walk between two walls; an episode also ends, truncated, after `limit` steps."""

    def __init__(self, *, limit: int = 12, wind: float = 0.0) -> None:
        self.limit = limit
        self.wind = wind
        """Two corridors of different winds do not live the same episode from one seed."""
        self.resets: list[tuple[int | None, dict[str, Any] | None]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.resets.append((seed, options))
        self._rng = np.random.default_rng(seed)
        self._position, self._steps = float(self._rng.normal(0, 0.3)), 0
        return self._observation(), {"seed": seed}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._position += (0.4 if int(action) else -0.4) + float(self._rng.normal(self.wind, 0.3))
        self._steps += 1
        terminated, truncated = abs(self._position) > 2.0, self._steps >= self.limit
        return self._observation(), self._position, terminated, truncated, {"steps": self._steps}

    def _observation(self) -> Array:
        return np.array([self._position, self._steps / self.limit], np.float32)


class ToyAgent:
    """Two random actions, and weights that depend on everything seen and drawn so far."""

    def __init__(self, seed: int = 0, *, steps_per_update: int = 1, warm_up: int = 0) -> None:
        self.env_steps = self.updates = 0
        self._rng = np.random.default_rng(seed)
        self._steps_per_update, self._warm_up = steps_per_update, warm_up
        self._weights = np.zeros(3)

    def act(self, observations: Observations, mode: ActMode, streams: Array) -> Array:
        features = _features(observations)
        greedy = features @ self._weights[: features.shape[1]] > 0
        if mode is ActMode.EXPLORE:
            greedy ^= self._rng.random(len(features)) < 0.5
        return greedy.astype(np.int64)

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self.env_steps += len(transitions)
        self._weights[0] += float(np.sum(transitions.rewards))
        self._weights[1] += float(np.sum(_features(transitions.next_observations)))
        self._weights[2] += float(np.sum(transitions.actions))

    def updates_due(self) -> int:
        return max(0, (self.env_steps - self._warm_up) // self._steps_per_update - self.updates)

    def update(self, n: int) -> Mapping[str, Any]:
        for _ in range(n):
            self._weights = 0.99 * self._weights + 0.01 * self._rng.normal(size=3)
        self.updates += n
        return {"loss": float(np.square(self._weights).sum())}

    def state(self) -> State:
        return {
            "weights": {"all": self._weights.copy()},
            "rng": generator_state(self._rng),
            "env_steps": self.env_steps,
            "updates": self.updates,
        }

    def load_state(self, state: State) -> None:
        self._weights = state["weights"]["all"].copy()
        self._rng = generator_from_state(state["rng"])
        self.env_steps, self.updates = state["env_steps"], state["updates"]


class ToyReplay:
    """The newest `capacity` rows: a number each, and its square."""

    columns: Mapping[str, ArraySpec] = {
        "number": ArraySpec(np.dtype("<i8")),
        "pair": ArraySpec(np.dtype("<f4"), (2,)),
    }

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.first = self.end = 0
        self.reads: list[tuple[int, int]] = []
        self._numbers: list[int] = []

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self._numbers.append(3 * self.end + 1)
            self.end += 1
        self.drop(len(self._numbers) - self.capacity)

    def drop(self, count: int) -> None:
        count = min(max(0, count), len(self._numbers))
        del self._numbers[:count]
        self.first += count

    def read(self, first: int, end: int) -> dict[str, Array]:
        self.reads.append((first, end))
        numbers = np.array(self._numbers[first - self.first : end - self.first], np.int64)
        return {"number": numbers, "pair": np.stack([numbers, -numbers], axis=-1).astype(np.float32)}

    def restore(self, first: int, columns: Mapping[str, Array]) -> None:
        self._numbers = columns["number"].tolist()
        self.first, self.end = first, first + len(self._numbers)


class ReplayAgent(ToyAgent):
    """The toy with a replay buffer."""

    def __init__(self, seed: int = 0, *, capacity: int = 50) -> None:
        super().__init__(seed)
        self.memory = ToyReplay(capacity)

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        self.memory.append(len(transitions))

    def replay(self) -> ToyReplay:
        return self.memory


class ToyPolicy:
    """Acts with the weights of one moment."""

    def __init__(self, weights: Array) -> None:
        self.weights = weights

    def act(
        self,
        observations: Observations,
        mode: ActMode = ActMode.EXPLOIT,
        rng: np.random.Generator | None = None,
    ) -> Array:
        features = _features(observations)
        greedy = features @ self.weights[: features.shape[1]] > 0
        if mode is ActMode.EXPLORE:
            assert rng is not None
            greedy ^= rng.random(len(features)) < 0.5
        return greedy.astype(np.int64)


class PolicyAgent(ToyAgent):
    """The toy with every ability that a background learner asks for."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        super().__init__(seed, **options)
        self.seen: list[float] = []
        self.cuts: list[list[int]] = []
        self.skipped = self.starts = 0

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        self.seen += transitions.rewards.tolist()

    def updates_due(self) -> int:
        return max(0, super().updates_due() - self.skipped)

    def policy(self) -> ToyPolicy:
        return ToyPolicy(self._weights.copy())

    def skip_updates(self, n: int) -> None:
        self.skipped += n

    def cut(self, streams: Array) -> None:
        self.cuts.append(streams.tolist())

    def episode_extras(self) -> Mapping[str, float]:
        return {"starts": float(self.starts)}

    def on_episode_start(self) -> None:
        self.starts += 1


def _features(observations: Observations) -> Array:
    if isinstance(observations, Mapping):
        parts = [np.asarray(array, np.float64).reshape(len(array), -1) for array in observations.values()]
        return np.concatenate(parts, axis=1)[:, :3]
    return np.asarray(observations, np.float64).reshape(len(observations), -1)[:, :3]


def drive(session: TrainingSession, env: Any = None, *, until: int | None = None, stream: int | str = 0) -> None:
    """The plain loop of a host, until the session is done or has made so many steps."""
    env = Corridor() if env is None else env
    walk = session.stream(stream)
    action = walk.begin(walk.reset(env))
    while not session.is_done and (until is None or session.total_steps < until):
        observation, reward, terminated, truncated, _ = env.step(action)
        action = walk.step(observation, reward, terminated, truncated)
        if action is None and not session.is_done:
            action = walk.begin(walk.reset(env))


def line(number: float) -> Array:
    """An observation that is easy to tell from others."""
    return np.array([number], np.float32)


def move(start: float, *, action: int = 0, reward: float = 1.0, status: int = 0) -> Experience:
    """The transition from `line(start)` to the next whole number."""
    return Experience(line(start), action, reward, line(start + 1), status)  # type: ignore[arg-type]

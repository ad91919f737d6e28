"""Every way in which a host can drive a session, over one small world, with agents of every kind.

A form is a generator that yields between any two calls of the session, so that a training can be cut at each of
these points; `cuts` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from worker import CELLS, Learner, Walk

import rekindle
from rekindle.agent import LearningAgent, State
from rekindle.agents.tabular import Tabular
from rekindle.rng import generator_from_state, generator_state
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_runs

NAME = "forms"
SEED = 5
STEPS = 24


class World(Walk):
    """The walk, as a host has it: it can be saved, and knows whether its episode is over."""

    def __init__(self, *, discrete: bool) -> None:
        super().__init__()
        self.discrete = discrete
        self.is_over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.is_over = False
        super().reset(seed=seed)
        self._moves = 7  # so that some episodes are truncated, after six moves
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, reward, terminated, truncated, info = super().step(action)
        self.is_over = terminated or truncated
        return self.observation, reward, terminated, truncated, info

    @property
    def observation(self) -> Any:
        return np.int64(self._cell) if self.discrete else self._observation()

    def state(self) -> State:
        return {"rng": generator_state(self._rng), "place": [self._cell, self._moves], "is_over": self.is_over}

    def load_state(self, state: State) -> None:
        self._rng = generator_from_state(state["rng"])
        self._cell, self._moves = state["place"]
        self.is_over = state["is_over"]


class Worlds:
    """Several worlds that are saved as one."""

    def __init__(self, count: int, *, discrete: bool) -> None:
        self.all = [World(discrete=discrete) for _ in range(count)]

    def state(self) -> State:
        return {"all": [world.state() for world in self.all]}

    def load_state(self, state: State) -> None:
        for world, saved in zip(self.all, state["all"], strict=True):
            world.load_state(saved)


class Rollouts:
    """An agent without a replay buffer: it learns from every five transitions, which are plain state until then."""

    def __init__(self) -> None:
        self.env_steps = self.updates = 0
        self._preferences = np.zeros(CELLS)
        self._rng = np.random.default_rng(3)
        self._rollout = np.zeros((0, 3))

    def act(self, observations: Any, mode: rekindle.ActMode, streams: Any) -> Any:
        wanted = self._preferences[observations[:, 0].astype(int)]
        noise = 0.0 if mode is rekindle.ActMode.EXPLOIT else self._rng.normal(size=len(wanted))
        return (wanted + noise > 0).astype(np.int64)

    def observe(self, transitions: rekindle.Transitions, streams: Any) -> None:
        observations: Any = transitions.observations
        columns = (observations[:, 0], transitions.actions, transitions.rewards)
        self._rollout = np.concatenate([self._rollout, np.stack(columns, axis=1)])
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return len(self._rollout) // 5

    def update(self, n: int) -> dict[str, Any]:
        learned, self._rollout = self._rollout[: 5 * n], self._rollout[5 * n :]
        for cell, action, reward in learned.tolist():
            self._preferences[int(cell)] += 0.3 * reward * (2 * action - 1) + 0.01 * self._rng.normal()
        self.updates += n
        return {"loss": np.square(learned[:, 2]), "size": float(len(learned))}

    def state(self) -> State:
        return {
            "weights": self._preferences.copy(),
            "rollout": self._rollout.copy(),
            "rng": generator_state(self._rng),
            "counts": [self.env_steps, self.updates],
        }

    def load_state(self, state: State) -> None:
        self._preferences, self._rollout = state["weights"].copy(), state["rollout"].copy()
        self._rng = generator_from_state(state["rng"])
        self.env_steps, self.updates = state["counts"]


def tabular(method: str) -> Tabular:
    return Tabular(
        gymnasium.spaces.Discrete(CELLS),
        gymnasium.spaces.Discrete(2),
        seed=4,
        method=method,
        capacity=12,
        replay_updates=1,
        epsilon_steps=20,
    )


AGENTS: dict[str, Callable[[], LearningAgent]] = {
    "learner": lambda: Learner(seed=3),
    "rollouts": Rollouts,
    "q_learning": lambda: tabular("q_learning"),
    "sarsa": lambda: tabular("sarsa"),
    "expected_sarsa": lambda: tabular("expected_sarsa"),
}


def is_discrete(agent: LearningAgent) -> bool:
    return isinstance(agent, Tabular)


# The forms


def raw(session: rekindle.TrainingSession) -> Iterator[None]:
    """`act` and `observe`, with a world that joins the checkpoint; one checkpoint while an action is pending."""
    world = World(discrete=is_discrete(session.agent))
    session.attach("world", world)
    while not session.is_done:
        if world.is_over:
            world.reset(seed=session.stream().episode_seed)
        yield
        observation = world.observation
        action = session.act(observation)
        yield
        if session.total_steps == 9:
            session.checkpoint(wait=True)
            yield
        following, reward, terminated, truncated, _ = world.step(action)
        status = rekindle.EpisodeStatus.of(terminated, truncated)
        value: Any = np.float32(reward) if truncated else reward
        session.log("reward", value)
        session.observe(rekindle.Experience(observation, action, reward, following, status))
        yield
        if status.is_done:
            session.on_episode(extras={"cell": float(np.ravel(following)[0])})
            yield


def interleaved(session: rekindle.TrainingSession) -> Iterator[None]:
    """The same with two streams that take turns: one has an action pending whenever the other is saved."""
    worlds, turn = Worlds(2, discrete=is_discrete(session.agent)), Turn()
    session.attach("worlds", worlds)
    session.attach("turn", turn)
    named: dict[str, World] = dict(zip(("left", "right"), worlds.all, strict=True))
    actions: dict[str, Any] = {}
    while not session.is_done:
        for stream, world in named.items():
            if stream not in actions:
                if world.is_over:
                    world.reset(seed=session.stream(stream).episode_seed)
                actions[stream] = session.act(world.observation, stream=stream)
                yield
        stream = turn.take()
        world, action, before = named[stream], actions.pop(stream), named[stream].observation
        following, reward, terminated, truncated, _ = world.step(action)
        status = rekindle.EpisodeStatus.of(terminated, truncated)
        session.observe(rekindle.Experience(before, action, reward, following, status), stream=stream)
        yield
        if status.is_done:
            session.on_episode(stream=stream)
            yield


class Turn:
    """Whose turn it is."""

    def __init__(self) -> None:
        self._next = ["left", "right"]

    def take(self) -> str:
        self._next.reverse()
        return self._next[1]

    def state(self) -> State:
        return {"next": list(self._next)}

    def load_state(self, state: State) -> None:
        self._next = list(state["next"])


def two_calls(session: rekindle.TrainingSession) -> Iterator[None]:
    """`begin` and `step`, with `reset` to bring the environment back."""
    env, stream = World(discrete=is_discrete(session.agent)), session.stream("only")
    while not session.is_done:
        observation = stream.reset(env, options={"any": 1})
        yield
        action = stream.begin(observation)
        yield
        while action is not None and not session.is_done:
            observation, reward, terminated, truncated, _ = env.step(action)
            action = stream.step(observation, reward, terminated, truncated, extras={"length": 1.0})
            yield


def batches(session: rekindle.TrainingSession) -> Iterator[None]:
    """`act_many` and `observe_many` with three streams whose episodes end at different times."""
    worlds = Worlds(3, discrete=is_discrete(session.agent))
    session.attach("worlds", worlds)
    while not session.is_done:
        for stream, world in enumerate(worlds.all):
            if world.is_over:
                world.reset(seed=session.stream(stream).episode_seed)
        observations = np.stack([world.observation for world in worlds.all])
        actions = session.act_many(observations)
        yield
        outcomes = [world.step(action) for world, action in zip(worlds.all, actions, strict=True)]
        following, rewards, terminated, truncated, _ = zip(*outcomes, strict=True)
        statuses = [rekindle.EpisodeStatus.of(*flags) for flags in zip(terminated, truncated, strict=True)]
        ended = session.observe_many(
            rekindle.Transitions(
                observations, actions, np.array(rewards), np.stack(following), np.array(statuses, np.uint8)
            )
        )
        yield
        for stream in ended:
            session.on_episode(stream=stream)
            yield


def own_world(session: rekindle.TrainingSession) -> Iterator[None]:
    """`begin`, `step` and `resume`, with a world that joins the checkpoint."""
    world, stream = World(discrete=is_discrete(session.agent)), session.stream()
    session.attach("world", world)
    while not session.is_done:
        if stream.is_open:
            action = stream.resume(world.observation)
        else:
            action = stream.begin(world.reset(seed=stream.episode_seed)[0])
        yield
        while action is not None and not session.is_done:
            observation, reward, terminated, truncated, _ = world.step(action)
            action = stream.step(observation, reward, terminated, truncated)
            yield
            if session.total_steps == 13:
                session.checkpoint()
                yield


def manual(session: rekindle.TrainingSession) -> Iterator[None]:
    """A learner that learns only when it is told to, every third step."""
    for _ in own_world(session):
        yield
        if session.total_steps % 3 == 0:
            session.learn()
            yield


FORMS: dict[str, Callable[[rekindle.TrainingSession], Iterator[None]]] = {
    "raw": raw,
    "interleaved": interleaved,
    "two_calls": two_calls,
    "batches": batches,
    "own_world": own_world,
    "manual": manual,
}


def begin(root: Path, form: str, agent: str, *, steps: int = STEPS) -> rekindle.TrainingSession:
    """Start the one training below a root, or go on with it, even if it has finished."""
    run = TrainingRun.resume(root / NAME) if find_runs(root) else TrainingRun.create(NAME, root=root, seed=SEED)
    session = rekindle.TrainingSession(
        AGENTS[agent](),
        run=run,
        max_steps=steps,
        checkpoint_every=5,
        metrics_every=4,
        keep_checkpoints=2,
        learner="manual" if form == "manual" else "inline",
        keep_data=form in ("interleaved", "batches"),
    )
    session.every(6, lambda: _evaluate(session))
    return session


def _evaluate(session: rekindle.TrainingSession) -> None:
    world, total, length, status = World(discrete=is_discrete(session.agent)), 0.0, 0, rekindle.EpisodeStatus.CONTINUING
    observation, _ = world.reset(seed=session.total_steps)
    while not status.is_done:
        action = session.act(observation, rekindle.ActMode.EXPLOIT)
        observation, reward, terminated, truncated, _ = world.step(action)
        total, length, status = total + reward, length + 1, rekindle.EpisodeStatus.of(terminated, truncated)
    session.on_eval_episode(rekindle.EpisodeRecord(total, length, status))
    session.maybe_save_best(total)

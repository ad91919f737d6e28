"""Q-learning, SARSA and expected SARSA over a table, and the pattern for an agent of your own.

An agent remembers in `observe`, learns in `update`, and holds everything it needs to go on in `state`. This one
keeps each transition in a ring until it has learned from it, and may learn from it again later (Dyna).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import Metrics, State, StreamSlots
from rekindle.agents.names import advice_on
from rekindle.agents.saving import save
from rekindle.agents.settings import RunSteps, check_steps, refuse_fractions
from rekindle.checks import refuses_misfits
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import ActMode, Array, EpisodeStatus, Observations, Transitions
from rekindle.policy.policy import exploring
from rekindle.replay import Ring
from rekindle.rng import generator_from_state, generator_state
from rekindle.spaces import ActionStructure, ArraySpec

__all__ = ["Tabular", "TabularConfig", "TabularPolicy"]

Method = Literal["q_learning", "sarsa", "expected_sarsa"]
Table = NDArray[np.float64]

_EXPLORE = ActMode.EXPLORE
_NO_ACTION = -1
"""In place of a next action: the episode was cut short, or the method does not ask for one."""


class TabularConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `Tabular` agent."""

    method: Method = "q_learning"
    """Whose value stands for the future: the best action's (`q_learning`), the action taken next (`sarsa`), or all
    actions weighted by how likely the exploring policy is to take them (`expected_sarsa`)."""
    learning_rate: float = 0.1
    """How far a value moves towards its target, above 0 and at most 1."""
    gamma: float = 0.99
    """What a reward is worth one step earlier, from 0 to 1."""
    epsilon_start: float = 1.0
    """How likely a random action is at first."""
    epsilon_end: float = 0.05
    """How likely a random action is from `epsilon_steps` on."""
    epsilon_steps: RunSteps = 10_000
    """Env steps over which epsilon moves linearly from start to end, or a fraction of the training."""
    capacity: int = 10_000
    """Transitions remembered. One that was not learned from when its place is needed is lost."""
    replay_updates: int = 0
    """Remembered transitions, drawn at random, that are learned from again with each new one."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        _require(self.method in get_args(Method), "method", self.method, f"one of {', '.join(get_args(Method))}")
        for name in ("learning_rate", "gamma", "epsilon_start", "epsilon_end"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            _require(is_number and 0 <= value <= 1, name, value, "a number from 0 to 1")
        _require(self.learning_rate > 0, "learning_rate", self.learning_rate, "a number above 0, at most 1")
        check_steps("epsilon_steps", self.epsilon_steps)
        for name, least in (("capacity", 1), ("replay_updates", 0)):
            value = getattr(self, name)
            is_count = isinstance(value, int) and not isinstance(value, bool)
            _require(is_count and value >= least, name, value, f"a whole number of at least {least}")

    def epsilon(self, env_steps: int) -> float:
        """How likely a random action is after so many env steps."""
        if env_steps >= self.epsilon_steps:
            return self.epsilon_end
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * env_steps / self.epsilon_steps


def _require(is_good: bool, name: str, value: object, allowed: str) -> None:
    if not is_good:
        raise ConfigError(f"{name} is {value!r}: use {allowed}")


class _Numbering(msgspec.Struct, frozen=True):
    """The values of a Discrete space and their places in the table, from 0."""

    count: int
    start: int
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, space: Any, name: str) -> _Numbering:
        if not (hasattr(space, "n") and hasattr(space, "start") and getattr(space, "shape", None) == ()):
            is_composite = name == "action_space" and ActionStructure.of(space) is not None
            other = "; use PPO for composite actions" if is_composite else ""
            raise ConfigError(f"{name} is {space!r}: a table needs a Discrete space{other}")
        return cls(int(space.n), int(space.start), np.dtype(space.dtype))

    def places(self, values: Any, name: str) -> list[int]:
        array = np.asarray(values)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise InputError(f"the {name}s must be one whole number a row, not {array.shape} of {array.dtype}")
        places: list[int] = (array.astype(np.int64) - self.start).tolist()
        for place in places:
            if not 0 <= place < self.count:
                last = self.start + self.count - 1
                raise InputError(f"the {name} {place + self.start} is outside {self.start} to {last}")
        return places

    def values(self, places: NDArray[np.int64]) -> Array:
        return (places + self.start).astype(self.dtype)


class TabularPolicy(msgspec.Struct, frozen=True, eq=False):
    """Acts on a table: the best action (the first of equals), or when exploring sometimes a random one."""

    table: Table
    epsilon: float
    observations: _Numbering
    actions: _Numbering

    def act(
        self, observations: Any, mode: ActMode | str = ActMode.EXPLOIT, rng: np.random.Generator | None = None
    ) -> Any:
        """An action for one observation, or an action for each of a batch."""
        batch, rng = np.asarray(observations), exploring(mode, rng)
        return self.choose(batch[None], rng)[0] if batch.ndim == 0 else self.choose(batch, rng)

    def choose(self, observations: Observations, rng: np.random.Generator | None) -> Array:
        """An action for each of a batch; explores if there is a generator."""
        best = self.table[self.observations.places(observations, "observation")].argmax(axis=1)
        if rng is None:
            return self.actions.values(best)
        explores = rng.random(len(best)) < self.epsilon
        if explores.any():
            best[explores] = rng.integers(self.actions.count, size=np.count_nonzero(explores))
        return self.actions.values(best)

    def state(self) -> State:
        """The policy as a tree of data."""
        numbering = [[each.count, each.start, each.dtype.str] for each in (self.observations, self.actions)]
        return {"table": self.table, "epsilon": self.epsilon, "numbering": numbering}

    @classmethod
    def from_state(cls, state: State) -> TabularPolicy:
        """The same policy."""
        observations, actions = (
            _Numbering(count, start, np.dtype(dtype)) for count, start, dtype in state["numbering"]
        )
        return cls(state["table"], state["epsilon"], observations, actions)


class _Step(NamedTuple):
    """One transition, in places of the table."""

    state: int
    action: int
    reward: float
    next_state: int
    status: int
    next_action: int = _NO_ACTION


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `state` holds."""

    weights: dict[str, Any]
    env_steps: _Count
    updates: _Count
    learned: _Count
    remembered: _Count
    waiting: list[tuple[_Count, _Count, _Count, float, _Count]]
    errors: tuple[_Count, float]
    exploring: dict[str, Any]
    sampling: dict[str, Any]


class Tabular:
    """Learns a value for every pair of a Discrete observation and a Discrete action.

    The settings are the fields of `TabularConfig`: `Tabular(observation_space, action_space, seed=0, gamma=0.9)`.
    """

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int, **config: Any) -> None:
        unknown = sorted(config.keys() - set(TabularConfig.__struct_fields__))
        if unknown:
            advice = advice_on(unknown[0], TabularConfig.__struct_fields__)
            raise ConfigError(f"Tabular has no setting {unknown[0]!r}; {advice}")
        _require(isinstance(cast("Any", seed), int) and seed >= 0, "seed", seed, "a whole number of at least 0")
        self.config = TabularConfig(**config)
        refuse_fractions(self.config)
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = 0
        """Transitions observed so far."""
        self.updates = 0
        """New transitions learned from so far."""
        self._observations = _Numbering.of(observation_space, "observation_space")
        self._actions = _Numbering.of(action_space, "action_space")
        self._table: Table = np.zeros((self._observations.count, self._actions.count))
        # Two generators, so that how much is replayed does not change which actions are tried.
        self._exploring, self._sampling = np.random.default_rng(seed).spawn(2)
        place = ArraySpec(np.dtype(np.int64))
        self._memory = Ring(self.config.capacity, observation=place, action=place, next_action=place)
        self._learned = 0
        self._waiting: dict[int, _Step] = {}
        self._error_count, self._error_total = 0, 0.0

    # Acting

    @property
    def epsilon(self) -> float:
        """How likely a random action is now."""
        return self.config.epsilon(self.env_steps)

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        """An action for each row."""
        return self._policy(self._table).choose(observations, self._exploring if mode is _EXPLORE else None)

    def predict(self, observations: Any) -> Any:
        """The greedy action for one observation, or one for each of a batch."""
        return self._policy(self._table).act(observations)

    def policy(self) -> TabularPolicy:
        """How to act now, in a table of its own."""
        table = self._table.copy()
        table.flags.writeable = False
        return self._policy(table)

    def _policy(self, table: Table) -> TabularPolicy:
        return TabularPolicy(table, self.epsilon, self._observations, self._actions)

    # Remembering

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Remember transitions; with SARSA each waits until its stream has taken the next action."""
        states = self._observations.places(transitions.observations, "observation")
        next_states = self._observations.places(transitions.next_observations, "next observation")
        actions = self._actions.places(transitions.actions, "action")
        rewards, statuses = transitions.rewards.tolist(), transitions.statuses.tolist()
        steps = map(_Step, states, actions, rewards, next_states, statuses)
        complete: list[_Step] = []
        for stream, step in zip(streams.tolist(), steps, strict=True):
            before = self._waiting.pop(stream, None)
            if before is not None:
                complete.append(before._replace(next_action=step.action))
            if self.config.method == "sarsa" and step.status == EpisodeStatus.CONTINUING:
                self._waiting[stream] = step
            else:
                complete.append(step)
        self._remember(complete)
        self.env_steps += len(transitions)

    def cut(self, streams: StreamSlots) -> None:
        """Let no transition of these streams wait any longer: no action follows it."""
        waiting = [self._waiting.pop(stream) for stream in streams.tolist() if stream in self._waiting]
        self._remember(step._replace(status=EpisodeStatus.TRUNCATED) for step in waiting)

    def _remember(self, steps: Iterable[_Step]) -> None:
        columns = list(zip(*steps, strict=True))
        if columns:
            states, actions, rewards, next_states, statuses, next_actions = map(np.array, columns)
            transitions = Transitions(states, actions, rewards, next_states, statuses.astype(np.uint8))
            self._memory.append(transitions, next_action=next_actions)

    def replay(self) -> Ring:
        """The memory: places in the table, not values of the spaces."""
        return self._memory

    # Learning

    def updates_due(self) -> int:
        """How many transitions are remembered and not yet learned from."""
        return self._memory.end - self._next_to_learn

    @property
    def _next_to_learn(self) -> int:
        return max(self._learned, self._memory.first)

    def skip_updates(self, n: int) -> None:
        """Leave out the oldest `n` transitions not yet learned from; they may still be replayed."""
        self._learned = min(self._next_to_learn + n, self._memory.end)

    def update(self, n: int) -> Metrics:
        """Learn from the next `n` transitions in order, and after each from some that are remembered."""
        if not 0 < n <= self.updates_due():
            raise InputError(f"update({n}): {self.updates_due()} updates are due")
        memory, start = self._memory, self._next_to_learn
        replayed = self._sampling.integers(memory.first, memory.end, size=(n, self.config.replay_updates))
        rows = memory.take(np.column_stack([np.arange(start, start + n), replayed]).ravel())
        columns = ("observation", "action", "reward", "next_observation", "status", "next_action")
        epsilon = self.epsilon
        values = squares = 0.0
        for step in map(_Step, *(rows[name].tolist() for name in columns)):
            value = float(self._table[step.state, step.action])
            error = self._target(step, epsilon) - value
            self._table[step.state, step.action] = value + self.config.learning_rate * error
            values += value
            squares += error * error
            self._error_total += abs(error)
        count = len(rows["action"])
        self._learned = start + n
        self.updates += n
        self._error_count += count
        return {"loss": squares / count, "q_mean": values / count, "epsilon": epsilon}

    def _target(self, step: _Step, epsilon: float) -> float:
        """What the value of a step should have been: its reward, and the future unless the task ended."""
        if step.status == EpisodeStatus.TERMINATED:
            return step.reward
        following = self._table[step.next_state]
        if self.config.method == "q_learning":
            future = following.max()
        elif step.next_action != _NO_ACTION:
            future = following[step.next_action]
        else:
            future = (1 - epsilon) * following.max() + epsilon * following.mean()
        return step.reward + self.config.gamma * float(future)

    # Reporting

    def episode_extras(self) -> Mapping[str, float]:
        """Epsilon, and the mean size of the errors learned from since an episode last started."""
        if not self._error_count:
            return {"epsilon": self.epsilon}
        return {"epsilon": self.epsilon, "td_error": self._error_total / self._error_count}

    def on_episode_start(self) -> None:
        """Start counting anew."""
        self._error_count, self._error_total = 0, 0.0

    # Going on later

    def save(self, path: str | Path) -> None:
        """Write the agent to a file that `rekindle.agents.load` reads: all but replay memory and random generators."""
        save(self, path)

    def state(self) -> State:
        """Everything but the rows of the memory."""
        return {
            "weights": {"table": self._table.copy()},
            "env_steps": self.env_steps,
            "updates": self.updates,
            "learned": self._learned,
            "remembered": self._memory.end,
            "waiting": [[stream, *step[:4]] for stream, step in sorted(self._waiting.items())],
            "errors": [self._error_count, self._error_total],
            "exploring": generator_state(self._exploring),
            "sampling": generator_state(self._sampling),
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Go on from there; until its rows are restored, the memory is empty."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a Tabular agent: {error}") from None
        table = self._checked_table(saved.weights.get("table"))
        exploring, sampling = generator_from_state(saved.exploring), generator_from_state(saved.sampling)
        if saved.learned > saved.remembered:
            raise StateError(
                f"{saved.learned} transitions learned from are more than the {saved.remembered} remembered"
            )
        states, actions = table.shape
        for stream, before, action, _, after in saved.waiting:
            if max(before, after) >= states or action >= actions:
                raise StateError(f"the transition that waits in stream {stream} is outside the table")
        self._memory.clear(saved.remembered)
        self._table = table
        self._exploring, self._sampling = exploring, sampling
        self.env_steps, self.updates, self._learned = saved.env_steps, saved.updates, saved.learned
        self._waiting = {
            stream: _Step(before, action, reward, after, EpisodeStatus.CONTINUING)
            for stream, before, action, reward, after in saved.waiting
        }
        self._error_count, self._error_total = saved.errors

    def take_over(self, state: State, *, with_optimiser: bool = False) -> None:
        """Begin with what another agent has learned; `with_optimiser` takes over the counters too."""
        names = {"weights", *(("env_steps", "updates") if with_optimiser else ())}
        self.load_state({**self.state(), **{name: state[name] for name in names if name in state}})

    def _checked_table(self, saved: Any) -> Table:
        expected = self._table.shape
        if not isinstance(saved, np.ndarray):
            raise StateError("weights: there is no table")
        table = cast("Array", saved)
        if table.shape != expected or table.dtype != np.float64:
            raise StateError(f"weights: the table is {table.shape} of {table.dtype}, not {expected} of float64")
        if not np.isfinite(table).all():
            raise StateError("weights: the table holds NaN or infinity")
        return table.copy()

"""Q-learning, SARSA and expected SARSA over a table, and the pattern for an agent of your own.

An agent stores transitions in `observe`, learns from them in `update`, and returns everything that a resume needs in
`state`. This one stores transitions in a ring buffer, learns from each new one, and may replay older ones (Dyna).
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
from rekindle.checks import plain_number, refuses_misfits, required_count
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
"""The next action of a transition that has none: its episode was cut short, or the method does not need it."""


class TabularConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `Tabular` agent."""

    method: Method = "q_learning"
    """The next action in the target: the best action (`q_learning`), the action taken next (`sarsa`), or the
    expectation over the exploring policy (`expected_sarsa`)."""
    learning_rate: float = 0.1
    """How far a value moves towards its target in an update, above 0 and at most 1."""
    gamma: float = 0.99
    """Discount factor, from 0 to 1: each step of delay multiplies a reward by it."""
    epsilon_start: float = 1.0
    """Probability of a random action at the start, from 0 to 1."""
    epsilon_end: float = 0.05
    """Probability of a random action after `epsilon_steps`, from 0 to 1."""
    epsilon_steps: RunSteps = 10_000
    """Env steps over which epsilon moves linearly from start to end; or a fraction of the training, from 0.0 to 1.0."""
    capacity: int = 10_000
    """Size of the replay buffer in transitions; a transition that is overwritten before it was learned from is lost."""
    replay_updates: int = 0
    """Transitions replayed at random from the replay buffer after each new transition, at least 0."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
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
        """The probability of a random action after `env_steps` env steps."""
        if env_steps >= self.epsilon_steps:
            return self.epsilon_end
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * env_steps / self.epsilon_steps


def _require(is_good: bool, name: str, value: object, allowed: str) -> None:
    if not is_good:
        raise ConfigError(f"{name} is {value!r}: use {allowed}")


class _Numbering(msgspec.Struct, frozen=True):
    """Converts between values of a Discrete space and indices of the table, from 0."""

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
            raise InputError(f"the {name}s must be one integer per row, not {array.shape} of {array.dtype}")
        places: list[int] = (array.astype(np.int64) - self.start).tolist()
        for place in places:
            if not 0 <= place < self.count:
                last = self.start + self.count - 1
                raise InputError(f"the {name} {place + self.start} is outside {self.start} to {last}")
        return places

    def values(self, places: NDArray[np.int64]) -> Array:
        return (places + self.start).astype(self.dtype)


class TabularPolicy(msgspec.Struct, frozen=True, eq=False):
    """An epsilon-greedy policy over a table; if several actions are the best, it takes the first."""

    table: Table
    epsilon: float
    observations: _Numbering
    actions: _Numbering

    def act(
        self, observations: Any, mode: ActMode | str = ActMode.EXPLOIT, rng: np.random.Generator | None = None
    ) -> Any:
        """The action for one observation, or the actions for a batch."""
        batch, rng = np.asarray(observations), exploring(mode, rng)
        return self.choose(batch[None], rng)[0] if batch.ndim == 0 else self.choose(batch, rng)

    def choose(self, observations: Observations, rng: np.random.Generator | None) -> Array:
        """The actions for a batch; explores if there is a generator."""
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
    """One transition, with indices of the table."""

    state: int
    action: int
    reward: float
    next_state: int
    status: int
    next_action: int = _NO_ACTION


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of `state`."""

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
    """Learns a table of values, one for each Discrete observation and Discrete action.

    The settings are the fields of `TabularConfig`: `Tabular(observation_space, action_space, seed=0, gamma=0.9)`.
    """

    def __init__(self, observation_space: Any, action_space: Any, *, seed: int, **config: Any) -> None:
        unknown = sorted(config.keys() - set(TabularConfig.__struct_fields__))
        if unknown:
            advice = advice_on(unknown[0], TabularConfig.__struct_fields__)
            raise ConfigError(f"Tabular has no setting {unknown[0]!r}; {advice}")
        required_count("seed", seed, 0)
        self.config = TabularConfig(**{name: plain_number(value) for name, value in config.items()})
        refuse_fractions(self.config)
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = 0
        """Transitions observed so far."""
        self.updates = 0
        """New transitions learned from so far."""
        self._observations = _Numbering.of(observation_space, "observation_space")
        self._actions = _Numbering.of(action_space, "action_space")
        self._table: Table = np.zeros((self._observations.count, self._actions.count))
        # Two generators, so that replay does not change the exploration.
        self._exploring, self._sampling = np.random.default_rng(seed).spawn(2)
        place = ArraySpec(np.dtype(np.int64))
        self._memory = Ring(self.config.capacity, observation=place, action=place, next_action=place)
        self._learned = 0
        self._waiting: dict[int, _Step] = {}
        self._error_count, self._error_total = 0, 0.0

    # Acting

    @property
    def epsilon(self) -> float:
        """The current probability of a random action."""
        return self.config.epsilon(self.env_steps)

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        """An action for each row."""
        return self._policy(self._table).choose(observations, self._exploring if mode is _EXPLORE else None)

    def predict(self, observations: Any) -> Any:
        """The greedy action for one observation, or the greedy actions for a batch."""
        return self._policy(self._table).act(observations)

    def policy(self) -> TabularPolicy:
        """The current policy, with a copy of the table."""
        table = self._table.copy()
        table.flags.writeable = False
        return self._policy(table)

    def _policy(self, table: Table) -> TabularPolicy:
        return TabularPolicy(table, self.epsilon, self._observations, self._actions)

    # Storing

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Store transitions; with SARSA, each is stored only once the next action of its stream is known."""
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
        """Store the transitions of these streams that wait for a next action: none will follow."""
        waiting = [self._waiting.pop(stream) for stream in streams.tolist() if stream in self._waiting]
        self._remember(step._replace(status=EpisodeStatus.TRUNCATED) for step in waiting)

    def _remember(self, steps: Iterable[_Step]) -> None:
        columns = list(zip(*steps, strict=True))
        if columns:
            states, actions, rewards, next_states, statuses, next_actions = map(np.array, columns)
            transitions = Transitions(states, actions, rewards, next_states, statuses.astype(np.uint8))
            self._memory.append(transitions, next_action=next_actions)

    def replay(self) -> Ring:
        """The replay buffer; its rows have indices of the table, not values of the spaces."""
        return self._memory

    # Learning

    def updates_due(self) -> int:
        """The number of stored transitions that were not yet learned from."""
        return self._memory.end - self._next_to_learn

    @property
    def _next_to_learn(self) -> int:
        return max(self._learned, self._memory.first)

    def skip_updates(self, n: int) -> None:
        """Skip the oldest `n` transitions that were not yet learned from; they may still be replayed."""
        self._learned = min(self._next_to_learn + n, self._memory.end)

    def update(self, n: int) -> Metrics:
        """Learn from the next `n` transitions in order, and after each one replay some from the replay buffer."""
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
        """The TD target of a step: its reward, plus the discounted next value unless the episode terminated."""
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
        """Epsilon, and the mean absolute TD error since an episode last started."""
        if not self._error_count:
            return {"epsilon": self.epsilon}
        return {"epsilon": self.epsilon, "td_error": self._error_total / self._error_count}

    def on_episode_start(self) -> None:
        """Reset the mean TD error."""
        self._error_count, self._error_total = 0, 0.0

    # Saving and loading

    def save(self, path: str | Path) -> None:
        """Save the agent, without replay buffer and random generators, to a file for `rekindle.agents.load`."""
        save(self, path)

    def state(self) -> State:
        """The whole state except the rows of the replay buffer."""
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
        """Load a saved state; the replay buffer is empty until its rows are restored."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of a Tabular agent: {error}") from None
        table = self._checked_table(saved.weights.get("table"))
        exploring, sampling = generator_from_state(saved.exploring), generator_from_state(saved.sampling)
        if saved.learned > saved.remembered:
            raise StateError(f"{saved.learned} transitions were learned from, but only {saved.remembered} were stored")
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
        """Start from the table of another agent's state; `with_optimiser` also takes its counters."""
        names = {"weights", *(("env_steps", "updates") if with_optimiser else ())}
        self.load_state({**self.state(), **{name: state[name] for name in names if name in state}})

    def _checked_table(self, saved: Any) -> Table:
        expected = self._table.shape
        if not isinstance(saved, np.ndarray):
            raise StateError("weights: the table is missing")
        table = cast("Array", saved)
        if table.shape != expected or table.dtype != np.float64:
            raise StateError(f"weights: the table is {table.shape} of {table.dtype}, not {expected} of float64")
        if not np.isfinite(table).all():
            raise StateError("weights: the table contains NaN or infinity")
        return table.copy()

"""Several environments that are stepped together and never reset without the caller."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from rekindle.agent import State
from rekindle.envs.factory import ENV_ERRORS, EnvFactory, close_env
from rekindle.errors import ConfigError, EnvError, InputError, RekindleError
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.spaces import Layout
from rekindle.traces import ResettableEnv

__all__ = [
    "EnvSlot",
    "Envs",
    "LocalEnvs",
    "Outcome",
    "SingleEnv",
    "error_text",
    "failed",
    "joined",
    "numbers_in",
]

_TERMINATED, _TRUNCATED = int(EpisodeStatus.TERMINATED), int(EpisodeStatus.TRUNCATED)  # members are slow to look up


class Outcome(NamedTuple):
    """The result of one step in every environment, row by row."""

    observations: Observations
    """The true observations, including the final ones of episodes."""
    rewards: Array
    statuses: Array
    """Values of `EpisodeStatus`."""
    extras: dict[int, dict[str, float]]
    """The numbers in the final info of each row whose episode has ended."""
    following: Observations | None = None
    """If ended rows have already been reset: the observations from which each row continues."""


class SingleEnv(ResettableEnv, Protocol):
    """One environment, which may be able to save its state."""

    @property
    def has_state(self) -> bool:
        """Whether it can save its state; if not, its episode is replayed after a resume."""
        ...

    def get_state(self) -> State:
        """The current state."""
        ...

    def set_state(self, state: State) -> None:
        """Restore a state."""
        ...


class Envs(Protocol):
    """Environments that are stepped together."""

    name: str
    num_envs: int
    observation_space: Any
    """The space of one environment."""
    action_space: Any
    inexact: str | None
    """Why an open episode cannot be restored exactly; None if it can."""

    def one(self, row: int) -> SingleEnv:
        """One of the environments, to reset or restore it."""
        ...

    def step(self, actions: Any) -> Outcome:
        """Step all of them."""
        ...

    def close(self) -> None:
        """Close all of them."""
        ...


class EnvSlot:
    """One environment; with `rebuilds`, a new instance is created for each episode."""

    def __init__(self, factory: EnvFactory, *, rebuilds: bool = False, training: bool = True) -> None:
        self.name = factory.name
        self._factory, self._rebuilds, self._training = factory, rebuilds, training
        self.env = factory(training=training)
        self.observation_space: Any = self.env.observation_space
        self.action_space: Any = self.env.action_space
        self.step = self.env.step
        self._is_used = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        if self._rebuilds and self._is_used:
            close_env(self.env, self.name)
            self.env = self._factory(training=self._training)
            self.step = self.env.step
        self._is_used = True
        return self.env.reset(seed=seed, options=options)

    @property
    def has_state(self) -> bool:
        """Whether the environment, including its wrappers, can save and restore its state."""
        return all(hasattr(type(self.env), name) for name in ("get_state", "set_state"))

    def get_state(self) -> State:
        """The state of the environment."""
        return cast("Any", self.env).get_state()

    def set_state(self, state: State) -> None:
        """Restore a state of the environment."""
        cast("Any", self.env).set_state(state)

    def close(self) -> None:
        """Close the environment."""
        close_env(self.env, self.name)


class LocalEnvs:
    """Environments in this process, stepped one after the other."""

    inexact: str | None = None

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        *,
        rebuilds: bool = False,
        training: bool = True,
        first_row: int = 0,
        when_made: Callable[[], object] = lambda: None,
    ) -> None:
        """`when_made` is called whenever an environment was created, which may take long."""
        if num_envs < 1:
            raise ConfigError(f"num_envs is {num_envs}: use at least 1")
        self.name = factory.name
        self.num_envs = num_envs
        self.first_row = first_row
        """The row number of the first environment, for messages."""
        with contextlib.ExitStack() as undo:
            self.slots: list[EnvSlot] = []
            for _ in range(num_envs):
                self.slots.append(EnvSlot(factory, rebuilds=rebuilds, training=training))
                undo.callback(self.slots[-1].close)
                when_made()
            self.observation_space, self.action_space = self.slots[0].observation_space, self.slots[0].action_space
            self._layout = cast("Layout", Layout.of_space(self.observation_space))
            for slot in self.slots:
                if (slot.observation_space, slot.action_space) != (self.observation_space, self.action_space):
                    raise ConfigError(f"{self.name} has different spaces each time it is created")
            undo.pop_all()

    def one(self, row: int) -> EnvSlot:
        """One of the environments."""
        return self.slots[row]

    def step(self, actions: Any) -> Outcome:
        """Step all of them."""
        count, layout = self.num_envs, self._layout
        dtype, shape = (None, None) if layout.plain is None else (layout.plain.dtype, layout.plain.shape)
        columns = [np.empty((count, *leaf.shape), leaf.dtype) for leaf in layout.leaves.values()]
        rewards, statuses = np.empty(count, np.float64), np.zeros(count, np.uint8)
        extras: dict[int, dict[str, float]] = {}
        observation: Any
        reward: Any
        for row, slot in enumerate(self.slots):
            try:
                observation, reward, terminated, truncated, info = slot.step(actions[row])
                if type(observation) is np.ndarray and observation.shape == shape and observation.dtype == dtype:
                    columns[0][row] = observation
                else:
                    for column, array in zip(columns, layout.conform(observation, "the observation"), strict=True):
                        column[row] = array
                rewards[row] = reward
                if terminated or truncated:
                    statuses[row] = _TERMINATED if terminated else _TRUNCATED
                    extras[row] = numbers_in(info)
            except ENV_ERRORS as error:
                raise failed(self.name, self.first_row + row, "step", error) from error
        return Outcome(self._layout.observations(columns), rewards, statuses, extras)

    def close(self) -> None:
        """Close all of them."""
        for slot in self.slots:
            slot.close()


def failed(name: str, row: int, what: str, error: Exception | SystemExit) -> EnvError:
    """An error of an environment, with its name and row."""
    text = error_text(error)
    if what in _CONTRACTS and _breaks_contract(error):
        text = f"{type(error).__name__}: {error}; {_CONTRACTS[what]}; `rekindle check` says more"
    return EnvError(f"{name}, env {row}, failed in {what}: {text}")


_CONTRACTS = {
    "reset": "reset(*, seed=None, options=None) must return (observation, info)",
    "step": "step(action) must return (observation, reward, terminated, truncated, info)",
}


def _breaks_contract(error: Exception | SystemExit) -> bool:
    """Whether a call of the environment, or the use of what it returned, failed in this package and not inside it."""
    if isinstance(error, RekindleError) or not isinstance(error, TypeError | ValueError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(_PACKAGE)


_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def error_text(error: Exception | SystemExit) -> str:
    """The error, and the line of code that raised it."""
    if isinstance(error, RekindleError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)}){where}"
    return f"{type(error).__name__}: {error}{where}"


_NUMBERS: tuple[type, ...] = (bool, int, float, np.bool_, np.integer, np.floating)


def numbers_in(info: Any, names: Sequence[str] | None = None) -> dict[str, float]:
    """The numbers in an info: all of them, or those with the given names; raises `InputError` if it is not a dict."""
    if not isinstance(info, Mapping):
        raise InputError(f"the info is {info!r:.80}, which is not a dict")
    values = cast("Mapping[Any, Any]", info)
    chosen = values.keys() if names is None else [name for name in names if name in values]
    named = {name: values[name] for name in chosen if isinstance(name, str) and name[:1] != "_"}
    return {name: float(value) for name, value in named.items() if isinstance(value, _NUMBERS)}


def joined(parts: Sequence[Observations]) -> Observations:
    """Concatenate batches of observations."""
    first = parts[0]
    if isinstance(first, Mapping):
        named = cast("Sequence[Mapping[str, Array]]", parts)
        return {name: np.concatenate([part[name] for part in named]) for name in named[0]}
    return np.concatenate(cast("Sequence[Array]", parts))

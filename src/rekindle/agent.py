"""The protocol of an agent, and one protocol for each optional ability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.spaces import ArraySpec

__all__ = [
    "ChecksLearner",
    "HasPolicy",
    "HasReplay",
    "InterruptibleUpdates",
    "LearningAgent",
    "LearnsFromData",
    "Metrics",
    "Policy",
    "PortablePolicy",
    "Replay",
    "ReportsEpisodes",
    "SkipsUpdates",
    "State",
    "Stateful",
    "StreamSlots",
    "TakesOver",
    "TracksStreams",
    "VersionsPolicies",
    "WarmsUp",
    "is_offline",
    "numbers_of",
    "session_steps",
]

State = dict[str, Any]
"""A plain tree of dict (str keys), list, str, int, float, bool, None and numpy arrays, which loads without running
code. The weights of the policy are under the key `weights`."""

Metrics = Mapping[str, Any]
"""A number, or an array with one number per update, for each name. A value can be anything that `float()` or
`np.asarray` accepts, so it may stay on a device until it is read, or an object with a method `numbers` for a list."""


def numbers_of(value: Any) -> list[float]:
    """The numbers of a metric, as a list."""
    numbers = getattr(value, "numbers", None)
    return np.asarray(value, np.float64).ravel().tolist() if numbers is None else numbers()


StreamSlots = NDArray[np.int64]
"""The stream of each row: small consecutive integers that can index tables."""


@runtime_checkable
class Stateful(Protocol):
    """An object that can be saved with a checkpoint."""

    def state(self) -> State:
        """Everything needed to continue; it must not change afterwards, so copy arrays that do."""
        ...

    def load_state(self, state: State) -> None:
        """Restore a state. Arrays in `state` are read-only: copy those that you write to."""
        ...


@runtime_checkable
class LearningAgent(Stateful, Protocol):
    """An agent that a session can drive.

    Batches have a leading axis with one row per stream; a single stream is a batch of one. `state()` is everything
    except the rows of a replay buffer, which are journalled (`HasReplay`).
    """

    env_steps: int
    """Transitions observed so far."""
    updates: int
    """Gradient steps (or equivalent updates) made so far."""

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """Return an action inside the space for each row. EXPLOIT draws no random numbers."""
        ...

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Store a copy of the transitions (hosts reuse buffers), and add to `env_steps`; never learns."""
        ...

    def updates_due(self) -> int:
        """How many updates are due: 0 during warm-up or while a rollout is incomplete."""
        ...

    def update(self, n: int) -> Metrics:
        """Make `n` updates, add to `updates`, and return metrics to log."""
        ...


class Replay(Protocol):
    """A replay buffer: rows with sequence numbers `first <= number < end`; a row never changes after it is added."""

    @property
    def columns(self) -> Mapping[str, ArraySpec]:
        """The dtype and the shape of a row, for each column."""
        ...

    @property
    def first(self) -> int:
        """The number of the oldest row."""
        ...

    @property
    def end(self) -> int:
        """The number after the newest row."""
        ...

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of these rows, by column."""
        ...

    def restore(self, first: int, columns: Mapping[str, Array]) -> None:
        """Replace all rows with these; the first of them has the number `first`."""
        ...


@runtime_checkable
class HasReplay(Protocol):
    """An agent with a journalled replay buffer: a checkpoint writes only new rows."""

    def replay(self) -> Replay:
        """The replay buffer itself, not a copy."""
        ...


@runtime_checkable
class LearnsFromData(Protocol):
    """An agent that can learn from recorded transitions, with or without an environment."""

    def learn_from(self, data: Any, *, share: float = 1.0) -> None:
        """Draw this share of each batch from `data`, a `rekindle.replay.TransitionSource`; None ends it.

        With a share of 1 no update is due: the host calls `update`.
        """
        ...

    @property
    def is_offline(self) -> bool:
        """Whether the agent learns from data alone; then a session counts updates, and not env steps."""
        ...


def is_offline(agent: LearningAgent) -> bool:
    """Whether an agent learns from data alone."""
    return isinstance(agent, LearnsFromData) and agent.is_offline


def session_steps(agent: LearningAgent) -> int:
    """The steps of an agent, as a session counts them: updates if it learns from data alone, otherwise env steps."""
    return agent.updates if is_offline(agent) else agent.env_steps


@runtime_checkable
class ReportsEpisodes(Protocol):
    """An agent that adds its own numbers (epsilon, mean loss) to each episode's record."""

    def episode_extras(self) -> Mapping[str, float]:
        """Numbers about the episode that just ended."""
        ...

    def on_episode_start(self) -> None:
        """Reset the numbers for a new episode."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Acts, and nothing else: small, immutable, and independent of the agent that created it."""

    def act(
        self,
        observations: Any,
        mode: ActMode = ActMode.EXPLOIT,
        rng: np.random.Generator | None = None,
    ) -> Any:
        """Return an action for one observation, or for each row of a batch of `Observations`.

        Sessions pass only batches. `rng` is needed, and advanced, only for exploration.
        """
        ...


@runtime_checkable
class PortablePolicy(Policy, Protocol):
    """A policy that is data, so that actors in other processes can act with it; its module needs no ML library."""

    def state(self) -> State:
        """Everything that `from_state` needs."""
        ...

    @classmethod
    def from_state(cls, state: State) -> Policy:
        """The same policy, from a state that only this class has written."""
        ...


@runtime_checkable
class HasPolicy(Protocol):
    """An agent that can create a policy, which the background learner and actors in other processes need."""

    def policy(self) -> Policy:
        """The current policy; later updates do not change it."""
        ...


@runtime_checkable
class VersionsPolicies(Protocol):
    """An agent that needs to know which of its policies chose an action, even if the agent itself did not act."""

    policy_version: int
    """The version of the policy that `policy()` returns; it increases with each new policy."""

    def chose(self, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        """Report the versions of the policies that chose the actions which these streams observe next."""
        ...


@runtime_checkable
class TracksStreams(Protocol):
    """An agent that links consecutive transitions of a stream (n-step returns, rollouts, traces)."""

    def cut(self, streams: StreamSlots) -> None:
        """The last transition of these streams was cut short and ended its episode: link no later transition to it."""
        ...


@runtime_checkable
class SkipsUpdates(Protocol):
    """An agent that can drop updates that are due, if a background learner cannot keep up."""

    def skip_updates(self, n: int) -> None:
        """Reduce the updates that are due by `n`."""
        ...


@runtime_checkable
class InterruptibleUpdates(Protocol):
    """An agent whose updates may take so long that a stop should not wait for all of them."""

    def update_until(self, n: int, should_stop: Callable[[], bool]) -> Metrics:
        """Like `update`, but raise `Interrupted` between two updates once `should_stop()` is true.

        `state()` then includes the progress. The next `update` makes the rest, adds all of them to `updates`, and
        returns the metrics of all, as if it had not been interrupted.
        """
        ...


@runtime_checkable
class TakesOver(Protocol):
    """An agent that can start from another agent's weights."""

    def take_over(self, state: State, *, with_optimiser: bool = False) -> None:
        """Load the weights and normalisation of another agent's state; optimiser and counters only if requested."""
        ...


@runtime_checkable
class ChecksLearner(Protocol):
    """An agent that cannot train with every learner."""

    def check_learner(self, learner: str) -> None:
        """Raise `ConfigError` if the agent cannot train with this learner: `inline`, `manual`, `background`, `actors`.

        With `actors`, it learns inline from rounds that its policies play.
        """
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """An agent with something to compile or allocate before the first step."""

    def warm_up(self) -> None:
        """Do that now, once, so that no later call stalls."""
        ...

"""What a session needs of an agent: one small protocol, and optional abilities as protocols of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.spaces import ArraySpec

__all__ = [
    "HasPolicy",
    "HasReplay",
    "InterruptibleUpdates",
    "LearningAgent",
    "Metrics",
    "Policy",
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
    "numbers_of",
]

State = dict[str, Any]
"""A plain tree of dict (str keys), list, str, int, float, bool, None and numpy arrays: nothing that needs code
to load. What the policy needs stands under the key `weights`."""

Metrics = Mapping[str, Any]
"""Name to a number, or to an array of one number per update. Anything `float()` or `np.asarray` takes will do,
so values may stay on a device until somebody reads them; what has a method `numbers` is asked for a list of them."""


def numbers_of(value: Any) -> list[float]:
    """The numbers of a metric."""
    numbers = getattr(value, "numbers", None)
    return np.asarray(value, np.float64).ravel().tolist() if numbers is None else numbers()


StreamSlots = NDArray[np.int64]
"""Which stream each row belongs to: small dense integers, so that they can index tables."""


@runtime_checkable
class Stateful(Protocol):
    """Anything that can join a checkpoint."""

    def state(self) -> State:
        """Everything needed to go on; must not change afterwards, so copy arrays that do."""
        ...

    def load_state(self, state: State) -> None:
        """Go on from there. Arrays in `state` are read-only: copy what you write to."""
        ...


@runtime_checkable
class LearningAgent(Stateful, Protocol):
    """An agent that a session can drive.

    Batches have a leading axis, one row a stream; one is a batch of one. `state()` is everything but the rows
    of a replay memory, which are journalled (`HasReplay`).
    """

    env_steps: int
    """Transitions observed so far."""
    updates: int
    """Gradient steps (or their equal) made so far."""

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """An action inside the space for each row. EXPLOIT is pure: it draws no random number."""
        ...

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Remember, by copy (hosts reuse buffers), and add to `env_steps`; never learns."""
        ...

    def updates_due(self) -> int:
        """How many updates are owed: 0 while warming up or waiting for a rollout."""
        ...

    def update(self, n: int) -> Metrics:
        """Make `n` updates, add to `updates`, and return what is worth logging."""
        ...


class Replay(Protocol):
    """Rows under sequence numbers `first <= number < end`; a row never changes once appended."""

    @property
    def columns(self) -> Mapping[str, ArraySpec]:
        """The dtype of an element and the shape of a row, by name."""
        ...

    @property
    def first(self) -> int:
        """The oldest row still held."""
        ...

    @property
    def end(self) -> int:
        """One past the newest row."""
        ...

    def read(self, first: int, end: int) -> dict[str, Array]:
        """A copy of these rows, column by column."""
        ...

    def restore(self, first: int, columns: Mapping[str, Array]) -> None:
        """Hold exactly these rows, the first of them numbered `first`."""
        ...


@runtime_checkable
class HasReplay(Protocol):
    """An agent whose memory is journalled: a checkpoint then costs what is new, not what is held."""

    def replay(self) -> Replay:
        """The memory itself, not a copy."""
        ...


@runtime_checkable
class ReportsEpisodes(Protocol):
    """An agent that adds numbers of its own (epsilon, mean loss) to each episode's record."""

    def episode_extras(self) -> Mapping[str, float]:
        """Numbers about the episode that just ended."""
        ...

    def on_episode_start(self) -> None:
        """Start counting anew."""
        ...


@runtime_checkable
class Policy(Protocol):
    """How to act, and nothing else: small, immutable, and independent of the agent that made it."""

    def act(
        self,
        observations: Any,
        mode: ActMode = ActMode.EXPLOIT,
        rng: np.random.Generator | None = None,
    ) -> Any:
        """An action for one observation, or an action for each row of a batch of them, as `Observations` has it.

        Sessions pass batches only. `rng` is needed, and advanced, only to explore.
        """
        ...


@runtime_checkable
class HasPolicy(Protocol):
    """An agent that can publish a policy, as the background learner needs."""

    def policy(self) -> Policy:
        """The current policy; later updates do not change it."""
        ...


@runtime_checkable
class VersionsPolicies(Protocol):
    """An agent that needs to know which of its policies chose an action, also when it was not the one to act."""

    policy_version: int
    """Which policy `policy()` gives: larger for each new one."""

    def chose(self, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        """Policies of these versions chose the actions of these streams that are observed next."""
        ...


@runtime_checkable
class TracksStreams(Protocol):
    """An agent that links consecutive transitions of a stream (n-step returns, rollouts, traces)."""

    def cut(self, streams: StreamSlots) -> None:
        """The last transition of these streams was its episode's last, cut short: link nothing to it."""
        ...


@runtime_checkable
class SkipsUpdates(Protocol):
    """An agent that can forget updates it owes, when a background learner cannot keep up."""

    def skip_updates(self, n: int) -> None:
        """Owe `n` updates less."""
        ...


@runtime_checkable
class InterruptibleUpdates(Protocol):
    """An agent whose updates may take so long that a stop should not have to wait for all of them."""

    def update_until(self, n: int, should_stop: Callable[[], bool]) -> Metrics:
        """As `update`, but raise `Interrupted` between two updates once `should_stop()`.

        `state()` then holds how far it got. The next `update` makes the rest, adds all of them to `updates`, and
        returns the metrics of all: as if it had not been interrupted.
        """
        ...


@runtime_checkable
class TakesOver(Protocol):
    """An agent that can begin with what another one has learned."""

    def take_over(self, state: State, *, with_optimiser: bool = False) -> None:
        """Take the weights and normalisation from another agent's state; optimiser and counters only if told so."""
        ...


@runtime_checkable
class WarmsUp(Protocol):
    """An agent with something to compile or allocate before the first step."""

    def warm_up(self) -> None:
        """Do it now, once, so that no later call stalls."""
        ...

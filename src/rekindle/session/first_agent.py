"""The agent at the first call of a run, so that the whole input journal can be replayed without the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle.agent import HasReplay, LearningAgent, State
from rekindle.errors import FileRefused, StateError
from rekindle.storage import codec, files

__all__ = ["FIRST_AGENT", "FirstAgent", "space_from_state", "space_state"]

FIRST_AGENT = "first_agent.mpk"


class FirstAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is needed to create the agent of a run again, as it was before the first record of its journal."""

    kind: Literal["first agent"]
    agent: str
    """Its class as `module:Class`."""
    observation_space: Any
    """As `space_state`; None if it has none, or one that cannot be saved."""
    action_space: Any
    config: dict[str, Any] | None
    """Its settings as JSON, if it has a config."""
    state: Any
    replay: Any
    """The rows of its replay memory, if it did not begin empty."""
    callbacks: int
    """The number of callbacks of the session."""
    wants_updates: bool
    """Whether one of them subscribed to `Updated`."""

    def write(self, directory: Path) -> None:
        """Write it into the directory of the journal, durably."""
        files.make_directory(directory)
        tree = {name: getattr(self, name) for name in self.__struct_fields__}
        files.write_atomic(directory / FIRST_AGENT, *codec.encode(tree))

    @classmethod
    def read(cls, path: Path) -> FirstAgent:
        """Read it; raises `FileRefused`."""
        try:
            return msgspec.convert(codec.read_file(path), cls)
        except (msgspec.ValidationError, AttributeError, TypeError) as error:  # the latter two for misplaced arrays
            raise FileRefused(f"{path}: not the first agent of a run: {error}") from None

    @classmethod
    def of(
        cls, agent: LearningAgent, config: dict[str, Any] | None, *, callbacks: int, wants_updates: bool
    ) -> FirstAgent:
        """Describe an agent before its first call."""
        kind = type(agent)
        return cls(
            kind="first agent",
            agent=f"{kind.__module__}:{kind.__qualname__}",
            observation_space=space_state(getattr(agent, "observation_space", None)),
            action_space=space_state(getattr(agent, "action_space", None)),
            config=config,
            state=agent.state(),
            replay=_rows(agent),
            callbacks=callbacks,
            wants_updates=wants_updates,
        )

    def load_into(self, agent: LearningAgent) -> None:
        """Give an agent the state that the first one had; raises `StateError` if it does not fit."""
        try:
            agent.load_state(self.state)
            if self.replay is not None and isinstance(agent, HasReplay):
                agent.replay().restore(self.replay["first"], self.replay["rows"])
        except Exception as error:
            raise StateError(f"the first state does not fit this {type(agent).__name__}: {error}") from error


def _rows(agent: LearningAgent) -> State | None:
    memory = agent.replay() if isinstance(agent, HasReplay) else None
    if memory is None or memory.first == memory.end:
        return None
    return {"first": memory.first, "rows": dict(memory.read(memory.first, memory.end))}


def space_state(space: Any) -> State | None:
    """A Gymnasium space as a state tree; None for a space that is not supported."""
    match type(space).__name__:
        case "Box":
            return {"kind": "Box", "low": space.low, "high": space.high, "dtype": np.dtype(space.dtype).str}
        case "Discrete":
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
        case "MultiDiscrete":
            return {
                "kind": "MultiDiscrete",
                "nvec": np.asarray(space.nvec, np.int64),
                "start": np.broadcast_to(np.asarray(getattr(space, "start", 0), np.int64), space.shape).copy(),
                "dtype": np.dtype(space.dtype).str,
            }
        case "MultiBinary":
            return {"kind": "MultiBinary", "n": np.asarray(space.n).tolist()}
        case "Dict" | "Tuple" as kind:
            named: Any = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
            parts = [[name, space_state(part)] for name, part in named]
            return None if any(part is None for _, part in parts) else {"kind": kind, "spaces": parts}
        case _:
            return None


def space_from_state(state: Any) -> Any:
    """The Gymnasium space of a state that `space_state` returned; None for None. Raises `StateError`."""
    if state is None:
        return None
    try:
        return _space(state)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise StateError(f"not the state of a space: {type(error).__name__}: {error}") from None


def _space(state: State) -> Any:
    from gymnasium import spaces

    dtype = cast("Any", np.dtype(state.get("dtype")).type)
    inside = [(name, _space(part)) for name, part in state.get("spaces", ())]
    make: dict[str, Callable[[], Any]] = {
        "Box": lambda: spaces.Box(state["low"], state["high"], dtype=dtype),
        "Discrete": lambda: spaces.Discrete(state["n"], start=state["start"]),
        "MultiDiscrete": lambda: spaces.MultiDiscrete(state["nvec"], dtype=dtype, start=state["start"]),
        "MultiBinary": lambda: spaces.MultiBinary(state["n"]),
        "Dict": lambda: spaces.Dict(inside),
        "Tuple": lambda: spaces.Tuple([part for _, part in inside]),
    }
    return make[state["kind"]]()

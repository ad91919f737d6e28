"""The agent at the first call of a run, so that the whole input journal can be replayed without the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.agent import HasReplay, LearningAgent, State
from rekindle.errors import DataError, FileRefused, StateError
from rekindle.space_json import space_text
from rekindle.storage import codec, files

__all__ = ["FIRST_AGENT", "FirstAgent"]

FIRST_AGENT = "first_agent.mpk"


class FirstAgent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is needed to create the agent of a run again, as it was before the first record of its journal."""

    kind: Literal["first agent"]
    agent: str
    """Its class as `module:Class`."""
    observation_space: str | None
    """As `space_text`; None if it has none, or one that cannot be saved."""
    action_space: str | None
    config: dict[str, Any] | None
    """Its settings as JSON, if it has a config."""
    state: Any
    replay: Any
    """The rows of its replay buffer, if it did not begin empty."""
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
            observation_space=_space(getattr(agent, "observation_space", None)),
            action_space=_space(getattr(agent, "action_space", None)),
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


def _space(space: Any) -> str | None:
    try:
        return None if space is None else space_text(space)
    except DataError:  # a space of another library: the agent can be replayed if the host creates it
        return None

"""Save an agent to a file and load it again: weights, optimiser, counters and settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rekindle.agent import State
from rekindle.errors import ConfigError, DataError, FileRefused, StateError
from rekindle.space_json import read_space, space_text
from rekindle.storage import codec, files

__all__ = ["SavedAgent", "load", "save"]

_KINDS = ("AWAC", "BC", "DQN", "IQL", "IQN", "PPO", "SAC", "TD3", "Tabular")


class SavedAgent(Protocol):
    """An agent that can be saved."""

    config: Any
    observation_space: Any
    action_space: Any

    def state(self) -> State:
        """The whole state except the rows of the replay buffer."""
        ...


class _File(msgspec.Struct, frozen=True):
    """The contents of a file."""

    agent: str
    settings: dict[str, Any]
    spaces: tuple[str, str]
    state: dict[str, Any]


def save(agent: SavedAgent, path: str | Path) -> None:
    """Save an agent to a file for `load`: networks, optimisers, normalisation, counters, spaces and settings.

    The file has no replay buffer, no open rollout and no random generators. To continue exactly, resume the run.
    """
    try:
        spaces = (space_text(agent.observation_space), space_text(agent.action_space))
    except DataError as error:
        raise StateError(f"the agent cannot be saved: {error}") from None
    document = {
        "kind": "agent",
        "agent": type(agent).__name__,
        "settings": msgspec.json.decode(msgspec.json.encode(agent.config)),
        "spaces": list(spaces),
        "state": {name: value for name, value in agent.state().items() if name != "memory"},
    }
    files.write_output(Path(path), *codec.encode(document))


def load(path: str | Path, *, seed: int = 0, network: Any = None, modules: Sequence[str] = ()) -> Any:
    """Load an agent that `agent.save` wrote; it can act and continue to learn. Raises `FileRefused` for other files.

    Args:
        path: the file.
        seed: seed of the agent's random generators.
        network: your own network that the agent was created with, if any.
        modules: modules that may be imported if the file names its network by `module:Name`.
    """
    from rekindle import agents  # which imports this module

    tree = codec.read_file(path)
    if tree.pop("kind", None) != "agent":
        raise FileRefused(f"{path}: not a saved agent")
    try:
        saved = msgspec.convert(tree, _File)
    except msgspec.ValidationError as error:
        raise FileRefused(f"{path}: not an agent that this version of rekindle can load: {error}") from None
    if saved.agent not in _KINDS:
        raise FileRefused(f"{path}: there is no agent {saved.agent!r:.40}")
    settings = _allowed(saved, path, network, modules)
    try:
        config: Any = msgspec.convert(settings, getattr(agents, f"{saved.agent}Config"))
        fields = {name: getattr(config, name) for name in config.__struct_fields__}
        given = {} if network is None else {"network": network}
        spaces = [read_space(text, name=name) for text, name in zip(saved.spaces, _SPACES, strict=True)]
        agent = getattr(agents, saved.agent)(*spaces, seed=seed, **{**fields, **given})
        if "weights" not in saved.state:
            raise StateError("the state has no weights")
        agent.take_over(saved.state, with_optimiser=True)
    except MemoryError:
        raise FileRefused(f"{path}: the agent needs more memory than this machine has") from None
    except (msgspec.ValidationError, ConfigError, StateError, DataError) as error:
        raise FileRefused(
            f"{path}: not an agent that this version of rekindle can load: {error}; if it has a network of your own, "
            "pass network=..."
        ) from None
    return agent


_SPACES = ("the observation space", "the action space")


def _allowed(saved: _File, path: str | Path, network: Any, modules: Sequence[str]) -> dict[str, Any]:
    """The settings; raises `ConfigError` if they name a network whose module is not allowed: an import runs code."""
    named = saved.settings.get("network")
    module = str(named).partition(":")[0]
    if named is not None and network is None and module not in modules:
        raise ConfigError(
            f"{path}: the network is {str(named)!r:.100}, and its module is imported only if you name it: "
            f"load(path, modules=[{module!r:.100}])"
        )
    return {**saved.settings, "network": None} if network is not None else saved.settings

"""Objects of the host that are saved with the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from rekindle.agent import State, Stateful
from rekindle.errors import ConfigError
from rekindle.session.saving import frozen
from rekindle.storage import codec

__all__ = ["Attached"]


class Attached:
    """Objects with a state, by name; a saved state is kept until an object is added under its name."""

    def __init__(self) -> None:
        self._items: dict[str, Stateful] = {}
        self._unclaimed: dict[str, State] = {}
        self._saved: dict[str, State] = {}
        """The states in the newest checkpoint."""

    def restore(self, states: Mapping[str, State]) -> None:
        """Keep the states of a checkpoint until objects are added under their names."""
        self._unclaimed = dict(states)
        self._saved = dict(states)

    def add(self, name: str, item: Stateful) -> None:
        """Add an object; if the checkpoint has a state of that name, load it into the object now."""
        missing = [method for method in ("state", "load_state") if not hasattr(item, method)]
        if missing:
            raise ConfigError(f"attach({name!r}): {type(item).__name__} has no {' and no '.join(missing)}")
        if type(name) is not str:
            raise ConfigError(f"attach({name!r}): the name must be a str")
        if name in self._items:
            raise ConfigError(f"attach({name!r}): that name is taken")
        if name in self._unclaimed:
            item.load_state(self._unclaimed[name])
            del self._unclaimed[name]
        self._items[name] = item

    def save(self) -> dict[str, State]:
        """The current states, for a checkpoint; raises `StateError` for a state that cannot be saved."""
        states = {name: frozen(item.state(), f"attached[{name!r}]") for name, item in self._items.items()}
        self._saved = {**self._unclaimed, **states}
        return self._saved

    def has_changed(self) -> bool:
        """Whether any state differs from the one saved last."""
        now = {**self._unclaimed, **{name: item.state() for name, item in self._items.items()}}
        return codec.tree_digest(now) != codec.tree_digest(self._saved)

"""The nesting of a value: how its arrays lie in dicts and tuples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from rekindle.errors import InputError, StateError

__all__ = ["Nesting"]

Tree = Any
"""None for an array, a dict of trees by key, or a tuple of trees."""
_MOST_DEPTH = 32
"""The most levels of a nesting in a file."""


class Nesting:
    """Converts between nested values and the list of their arrays.

    An array is named by the keys and positions that lead to it.

    >>> nesting = Nesting({"arm": (None, None), "camera": None})
    >>> nesting.names
    ('arm/0', 'arm/1', 'camera')
    >>> nesting.leaves({"camera": 3, "arm": (1, 2)}, "the observation")
    [1, 2, 3]
    >>> nesting.build([1, 2, 3])
    {'arm': (1, 2), 'camera': 3}
    """

    def __init__(self, tree: Tree) -> None:
        """Raises `ValueError` if two arrays have the same name."""
        self.tree = tree
        self.names = tuple(_names(tree, ""))
        """The names of the arrays, in order."""
        self._known = dict.fromkeys(self.names).keys()
        if len(self._known) < len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise ValueError(f"two parts have the name {twice[0]!r}: rename a key")

    @property
    def is_flat(self) -> bool:
        """Whether it is one dict of arrays."""
        tree = self.tree
        return isinstance(tree, dict) and _is_shallow(cast("dict[str, Tree]", tree))

    def leaves(self, value: Any, what: str) -> list[Any]:
        """The parts of a value in order; it may also be a flat dict of them, by name. Raises `InputError`."""
        if isinstance(value, Mapping) and cast("Mapping[str, Any]", value).keys() == self._known:
            return [value[name] for name in self.names]
        leaves: list[Any] = []
        _collect(self.tree, value, what, "", leaves)
        return leaves

    def build(self, leaves: Sequence[Any]) -> Any:
        """The nested value with these parts."""
        return _built(self.tree, iter(leaves))

    def only(self, kept: Sequence[bool]) -> Nesting | None:
        """The nesting of some of the arrays, without dicts and tuples that are empty then; None if there are none.

        >>> Nesting({"arm": (None, None), "camera": None}).only([False, True, False]).names
        ('arm/0',)
        """
        tree = _pruned(self.build(kept))
        return None if tree is _NOTHING else Nesting(tree)

    def row(self, values: Any, index: int) -> Any:
        """One row of a nested batch; where an array of objects stands for a dict or a tuple, the object of that row."""
        return _row(self.tree, values, index)

    def state(self) -> Any:
        """The tree for a file, with lists for tuples."""
        return _saved(self.tree)

    @classmethod
    def of_state(cls, state: Any) -> Nesting:
        """From a file; raises `StateError`."""
        try:
            return cls(_parsed(state, 0))
        except ValueError as error:
            raise StateError(f"{state!r:.80} is not a nesting: {error}") from None


def _names(tree: Tree, path: str) -> Iterator[str]:
    for key, child in _children(tree):
        name = f"{path}/{key}" if path else str(key)
        if child is None:
            yield name
        else:
            yield from _names(child, name)


def _is_shallow(tree: dict[str, Tree]) -> bool:
    return all(child is None for child in tree.values())


def _children(tree: Tree) -> Iterator[tuple[Any, Tree]]:
    yield from tree.items() if isinstance(tree, dict) else enumerate(tree)


def _collect(tree: Tree, value: Any, what: str, path: str, leaves: list[Any]) -> None:
    if tree is None:
        leaves.append(value)
        return
    where = f"{what} {path!r}" if path else what
    if isinstance(tree, dict):
        keys = cast("dict[str, Tree]", tree).keys()
        if not isinstance(value, Mapping) or cast("Mapping[str, Any]", value).keys() != keys:
            raise InputError(f"{where} must be a dict with the keys {sorted(keys)}, got {value!r:.120}")
    elif not isinstance(value, tuple | list) or len(cast("Sequence[Any]", value)) != len(tree):
        raise InputError(f"{where} must be a tuple of {len(tree)}, got {value!r:.120}")
    for key, child in _children(tree):
        _collect(child, value[key], what, f"{path}/{key}" if path else str(key), leaves)


def _built(tree: Tree, leaves: Iterator[Any]) -> Any:
    if tree is None:
        return next(leaves)
    if isinstance(tree, dict):
        return {key: _built(child, leaves) for key, child in cast("dict[str, Tree]", tree).items()}
    return tuple(_built(child, leaves) for child in tree)


_NOTHING = object()


def _pruned(kept: Any) -> Any:
    """The tree of the leaves that are true."""
    if isinstance(kept, dict):
        parts = {key: _pruned(part) for key, part in cast("dict[str, Any]", kept).items()}
        return {key: part for key, part in parts.items() if part is not _NOTHING} or _NOTHING
    if isinstance(kept, tuple):
        parts = [_pruned(part) for part in cast("tuple[Any, ...]", kept)]
        return tuple(part for part in parts if part is not _NOTHING) or _NOTHING
    return None if kept else _NOTHING


def _row(tree: Tree, values: Any, index: int) -> Any:
    if isinstance(tree, dict) and isinstance(values, Mapping):
        return {key: _row(child, values[key], index) for key, child in cast("dict[str, Tree]", tree).items()}
    if isinstance(tree, tuple) and isinstance(values, tuple):
        pairs = zip(cast("tuple[Tree, ...]", tree), cast("tuple[Any, ...]", values), strict=True)
        return tuple(_row(child, value, index) for child, value in pairs)
    return values[index]


def _saved(tree: Tree) -> Any:
    if isinstance(tree, dict):
        return {key: _saved(child) for key, child in cast("dict[str, Tree]", tree).items()}
    return None if tree is None else [_saved(child) for child in tree]


def _parsed(state: Any, depth: int) -> Tree:
    if depth > _MOST_DEPTH:
        raise ValueError(f"it has more than {_MOST_DEPTH} levels")
    if isinstance(state, dict):
        items = cast("dict[Any, Any]", state).items()
        if not all(isinstance(key, str) for key, _ in items):
            raise ValueError("a key is not a str")
        return {key: _parsed(child, depth + 1) for key, child in items}
    if isinstance(state, list | tuple):
        return tuple(_parsed(child, depth + 1) for child in cast("list[Any]", state))
    if state is None and depth:
        return None
    raise ValueError("it is not made of dicts and lists")

"""A disk that loses power: replays what a training did to its files, and says what a power cut may leave of it.

Only what was synced is certain to survive: the data of a file once it was fsynced, a name once its directory was.
What happens to the rest is up to the file system, so there are several models of what it may do.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

Tree = dict[str, bytes | None]
"""Path to content; None for a directory."""

LOGS = ("train_episodes.jsonl", "eval_episodes.jsonl", "metrics.jsonl")
_STORAGE = ("files.py:", "logs.py:")


@dataclass(frozen=True)
class Operation:
    """One call that changed something, or made it durable."""

    name: str
    path: str
    acknowledged: int
    """Bytes of the acknowledgements when it began."""
    stack: tuple[str, ...]
    source: str = ""
    data: bytes = b""
    offset: int = 0
    size: int = 0

    @property
    def reason(self) -> str:
        """For an fsync: who wants it, from two functions above the storage room down, with their lines."""
        inside = [place for place in self.stack if place.startswith(_STORAGE)]
        above = [place for place in self.stack if not place.startswith(_STORAGE)]
        return " > ".join(reversed(inside + above[:2]))


def read_trace(path: Path) -> list[Operation]:
    """The operations that `injection` listed."""
    operations: list[Operation] = []
    for line in path.read_text().splitlines():
        fields: dict[str, Any] = json.loads(line)
        fields["stack"] = tuple(fields["stack"])
        fields["data"] = base64.b64decode(fields.get("data", ""))
        operations.append(Operation(**fields))
    return operations


@dataclass
class _Node:
    """A file or a directory, as it is and as far as it is durable."""

    is_directory: bool
    data: bytes = b""
    durable_data: bytes = b""
    names: dict[str, _Node] = field(default_factory=dict)
    durable_names: dict[str, _Node] = field(default_factory=dict)


class Disk:
    """What is on a disk, and what of it would survive."""

    def __init__(self) -> None:
        self.top = _Node(is_directory=True)
        self.directories: dict[str, _Node] = {".": self.top}
        """Every directory that was ever made, under its first name."""

    def apply(self, operation: Operation) -> None:
        """Do what the training did."""
        path = PurePosixPath(operation.path)
        if operation.name in ("write", "pwrite", "ftruncate", "fsync"):
            node = self._node(path)
            self._change(node, operation)
            return
        parent = self._node(path.parent)
        match operation.name:
            case "open":
                parent.names.setdefault(path.name, _Node(is_directory=False))
            case "mkdir":
                parent.names[path.name] = self.directories[operation.path] = _Node(is_directory=True)
            case "unlink":
                del parent.names[path.name]
            case "link":
                parent.names[path.name] = self._node(PurePosixPath(operation.source))
            case "rename" | "replace":
                self._rename(PurePosixPath(operation.source), parent, path.name)
            case other:
                raise ValueError(f"what does {other} do?")

    @staticmethod
    def _change(node: _Node, operation: Operation) -> None:
        if operation.name == "fsync":
            node.durable_data = node.data
            node.durable_names = dict(node.names)
        elif operation.name == "ftruncate":
            node.data = node.data[: operation.size].ljust(operation.size, b"\0")
        else:
            before, after = node.data[: operation.offset], node.data[operation.offset + len(operation.data) :]
            node.data = before.ljust(operation.offset, b"\0") + operation.data + after

    def _rename(self, source: PurePosixPath, parent: _Node, name: str) -> None:
        source_parent = self._node(source.parent)
        node = source_parent.names[source.name]
        if parent.names.get(name) is not node:  # onto another name of the same file, rename does nothing
            del source_parent.names[source.name]
            parent.names[name] = node

    def _node(self, path: PurePosixPath) -> _Node:
        node = self.top
        for part in path.parts:
            node = node.names[part]
        return node

    def tree(self, names: Callable[[_Node], dict[str, _Node]], data: Callable[[_Node], bytes]) -> Tree:
        """What is there if these names and these data survive."""
        tree: Tree = {}

        def walk(directory: _Node, prefix: str) -> None:
            for name, node in sorted(names(directory).items()):
                tree[prefix + name] = None if node.is_directory else data(node)
                if node.is_directory:
                    walk(node, f"{prefix}{name}/")

        walk(self.top, "")
        return tree


def _durable_names(node: _Node) -> dict[str, _Node]:
    return node.durable_names


def _all_names(node: _Node) -> dict[str, _Node]:
    return node.names


def _durable_data(node: _Node) -> bytes:
    return node.durable_data


def _all_data(node: _Node) -> bytes:
    return node.data


def _zeros_for_data(node: _Node) -> bytes:
    """The new length came through, the data did not."""
    if node.data.startswith(node.durable_data):
        return node.durable_data.ljust(len(node.data), b"\0")
    return node.durable_data


def survivors(disk: Disk) -> Iterator[tuple[str, Tree]]:
    """What a power cut at this instant may leave, by the name of the model."""
    yield "only what was synced", disk.tree(_durable_names, _durable_data)
    yield "every name, but only synced data", disk.tree(_all_names, _durable_data)
    yield "every name, and zeros for unsynced data", disk.tree(_all_names, _zeros_for_data)
    yield "all data, but only synced names", disk.tree(_durable_names, _all_data)
    for path, directory in disk.directories.items():

        def names_there(node: _Node, directory: _Node = directory) -> dict[str, _Node]:
            return node.names if node is directory else node.durable_names

        def names_elsewhere(node: _Node, directory: _Node = directory) -> dict[str, _Node]:
            return node.durable_names if node is directory else node.names

        yield f"unsynced names in {path} only", disk.tree(names_there, _durable_data)
        yield f"unsynced names everywhere but in {path}", disk.tree(names_elsewhere, _durable_data)


@dataclass
class Cut:
    """What one or several power cuts leave: equal trees are one, held against all that was acknowledged by then."""

    tree: Tree
    where: str
    acknowledged: int
    durable_rows: frozenset[bytes]
    """Log rows that had been durable at any time before: they may move, but never go."""


def cuts(operations: Iterable[Operation], acknowledged: int) -> dict[str, Cut]:
    """Everything that a power cut after any operation may leave, by content.

    `acknowledged` is the size of the acknowledgements at the end.
    """
    found: dict[str, Cut] = {}
    disk = Disk()
    rows: frozenset[bytes] = frozenset()
    sequence = list(operations)
    for number, operation in enumerate(sequence):
        disk.apply(operation)
        if operation.name == "fsync" and operation.path.endswith(LOGS):
            node = disk._node(PurePosixPath(operation.path))
            rows |= frozenset(node.durable_data.splitlines(keepends=True))
        # What is acknowledged before the next call begins has been acknowledged when the power goes.
        told = sequence[number + 1].acknowledged if number + 1 < len(sequence) else acknowledged
        for model, tree in survivors(disk):
            where = f"after {number}: {operation.name} {operation.path} ({model})"
            # The same tree later on has more to answer for.
            found[_digest(tree)] = Cut(tree, where, told, rows)
    return found


def everything(operations: Iterable[Operation]) -> Tree:
    """What is there after all operations, if the power stays on."""
    disk = Disk()
    for operation in operations:
        disk.apply(operation)
    return disk.tree(_all_names, _all_data)


def _digest(tree: Tree) -> str:
    digest = hashlib.sha256()
    for path, content in tree.items():
        digest.update(f"{path}\0{'-' if content is None else len(content)}\0".encode() + (content or b""))
    return digest.hexdigest()


def build(tree: Tree, top: Path) -> None:
    """Put a tree there."""
    for path, content in tree.items():
        if content is None:
            (top / path).mkdir()
        else:
            (top / path).write_bytes(content)


def read_tree(top: Path) -> Tree:
    """What is there."""
    paths = sorted(top.rglob("*"), key=lambda path: path.parts)
    return {str(path.relative_to(top)): None if path.is_dir() else path.read_bytes() for path in paths}


def rows_on(top: Path) -> frozenset[bytes]:
    """Every row of a log, in place or moved away by a resume."""
    return frozenset(
        row for log in LOGS for path in top.rglob(log) for row in path.read_bytes().splitlines(keepends=True)
    )

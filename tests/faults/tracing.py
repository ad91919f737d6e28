"""Faults from outside: runs a worker under strace, injects, and reads what strace saw.

Four things to know of strace: `when=` counts per thread and system call (and, with `-P`, only calls on that path);
`-P` needs absolute paths, and looks only at the source of a rename; `--seccomp-bpf` makes errors quick to inject,
but signals are then never delivered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import Ended, Training

# What changes files, under the names of all architectures ("?" lets strace pass over those that this one lacks).
CHANGES = (
    "?open,openat,?creat,write,writev,pwrite64,ftruncate,?truncate,fsync,fdatasync,?mkdir,mkdirat,?link,linkat,"
    "?symlink,symlinkat,?rename,?renameat,renameat2,?unlink,unlinkat,?rmdir,fallocate,copy_file_range"
)

_LINE = re.compile(r"(?P<thread>\d+) +(?P<name>\w+)\((?P<arguments>.*)\) += (?P<result>.*)")
_UNFINISHED = re.compile(r"(\d+) +(.*?) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)")
_PATHS = re.compile(r'"((?:[^"\\]|\\.)*)"|^\d+<([^>]*)>')


@dataclass(frozen=True)
class Call:
    """One system call."""

    thread: int
    name: str
    path: str
    """What it changes: the target of a rename or link."""
    watched: str
    """The path by which `-P` knows it."""
    arguments: str
    result: str

    @property
    def killed(self) -> bool:
        """Whether it never returned."""
        return self.result.startswith("?")

    @property
    def injected(self) -> bool:
        return self.result.endswith("(INJECTED)")

    @property
    def changes(self) -> bool:
        """Whether it is meant to change anything; a file may also be opened to be read."""
        return self.name not in ("open", "openat") or "O_CREAT" in self.arguments


def strace(
    training: Training,
    *,
    inject: str = "",
    paths: Sequence[Path] = (),
    calls: str = CHANGES,
    command: Sequence[str] = (),
) -> tuple[Ended, list[Call]]:
    """Train under strace, with a script of one's own if there is a command for it.

    Returns how it ended, and the calls in the order in which they were done.
    """
    trace = training.directory / "trace"
    prefix = ["strace", "-f", "-y", "-s", "0", "-o", str(trace), "-e", f"trace={calls}"]
    if inject:
        prefix += ["-e", f"inject={inject}"]
    if "signal=" not in inject and not paths:
        prefix.append("--seccomp-bpf")
    for path in paths:
        prefix += ["-P", str(path)]
    ended = training.spawn(prefix=prefix, command=command)
    return ended, parse(trace.read_text())


def parse(trace: str) -> list[Call]:
    """The calls of a trace; two halves of a line that another thread interrupted are put together again."""
    calls: list[Call] = []
    halves: dict[str, str] = {}
    for line in trace.splitlines():
        if half := _UNFINISHED.fullmatch(line):
            halves[half[1]] = half[2]
            continue
        if rest := _RESUMED.fullmatch(line):
            line = f"{rest[1]} {halves.pop(rest[1])}{rest[2]}"  # noqa: PLW2901 - the whole line, at last
        if match := _LINE.fullmatch(line):
            name, arguments = match["name"], match["arguments"]
            paths = [quoted or described for quoted, described in _PATHS.findall(arguments)] or [""]
            target = paths[1] if name.startswith(("rename", "link", "symlink")) else paths[0]
            watched = paths[0] if name.startswith("rename") else target
            calls.append(Call(int(match["thread"]), name, target, watched, arguments, match["result"]))
    return calls

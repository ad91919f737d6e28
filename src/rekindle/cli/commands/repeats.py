"""Options of several values that are given several times: Tyro would drop all but the last."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["joined"]

_OPTIONS = {
    *("--set", "--tag", "--remove", "--env.arguments", "--env-module", "--agent-module", "--env-file"),
    *("--origin", "--allow-host", "--record", "--metrics"),
}
_NUMBER = re.compile(r"-[\d.]")


def joined(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, with the values of a repeated option after its first occurrence.

    >>> joined(["runs/a", "--set", "gamma=0.9", "--steps", "10", "--set", "seed=1"])
    ['runs/a', '--set', 'gamma=0.9', 'seed=1', '--steps', '10']
    """
    groups: list[list[str]] = [[]]
    firsts: dict[str, list[str]] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not word.startswith("-") or _NUMBER.match(word):
            groups[-1].append(word)
        elif name in firsts:
            groups.append(firsts[name])  # what follows belongs to it
            groups[-1] += [value] if equals else []
        else:
            groups.append([name, value] if equals and name in _OPTIONS else [word])
            if name in _OPTIONS:
                firsts[name] = groups[-1]
    distinct = {id(group): group for group in groups}
    return [word for group in distinct.values() for word in group]

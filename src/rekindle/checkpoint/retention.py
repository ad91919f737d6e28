"""Which checkpoints stay: small policies that are asked about the checkpoints that exist."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan, nan
from typing import Literal, Protocol, cast, runtime_checkable

import msgspec

from rekindle.checks import required_count
from rekindle.errors import ConfigError

__all__ = ["CheckpointInfo", "KeepAny", "KeepBest", "KeepEvery", "KeepLast", "RetentionPolicy", "retention"]


class CheckpointInfo(msgspec.Struct, frozen=True):
    """What a policy may know of a checkpoint."""

    step: int
    metrics: dict[str, float] = {}
    """The latest value of every metric when it was taken."""


@runtime_checkable
class RetentionPolicy(Protocol):
    """Says which checkpoints it wants to stay; the others go unless another policy wants them."""

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """The steps to keep, out of those that exist (oldest first)."""
        ...


class KeepLast:
    """Keep the newest `count`.

    >>> sorted(KeepLast(2).keep([CheckpointInfo(step) for step in (10, 20, 30)]))
    [20, 30]
    """

    def __init__(self, count: int) -> None:
        self.count = required_count("KeepLast: count", count, 1)

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """The newest."""
        return {info.step for info in checkpoints[-self.count :]}


class KeepEvery:
    """Keep the first checkpoint in each stretch of `steps` env steps, for ever.

    >>> sorted(KeepEvery(100).keep([CheckpointInfo(step) for step in (40, 80, 120, 160, 240)]))
    [40, 120, 240]
    """

    def __init__(self, steps: int) -> None:
        self.steps = required_count("KeepEvery: steps", steps, 1)

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """One of each stretch."""
        firsts: dict[int, int] = {}
        for info in checkpoints:
            firsts.setdefault(info.step // self.steps, info.step)
        return set(firsts.values())


class KeepBest:
    """Keep the `count` checkpoints with the best value of a metric; the earlier of two equals.

    >>> scored = [CheckpointInfo(step, {"eval/return": value}) for step, value in ((10, 1.0), (20, 3.0), (30, 2.0))]
    >>> KeepBest("eval/return").keep(scored)
    {20}
    """

    def __init__(self, metric: str, *, count: int = 1, mode: Literal["max", "min"] = "max") -> None:
        self.metric, self.count, self.mode = metric, required_count("KeepBest: count", count, 1), mode

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """The best; checkpoints without the metric, or with NaN for it, are not wanted."""
        sign = -1.0 if self.mode == "max" else 1.0
        scored = [info for info in checkpoints if not isnan(info.metrics.get(self.metric, nan))]
        scored.sort(key=lambda info: (sign * info.metrics[self.metric], info.step))
        return {info.step for info in scored[: self.count]}


class KeepAny:
    """Keep what any of the policies wants: a checkpoint goes only if all agree."""

    def __init__(self, policies: Iterable[RetentionPolicy]) -> None:
        self.policies = tuple(policies)

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """The union of what each wants."""
        wanted: set[int] = set()
        return wanted.union(*(policy.keep(checkpoints) for policy in self.policies))


def retention(setting: int | RetentionPolicy | Iterable[RetentionPolicy]) -> RetentionPolicy:
    """A policy from what a user writes: a number to keep, a policy, or several."""
    if isinstance(setting, RetentionPolicy):
        return setting
    if isinstance(setting, Iterable) and not isinstance(setting, str):
        policies: list[object] = list(setting)
        if policies and all(isinstance(policy, RetentionPolicy) for policy in policies):
            return KeepAny(cast("list[RetentionPolicy]", policies))
        raise ConfigError(f"keep_checkpoints is {setting!r}: use a number, a policy, or a list of policies")
    return KeepLast(required_count("keep_checkpoints", setting, 1))

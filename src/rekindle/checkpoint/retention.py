"""Which checkpoints to keep: small policies that select from the existing checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isnan, nan
from typing import Literal, Protocol, cast, runtime_checkable

import msgspec

from rekindle.checks import required_count
from rekindle.errors import ConfigError

__all__ = ["CheckpointInfo", "KeepAny", "KeepBest", "KeepEvery", "KeepLast", "RetentionPolicy", "retention"]


class CheckpointInfo(msgspec.Struct, frozen=True):
    """What a policy knows about a checkpoint."""

    step: int
    metrics: dict[str, float] = {}
    """The latest value of every metric when the checkpoint was taken."""


@runtime_checkable
class RetentionPolicy(Protocol):
    """Selects checkpoints to keep; a checkpoint is removed if no policy selects it."""

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """The steps to keep, from the checkpoints that exist (oldest first)."""
        ...


class KeepLast:
    """Keep the newest `count`.

    >>> sorted(KeepLast(2).keep([CheckpointInfo(step) for step in (10, 20, 30)]))
    [20, 30]
    """

    def __init__(self, count: int) -> None:
        self.count = required_count("KeepLast: count", count, 1)

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """Select the newest."""
        return {info.step for info in checkpoints[-self.count :]}


class KeepEvery:
    """Keep the first checkpoint in each interval of `steps` env steps, permanently.

    >>> sorted(KeepEvery(100).keep([CheckpointInfo(step) for step in (40, 80, 120, 160, 240)]))
    [40, 120, 240]
    """

    def __init__(self, steps: int) -> None:
        self.steps = required_count("KeepEvery: steps", steps, 1)

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """Select one checkpoint of each interval."""
        firsts: dict[int, int] = {}
        for info in checkpoints:
            firsts.setdefault(info.step // self.steps, info.step)
        return set(firsts.values())


class KeepBest:
    """Keep the `count` checkpoints with the best value of a metric; of equal ones, the earlier.

    >>> scored = [CheckpointInfo(step, {"eval/return": value}) for step, value in ((10, 1.0), (20, 3.0), (30, 2.0))]
    >>> KeepBest("eval/return").keep(scored)
    {20}
    """

    def __init__(self, metric: str, *, count: int = 1, mode: Literal["max", "min"] = "max") -> None:
        self.metric, self.count, self.mode = metric, required_count("KeepBest: count", count, 1), mode

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """Select the best; checkpoints without the metric, or with NaN, are not selected."""
        sign = -1.0 if self.mode == "max" else 1.0
        scored = [info for info in checkpoints if not isnan(info.metrics.get(self.metric, nan))]
        scored.sort(key=lambda info: (sign * info.metrics[self.metric], info.step))
        return {info.step for info in scored[: self.count]}


class KeepAny:
    """Keep the checkpoints that any of several policies selects."""

    def __init__(self, policies: Iterable[RetentionPolicy]) -> None:
        self.policies = tuple(policies)

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        """The union of all selections."""
        wanted: set[int] = set()
        return wanted.union(*(policy.keep(checkpoints) for policy in self.policies))


def retention(setting: int | RetentionPolicy | Iterable[RetentionPolicy]) -> RetentionPolicy:
    """Create a policy from a user's setting: a number to keep, a policy, or several."""
    if isinstance(setting, RetentionPolicy):
        return setting
    if isinstance(setting, Iterable) and not isinstance(setting, str):
        policies: list[object] = list(setting)
        if policies and all(isinstance(policy, RetentionPolicy) for policy in policies):
            return KeepAny(cast("list[RetentionPolicy]", policies))
        raise ConfigError(f"keep_checkpoints is {setting!r}: use a number, a policy, or a list of policies")
    return KeepLast(required_count("keep_checkpoints", setting, 1))

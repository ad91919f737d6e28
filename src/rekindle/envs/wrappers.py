"""Detect wrappers whose statistics carry over from one episode to the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from rekindle.errors import ConfigError

__all__ = ["refuse_stateful_wrappers", "stateful_wrappers"]

_INSTEAD = {
    "NormalizeObservation": "set normalise_observations=True of the agent (--agent.normalise-observations)",
    "NormalizeReward": "set normalise_rewards=True of PPO (--agent.normalise-rewards), or reward_scale of another "
    "agent (--agent.reward-scale)",
}
"""The setting that replaces a wrapper, by the name of its class."""
_STATISTICS = {"NormalizeObservation": "obs_rms", "NormalizeReward": "return_rms"}
"""The attribute by which a wrapper is detected in another process."""


def refuse_stateful_wrappers(env: Any, name: str) -> None:
    """Raise `ConfigError` if an environment has such a wrapper; the message says which setting to use instead."""
    for complaint in stateful_wrappers(env):
        raise ConfigError(f"{name}: {complaint}")


def stateful_wrappers(env: Any) -> Iterator[str]:
    """A message for each wrapper of an environment or vector environment that keeps statistics."""
    for layer in _layers(env):
        names = [kind.__name__ for kind in type(layer).__mro__ if kind.__name__ in _INSTEAD]
        if names and getattr(layer, "update_running_mean", True):  # frozen statistics do no harm
            yield _complaint(names[0])
        if type(layer).__name__ == "AsyncVectorEnv":
            for wrapper, attribute in _STATISTICS.items():
                if any(layer.call("has_wrapper_attr", attribute)):
                    yield _complaint(wrapper)


def _layers(env: Any) -> Iterator[Any]:
    """An environment and what it wraps, from the outside in; of a vector environment, its first row."""
    layer = env
    while layer is not None:
        yield layer
        rows = cast("Sequence[Any] | None", getattr(layer, "envs", None))
        layer = rows[0] if isinstance(rows, list | tuple) and len(rows) else getattr(layer, "env", None)


def _complaint(wrapper: str) -> str:
    return (
        f"the wrapper {wrapper} keeps statistics over all episodes, which a resume loses and evaluations do not have: "
        f"remove it, and {_INSTEAD[wrapper]}"
    )

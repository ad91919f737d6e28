"""Create environments like a given one: from its registered id if possible, otherwise as copies."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import msgspec

from rekindle.errors import ConfigError

__all__ = ["Likeness", "is_environment", "likeness"]


class Likeness(NamedTuple):
    """How to create another environment: with the settings of a config, or with a function that no config can store."""

    settings: dict[str, Any]
    make: Callable[..., Any] | None = None


def is_environment(source: object) -> TypeGuard[Any]:
    """Whether an object is a Gymnasium environment; imports nothing."""
    gymnasium: Any = sys.modules.get("gymnasium")
    return gymnasium is not None and isinstance(source, gymnasium.Env | gymnasium.vector.VectorEnv)


def likeness(env: Any) -> Likeness:
    """How to create environments like this one; raises `ConfigError` if it can neither be created nor copied."""
    import gymnasium

    if isinstance(env, gymnasium.vector.VectorEnv):
        raise ConfigError(
            f"{env!r:.80} is a vector environment: pass a function that creates one environment, and num_envs=..."
        )
    name = f"<{type(env.unwrapped).__name__}>"
    if env.spec is None or env.spec.id not in gymnasium.registry:
        return Likeness({"id": name}, _copies(env, name))
    spec: Any = env.spec
    registered: Any = gymnasium.registry[spec.id]
    if any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
        return Likeness({"id": name}, _copies(env, name))
    changed = {key: value for key, value in spec.kwargs.items() if not _is_same(registered.kwargs, key, value)}
    if spec.additional_wrappers or not _is_plain(changed):
        return Likeness({"id": f"<{spec.id}>"}, lambda: gymnasium.make(spec))
    limit = spec.max_episode_steps if spec.max_episode_steps != registered.max_episode_steps else None
    return Likeness({"id": spec.id, "arguments": changed, "max_episode_steps": limit})


def _is_same(known: dict[str, Any], key: str, value: Any) -> bool:
    return key in known and _is_plain(value) and _is_plain(known[key]) and known[key] == value


def _is_plain(value: Any) -> bool:
    """Whether a config can store a value without changing it."""
    try:
        return msgspec.json.decode(msgspec.json.encode(value)) == value
    except (TypeError, ValueError, msgspec.MsgspecError):
        return False


def _copies(env: Any, name: str) -> Callable[[], Any]:
    original = _copied(env, name)  # so that later changes by the caller do not affect the copies
    return lambda: _copied(original, name)


def _copied(env: Any, name: str) -> Any:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be copied ({type(error).__name__}: {error}): pass a function that creates it, "
            "such as lambda: MyEnv()"
        ) from error

"""The settings in a config, as dotted names and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

__all__ = ["algorithm_name", "environment_name", "flat_settings", "setting_text"]

_DEPTH = 4


def flat_settings(config: Mapping[str, Any], *, prefix: str = "", depth: int = _DEPTH) -> dict[str, Any]:
    """A config with dotted names instead of nested objects, down to a readable depth.

    >>> flat_settings({"env": {"id": "CartPole-v1"}, "steps": 100})
    {'env.id': 'CartPole-v1', 'steps': 100}
    """
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value and depth > 1:
            nested = cast("dict[str, Any]", value)
            flat |= flat_settings(nested, prefix=f"{prefix}{name}.", depth=depth - 1)
        else:
            flat[prefix + name] = value
    return flat


def algorithm_name(settings: Mapping[str, Any]) -> str | None:
    """The name of the algorithm in flat settings, if there is one."""
    return _first_text(settings, "algorithm", "algo", "agent.algorithm", "agent.name")


def environment_name(settings: Mapping[str, Any]) -> str | None:
    """The name of the environment in flat settings, if there is one."""
    return _first_text(settings, "env", "env.id", "env_id", "environment", "environment.id")


def _first_text(settings: Mapping[str, Any], *names: str) -> str | None:
    return next((value for name in names if isinstance(value := settings.get(name), str) and value), None)


def setting_text(value: Any) -> str:
    """A setting as text."""
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()

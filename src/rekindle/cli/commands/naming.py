"""Errors for options of `train` that have other names in other libraries."""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.agents.names import name_here
from rekindle.envs import EnvWrapping
from rekindle.errors import ConfigError
from rekindle.training import TrainerSettings

__all__ = ["check_option_names", "refuse_named_positionals"]


_NO_SETTINGS = {"name": "--name", "runs": "--runs", "arguments": "--env.arguments"}
"""Options that are not settings, and have other names in other libraries."""


def check_option_names(arguments: Sequence[str], *, agent: Sequence[str], others: Sequence[str]) -> None:
    """Raise `ConfigError` for an unknown option if the table of names has its name here.

    `agent` are the settings of the agent, `others` the options that are not settings. The parser reports all other
    mistakes.
    """
    options = {
        **{name: f"--agent.{_dashed(name)}" for name in agent},
        **{name: f"--env.{_dashed(name)}" for name in EnvWrapping.__struct_fields__ if name not in agent},
        **{name: f"--{_dashed(name)}" for name in TrainerSettings.__struct_fields__},
        **{name: flag for name, flag in _NO_SETTINGS.items() if flag.removeprefix("--") in others},
    }
    known = {
        *(f"--agent.{_dashed(name)}" for name in agent),
        *(f"--env.{_dashed(name)}" for name in EnvWrapping.__struct_fields__),
        *(f"--{_dashed(name)}" for name in (*TrainerSettings.__struct_fields__, *others)),
    }
    for word in arguments:
        flag = word.partition("=")[0]
        if not flag.startswith("--") or _dashed(flag) in known:
            continue
        name = flag.removeprefix("--").rpartition(".")[2].replace("-", "_")
        here = name_here(name, options)
        if here is not None:
            raise ConfigError(f"{flag} is called {options[here.ours]} here{f': {here.note}' if here.note else ''}")
        if name in options:
            raise ConfigError(f"there is no option {flag}; use {options[name]}")


def refuse_named_positionals(arguments: Sequence[str]) -> None:
    """Raise `ConfigError` for `--algo ppo --env CartPole-v1`, as other libraries have it."""
    for word in arguments:
        if word.partition("=")[0] in ("--algo", "--algorithm", "--env", "--env-id"):
            raise ConfigError(
                f"there is no option {word.partition('=')[0]}; the algorithm and the environment are the first two "
                "arguments, as in rekindle train ppo CartPole-v1"
            )


def _dashed(name: str) -> str:
    return name.replace("_", "-")

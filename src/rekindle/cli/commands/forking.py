"""The command `fork`, whose options are the settings of the run that it forks."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import OmitArgPrefixes, Positional, arg

from rekindle.checkpoint.forking import find_fork_point
from rekindle.cli.commands.arguments import AsJson, Stay, Tags, Trust, Trusted, Ui
from rekindle.cli.commands.naming import check_option_names
from rekindle.cli.modules import find_modules_here
from rekindle.envs import EnvWrapping
from rekindle.run.reader import RunReader
from rekindle.training import TrainerSettings
from rekindle.training.algorithms import NoSettings, config_type, converted, fields_of
from rekindle.training.config import TrainerConfig, read_config

__all__ = ["fork", "fork_command"]

_Source = Annotated[Positional[str], arg(metavar="PATH[@STEP]", help_behavior_hint="")]
_Name = Annotated[
    Path | None,
    arg(aliases=["-o", "--name"], metavar="NAME", help_behavior_hint="(default: the old name, and -fork)"),
]
_Version = Annotated[str, arg(metavar="VERSION")]


def fork(  # noqa: PLR0913 - these are the options of a command
    source: _Source,
    /,
    *,
    output: _Name = None,
    version: _Version = "v1",
    tags: Tags = (),
    assignments: Annotated[tuple[str, ...], arg(name="set", metavar="KEY=VALUE...", help_behavior_hint="")] = (),
    training: OmitArgPrefixes[TrainerSettings] = TrainerSettings(),  # noqa: B008 - it is frozen
    arguments: Annotated[dict[str, str], arg(name="env.arguments", metavar="KEY VALUE...", help_behavior_hint="")] = {},  # noqa: B006
    wrapping: Annotated[EnvWrapping, arg(name="env")] = EnvWrapping(),  # noqa: B008
    agent: Any = NoSettings(),  # noqa: B008
    trusted: Trust = Trusted(),  # noqa: B008
    create_only: Annotated[bool, arg(help_behavior_hint="")] = False,
    ui: Ui = "auto",
    stay: Stay = False,
    as_json: AsJson = False,
) -> int:
    """Continue from a checkpoint of a run as a new run, with its settings or others.

    `rekindle fork PATH --help` shows the settings of that run.

    Args:
        source: A run, or a version or name directory (its newest run); @STEP or @best selects a checkpoint (default:
            the latest).
        output: Name of the new run, or a path whose last part is its name.
        version: Version of the new run.
        tags: Tags of the new run; it does not have those of the old one.
        assignments: Settings to change, by their names in `rekindle show`: agent.gamma=0.9 is --agent.gamma 0.9.
        training: The settings of the training; by default those of the run.
        arguments: Arguments of the environment to change; values are JSON, or text.
        wrapping: Wrappers around the environment; by default those of the run.
        agent: The algorithm's settings; by default those of the run.
        trusted: Modules and files of the run's config that the command may use.
        create_only: Only create the run; continue it with `rekindle resume`.
        ui: The terminal UI (tui; auto if there is a terminal), progress lines (plain), or nothing.
        stay: With the terminal UI: at the end, stay open and show the summary.
        as_json: Print the report as a JSON object.
    """
    from rekindle.cli.fork import ForkChanges, fork_training

    changes = ForkChanges.of(
        training=training, wrapping=wrapping, arguments=arguments, agent=agent, known=_config_of(source)
    ).assigned(assignments)
    return fork_training(
        source,
        output,
        version=version,
        tags=tags,
        changes=changes,
        create_only=create_only,
        ui=ui,
        stay=stay,
        as_json=as_json,
        **trusted.options,
    )


def fork_session(
    source: _Source,
    /,
    *,
    output: _Name = None,
    version: _Version = "v1",
    tags: Tags = (),
    as_json: AsJson = False,
) -> int:
    """Create a run that continues from a checkpoint of a run of your own loop, or of `rekindle serve`.

    Args:
        source: A run, or a version or name directory (its newest run); @STEP or @best selects a checkpoint (default:
            the latest).
        output: Name of the new run, or a path whose last part is its name.
        version: Version of the new run.
        tags: Tags of the new run; it does not have those of the old one.
        as_json: Print a JSON object: path, run, parent, step, changes.
    """
    from rekindle.cli.fork import fork_hosted

    return fork_hosted(source, output, version=version, tags=tags, as_json=as_json)


_RENAMED = ("set", "tag", "env_module", "env_file", "agent_module", "env.arguments", "json", "help")
"""Options of `fork` with other names than its parameters."""


def fork_command(words: Sequence[str]) -> Callable[..., int]:
    """The command `fork` with the settings of the run in its arguments as defaults."""
    if not words or words[0].startswith("-"):
        return fork
    if _is_of_a_host(words[0]):
        return fork_session
    config = _config_of(words[0])
    command = types.FunctionType(fork.__code__, fork.__globals__, fork.__name__, fork.__defaults__)
    command.__doc__ = fork.__doc__
    command.__annotations__ = dict(fork.__annotations__)
    command.__kwdefaults__ = dict(fork.__kwdefaults__ or {})
    command.__kwdefaults__["training"] = TrainerSettings(**_fields(config, TrainerSettings))
    if config.env is not None:
        command.__kwdefaults__["wrapping"] = EnvWrapping(**_fields(config.env, EnvWrapping))
    settings = _agent_settings(config, words)
    if settings is not None:
        command.__annotations__["agent"] = Annotated[type(settings), arg(name="agent")]
        command.__kwdefaults__["agent"] = settings
    others = [name for name in command.__kwdefaults__ if name not in ("training", "wrapping", "agent")]
    names = [] if settings is None else [*fields_of(settings)]
    check_option_names(words, agent=names, others=[*others, *_RENAMED])
    return command


def _is_of_a_host(source: str) -> bool:
    """Whether a program of the user's made the calls of the run, or clients of a server, and not a trainer."""
    reader = RunReader(find_fork_point(source).path)
    if reader.metadata.training is None:
        return True
    config = read_config(reader)
    return config.env is None and config.data is None


def _config_of(source: str) -> TrainerConfig:
    return read_config(RunReader(find_fork_point(source).path))


def _fields(config: Any, kind: type[Any]) -> dict[str, Any]:
    return {name: getattr(config, name) for name in kind.__struct_fields__}


def _named_modules(words: Sequence[str]) -> set[str]:
    """The modules after `--agent-module`: only these may be imported for the agent."""
    named: set[str] = set()
    is_module = False
    for word in words:
        if word.startswith("-"):
            flag, _, value = word.partition("=")
            is_module = flag == "--agent-module"
            named |= {value} if is_module and value else set()
        elif is_module:
            named.add(word)
    return named


def _agent_settings(config: TrainerConfig, words: Sequence[str]) -> Any:
    """The settings of the run's agent; None if they are not known, or only to a module that was not named."""
    if config.algorithm is None or not set(config.agent_modules) <= _named_modules(words):
        return None
    find_modules_here(config.agent_modules)
    kind = config_type(config.algorithm)
    return None if kind is NoSettings else converted(kind, config.agent)

"""The command that serves a session; `--help` shows its docstring, so it is short."""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from rekindle.cli.commands.naming import check_option_names
from rekindle.cli.commands.training import algorithm_in
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.errors import ConfigError
from rekindle.training.algorithms import NoSettings, config_type, fields_of

__all__ = ["serve", "serve_command"]


def serve(  # noqa: PLR0913 - these are the options of a command
    algorithm: Annotated[Positional[str], arg(metavar="ALGO", help_behavior_hint="")],
    /,
    *,
    name: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="(default: ALGO-served, or ALGO-godot)")] = None,
    version: Annotated[str, arg(metavar="VERSION")] = "v1",
    directory: Annotated[Path, arg(name="runs", metavar="DIR")] = Path("runs"),
    seed: Annotated[int, arg(metavar="N")] = 0,
    steps: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None,
    spaces: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    learner: Annotated[
        Literal["background", "inline"] | None, arg(help_behavior_hint="(default: background; inline with --godot)")
    ] = None,
    play: Annotated[bool, arg(help_behavior_hint="")] = False,
    checkpoint: Annotated[str, arg(metavar="best|latest|STEP")] = "best",
    checkpoint_every: Annotated[int, arg(metavar="N")] = 10_000,
    keep_checkpoints: Annotated[int, arg(metavar="N")] = 3,
    metrics_every: Annotated[int, arg(metavar="N")] = 1_000,
    journal_sync: Annotated[float, arg(metavar="SECONDS")] = 0.05,
    journal_keep: Literal["needed", "all"] = "needed",
    host: Annotated[str, arg(metavar="HOST")] = "127.0.0.1",
    port: Annotated[int | None, arg(metavar="N", help_behavior_hint="(default: 7654; 11008 with --godot)")] = None,
    token_file: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    tls_cert: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    tls_key: Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")] = None,
    origins: Annotated[tuple[str, ...], arg(name="origin", metavar="ORIGIN...", help_behavior_hint="")] = (),
    hosts: Annotated[tuple[str, ...], arg(name="allow-host", metavar="NAME...", help_behavior_hint="")] = (),
    idle: Annotated[float, arg(metavar="SECONDS")] = 600.0,
    max_clients: Annotated[int, arg(metavar="N")] = 1024,
    max_streams: Annotated[int, arg(metavar="N")] = 65_536,
    max_message: Annotated[
        int | None, arg(metavar="BYTES", help_behavior_hint="(default: 1 MiB; 16 MiB with --godot)")
    ] = None,
    rate: Annotated[float, arg(metavar="N")] = 1000.0,
    godot: Annotated[bool, arg(help_behavior_hint="")] = False,
    done: Annotated[Literal["terminated", "truncated"] | None, arg(help_behavior_hint="")] = None,
    time_limit: Annotated[int | None, arg(metavar="N", help_behavior_hint="")] = None,
    agent: Any = NoSettings(),  # noqa: B008 - it is frozen
) -> int:
    """Serve a training session to clients: games, web pages, robots.

    Args:
        algorithm: The algorithm: see `rekindle algos`. Or MODULE:CLASS of your own agent.
        name: Name of the run; an unfinished run of this name is continued.
        version: Version of the run.
        directory: The directory of runs.
        seed: The seed of all random numbers.
        steps: Stop after this many env steps.
        spaces: A JSON file with observation_space and action_space; otherwise the first client sends them.
        learner: Learn on a thread of its own (background), or inside each request (inline).
        play: Only play, with the agent of a checkpoint of the run; nothing is learned.
        checkpoint: With --play: which checkpoint.
        checkpoint_every: Env steps between checkpoints.
        keep_checkpoints: How many checkpoints to keep.
        metrics_every: Env steps per metric window.
        journal_sync: Seconds of requests that a power cut may lose; with 0, answers wait for the disk.
        journal_keep: Keep the records of requests that a restart needs, or all, for `rekindle replay`.
        host: The address to listen on; any other than a loopback address needs a token.
        port: The port to listen on; 0 for any free port.
        token_file: A file with the token that clients must send; or set the environment variable REKINDLE_TOKEN.
        tls_cert: The certificate chain, for wss.
        tls_key: The private key of the certificate.
        origins: Origins of web pages that may connect, such as https://example.org.
        hosts: Names under which the server is reached, for example behind a proxy.
        idle: Forget a client that has not been connected for this long.
        max_clients: Clients known at the same time; with --godot, games.
        max_streams: Streams of all clients together.
        max_message: Bytes of a message.
        rate: Messages per second of a connection that are not processed requests.
        godot: Speak the protocol of Godot RL Agents instead, and train games with that plugin.
        done: With --godot: what the end of an episode means, if a game does not say it.
        time_limit: With --godot: episodes of this many steps are truncated, if a game does not say it.
        agent: The algorithm's settings.
    """
    from rekindle.cli.served_run import ServedRun

    run = ServedRun(
        algorithm=algorithm,
        name=name or f"{algorithm.replace(':', '-')}-{'godot' if godot else 'served'}",
        version=version,
        root=directory,
        seed=seed,
        steps=steps,
        play=checkpoint if play else None,
        session={
            "learner": learner or ("inline" if godot else "background"),
            "checkpoint_every": checkpoint_every,
            "keep_checkpoints": keep_checkpoints,
            "metrics_every": metrics_every,
            "journal_sync": journal_sync,
            "journal_keep": journal_keep,
        },
        agent=None if isinstance(agent, NoSettings) else agent,
    )
    if godot:
        from rekindle.cli.godot import serve_games

        return serve_games(
            run,
            port=port,
            done=done,
            time_limit=time_limit,
            max_games=max_clients,
            max_agents=max_streams,
            max_message=max_message,
        )
    from rekindle.cli.serve import serve_session

    return serve_session(
        run,
        spaces=spaces,
        token_file=token_file,
        options={
            "host": host,
            "port": 7654 if port is None else port,
            "tls_cert": None if tls_cert is None else str(tls_cert),
            "tls_key": None if tls_key is None else str(tls_key),
            "origins": origins,
            "hosts": hosts,
            "idle": idle,
            "max_clients": max_clients,
            "max_streams": max_streams,
            "max_message": 1 << 20 if max_message is None else max_message,
            "rate": rate,
        },
    )


_RENAMED = ("runs", "origin", "allow_host", "help")
"""Options of `serve` with other names than its parameters."""


_NOT_GODOT = ("host", "token-file", "tls-cert", "tls-key", "origin", "allow-host", "idle", "rate", "spaces")
_ONLY_GODOT = ("done", "time-limit")


_TRAINING = (
    "steps",
    "seed",
    "spaces",
    "learner",
    "checkpoint-every",
    "keep-checkpoints",
    "metrics-every",
    "journal-sync",
    "journal-keep",
)


def _check_protocol(arguments: Sequence[str]) -> None:
    """Refuse options of the other protocol, or of a server that learns or plays; raises `ConfigError`."""
    given = {word.partition("=")[0].removeprefix("--").replace("_", "-") for word in arguments if word.startswith("--")}
    if "play" not in given and "checkpoint" in given:
        raise ConfigError("--checkpoint would have no effect: it is for --play; a training continues with the newest")
    if "play" in given and (
        found := given.intersection(_TRAINING) or {word for word in given if word.startswith("agent.")}
    ):
        raise ConfigError(f"--{min(found)} would have no effect: with --play, nothing is learned")
    if "godot" in given:
        wrong, advice = given.intersection(_NOT_GODOT), "games connect to this machine only, and say their spaces"
    else:
        wrong, advice = given.intersection(_ONLY_GODOT), "it is for --godot; other clients say how an episode ends"
    if wrong:
        raise ConfigError(f"--{min(wrong)} would have no effect: {advice}")


def serve_command(arguments: Sequence[str]) -> Callable[..., int]:
    """The command `serve` with the settings of the algorithm in its arguments."""
    named = algorithm_in(arguments)
    if named is None:
        return serve
    find_modules_here(module_of(named))
    settings = config_type(named)
    command = types.FunctionType(serve.__code__, serve.__globals__, serve.__name__, serve.__defaults__)
    command.__doc__ = serve.__doc__
    command.__annotations__ = {**serve.__annotations__, "agent": Annotated[settings, arg(name="agent")]}
    command.__kwdefaults__ = {**(serve.__kwdefaults__ or {}), "agent": settings()}
    _check_protocol(arguments)
    others = [name for name in command.__kwdefaults__ if name != "agent"]
    check_option_names(arguments, agent=[*fields_of(settings())], others=[*others, *_RENAMED])
    return command

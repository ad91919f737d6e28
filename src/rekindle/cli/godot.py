"""`rekindle serve ALGO --godot`: train games of Godot RL Agents."""

from __future__ import annotations

import functools
from typing import Any, Literal

from rekindle.cli.messages import warnings_printed
from rekindle.cli.served_run import ServedRun, say_stopped
from rekindle.cli.stopping import current_interrupter
from rekindle.errors import ConfigError
from rekindle.interrupt import Interrupter
from rekindle.server.godot import DEFAULT_PORT, GodotServer
from rekindle.server.godot_play import EndRules
from rekindle.server.listening import raise_descriptor_limit
from rekindle.session.session import TrainingSession
from rekindle.text import path_text, printable, whole
from rekindle.ui.output import say

__all__ = ["serve_games"]

_MAX_MESSAGE = 1 << 24
"""Bytes: a game sends the observations of all its agents at once, and images as text."""


def serve_games(
    run: ServedRun,
    *,
    port: int | None,
    done: Literal["terminated", "truncated"] | None,
    time_limit: int | None,
    max_games: int,
    max_agents: int,
    max_message: int | None,
) -> int:
    """Train games, or play, until the run is done or stopped."""
    run.check()
    if time_limit is not None and time_limit < 1:
        raise ConfigError(f"time_limit is {time_limit}: use at least 1")
    raise_descriptor_limit()
    interrupter = current_interrupter()
    with warnings_printed(), interrupter.signals():
        if run.play is not None:
            open_session = functools.partial(_checked, run.played(run.play))
        else:
            open_session = functools.partial(_opened, run, interrupter)
        server = GodotServer(
            open_session,
            port=DEFAULT_PORT if port is None else port,
            rules=EndRules(done, time_limit),
            play=run.play is not None,
            max_games=max_games,
            max_agents=max_agents,
            max_message=_MAX_MESSAGE if max_message is None else max_message,
            interrupter=interrupter,
            report=lambda line: say(printable(line)),
        )
        server.serve()
    if server.session is not None and run.play is None:
        say_stopped(server.session)
    return 0


def _opened(run: ServedRun, interrupter: Interrupter, observation_space: Any, action_space: Any) -> TrainingSession:
    known = run.known_spaces()
    if known is not None:
        _check_spaces(known, (observation_space, action_space), "use another --name")
    session = run.open(observation_space, action_space, interrupter=interrupter)
    if session.run is not None:
        session.run.watch_for_stop(interrupter)
        resumed = session.resumed
        again = "" if resumed is None else f", continued at step {whole(session.total_steps)}"
        say(f"{path_text(session.run.path)}{again}; Ctrl-C checkpoints and ends it")
    return session


def _checked(session: TrainingSession, observation_space: Any, action_space: Any) -> TrainingSession:
    agent: Any = session.agent
    _check_spaces((agent.observation_space, agent.action_space), (observation_space, action_space), "play its own game")
    return session


def _check_spaces(known: tuple[Any, Any], given: tuple[Any, Any], advice: str) -> None:
    for what, trained, space in zip(("observation", "action"), known, given, strict=True):
        if trained != space:
            raise ConfigError(
                f"the run was trained with the {what} space {trained}, but this game has {space}: {advice}"
            )

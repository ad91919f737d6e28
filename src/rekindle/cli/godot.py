"""`rekindle serve ALGO --godot`: train games of Godot RL Agents."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from rekindle.cli.messages import warnings_printed
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.cli.serve import Opening, played_session
from rekindle.errors import ConfigError
from rekindle.interrupt import Interrupter
from rekindle.server.godot import DEFAULT_PORT, GodotServer
from rekindle.server.godot_play import EndRules
from rekindle.session.session import TrainingSession
from rekindle.text import path_text, printable, whole
from rekindle.ui.output import complain

__all__ = ["serve_games"]

_MAX_MESSAGE = 1 << 24
"""Bytes: a game sends the observations of all its agents at once, and images as text."""


def serve_games(  # noqa: PLR0913 - these are the options of a command
    algorithm: str,
    *,
    name: str,
    version: str,
    root: Path,
    seed: int,
    steps: int | None,
    play: str | None,
    session: Mapping[str, Any],
    agent: Any,
    port: int | None,
    done: Literal["terminated", "truncated"] | None,
    time_limit: int | None,
    max_games: int,
    max_agents: int,
    max_message: int | None,
) -> int:
    """Train games in a new run, or in the newest unfinished one of the same name, until it is done or stopped."""
    find_modules_here([*module_of(algorithm), *module_of(getattr(agent, "network", None))])
    if time_limit is not None and time_limit < 1:
        raise ConfigError(f"time_limit is {time_limit}: use at least 1")
    interrupter = Interrupter()
    with warnings_printed(), interrupter.signals():
        if play is not None:
            playing = played_session(algorithm, root / name / version, play)
            open_session = functools.partial(_checked, playing)
        else:
            options = {**session, "interrupter": interrupter}
            opening = Opening(algorithm, name, version, root, seed, steps, options, agent)
            open_session = functools.partial(_opened, opening, interrupter)
        server = GodotServer(
            open_session,
            port=DEFAULT_PORT if port is None else port,
            rules=EndRules(done, time_limit),
            play=play is not None,
            max_games=max_games,
            max_agents=max_agents,
            max_message=_MAX_MESSAGE if max_message is None else max_message,
            interrupter=interrupter,
            report=_say,
        )
        server.serve()
    finished = server.session
    if finished is not None and play is None:
        stopped = f"stopped ({finished.stop_reason}) at {whole(finished.total_steps)} steps"
        complain(f"{stopped}, {whole(finished.episodes)} episodes")
    return 0


def _opened(opening: Opening, interrupter: Interrupter, observation_space: Any, action_space: Any) -> TrainingSession:
    known = opening.known_spaces()
    if known is not None:
        _check_spaces(known, (observation_space, action_space), "use another --name")
    session = opening.open(observation_space, action_space)
    if session.run is not None:
        session.run.watch_for_stop(interrupter)
        resumed = session.resumed
        again = "" if resumed is None else f", continued at step {whole(session.total_steps)}"
        _say(f"{path_text(session.run.path)}{again}; Ctrl-C checkpoints and ends it")
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


def _say(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")
    sys.stderr.flush()

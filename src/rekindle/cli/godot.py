"""`rekindle serve ALGO --godot`: train games of Godot RL Agents."""

from __future__ import annotations

import sys
from typing import Literal

from rekindle.interrupt import Interrupter
from rekindle.server.godot import DEFAULT_PORT, OpenSession, serve_godot
from rekindle.text import printable, whole

__all__ = ["serve_games"]


def serve_games(
    open_session: OpenSession,
    *,
    port: int | None = None,
    done: Literal["terminated", "truncated"] | None = None,
    time_limit: int | None = None,
    play: bool = False,
    interrupter: Interrupter | None = None,
) -> int:
    """Serve games until the training is over or stopped; prints a line from time to time."""
    server = serve_godot(
        open_session,
        port=DEFAULT_PORT if port is None else port,
        done=done,
        time_limit=time_limit,
        play=play,
        interrupter=interrupter,
        report=_say,
    )
    session = server.session
    if session is not None and not play:
        steps, episodes, updates = whole(session.total_steps), whole(session.episodes), whole(session.updates)
        print(f"{session.stop_reason}: {steps} steps, {episodes} episodes, {updates} updates")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"{printable(line)}\n")
    sys.stderr.flush()

"""`rekindle game`: a game in the browser that learns while you watch."""

from __future__ import annotations

import functools
import signal
import threading
import webbrowser
from pathlib import Path
from types import FrameType

from rekindle.game import play
from rekindle.ui.output import complain

__all__ = ["run_game"]


def run_game(runs: Path, *, port: int, seed: int, resume: bool, browser: bool) -> int:
    """Run the game until Ctrl-C."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        complain("starting the server; Ctrl-C ends the game")
        announce = functools.partial(_announce, browser=browser)
        play(runs, port=port, seed=seed, resume=resume, announce=announce, stop=ended)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    complain(f"the game has ended; its run is in {runs / 'game'}")
    return 0


def _announce(address: str, *, browser: bool) -> None:
    print(address, flush=True)
    if browser:
        webbrowser.open(address)

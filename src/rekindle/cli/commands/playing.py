"""The command that runs the game; `--help` shows its docstring, so it is short."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

__all__ = ["game"]


def game(
    *,
    directory: Annotated[Path, arg(name="runs", metavar="DIR")] = Path("runs"),
    port: Annotated[int, arg(metavar="N")] = 7655,
    seed: Annotated[int, arg(metavar="N")] = 0,
    resume: Annotated[bool, arg(help_behavior_hint="")] = False,
    no_browser: Annotated[bool, arg(help_behavior_hint="")] = False,
) -> int:
    """Play a game in the browser: 16 creatures learn to find food while you watch.

    Args:
        directory: The directory of runs; the training is a run of the name game.
        port: The port of the page; 0 for any free port.
        seed: The seed of all random numbers.
        resume: Continue the newest game instead of starting a new one.
        no_browser: Do not open a browser.
    """
    from rekindle.cli.game import run_game

    return run_game(directory, port=port, seed=seed, resume=resume, browser=not no_browser)

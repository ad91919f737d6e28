"""Run the game: the page's web server in this process, and `rekindle serve`, which is started again when it ends."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from rekindle.errors import ConfigError, MissingExtra, RekindleError
from rekindle.game.pages import Game, PageServer
from rekindle.game.supervisor import Supervisor
from rekindle.launch import launching
from rekindle.text import install_command

__all__ = ["play", "serve_command"]

_NAME = "game"
_EXPORT_SECONDS = 120
_LOOK = 0.5
"""Seconds between two looks at whether the server can still be started."""
_NICENESS = 5
"""Of the server: frames of the page come first, also if there is only one core."""
_SETTINGS = {
    "hidden-sizes": "64 64",
    "learning-rate": "0.0007",
    "gamma": "0.95",
    "n-step": "3",
    "capacity": "50000",
    "batch-size": "64",
    "warmup-steps": "1000",
    "update-every": "16",
    "updates-each": "2",
    "target-update-every": "250",
    "epsilon-steps": "20000",
    "epsilon-end": "0.02",
}
"""The agent learns within a minute to find food; static/main.js shows its exploration."""


def play(
    root: Path,
    *,
    port: int,
    seed: int = 0,
    resume: bool = False,
    announce: Callable[[str], object],
    stop: threading.Event | None = None,
) -> None:
    """Serve the game until Ctrl-C, or until `stop` is set; raises `RekindleError` if the server can no longer start.

    Args:
        root: the directory of runs; the training is a run in it.
        port: the port of the page; 0 for one that is free.
        seed: the seed of the agent.
        resume: continue the newest run of the game instead of starting a new one.
        announce: called with the address of the page when everything is ready.
        stop: ends the game.
    """
    _check_extras()
    version = _version(root, resume=resume)
    session_port = _free_port()

    try:
        pages = PageServer(port)
    except OSError as error:
        raise ConfigError(f"cannot listen on 127.0.0.1:{port}: {error.strerror}; use another --port") from None
    supervisor = Supervisor(serve_command(root, version, seed, session_port, pages.server_port), niceness=_NICENESS)
    pages.game = Game(
        session=f"ws://127.0.0.1:{session_port}/session",
        settings={"seed": seed, "run": f"{_NAME}/{version}"},
        state=lambda: {"pid": supervisor.pid, "starts": supervisor.starts, "ready": supervisor.is_ready},
        kill=supervisor.kill,
        policy=lambda: _policy(root / _NAME / version),
    )
    threading.Thread(target=pages.serve_forever, name="rekindle-game-pages", daemon=True).start()
    try:
        supervisor.start()
        announce(f"http://127.0.0.1:{pages.server_port}/")
        stopped = stop or threading.Event()
        while not stopped.wait(_LOOK):
            if supervisor.failure is not None:
                raise RekindleError(supervisor.failure)
    finally:
        supervisor.stop()
        pages.shutdown()
        pages.server_close()


def serve_command(root: Path, version: str, seed: int, port: int, page_port: int) -> list[str]:
    """The command of the session server."""
    with resources.as_file(resources.files("rekindle.game") / "spaces.json") as spaces:
        options = {
            "name": _NAME,
            "version": version,
            "runs": str(root),
            "seed": str(seed),
            "spaces": str(spaces),
            "checkpoint-every": "4000",
            "port": str(port),
        }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    words += ["--origin", f"http://127.0.0.1:{page_port}", f"http://localhost:{page_port}"]
    words += [word for name, value in _SETTINGS.items() for word in (f"--agent.{name}", *value.split())]
    return launching("serve", "dqn", *words)


def _check_extras() -> None:
    for name in ("equinox", "jax", "optax", "picows", "uvloop"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtra(f"the game needs {name}: {install_command('agents,server')}", name=name)


def _version(root: Path, *, resume: bool) -> str:
    """The version of the run: the newest one, or the first that does not exist."""
    number = 1
    while (root / _NAME / f"v{number}").exists():
        number += 1
    return f"v{max(1, number - 1)}" if resume else f"v{number}"


def _free_port() -> int:
    """A port for the server, which keeps it over all restarts."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _policy(run: Path) -> bytes:
    """The policy of the newest checkpoint, as a file of `rekindle export`; raises `LookupError` if there is none."""
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory, "policy.mpk")
        command = ["export", str(run), "--checkpoint", "latest", "-o", str(output)]
        subprocess.run(  # noqa: S603 - our own command
            launching(*command),
            capture_output=True,
            timeout=_EXPORT_SECONDS,
            check=False,
        )
        if not output.exists():
            raise LookupError("there is no policy yet: the first checkpoint comes after some seconds of training")
        return output.read_bytes()

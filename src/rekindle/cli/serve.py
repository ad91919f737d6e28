"""`rekindle serve`: a training session for games, web pages and robots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from rekindle.cli.messages import warnings_printed
from rekindle.cli.served_run import ServedRun, say_stopped
from rekindle.cli.stopping import current_interrupter, was_signalled
from rekindle.errors import ConfigError
from rekindle.server import ServerOptions, SessionServer, serve
from rekindle.server.listening import check_address
from rekindle.server.server import tls_context
from rekindle.text import path_text, whole
from rekindle.training.rebuilding import read_spaces
from rekindle.ui.output import complain

__all__ = ["serve_session"]

_TOKEN = "REKINDLE_TOKEN"  # noqa: S105 - the name of an environment variable
_MOST_FILE = 1 << 20


def serve_session(run: ServedRun, *, spaces: Path | None, token_file: Path | None, options: Mapping[str, Any]) -> int:
    """Serve a run until SIGINT or SIGTERM."""
    settings = ServerOptions(**options, token=_token(token_file))
    run.check()
    tls_context(settings)
    check_address(settings.host, settings.port)  # before the run is opened, which replays its journal
    current_interrupter()  # a signal may have come while libraries were imported
    with warnings_printed():
        if run.play is not None:
            server = SessionServer(run.played(run.play), settings, play=True)
        else:
            known = _spaces(run, spaces)
            server = SessionServer(run.open if known is None else run.open(*known), settings)
        serve(server, announce=lambda address: _announce(server, address))
    if server.session is not None:
        say_stopped(server.session)
    return 0


def _spaces(run: ServedRun, file: Path | None) -> tuple[Any, Any] | None:
    """The spaces of the run to continue, or those in a file; None if the first client says them."""
    known, given = run.known_spaces(), None if file is None else _read_spaces(file)
    if known is not None and given is not None and known != given:
        raise ConfigError(
            f"{file} has other spaces than the run that is continued: leave it out, or use another --name"
        )
    return known or given


def _announce(server: SessionServer, address: str) -> None:
    session = server.session
    if was_signalled():  # while the session was opened, before the server handled signals
        server.stop("stopped before it served")
    elif session is None:
        complain("waiting for the first client, which says what its spaces are; Ctrl-C ends it")
    elif session.run is not None:
        resumed = session.resumed
        again = "" if resumed is None else f", continued at step {whole(session.total_steps)}, {resumed.grade}"
        complain(f"{path_text(session.run.path)}{again}; Ctrl-C checkpoints and ends it")
    print(address, flush=True)


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(_TOKEN) or None
    token = _read(file).decode(errors="replace").strip()
    if not token:
        raise ConfigError(f"{file} is empty: write a token to it")
    return token


def _read_spaces(file: Path) -> tuple[Any, Any]:
    try:
        stored: Any = msgspec.json.decode(_read(file))
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is not JSON: {error}") from None
    return read_spaces(cast("dict[str, Any]", stored) if isinstance(stored, dict) else {}, name=str(file))


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            return stream.read(_MOST_FILE)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None

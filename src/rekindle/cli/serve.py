"""`rekindle serve`: a training session for games, web pages and robots."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from rekindle.cli.messages import warnings_printed
from rekindle.cli.modules import find_modules_here, module_of
from rekindle.errors import ConfigError
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_run, find_unfinished
from rekindle.run.reader import RunReader
from rekindle.server import ServerOptions, SessionServer, serve
from rekindle.session.session import TrainingSession
from rekindle.text import path_text, whole
from rekindle.training.algorithms import agent_settings, config_type, fields_of, make_agent
from rekindle.training.config import TrainerConfig, read_config
from rekindle.training.rebuilding import checkpoint_files, load, read_spaces, rebuild_agent
from rekindle.ui.output import complain
from rekindle.wire.space_trees import space_as_tree

__all__ = ["Opening", "played_session", "serve_session"]

_TOKEN = "REKINDLE_TOKEN"  # noqa: S105 - the name of an environment variable
_MOST_FILE = 1 << 20


def serve_session(  # noqa: PLR0913 - these are the options of a command
    algorithm: str,
    *,
    name: str,
    version: str,
    root: Path,
    seed: int,
    steps: int | None,
    spaces: Path | None,
    play: str | None,
    session: Mapping[str, Any],
    token_file: Path | None,
    options: Mapping[str, Any],
    agent: Any,
) -> int:
    """Serve a new run, or the newest unfinished one of the same name, until SIGINT or SIGTERM."""
    settings = ServerOptions(**options, token=_token(token_file))
    find_modules_here([*module_of(algorithm), *module_of(getattr(agent, "network", None))])
    with warnings_printed():
        if play is not None:
            server = SessionServer(played_session(algorithm, root / name / version, play), settings, play=True)
        else:
            opening = Opening(algorithm, name, version, root, seed, steps, dict(session), agent)
            known = opening.known_spaces() or (None if spaces is None else _read_spaces(spaces))
            server = SessionServer(opening.open if known is None else opening.open(*known), settings)
        serve(server, announce=lambda address: _announce(server, address))
    if server.session is not None:
        done = server.session
        complain(f"stopped ({done.stop_reason}) at {whole(done.total_steps)} steps, {whole(done.episodes)} episodes")
    return 0


def _announce(server: SessionServer, address: str) -> None:
    session = server.session
    if session is None:
        complain("waiting for the first client, which says what its spaces are; Ctrl-C ends it")
    elif session.run is not None:
        resumed = session.resumed
        again = "" if resumed is None else f", continued at step {whole(session.total_steps)}, {resumed.grade}"
        complain(f"{path_text(session.run.path)}{again}; Ctrl-C checkpoints and ends it")
    print(address, flush=True)


class Opening:
    """Opens the session when the spaces are known."""

    def __init__(
        self,
        algorithm: str,
        name: str,
        version: str,
        root: Path,
        seed: int,
        steps: int | None,
        session: dict[str, Any],
        agent: Any,
    ) -> None:
        config_type(algorithm)  # an unknown one is an error now, and not when the first client comes
        self._algorithm, self._name, self._version, self._root = algorithm, name, version, root
        self._seed, self._steps, self._session = seed, steps, session
        self._agent = {} if agent is None else fields_of(agent)

    def known_spaces(self) -> tuple[Any, Any] | None:
        """The spaces of the run to continue; None if there is none."""
        found = find_unfinished(self._root / self._name / self._version)
        if found is None:
            return None
        config = read_config(RunReader(found))
        if config.spaces is None:
            raise ConfigError(f"{found} was not created by rekindle serve: use another --name")
        return read_spaces(config.spaces, name=str(found / "config.json"))

    def open(self, observation_space: Any, action_space: Any) -> TrainingSession:
        """Continue the newest unfinished run, or start one."""
        algorithm, options = self._algorithm, self._session
        agent = make_agent(algorithm, observation_space, action_space, seed=self._seed, settings=self._agent)
        config = TrainerConfig(
            seed=self._seed,
            steps=self._steps,
            algorithm=algorithm,
            agent=agent_settings(agent, algorithm, self._agent),
            spaces={
                "observation_space": space_as_tree(observation_space),
                "action_space": space_as_tree(action_space),
            },
            eval_episodes=0,
            checkpoint_every=options["checkpoint_every"],
            keep_checkpoints=options["keep_checkpoints"],
            metrics_every=options["metrics_every"],
        )
        run = TrainingRun.create_or_resume(
            self._name,
            self._version,
            root=self._root,
            seed=self._seed,
            config=config,
            agent=type(agent).__name__,
            max_steps=self._steps,
            training=config.identity,
        )
        with run.let_go_on_failure():
            if run.is_resumed and (changed := read_config(run.reader).differences(config)):
                raise ConfigError(f"{run.path} is another training: {'; '.join(changed)}. Use another --name")
            return TrainingSession(agent, run=run, max_steps=self._steps, journal=True, signals=False, **options)


def played_session(algorithm: str, path: Path, checkpoint: str) -> TrainingSession:
    """A session that only acts, with the agent of a checkpoint."""
    run = find_run(path)
    config = read_config(RunReader(run))
    if config.algorithm != algorithm:
        raise ConfigError(f"{run} was trained with {config.algorithm}, not with {algorithm}")
    files = checkpoint_files(run, checkpoint)
    agent = rebuild_agent(run, modules=module_of(algorithm))
    step = load(agent, files[0])
    complain(f"playing with the agent of {path_text(run)} at step {whole(step)}; nothing is learned")
    return TrainingSession(agent, signals=False)


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

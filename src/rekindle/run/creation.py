"""Create a run directory: in one step, with everything in it, or not at all."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

import msgspec

from rekindle.checks import required_count
from rekindle.errors import ConfigError, StorageError
from rekindle.run.metadata import ALL_LOGS, MOST_CONFIG, RunDetails, RunMetadata, environment, timestamp
from rekindle.run.tags import checked_tags, create_tags
from rekindle.storage import documents, files
from rekindle.storage.lock import Lock
from rekindle.storage.logs import JsonLines

__all__ = [
    "Built",
    "Config",
    "DIRECTORIES",
    "NewRun",
    "RunOptions",
    "build",
    "checked_name",
    "config_json",
    "json_bytes",
    "name_and_version",
    "new_run",
    "remove_unused",
    "starting",
]

logger = logging.getLogger("rekindle")
_ENCODER = msgspec.json.Encoder(enc_hook=documents.encode_numpy)
Config = Mapping[str, Any] | msgspec.Struct
DIRECTORIES = ("checkpoints", "replay", "control", "rewound")
_HALF_MADE = ".new-"
"""Prefix of directories that are not a complete run yet, or no longer; the next start removes them."""
_PATIENCE = 60.0
"""Seconds to wait while other processes create runs of the same version, which takes each a fraction of a second."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_RUN_ID = re.compile(r"(\d{8}_\d{6})(?:_(\d+))?")


def checked_name(kind: str, text: str) -> str:
    """Return the text if it can be the name of a directory; raises `ConfigError`."""
    if not _NAME.fullmatch(text):
        raise ConfigError(
            f"{kind} {text!r} cannot be a directory: use the letters a-z and A-Z, digits, '.', '_', '+', '-', "
            "starting with a letter or digit, at most 100"
        )
    return text


def name_and_version(text: str) -> tuple[str, str]:
    """The parts of `name/version`; a name alone means its version v1."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - the host gave it
        raise ConfigError(f"the name of a run is a str such as 'cartpole', not {text!r:.80}")
    name, _, version = text.partition("/")
    return name, version or "v1"


class RunOptions(RunDetails, total=False):
    """The contents of a new run."""

    seed: int
    """The seed in the metadata; 0 by default."""
    config: Config | None
    """Everything needed to rebuild the environment and the agent; see `write_config`."""
    tags: Sequence[str]
    """Words to find the run by; they can be changed at any time."""


class Built(NamedTuple):
    """A run that was just created."""

    path: Path
    lock: Lock
    metadata: RunMetadata


def build(new: NewRun, fill: Callable[[Path], Mapping[str, Any]] | None = None) -> Built:
    """Create a run, locked; call it within `starting`.

    `fill` may add files to the directory before it gets its name, and returns fields of the metadata.
    """
    # Build it under a name that readers ignore, then rename it: no reader sees an incomplete or unlocked run.
    parent = new.directory
    building = parent / _half_made_name()
    with contextlib.ExitStack() as undo:
        undo.callback(files.remove_directory, building)
        files.make_directory(building, sync_name=False)
        for directory in DIRECTORIES:
            files.make_directory(building / directory, sync_name=False)
        lock = Lock(building / "lock")
        undo.callback(lock.release)
        for log in ALL_LOGS:
            JsonLines(building / f"{log}.jsonl").close()
        if new.config is not None:
            files.write_atomic(building / "config.json", new.config, sync_name=False)
        create_tags(building, new.tags)
        filled: Mapping[str, Any] = {} if fill is None else fill(building)
        while True:
            run_id = _next_run_id(parent)
            now = timestamp()
            known: dict[str, Any] = {"status": "running", **new.details, **filled}
            metadata = RunMetadata(
                name=new.name,
                version=new.version,
                run_id=run_id,
                seed=new.seed,
                started_at=now,
                last_updated=now,
                environment={**environment(), "host": socket.gethostname()},
                **known,
            )
            files.write_atomic(building / "metadata.json", json_bytes(metadata))
            try:
                os.rename(building, parent / run_id)
                break
            except OSError as error:
                if not (parent / run_id).exists():
                    raise StorageError(f"cannot create the run {parent / run_id}: {error.strerror}") from error
        files.sync_directory(parent)
        undo.pop_all()
    return Built(parent / run_id, lock, metadata)


class NewRun(NamedTuple):
    """The checked parts of a new run."""

    directory: Path
    """The directory of the run's version."""
    name: str
    version: str
    seed: int
    config: bytes | None
    tags: list[str]
    details: RunDetails


def new_run(
    root: str | Path,
    name: str,
    version: str,
    *,
    seed: int = 0,
    config: Config | None = None,
    tags: Sequence[str] = (),
    **details: Unpack[RunDetails],
) -> NewRun:
    """Check the parts of a new run, and create the directory of its version; raises `ConfigError`."""
    seed = required_count("seed", seed, 0)
    settings = None if config is None else config_json(config, name)
    known = checked_tags(tags)
    return NewRun(_version_directory(root, name, version), name, version, seed, settings, known, details)


def _version_directory(root: str | Path, name: str, version: str) -> Path:
    """The directory of a version, created if it is missing.

    The path is absolute, because the host may change the working directory during the training.
    """
    directory = files.absolute(Path(root)) / checked_name("name", name) / checked_name("version", version)
    files.make_directory(directory)
    for above in (directory.parent, directory):
        files.require_directory(above)
    return directory


@contextlib.contextmanager
def starting(directory: Path) -> Generator[None]:
    """Let one process at a time create a run of a version, and remove what killed processes left behind."""
    with contextlib.ExitStack() as undo:
        advice = f"it has been creating a run there for more than {_PATIENCE:g} s"
        undo.callback(Lock(directory / ".lock", patience=_PATIENCE, advice=advice).release)
        for path in sorted(directory.glob(f"{_HALF_MADE}*")):
            if not path.is_symlink() and path.is_dir() and not Lock.is_held(path / "lock"):
                remove_unused(path)
        yield


def _half_made_name() -> str:
    return f"{_HALF_MADE}{os.getpid()}-{secrets.token_hex(4)}"


def remove_unused(path: Path) -> None:
    """Remove a run that was never used; if that fails, readers still ignore what is left."""
    try:
        # Hide it first: no reader must see an incomplete run or resume it.
        hidden = path.with_name(_half_made_name())
        files.rename(path, hidden)
        files.remove_directory(hidden)
    except StorageError as error:
        logger.warning("a run that was never used cannot be removed: %s", error)


def config_json(config: Config, of: str | Path) -> bytes:
    """The contents of `config.json`; raises `ConfigError` if it cannot be written."""
    try:
        data = json_bytes(config)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the config of {of} cannot be written as JSON: {error}") from None
    if len(data) > MOST_CONFIG:
        raise ConfigError(f"the config of {of} takes {len(data)} bytes: use at most {MOST_CONFIG}")
    return data


def json_bytes(value: Any) -> bytes:
    """A document as indented JSON."""
    return msgspec.json.format(documents.encode(value, _ENCODER.encode), indent=2) + b"\n"


def _next_run_id(parent: Path) -> str:
    """The date and time, or an id after that of the newest run: ids never go back, even if the clock does."""
    stamp, number = time.strftime("%Y%m%d_%H%M%S"), 1
    for existing in (match for entry in parent.iterdir() if (match := _RUN_ID.fullmatch(entry.name))):
        known, known_number = existing[1], int(existing[2] or 1)
        if (known, known_number) >= (stamp, number):
            stamp, number = known, known_number + 1
    return stamp if number == 1 else f"{stamp}_{number}"

"""Every exception that rekindle raises on purpose.

RekindleError
├── ConfigError              a setting is out of range or contradicts the run
├── InputError               the host passed invalid input to a session
├── StateError               a state cannot be saved, or does not fit the object that loads it
├── AgentError               the agent broke its contract or produced a non-finite loss
├── EnvError                 an environment raised, or returned invalid values
├── DataError                a data set is damaged, or lacks something that learning needs
├── Interrupted              a stop was requested during long work, such as an evaluation
├── MissingExtra             an optional dependency is not installed
├── RunError                 a path is not a run directory, or the run cannot be used
│   ├── RunLocked            another process is writing this run
│   └── LogCorrupt           a log has a bad line, or is shorter than a checkpoint says
├── ServerError              a session server refuses this client, or cannot be reached
│   └── StreamsLost          it has closed the streams of this client
├── CheckpointError          no checkpoint can be used
│   └── FileRefused          a file is damaged, hostile or of an unknown format
└── StorageError             the file system refused: full disk, I/O error, permissions
    └── RowsHeld             rows of a log wait in memory until there is room

Invalid input never changes the object it was passed to: after an `InputError` a session continues as if the call
had not been made.
"""

from __future__ import annotations

__all__ = [
    "AgentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EnvError",
    "FileRefused",
    "InputError",
    "Interrupted",
    "LogCorrupt",
    "MissingExtra",
    "RekindleError",
    "RowsHeld",
    "RunError",
    "RunLocked",
    "ServerError",
    "StateError",
    "StorageError",
    "StreamsLost",
]


class RekindleError(Exception):
    """The base class: `except RekindleError` catches everything that rekindle raises on purpose."""


class ConfigError(RekindleError, ValueError):
    """A setting is out of range or contradicts the settings of the run."""


class InputError(RekindleError, ValueError):
    """The host passed invalid input to a session; nothing was changed."""


class StateError(RekindleError, ValueError):
    """A state cannot be saved, or does not fit the object that loads it."""


class AgentError(RekindleError):
    """The agent broke its contract, or its loss is not finite; its state is not checkpointed."""


class EnvError(RekindleError):
    """An environment raised, or returned invalid values; the message names it and the step."""


class DataError(RekindleError):
    """A data set is damaged, or lacks something that learning needs; the message names the file, field and row."""


class Interrupted(RekindleError):
    """A stop was requested during long work; none of it is logged, and a resume repeats it."""


class MissingExtra(RekindleError, ImportError):
    """An optional dependency is not installed; the message has the right `pip install` command."""


class RunError(RekindleError):
    """A path is not a run directory, or the run cannot be used."""


class RunLocked(RunError):
    """Another process is writing this run; the message names it."""


class LogCorrupt(RunError):
    """A log has a bad line in its middle, or is shorter than a checkpoint recorded."""


class ServerError(RekindleError):
    """A session server refuses this client, or cannot be reached; the message says why."""


class StreamsLost(ServerError):
    """A session server has closed the streams of this client: begin new episodes."""


class CheckpointError(RekindleError):
    """No checkpoint can be used; the message lists each file and why."""


class FileRefused(CheckpointError):
    """A file is damaged, hostile or of an unknown format; the message names it and the reason."""


class StorageError(RekindleError, OSError):
    """The file system refused: full disk, I/O error, permissions. Data that was durable before still is."""


class RowsHeld(StorageError):
    """A log could not be written: its rows are held in memory, and nothing is lost while the process lives."""

    is_repeated = False
    """Whether the attempt before failed too, so that a user who was warned knows."""

"""Every exception that rekindle raises on purpose.

RekindleError
├── ConfigError              a setting is out of range or contradicts the run
├── InputError               the host gave a session something that cannot be right
├── StateError               a state tree holds what cannot be saved, or does not fit the object that loads it
├── AgentError               the agent broke its contract or produced a non-finite loss
├── EnvError                 an environment raised, or gave what cannot be right
├── Interrupted              a stop was asked for while something was under way, such as an evaluation
├── MissingExtra             an optional dependency is not installed
├── RunError                 a run directory is not one, or cannot be used
│   ├── RunLocked            another process writes this run
│   └── LogCorrupt           a log has a bad line, or is shorter than a checkpoint says
├── CheckpointError          no checkpoint can be used
│   └── FileRefused          a file is damaged, hostile or of an unknown format
└── StorageError             the file system refused: full disk, I/O error, permissions

Bad input never changes the object it was given to: after an `InputError` a session goes on as if the call
had not been made.
"""

from __future__ import annotations

__all__ = [
    "AgentError",
    "CheckpointError",
    "ConfigError",
    "EnvError",
    "FileRefused",
    "InputError",
    "Interrupted",
    "LogCorrupt",
    "MissingExtra",
    "RekindleError",
    "RunError",
    "RunLocked",
    "StateError",
    "StorageError",
]


class RekindleError(Exception):
    """The root of the tree: `except RekindleError` catches whatever rekindle raises on purpose."""


class ConfigError(RekindleError, ValueError):
    """A setting is out of range or contradicts what the run was made with."""


class InputError(RekindleError, ValueError):
    """The host gave a session something that cannot be right; nothing was changed."""


class StateError(RekindleError, ValueError):
    """A state tree holds what cannot be saved, or does not fit the object that loads it."""


class AgentError(RekindleError):
    """The agent broke its contract, or its loss is not finite; what it holds is not checkpointed."""


class EnvError(RekindleError):
    """An environment raised, or gave what cannot be right; the message names it and the step."""


class Interrupted(RekindleError):
    """A stop was asked for while something was under way; nothing of it is logged, and a resume does it again."""


class MissingExtra(RekindleError, ImportError):
    """An optional dependency is not installed; the message has the `pip install` that helps."""


class RunError(RekindleError):
    """A run directory is not one, or cannot be used."""


class RunLocked(RunError):
    """Another process writes this run; the message names it."""


class LogCorrupt(RunError):
    """A log has a bad line in its middle, or is shorter than a checkpoint says it was."""


class CheckpointError(RekindleError):
    """No checkpoint can be used; the message lists each file and why."""


class FileRefused(CheckpointError):
    """A file is damaged, hostile or of an unknown format; the message names it and the reason."""


class StorageError(RekindleError, OSError):
    """The file system refused: full disk, I/O error, permissions. What was durable before still is."""

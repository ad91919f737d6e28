"""The entry point: run a command and convert errors to messages and exit codes."""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import sys
import traceback
from typing import Any, cast

from rekindle.cli import INTERRUPTED
from rekindle.errors import ConfigError, Interrupted, RekindleError
from rekindle.ui.output import complain, json_alone
from rekindle.version import __version__

__all__ = ["run"]

DONE, FAILED, WRONG_USAGE = 0, 1, 2

_DESCRIPTION = f"""\
rekindle {__version__}: train agents and manage their runs.

PATH is a run, or a version or name directory, which stands for its newest run.

resume and stop prefer its newest unfinished run.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "≥" still gets its table
    try:
        with json_alone() if "--json" in arguments else contextlib.nullcontext():
            code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except Interrupted as error:
        complain(str(error))
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed it. Python would fail again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except MemoryError:
        complain("there is not enough memory for this")
        return FAILED
    except (RekindleError, OSError) as error:
        complain(_message(error))
        return WRONG_USAGE if isinstance(error, ConfigError) else FAILED
    return code


def _run(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"rekindle {__version__}")
        return DONE

    import tyro

    from rekindle.cli.commands import (
        COMMANDS,
        PARSING,
        fork_command,
        serve_command,
        sweep_command,
        train_command,
        with_positionals,
    )
    from rekindle.cli.commands.likeness import with_likeness
    from rekindle.cli.commands.repeats import joined

    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        complain(f"there is no command {arguments[0]!r}; {_suggestion(arguments[0], list(COMMANDS))}")
        return WRONG_USAGE
    try:
        if arguments and arguments[0] in COMMANDS:
            command, rest = arguments[0], joined(arguments[1:])
            if command == "train":
                rest = with_positionals(with_likeness(rest))
            with_settings = {
                "train": train_command,
                "fork": fork_command,
                "serve": serve_command,
                "sweep": sweep_command,
            }.get(command)
            function = COMMANDS[command] if with_settings is None else with_settings(rest)
            return cast("Any", tyro.cli)(function, prog=f"rekindle {command}", args=rest, **PARSING)
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="rekindle", description=_DESCRIPTION, args=arguments, **PARSING
        )
    except SystemExit as exit_:
        frame, line = list(traceback.walk_tb(exit_.__traceback__))[-1]
        # Tyro has printed the error or the help. Rich found that the reader of our output has closed it.
        if frame.f_globals.get("__name__", "").partition(".")[0] in ("tyro", "rich"):
            return cast("int", exit_.code or DONE)
        code = "" if exit_.code is None else repr(exit_.code)
        complain(f"{frame.f_code.co_filename}:{line} called sys.exit({code}), which ended the command")
        return FAILED


def _message(error: Exception) -> str:
    """The message of an error; of the operating system's, without its number."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error)
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return f"{' -> '.join(named)}: {error.strerror}" if named else error.strerror


def _suggestion(word: str, commands: list[str]) -> str:
    near = difflib.get_close_matches(word, commands, n=2, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"use one of {', '.join(commands)}"

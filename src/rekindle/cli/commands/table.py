"""All commands by name, in the order of `--help`."""

from __future__ import annotations

from collections.abc import Callable

from rekindle.cli.commands.datasets import data, record
from rekindle.cli.commands.forking import fork
from rekindle.cli.commands.monitoring import (
    compare,
    dashboard,
    diagnose,
    plot,
    replay,
    report,
    runs,
    show,
    stop,
    tag,
    verify,
    watch,
)
from rekindle.cli.commands.playing import game
from rekindle.cli.commands.serving import serve
from rekindle.cli.commands.sweeping import sweep
from rekindle.cli.commands.training import algos, check, evaluate, export, resume, train

__all__ = ["COMMANDS"]

COMMANDS: dict[str, Callable[..., int]] = {
    "train": train,
    "resume": resume,
    "fork": fork,
    "sweep": sweep,
    "eval": evaluate,
    "export": export,
    "serve": serve,
    "game": game,
    "record": record,
    "data": data,
    "algos": algos,
    "check": check,
    "runs": runs,
    "show": show,
    "tag": tag,
    "compare": compare,
    "verify": verify,
    "replay": replay,
    "diagnose": diagnose,
    "stop": stop,
    "watch": watch,
    "report": report,
    "plot": plot,
    "dashboard": dashboard,
}

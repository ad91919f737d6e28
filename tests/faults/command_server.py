"""Forks commands of `rekindle`: one that has imported everything already starts at once.

Reads one job a line (JSON) from standard input, and answers with the exit code when it has ended.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
import warnings
from typing import Any

import injection

from rekindle.cli import main

MODULES = ("jax", "rekindle.cli.train", "rekindle.cli.evaluate", "rekindle.agents.dqn", "rekindle.agents.ppo")


def _run(job: dict[str, Any]) -> int:
    for descriptor, name in ((1, "output"), (2, "errors")):
        file = os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    if job["fault"]:
        injection.inject(job["fault"], job["disk"], job["report"], os.devnull)
    try:
        return main(job["arguments"])
    except BaseException:
        traceback.print_exc()
        return -1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def serve() -> None:
    for module in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    for line in sys.stdin:
        job = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of JAX, which has started no thread yet
            child = os.fork()
        if child == 0:
            os._exit(_run(job))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()

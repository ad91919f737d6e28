"""Forks trainings: a worker that has imported everything already starts in a millisecond.

Reads one job a line (JSON) from standard input. Answers with the child's process id, and with its exit code when
it has ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any

import injection
import worker

import rekindle


def _run(job: dict[str, Any]) -> int:
    errors = os.open(job["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(errors, 2)
    os.close(errors)
    if job["fault"]:
        injection.inject(job["fault"], job["disk"], job["report"], job["acknowledged"])
    try:
        worker.train(job["root"], job["acknowledged"], **job["options"])
    except rekindle.RekindleError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 2
    return 0


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_run(job))
        print(child, flush=True)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()

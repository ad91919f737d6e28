"""Run programs that print what they measured, one at a time, and keep what they print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from learning import ONE_THREAD

__all__ = ["take_turns"]


def take_turns(path: Path, turns: Iterable[tuple[dict[str, Any], list[str]]]) -> None:
    """Run each command with one thread; append its JSON, after what the turn is called, to a file of results."""
    environment = {**os.environ, **ONE_THREAD}
    for turn, command in turns:
        name = " ".join(map(str, turn.values()))
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr}")
        result = {**turn, **json.loads(done.stdout)}
        print(f"{name}: {result['cpu_us']} us", file=sys.stderr, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as results:
            results.write(json.dumps(result) + "\n")

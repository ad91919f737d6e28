"""A user: an environment that only the built wheel was installed in, and a directory outside of the repository."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BY_US = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "REKINDLE_"))}


@dataclass(frozen=True)
class User:
    """Somebody who has installed rekindle, and works in a directory of their own."""

    environment: Path
    directory: Path

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        """A program or a command of the environment."""
        variables = {
            "HOME": str(self.environment / "home"),
            "PATH": f"{self.environment / 'bin'}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }
        return subprocess.Popen(
            [str(self.environment / "bin" / command[0]), *map(str, command[1:])],
            cwd=self.directory,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str | Path) -> str:
        """What a command prints; it must end well."""
        process = self.start(*command)
        out, errors = process.communicate()
        assert process.returncode == 0, f"{command}: {out}{errors}"
        return out

    def refused(self, *command: str | Path) -> str:
        """The message of a command that fails because of what the user did: one line, no traceback."""
        process = self.start(*command)
        _, errors = process.communicate()
        assert process.returncode in (1, 2), f"{command}: {errors}"
        assert "Traceback" not in errors
        return errors

    def end_of(self, *command: str | Path) -> int:
        """The exit code of a command, or minus the signal that ended it."""
        process = self.start(*command)
        process.communicate()
        return process.returncode

    def killed(self, *command: str | Path, when: Callable[[], bool]) -> None:
        """Start a command, and kill it with `kill -9` once something is there."""
        process = self.start(*command)
        try:
            while not when():
                assert process.poll() is None, f"{command} ended before it was killed: {process.communicate()}"
                time.sleep(0.01)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()

    def json(self, *command: str | Path) -> Any:
        return json.loads(self.run("rekindle", *command, "--json"))

    def write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text, encoding="utf-8")

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.directory.glob(pattern))


def built_wheel(target: Path) -> Path:
    """The wheel of this repository."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, env=BY_US, check=True, capture_output=True)
    (wheel,) = target.glob("*.whl")
    return wheel


def install(environment: Path, *packages: str) -> None:
    """Create an empty environment, and install packages in it; skips the test if the registry cannot be reached."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    # Compiling all modules takes longer than compiling those that are imported.
    pip = [sys.executable, "-m", "pip", "--python", str(environment)]
    limits = ["--no-compile", "-c", str(ROOT / "constraints.txt")]
    done = subprocess.run([*pip, "install", "-q", *limits, *packages], env=BY_US, capture_output=True, check=False)
    if done.returncode:
        probe = [*pip, "download", "-q", "--no-cache-dir", "--no-deps", "-d", str(environment / "probe"), "packaging"]
        if subprocess.run(probe, env=BY_US, capture_output=True, check=False).returncode:
            pytest.skip("no registry of Python packages can be reached, so nothing can be installed")
        pytest.fail(done.stderr.decode())
    (environment / "home").mkdir()


@contextlib.contextmanager
def only_one(path: Path) -> Generator[None]:
    """Wait until no other process of pytest is inside."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

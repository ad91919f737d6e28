"""Keeps a process running: when it ends, however it ends, it is started again."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence

from rekindle.errors import RekindleError
from rekindle.priority import lower_priority_of

__all__ = ["Supervisor"]

_PAUSE = 0.2
"""Seconds before a process is started again."""
_EARLY = 5.0
"""A process that ends by itself within this many seconds counts as one that cannot start."""
_MOST_EARLY = 5
_STOPPING = 30.0


class Supervisor:
    """Runs a command on a thread, again and again. The command prints a line when it is ready."""

    def __init__(self, command: Sequence[str], *, niceness: int = 0) -> None:
        """`niceness` is its priority once it is ready: until then it has that of this process, to start soon."""
        self._command, self._niceness = list(command), niceness
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed by stop
        """What the processes have written to their standard error."""
        self._is_stopping = threading.Event()
        self._is_ready = threading.Event()
        self.starts = 0
        """How often the process was started."""
        self.failure: str | None = None
        """Why it is not started any more."""
        self._thread = threading.Thread(target=self._keep_running, name="rekindle-game", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process that runs now; None between two."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def is_ready(self) -> bool:
        """Whether the process has said that it is ready."""
        return self._is_ready.is_set()

    def start(self) -> None:
        """Start the process, and wait until it is ready; raises `RekindleError` if it cannot start."""
        self._thread.start()
        while not self._is_ready.wait(0.05):
            if self.failure is not None:
                raise RekindleError(self.failure)

    def kill(self) -> int | None:
        """Kill the process with SIGKILL; returns its pid, or None if it was not running."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                return None
            process.kill()
            return process.pid

    def stop(self) -> None:
        """Let the process end in order, and do not start it again."""
        self._is_stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOPPING)
            process.kill()
        if self._thread.ident is not None:
            self._thread.join(_STOPPING)
        self._errors.close()

    def _keep_running(self) -> None:
        early = 0
        while not self._is_stopping.is_set():
            begun = time.monotonic()
            with self._lock:
                if self._is_stopping.is_set():
                    return
                self.starts += 1
                self._process = process = subprocess.Popen(  # noqa: S603 - the command is ours
                    self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, text=True
                )
            with process:
                for _ in process.stdout or ():
                    lower_priority_of(process.pid, self._niceness)
                    self._is_ready.set()
            code = process.returncode
            self._is_ready.clear()
            early = early + 1 if code >= 0 and time.monotonic() - begun < _EARLY else 0
            if early == _MOST_EARLY or (code > 0 and self.starts == 1):
                self.failure = f"the server of the game ended with exit code {code}: {self._last_words()}"
                return
            self._is_stopping.wait(_PAUSE)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"

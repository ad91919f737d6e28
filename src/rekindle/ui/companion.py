"""The terminal UI of a training that was started here; it runs in its own process, so it does not slow the training."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from rekindle.errors import ConfigError
from rekindle.ui.feed import RunFeed
from rekindle.ui.output import complain
from rekindle.ui.watching import is_terminal, print_end, terminal_ui

__all__ = ["Companion", "is_shown"]

_ENDED, _FAILED, _DETACHED, _KILL = 0, 1, 10, 11
"""Exit codes of the view process."""
_PATIENCE = 10.0
"""Seconds that the view gets to notice the end of the run."""
_MOST_SAID = 2**14
"""The most bytes of redirected output that are printed when the view has closed."""
_NICENESS = 5
_RESET = b"\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[?1049l\x1b[<u\x1b[?25h"
"""Turns mouse, focus and paste reports off, and restores the screen, the keys and the cursor, after a view died."""


def is_shown(ui: str) -> bool:
    """Whether to show a training in the terminal UI; raises if it was requested explicitly but is impossible."""
    if ui == "tui":
        if not is_terminal():
            raise ConfigError("--ui tui needs a terminal for input, output and errors: use --ui auto, or plain")
        terminal_ui()  # raises if it is not installed
        return True
    return ui == "auto" and is_terminal() and _is_in_foreground() and find_spec("textual") is not None


def _is_in_foreground() -> bool:
    """Whether this process may use the terminal; a process started with `&` would be stopped for using it."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # it is not the terminal of this session, so using it stops nothing
        return True


class Companion:
    """Shows the run that this process trains until the run ends or the user leaves; then calls `when_left`.

    It reads the run directory like `rekindle watch`. Output of this process is redirected, and printed afterwards.
    """

    def __init__(self, path: str, *, stay: bool, when_left: Callable[[], object]) -> None:
        self._path = path
        self._stays = stay
        self._when_left = when_left
        self._settings = termios.tcgetattr(sys.stdin.fileno())
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the terminal is restored
        sys.stdout.flush()
        said = self._said.fileno()
        # -P: do not import from the working directory.
        view = [sys.executable, "-P", "-m", "rekindle.ui.companion"]
        command = [*view, path, str(os.getpid()), str(said), str(int(stay))]
        self._view = subprocess.Popen(command, pass_fds=[said])  # noqa: S603
        self._kept = [(descriptor, os.dup(descriptor)) for descriptor in (1, 2)]
        for descriptor, _ in self._kept:
            os.dup2(said, descriptor)
        self._waiting = threading.Thread(target=self._wait, name="rekindle-terminal-ui", daemon=True)
        self._waiting.start()

    def close(self) -> None:
        """Wait until the view has closed, which it does at the end of the run."""
        try:
            self._waiting.join(None if self._stays else _PATIENCE)
        finally:
            if self._view.poll() is None:
                self._view.kill()
            self._waiting.join()

    def _wait(self) -> None:
        code = self._view.wait()
        self._give_back(is_sane=code >= 0)  # unless a signal ended it, the view has restored the terminal
        if code == _KILL:
            complain(f"killed; rekindle resume {self._path} continues from the last checkpoint")
            os.kill(os.getpid(), signal.SIGKILL)
        if code != _ENDED:
            self._when_left()

    def _give_back(self, *, is_sane: bool) -> None:
        """Restore the terminal for this process, and print the redirected output."""
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, kept in self._kept:
            os.dup2(kept, descriptor)
            os.close(kept)
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._settings)
        if not is_sane:
            os.write(2, _RESET)
        _say(self._said.fileno())
        self._said.close()


def _say(said: int) -> None:
    """Print the end of the redirected output."""
    size = os.fstat(said).st_size
    start = max(0, size - _MOST_SAID)
    while start < size:
        start += os.write(2, os.pread(said, size - start, start))


def _show(path: Path, parent: int, said: int, *, stay: bool) -> int:
    """Run the view, in its own process."""
    # Signals to the whole group are for the training. If the training has died, the shell has the terminal back, and
    # restoring it must not stop this process.
    for number in (signal.SIGINT, signal.SIGTTOU):
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICENESS)
    feed = RunFeed(path)
    left = terminal_ui()(feed, stay=stay, is_companion=True).run()
    if os.getppid() != parent:  # the training has died, so the view prints the end
        feed.poll()
        _say(said)
        print_end(feed)
        return _FAILED
    return {"ended": _ENDED, "kill": _KILL, "detached": _DETACHED}.get(left or "", _FAILED)


if __name__ == "__main__":
    sys.exit(_show(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), stay=sys.argv[4] == "1"))

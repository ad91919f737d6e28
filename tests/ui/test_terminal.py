"""On a real terminal: a run of another process is watched and stopped, and the terminal is as it was afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import watched_runs
from watched_runs import written

from rekindle import RunReader, verify

pytest.importorskip("textual")

PATIENCE = 60.0
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
MOUSE = ("1000", "1003", "1006", "2004")
"""Modes that report the mouse and pasting: what is switched on must be switched off."""


class Terminal:
    """A pseudo-terminal with a program on it, and everything that the program wrote."""

    def __init__(
        self, arguments: list[str], *, size: tuple[int, int] = (80, 24), directory: Path | None = None
    ) -> None:
        self._screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self._terminal = terminal
        self.before = termios.tcgetattr(terminal)
        self.written = ""
        modules = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": modules}
        environment.pop("COLUMNS", None)
        environment.pop("LINES", None)
        # In a session of its own, with this terminal: Ctrl-C is a signal to it unless it is a key.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment,
            cwd=directory,
        )

    def read(self, seconds: float = 0.05) -> None:
        while select.select([self._screen], [], [], seconds)[0]:
            self.written += os.read(self._screen, 2**16).decode(errors="replace")
            seconds = 0.0

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not come to pass: {self.written[-2000:]!r}"
            self.read()

    def until_shown(self, text: str) -> None:
        self.until(lambda: text in self.text, f"{text!r}")

    @property
    def text(self) -> str:
        """What was written, without what moves and colours it; a part that did not change is not written again."""
        return re.sub(r"\x1b\[[0-9;?<>=]*[ -/]*[@-~]", "", self.written)

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def leave(self, answer: str) -> None:
        """Press `q`, and answer what is asked."""
        self.press("q")
        self.until_shown("The run is still training.")
        self.press(answer)

    def wait(self) -> int:
        self.until(lambda: self.process.poll() is not None, "the end of the program")
        self.read()
        return self.process.returncode

    @property
    def is_sane(self) -> bool:
        """Whether the program left the terminal as it found it."""
        last_screen = max(self.written.rfind(ENTER_SCREEN), self.written.rfind(LEAVE_SCREEN))
        last_cursor = max(self.written.rfind(HIDE_CURSOR), self.written.rfind(SHOW_CURSOR))
        return (
            self.written.startswith(LEAVE_SCREEN, last_screen)
            and self.written.startswith(SHOW_CURSOR, last_cursor)
            and all(self.written.rfind(f"\x1b[?{mode}l") > self.written.rfind(f"\x1b[?{mode}h") for mode in MOUSE)
            and termios.tcgetattr(self._terminal) == self.before
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._screen)
        os.close(self._terminal)


@contextlib.contextmanager
def on_terminal(arguments: list[str], *, program: str = "", directory: Path | None = None) -> Generator[Terminal]:
    """`rekindle`, or a program in its stead, on a terminal."""
    start = ["-c", program] if program else ["-m", "rekindle"]
    terminal = Terminal([sys.executable, *start, *arguments], directory=directory)
    try:
        yield terminal
    finally:
        terminal.close()


@contextlib.contextmanager
def watching(path: Path, *options: str, program: str = "") -> Generator[Terminal]:
    """`rekindle watch` on a terminal, which is in use before anything is done with it."""
    with on_terminal(["watch", str(path), *options], program=program) as terminal:
        terminal.until(lambda: ENTER_SCREEN in terminal.written, "the screen")
        terminal.until_shown("lake/v1/")
        assert termios.tcgetattr(terminal._terminal) != terminal.before
        yield terminal


@pytest.fixture
def training(tmp_path: Path) -> Generator[tuple[subprocess.Popen[str], Path]]:
    """A process that trains, and its run."""
    process = subprocess.Popen(
        [sys.executable, watched_runs.__file__, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.slow
def test_a_training_is_watched_and_stopped_with_a_checkpoint(training: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = training
    with watching(path) as terminal:
        terminal.until_shown("running")
        terminal.until_shown("steps/s")
        terminal.leave("s")
        assert terminal.wait() == 0
        assert terminal.is_sane
        after = terminal.text[terminal.text.rfind("lake/v1/") :]
        assert "stopped, rekindle watch" in after
    assert process.wait(PATIENCE) == 0
    reader = RunReader(path)
    assert (reader.status, reader.metadata.stop_reason) == ("stopped", "rekindle watch")
    assert (path / "checkpoints" / f"step_{reader.metadata.total_steps}.mpk").exists()
    assert verify(path).ok


@pytest.mark.slow
def test_a_training_is_killed(training: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = training
    with watching(path) as terminal:
        terminal.until_shown("running")
        terminal.leave("k")
        assert terminal.wait() == 0
        assert terminal.is_sane
        assert "crashed" in terminal.text
    assert process.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.slow
def test_detaching_leaves_the_training_alone(training: tuple[subprocess.Popen[str], Path]) -> None:
    process, path = training
    with watching(path) as terminal:
        terminal.leave("d")
        assert terminal.wait() == 0
        assert terminal.is_sane
        assert "It is still running: rekindle watch" in terminal.text
    assert process.poll() is None
    assert RunReader(path).is_live
    assert list((path / "control").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_view_and_leaves_the_terminal_sane(tmp_path: Path, number: signal.Signals) -> None:
    with watching(written(tmp_path).path) as terminal:
        terminal.process.send_signal(number)
        assert terminal.wait() == -number
        assert terminal.is_sane


CHATTING = """
import gymnasium as gym

class Chatting(gym.Wrapper):
    def reset(self, **options):
        print("the world begins anew")
        return self.env.reset(**options)

def make():
    return Chatting(gym.make("FrozenLake-v1"))
"""


@contextlib.contextmanager
def training_on_terminal(root: Path, *options: str, steps: int = 10**8) -> Generator[Terminal]:
    """`rekindle train` on a terminal, which shows the run; the world prints now and then."""
    (root / "chatting.py").write_text(CHATTING)
    settings = ["--name", "lake", "--steps", str(steps), "--checkpoint-every", "1000", "--metrics-every", "100"]
    settings += ["--eval-episodes", "0", "--determinism", "repeats", *options]
    with on_terminal(["train", "tabular", "chatting:make", *settings], directory=root) as terminal:
        terminal.until(lambda: ENTER_SCREEN in terminal.written, "the screen")
        terminal.until_shown("lake/v1/")
        assert "the world" not in terminal.text
        yield terminal


def has_stopped_with_a_checkpoint(root: Path, reason: str) -> bool:
    reader = RunReader(root / "runs" / "lake")
    assert (reader.status, reader.metadata.stop_reason) == ("stopped", reason)
    return (reader.path / "checkpoints" / f"step_{reader.metadata.total_steps}.mpk").exists() and verify(reader.path).ok


@pytest.mark.slow
@pytest.mark.parametrize("key", ["q", "\x03"])
def test_a_training_on_a_terminal_is_shown_and_stopped(tmp_path: Path, key: str) -> None:
    with training_on_terminal(tmp_path) as terminal:
        terminal.until_shown("running")
        if key == "q":
            terminal.leave("s")
        else:
            terminal.press(key)
        assert terminal.wait() == 0
        assert terminal.is_sane
        assert "the world begins anew" in terminal.text
        assert "stopped (asked to stop in the terminal UI)" in terminal.text
    assert has_stopped_with_a_checkpoint(tmp_path, "asked to stop in the terminal UI")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_whole_group_checkpoints_and_stops_what_is_shown(
    tmp_path: Path, number: signal.Signals
) -> None:
    with training_on_terminal(tmp_path) as terminal:
        os.killpg(terminal.process.pid, number)
        assert terminal.wait() == 130
        assert terminal.is_sane
    assert has_stopped_with_a_checkpoint(tmp_path, number.name)


@pytest.mark.slow
def test_a_training_that_is_shown_is_killed(tmp_path: Path) -> None:
    with training_on_terminal(tmp_path) as terminal:
        terminal.leave("k")
        assert terminal.wait() == -signal.SIGKILL
        assert terminal.is_sane
        assert "continues from the last checkpoint" in terminal.text
    assert RunReader(tmp_path / "runs" / "lake").status == "crashed"


@pytest.mark.slow
def test_detaching_from_the_own_training_goes_back_to_lines(tmp_path: Path) -> None:
    with training_on_terminal(tmp_path) as terminal:
        terminal.leave("d")
        terminal.until_shown(" of 100,000,000 ")
        assert terminal.is_sane
        assert RunReader(tmp_path / "runs" / "lake").is_live
        terminal.press("\x03")
        assert terminal.wait() == 130
    assert has_stopped_with_a_checkpoint(tmp_path, "SIGINT")


def view_of(training: subprocess.Popen[bytes]) -> int:
    """The process that shows a training."""
    children = Path(f"/proc/{training.pid}/task/{training.pid}/children").read_text().split()
    return next(int(child) for child in children if b"companion" in Path(f"/proc/{child}/cmdline").read_bytes())


@pytest.mark.slow
def test_a_view_that_is_killed_leaves_the_training_and_the_terminal_alone(tmp_path: Path) -> None:
    with training_on_terminal(tmp_path) as terminal:
        os.kill(view_of(terminal.process), signal.SIGKILL)
        terminal.until_shown(" of 100,000,000 ")
        assert terminal.is_sane
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.wait() == 130
    assert has_stopped_with_a_checkpoint(tmp_path, "SIGINT")


@pytest.mark.slow
def test_a_training_that_is_killed_leaves_the_terminal_sane(tmp_path: Path) -> None:
    with training_on_terminal(tmp_path) as terminal:
        terminal.process.kill()
        assert terminal.wait() == -signal.SIGKILL
        terminal.until_shown("crashed")
        terminal.until(lambda: terminal.is_sane, "a sane terminal")


@pytest.mark.slow
def test_the_view_stays_at_the_end_with_the_summary_if_asked_to(tmp_path: Path) -> None:
    with training_on_terminal(tmp_path, "--stay", steps=2000) as terminal:
        terminal.until_shown("Summary")
        assert terminal.process.poll() is None
        assert RunReader(tmp_path / "runs" / "lake").status == "finished"
        shown = len(terminal.written)
        terminal.press("q")
        terminal.until(lambda: "leave" in terminal.written[shown:], "what was behind the summary")
        terminal.press("q")
        assert terminal.wait() == 0
        assert terminal.is_sane
        assert "finished (max_steps): 2,000 steps" in terminal.text


FAILING = """
import sys
from rekindle.cli import main
from rekindle.ui import screen

def fail(self):
    raise RuntimeError("on purpose")

screen.WatchScreen.action_smooth = fail
sys.exit(main())
"""


@pytest.mark.slow
def test_an_exception_ends_the_view_and_leaves_the_terminal_sane(tmp_path: Path) -> None:
    with watching(written(tmp_path).path, program=FAILING) as terminal:
        terminal.press("s")
        assert terminal.wait() == 1
        assert terminal.is_sane
        assert "RuntimeError: on purpose" in terminal.text


@pytest.mark.slow
def test_a_terminal_that_can_only_print_gets_lines(tmp_path: Path) -> None:
    writer = written(tmp_path)
    writer.end()
    program = "import os, sys; os.environ['TERM'] = 'dumb'; from rekindle.cli import main; sys.exit(main())"
    terminal = Terminal([sys.executable, "-c", program, "watch", str(writer.path)])
    try:
        assert terminal.wait() == 0
        assert ENTER_SCREEN not in terminal.written
        assert "finished, max_steps" in terminal.text
    finally:
        terminal.close()

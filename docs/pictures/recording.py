"""A moving picture of a terminal: a training is killed with kill -9, resumed, and equal to one that was left alone.

A real shell runs the commands on a pseudo-terminal. What it prints becomes an animated SVG; only pauses are shorter.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from film import Film
from trainings import find

__all__ = ["record_kill_and_resume"]

COLUMNS, ROWS = 88, 25
_PROMPT = "$ "
_TRAIN = "rekindle train dqn CartPole-v1 --steps 20000 --ui plain"
_KILL_AT = 13
"""The thousand of steps in which the training is killed."""
_TYPING = 0.02
"""Seconds a key."""


class _Style(NamedTuple):
    bold: bool = False
    dim: bool = False
    colour: int | None = None


Cell = tuple[str, _Style]


class Screen:
    """The little of a terminal that these commands use: lines, returns, erasing to the end, bold and colours."""

    def __init__(self) -> None:
        self.rows: list[list[Cell]] = [[]]
        self._column = 0
        self._style = _Style()
        self._rest = ""

    def feed(self, text: str) -> None:
        text, self._rest = self._rest + text, ""
        place = 0
        while place < len(text):
            if text[place] == "\x1b":
                found = re.compile(r"\x1b(?:\[([?0-9;]*)([A-Za-z])|\][^\x07]*\x07|[=>])").match(text, place)
                if found is None:  # the rest of it is still to come
                    self._rest = text[place:]
                    return
                self._control(found[1] or "", found[2] or "")
                place = found.end()
                continue
            self._put(text[place])
            place += 1

    def _put(self, character: str) -> None:
        row = self.rows[-1]
        if character == "\n":
            self.rows.append([])
            self._column = 0
        elif character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character >= " ":
            if self._column >= COLUMNS:
                self._put("\n")
                row = self.rows[-1]
            row += [(" ", _Style())] * (self._column - len(row))
            row[self._column : self._column + 1] = [(character, self._style)]
            self._column += 1

    def _control(self, parameters: str, kind: str) -> None:
        if kind == "K":
            del self.rows[-1][self._column :]
        elif kind == "m":
            for number in (int(part or 0) for part in parameters.split(";")):
                if number == 0:
                    self._style = _Style()
                elif number in (1, 2):
                    self._style = self._style._replace(bold=number == 1, dim=number == 2)
                elif 30 <= number <= 37 or 90 <= number <= 97:
                    self._style = self._style._replace(colour=number % 10)

    @property
    def shown(self) -> list[list[Cell]]:
        return self.rows[-ROWS:]

    @property
    def text(self) -> str:
        return "\n".join("".join(character for character, _ in row) for row in self.rows)


class _Shell:
    """A real bash on a pseudo-terminal, in a directory where `rekindle` is a command."""

    def __init__(self, directory: Path, film: Film) -> None:
        self.screen, self._film, self._began = Screen(), film, time.monotonic()
        commands = directory / "bin"
        commands.mkdir()
        (commands / "rekindle").write_text(f'#!/bin/sh\nexec {sys.executable} -m rekindle "$@"\n')
        (commands / "rekindle").chmod(0o755)
        environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PS1": _PROMPT,
            "TERM": "xterm-256color",
            "COLUMNS": str(COLUMNS),
            "LINES": str(ROWS),
            "HISTFILE": "/dev/null",
        }
        work = directory / "work"
        work.mkdir()
        self.process, self._file = pty.fork()
        if self.process == 0:
            os.chdir(work)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        self.runs = work / "runs"
        self._wait_for_prompt()

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._file], [], [], seconds)
        if ready:
            self.screen.feed(os.read(self._file, 65536).decode(errors="replace"))
            self.show()

    def show(self, second: str = "") -> None:
        self._film.take(time.monotonic() - self._began, self.screen.shown, second)

    def _wait_for_prompt(self) -> None:
        while not self.screen.text.endswith(f"\n{_PROMPT}") and self.screen.text != _PROMPT:
            self._read(0.05)

    def type(self, command: str) -> None:
        for key in command:
            os.write(self._file, key.encode())
            self._read(0.5)
            time.sleep(_TYPING)
        os.write(self._file, b"\r")
        while self.screen.text.endswith(command):
            self._read(0.05)

    def run(self, command: str) -> None:
        self.type(command)
        self._wait_for_prompt()

    def run_and_kill(self, command: str, name: str) -> None:
        """Run a training, and kill it with the command kill -9 once it is far enough."""
        self.type(command)
        while not re.search(rf"step {_KILL_AT},\d\d\d of", self.screen.text):
            self._read(0.05)
        (writer,) = _writers(find(self.runs, name)[-1])
        for length in (1, 2, 4, 6, 8, 10):
            self.show(f"$ kill -9 {writer}"[:length])
            self._read(0.05)
        subprocess.run(["kill", "-9", str(writer)], check=True)
        self._film.second = f"$ kill -9 {writer}"
        self._wait_for_prompt()

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self._file)


def _writers(run: Path) -> list[int]:
    """The processes that write a run."""
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and any(link.startswith(str(run)) for link in _open_files(process))
    ]


def _open_files(process: Path) -> list[str]:
    try:
        return [os.readlink(link) for link in (process / "fd").iterdir()]
    except OSError:  # it has ended, or belongs to another user
        return []


def record_kill_and_resume(directory: Path, output: Path) -> None:
    """Run the commands in a directory, and write the film; raises if the runs are not equal."""
    film = Film(COLUMNS, ROWS)
    shell = _Shell(directory, film)
    try:
        shell.run_and_kill(f"{_TRAIN} --name killed", "killed")
        shell.run("rekindle resume runs/killed --ui plain")
        film.second = ""
        shell.run(f"{_TRAIN} --name alone")
        shell.run("rekindle compare runs/killed runs/alone --digests")
    finally:
        shell.close()
    if "weights yes, state yes, logs yes" not in shell.screen.text:
        raise RuntimeError("the runs are not equal")
    film.save(output)

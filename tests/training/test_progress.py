"""What `train` prints: a line that fits the terminal, lines in notebooks, nothing where nobody reads it."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any

import pytest

from rekindle import terminal
from rekindle.training import Trainer
from rekindle.training.progress import Progress


def lake(**settings: Any) -> Trainer:
    quiet = {"epsilon_steps": 0.5}
    chosen = {"steps": 300, "metrics_every": 100, "eval_every": 100, "eval_episodes": 1, **settings}
    return Trainer("FrozenLake-v1", "tabular", agent_settings=quiet, **chosen)


class Screen(io.StringIO):
    """A terminal of a width."""

    encoding = "utf-8"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        return [line for line in self.getvalue().split("\r\x1b[K") if line]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    monkeypatch.setattr("rekindle.training.progress.width_of", lambda stream: getattr(stream, "width", 80))


class TestOnATerminal:
    @pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
    def test_a_line_never_wraps_and_no_number_is_cut(self, width: int) -> None:
        def parts(screen: Screen) -> list[set[str]]:
            return [
                {part for part in line.split("  ") if "━" not in part and "/s" not in part and "left" not in part}
                for line in screen.lines
            ]

        trainer, narrow, wide = lake(), Screen(width), Screen(1000)
        Progress(trainer, narrow)
        Progress(trainer, wide)
        trainer.train(progress=False)
        assert len(narrow.lines) == 3
        assert all(len(line) < width for line in narrow.lines)
        if width > 20:
            assert all(few <= all_ for few, all_ in zip(parts(narrow), parts(wide), strict=True))
            assert narrow.lines[-1].count("step 300 of 300 (100 %)") == 1
        assert ("━" * 20 in narrow.lines[-1]) == (width == 200)

    def test_a_terminal_that_is_gone_does_not_end_the_training(self) -> None:
        class Gone(Screen):
            def write(self, text: str) -> int:
                raise OSError(5, "Input/output error")

        trainer = lake()
        progress = Progress(trainer, Gone(80))
        with progress.shown():
            assert trainer.train(progress=False).status == "finished"
        progress.clear()


class TestTrain:
    def test_it_is_silent_where_nobody_reads_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        lake().train()
        assert capsys.readouterr() == ("", "")

    def test_it_prints_lines_if_asked(self, capsys: pytest.CaptureFixture[str]) -> None:
        trainer = lake()
        trainer.train(progress=True)
        out, err = capsys.readouterr()
        assert out == ""
        assert err.splitlines()[-1].startswith("step 300 of 300 (100 %)  ")
        trainer.train(400, progress=False)
        assert capsys.readouterr() == ("", "")
        trainer.train(500, progress=True)
        assert capsys.readouterr().err.count("step 500 of 500") == 1

    def test_a_last_round_beyond_the_end_is_not_more_than_everything(self, capsys: pytest.CaptureFixture[str]) -> None:
        lake(actors=2, round_steps=64, actors_on="here").train(progress=True)
        assert "step 384 of 300 (100 %)" in capsys.readouterr().err

    @pytest.mark.parametrize("asked", ["", "progress=False"])
    def test_on_a_terminal_it_does_so_unless_told_otherwise(self, asked: str) -> None:
        program = "from rekindle.training import Trainer\n" + (
            f"Trainer('FrozenLake-v1', 'tabular', steps=100, eval_episodes=0).train({asked})"
        )
        screen, end = pty.openpty()
        fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
        process = subprocess.Popen([sys.executable, "-c", program], stderr=end, stdout=end)
        os.close(end)
        written = b""
        while part := _read(screen):
            written += part
        assert process.wait() == 0
        os.close(screen)
        assert (b"step 100 of 100 (100 %)" in written) == (not asked)

    def test_in_a_notebook_lines_go_to_standard_output(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in ("rekindle.terminal", "rekindle.training.progress"):
            monkeypatch.setattr(f"{module}.in_notebook", lambda: True)
        lake().train()
        out, err = capsys.readouterr()
        assert err == ""
        assert out.splitlines()[-1].startswith("step 300 of 300 (100 %)")
        assert "\x1b" not in out
        assert "\r" not in out


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 2**16)
    except OSError:  # the program has ended
        return b""


class TestStreams:
    def test_a_command_of_a_notebook_has_a_terminal_that_cannot_go_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert terminal.can_rewrite(Screen(80))
        monkeypatch.setenv("JPY_PARENT_PID", "1")
        assert not terminal.can_rewrite(Screen(80))

    def test_a_kernel_is_a_notebook(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Shell:
            kernel = None

        class Module:
            shell: Any = None

            def get_ipython(self) -> Any:
                return self.shell

        assert not terminal.in_notebook()
        module = Module()
        monkeypatch.setitem(sys.modules, "IPython", module)  # pyright: ignore[reportArgumentType]
        assert not terminal.in_notebook()
        module.shell = Shell()
        assert terminal.in_notebook()
        assert terminal.shown_interactively()


class TestReport:
    def test_evaluations_have_their_own_steps(self) -> None:
        trainer = lake(metrics_every=70, eval_every=100)
        report = trainer.train()
        assert trainer.path is not None
        item = report.metrics["eval/return"]
        assert item.min_step in (100, 200, 300)
        assert item.max_step in (100, 200, 300)
        assert report.metrics["eval/length"].max_step in (100, 200, 300)
        assert "eval/prob" in report.metrics

    def test_a_console_shows_it_as_a_table(self) -> None:
        report = lake().train()
        assert repr(report) == str(report)
        assert repr(report).startswith("finished (max_steps) after 300 env steps")

    @pytest.mark.parametrize("name", [None, "lake<b>"])
    def test_a_notebook_shows_it_as_a_page(self, tmp_path: Any, name: str | None) -> None:
        report = lake(name="lake" if name else None, root=tmp_path / "<b>").train()
        page: str = report._repr_html_()
        assert "<td>episode/return</td>" in page
        assert ("<svg" in page) == (name is not None)
        assert "<b>/lake" not in page


class TestWithoutAConsole:
    """In an engine that embeds Python, or with a log in place of standard error."""

    class Log:
        """What programs put in place of standard error: it can be written to, and no more."""

        def __init__(self) -> None:
            self.text = ""

        def write(self, text: str) -> None:
            self.text += text

        def flush(self) -> None: ...

    @pytest.mark.parametrize("progress", [None, True])
    def test_a_program_without_standard_streams_trains(
        self, monkeypatch: pytest.MonkeyPatch, progress: bool | None
    ) -> None:
        for name in ("stdin", "stdout", "stderr"):
            monkeypatch.setattr(sys, name, None)
        assert lake().train(progress=progress).status == "finished"

    def test_a_log_gets_lines_if_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        log = self.Log()
        monkeypatch.setattr(sys, "stderr", log)
        lake().train()
        assert log.text == ""
        lake().train(progress=True)
        assert "step 300 of 300 (100 %)" in log.text

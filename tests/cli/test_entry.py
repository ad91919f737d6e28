"""The command `rekindle`: its help, its exit codes, and one line for what went wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_run

from rekindle import __version__
from rekindle.cli import main
from rekindle.cli.commands import COMMANDS

Rekindle = Callable[..., Any]


def widest(text: str) -> int:
    """The longest line, but for the usage, which tyro leaves to the terminal to break."""
    return max(len(line) for line in text.splitlines() if not line.startswith("usage:"))


def test_the_help_names_every_command(rekindle: Rekindle) -> None:
    outcome = rekindle("--help")
    assert outcome.code == 0
    assert all(f"• {name} " in outcome.out for name in COMMANDS)
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted." in outcome.out
    assert widest(outcome.out) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_explains_each_argument(rekindle: Rekindle, name: str) -> None:
    outcome = rekindle(name, "--help")
    assert outcome.code == 0
    assert ("--json" in outcome.out) == (name not in ("game", "serve", "watch", "report", "plot", "dashboard"))
    assert widest(outcome.out) <= 80


@pytest.mark.parametrize(("command", "needed"), [("--help", set[str]()), ("runs", {"rich"})])
def test_the_help_and_the_list_of_runs_load_nothing_heavy(command: str, needed: set[str], tmp_path: Path) -> None:
    make_run(tmp_path)
    arguments = [command, str(tmp_path)] if command == "runs" else [command]
    program = (
        f"import sys\nfrom rekindle.cli import main\nmain({arguments})\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    heavy = {"gymnasium", "jax", "matplotlib", "rich", "torch"}
    assert heavy & {*done.stderr.split()} == needed


def test_it_knows_its_version(rekindle: Rekindle) -> None:
    assert rekindle("--version") == (0, f"rekindle {__version__}\n", "")


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("shwo", "did you mean show"),
        ("run", "did you mean runs"),
        ("diff", "use one of train, resume"),
        ("\x1b[2J", "use one of train, resume"),
    ],
)
def test_an_unknown_command_is_answered_with_what_may_be_meant(rekindle: Rekindle, word: str, advice: str) -> None:
    outcome = rekindle(word, "somewhere")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert outcome.err.startswith("rekindle: there is no command ")
    assert advice in outcome.err
    assert "\x1b" not in outcome.err


@pytest.mark.parametrize(
    "arguments", [(), ("show",), ("show", "a", "b"), ("show", "a", "--jsn"), ("stop", "a", "--wait", "long")]
)
def test_wrong_usage_is_told_on_standard_error_and_is_exit_code_2(
    rekindle: Rekindle, arguments: tuple[str, ...]
) -> None:
    outcome = rekindle(*arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err


def test_an_interrupt_is_exit_code_130_and_no_traceback(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> list[Path]:
        raise KeyboardInterrupt

    monkeypatch.setattr("rekindle.cli.runs.find_runs", interrupted)
    assert rekindle("runs", tmp_path) == (130, "", "rekindle: interrupted\n")


@pytest.mark.parametrize(("code", "shown"), [(None, ""), (0, "0"), (3, "3"), ("no licence", "'no licence'")])
def test_code_that_calls_sys_exit_is_named_and_is_exit_code_1(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch, code: str | int | None, shown: str
) -> None:
    def leaving(_: object) -> list[Path]:
        sys.exit(code)

    monkeypatch.setattr("rekindle.cli.runs.find_runs", leaving)
    outcome = rekindle("runs", tmp_path)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "test_entry.py:" in outcome.err
    assert f" called sys.exit({shown}), which ended the command" in outcome.err


def test_a_refusal_of_the_file_system_is_one_line(
    tmp_path: Path, rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> list[Path]:
        raise PermissionError(13, "Permission denied", "runs\n/secret")

    monkeypatch.setattr("rekindle.cli.runs.find_runs", refused)
    outcome = rekindle("runs", tmp_path)
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
    assert "Permission denied" in outcome.err


def test_a_defect_of_ours_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.cli.runs.find_runs", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["runs", str(tmp_path)])


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reader_that_has_had_enough_ends_it_quietly(tmp_path: Path, option: list[str]) -> None:
    make_run(tmp_path)
    process = subprocess.Popen(
        [sys.executable, "-m", "rekindle", "runs", str(tmp_path), *option],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as err:
        assert err.read() == b""
    assert process.wait() == 1


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_as_a_program_it_prints_plain_text_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    path = make_run(tmp_path)
    (path / "config.json").write_text(json.dumps({"größe": "π"}))
    done = subprocess.run(
        [sys.executable, "-m", "rekindle", "show", str(path)],
        capture_output=True,
        env={"PYTHONIOENCODING": encoding, "COLUMNS": "80"},
        check=True,
    )
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout
    assert ("π" in done.stdout.decode(encoding)) == (encoding == "utf-8")


def test_with_closed_standard_streams_a_command_works_and_files_do_not_get_their_descriptors(tmp_path: Path) -> None:
    make_run(tmp_path)
    program = (
        "from rekindle.cli import main\n"
        "code = main(['runs', '.'])\n"
        "with open('outcome', 'w') as file:\n    file.write(f'{code} {file.fileno() > 2}')"
    )
    command = ["/bin/sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 0
    assert (tmp_path / "outcome").read_text() == "0 True"

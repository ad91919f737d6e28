"""Runs with pipes, devices, directories, links and endless files in them: no command waits, the others are shown."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_run

from rekindle import RunReader
from rekindle.training import Trainer
from rekindle.ui.dashboard.listing import Listing

Rekindle = Callable[..., Any]

LOGS = ("train_episodes.jsonl", "eval_episodes.jsonl", "metrics.jsonl", "warnings.jsonl")
NAMES = ("lock", "config.json", "metadata.json", *LOGS)
PLACES = (*NAMES, "checkpoints/best.mpk", "checkpoints/latest.mpk")
ENDLESS = 2**40
"""Bytes of a file that takes no space."""


def pipe(path: Path) -> None:
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.mkdir()


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = os.open(path.parent, os.O_DIRECTORY)
        try:  # the whole path would be too long for a socket
            server.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def endless(path: Path) -> None:
    path.touch()
    os.truncate(path, ENDLESS)


KINDS = (pipe, directory, link_to_a_device, link_to_itself, socket_file, endless)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run of a trainer and a run of a script."""
    root = tmp_path_factory.mktemp("sound")
    Trainer("FrozenLake-v1", "tabular", name="bad", root=root, steps=300, eval_episodes=1, eval_every=100).train()
    make_run(root, "good")
    return root


@pytest.fixture
def runs(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    shutil.copytree(sound, root)
    monkeypatch.chdir(tmp_path)
    return root


def spoil(root: Path, name: str, kind: Callable[[Path], None]) -> Path:
    """Put something else in the place of a file of the bad run; returns the run."""
    path = RunReader(root / "bad").path
    file = path / name
    file.unlink(missing_ok=True)
    kind(file)
    return path


SEVERAL = [
    ("runs", "runs"),
    ("compare", "BAD", "GOOD"),
    ("report", "BAD", "GOOD", "-o", "report.html"),
    ("plot", "runs", "-o", "plot.svg"),
]
ONE = [
    ("show", "BAD"),
    ("show", "BAD", "--json"),
    ("verify", "BAD"),
    ("stop", "BAD"),
    ("watch", "BAD"),
    ("report", "BAD", "-o", "report.html"),
    ("plot", "BAD", "-o", "plot.png"),
    ("eval", "BAD", "--episodes", "1"),
    ("export", "BAD", "-o", "policy.mpk"),
    ("fork", "BAD", "-o", "branch", "--steps", "320", "--ui", "none"),
    ("resume", "BAD", "--steps", "320", "--ui", "none"),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_no_command_hangs_or_breaks_down_on_a_file_that_is_none(
    runs: Path, rekindle: Rekindle, place: str, kind: Callable[[Path], None]
) -> None:
    good = RunReader(runs / "good").path
    bad = spoil(runs, place, kind)
    for command in (*SEVERAL, *ONE):
        words = [{"BAD": bad, "GOOD": good}.get(word, word) for word in command]
        outcome = rekindle(*words)
        assert outcome.code in (0, 1, 2), command
        assert outcome.err.count("\n") <= 3, (command, outcome.err)
        if command[0] in ("runs", "compare"):
            assert "finished" in outcome.out or outcome.code, (command, outcome.out, outcome.err)
    assert "good" in rekindle("runs", "runs").out


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("place", PLACES)
def test_the_list_of_the_dashboard_shows_the_other_runs(runs: Path, place: str, kind: Callable[[Path], None]) -> None:
    spoil(runs, place, kind)
    listing = Listing(runs)
    while listing.refresh():
        pass
    rows, _, _ = listing.changed_since(0)
    assert {row.name: row.status for row in rows}["good"] == "finished"


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_pipe_for_a_lock_is_named(runs: Path, rekindle: Rekindle, status: str) -> None:
    bad = spoil(runs, "lock", pipe)
    metadata = bad / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"finished"', f'"{status}"'))
    for command in ("show", "stop", "resume"):
        outcome = rekindle(command, bad, *(("--steps", "320", "--ui", "none") if command == "resume" else ()))
        if command != "show" or status == "running":
            assert f"{bad / 'lock'}: it is not a regular file" in outcome.flat.replace("│", " ") + outcome.err


def test_stop_follows_no_link_in_place_of_the_directory_for_requests(runs: Path, rekindle: Rekindle) -> None:
    from rekindle.storage.lock import Lock

    bad = RunReader(runs / "bad").path
    outside = runs.parent / "outside"
    outside.mkdir()
    (bad / "control").rmdir()
    (bad / "control").symlink_to(outside)
    lock = Lock(bad / "lock")
    try:
        outcome = rekindle("stop", bad)
    finally:
        lock.release()
    assert outcome.code == 1
    assert f"cannot use {bad / 'control'}: it is a symbolic link" in outcome.err
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (("report", "GOOD", "-o", "shared/out.html"), "out.html"),
        (("plot", "GOOD", "-o", "shared/out.svg"), "out.svg"),
        (("eval", "BAD", "--checkpoint", "latest", "--episodes", "1", "--video", "shared"), "step_300-episode_0.gif"),
    ],
    ids=["report", "plot", "video"],
)
def test_outputs_follow_no_link_that_others_planted(
    runs: Path, rekindle: Rekindle, command: tuple[str, ...], name: str
) -> None:
    if command[0] == "eval":
        pytest.importorskip("pygame")
    victim, shared = runs.parent / "victim", runs.parent / "shared"
    victim.write_text("mine")
    shared.mkdir()
    for planted in (f".{name}.{os.getpid()}.tmp", f".{name}.tmp", name):
        (shared / planted).symlink_to(victim)
    paths = {"BAD": RunReader(runs / "bad").path, "GOOD": RunReader(runs / "good").path}
    outcome = rekindle(*(paths.get(word, word) for word in command))
    assert outcome.code == 0, outcome.err
    assert victim.read_text() == "mine"
    assert (shared / name).stat().st_size > 100
    assert not (shared / name).is_symlink()


def test_a_matplotlibrc_in_the_working_directory_changes_no_plot(runs: Path, tmp_path: Path) -> None:
    program = "import sys; from rekindle.cli import main; sys.exit(main(['plot', 'runs', '-o', 'plot.svg']))"
    pictures: list[bytes] = []
    for text in ("svg.hashsalt: a\n", "svg.hashsalt: a\nfigure.facecolor: red\ntext.usetex: True\n"):
        (tmp_path / "matplotlibrc").write_text(text)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)
        pictures.append(re.sub(rb'(id="|#)[mpcP]\w{10,}', b"", (tmp_path / "plot.svg").read_bytes()))
    assert pictures[0] == pictures[1]


NUMBERS = (10**400, 10**30, -(10**30), 1e308, -1e308, 1e15)
DATES = ("0001-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59", "9999-12-31T23:59:59-14:00")


def show_everything(rekindle: Rekindle, run: Path) -> None:
    for command in SEVERAL[:2] + ONE[:7]:
        words = [{"BAD": run, "GOOD": run, "runs": run}.get(word, word) for word in command]
        outcome = rekindle(*words)
        assert outcome.code in (0, 1, 2), command


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("field", ["started_at", "last_updated"])
def test_dates_at_the_ends_of_the_calendar_are_shown(runs: Path, rekindle: Rekindle, field: str, date: str) -> None:
    path = RunReader(runs / "bad").path
    metadata = json.loads((path / "metadata.json").read_text())
    (path / "metadata.json").write_text(json.dumps({**metadata, field: date}))
    show_everything(rekindle, path)
    assert rekindle("runs", "runs").code == 0


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number:.4}" if isinstance(number, float) else "int")
@pytest.mark.parametrize("field", ["env_steps", "total_reward", "wall_time", "length"])
def test_numbers_that_no_run_can_have_are_shown(runs: Path, rekindle: Rekindle, field: str, number: float) -> None:
    path = RunReader(runs / "bad").path
    for log in ("train_episodes.jsonl", "eval_episodes.jsonl"):
        *rows, last = (path / log).read_text().splitlines()
        changed = json.dumps({**json.loads(last), field: number, "total_steps_at_eval": number})
        (path / log).write_text("\n".join([*rows, changed]) + "\n")
    show_everything(rekindle, path)

"""Commands that stop when the process that started them is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from rekindle.run.finding import find_runs
from rekindle.run.reader import RunReader

START = """
import subprocess, sys
from rekindle.launch import launching

process = subprocess.Popen(launching("dashboard", sys.argv[1], "--port", "0"), stdout=subprocess.PIPE, text=True)
process.stdout.readline()
print(process.pid, flush=True)
"""


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def test_a_command_stops_when_the_process_that_started_it_ends(tmp_path: Path) -> None:
    started = subprocess.run([sys.executable, "-c", START, tmp_path], capture_output=True, text=True, check=True)
    deadline = time.monotonic() + 60
    while is_running(int(started.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_runs_of_several_seeds_stop_with_a_checkpoint_when_their_command_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rekindle", "train", "tabular", "FrozenLake-v1", "--seeds", "0,1", "--jobs", "2"]
    command += ["--steps", "None", "--checkpoint-every", "500", "--runs", str(tmp_path), "--ui", "none"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len({file.parent for file in tmp_path.rglob("step_*.mpk")}) < 2:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()

    runs = find_runs(tmp_path)
    while any(RunReader(run).is_live for run in runs):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [RunReader(run).status for run in runs] == ["stopped", "stopped"]
    assert [RunReader(run).metadata.stop_reason for run in runs] == ["SIGTERM", "SIGTERM"]

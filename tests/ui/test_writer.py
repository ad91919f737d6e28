"""Only the process that really writes a run is ever killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import watched_runs
from watched_runs import Writer

from rekindle import RunReader
from rekindle.errors import RunError
from rekindle.ui.writer import find_writer, kill_writer


def test_the_writer_of_a_live_run_is_found(tmp_path: Path) -> None:
    assert find_writer(RunReader(Writer(tmp_path).path)) == os.getpid()


def test_a_run_that_is_not_live_has_no_writer(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.end()
    with pytest.raises(RunError, match="not live"):
        kill_writer(RunReader(writer.path))


def test_a_writer_on_another_machine_is_left_alone(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    (writer.path / "lock").write_text(f"process {os.getpid()} on elsewhere\n")
    with pytest.raises(RunError, match="kill it there"):
        kill_writer(RunReader(writer.path))


def test_a_process_that_does_not_have_the_lock_open_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        writer = Writer(tmp_path)
        (writer.path / "lock").write_text(f"process {bystander.pid} on {socket.gethostname()}\n")
        with pytest.raises(RunError, match="has not opened it"):
            kill_writer(RunReader(writer.path))
        bystander.communicate(b"\n")
    assert bystander.returncode == 0


@pytest.mark.slow
def test_the_writer_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, watched_runs.__file__, str(tmp_path)], stdout=subprocess.PIPE) as training:
        assert training.stdout is not None
        reader = RunReader(training.stdout.readline().decode().strip())
        assert kill_writer(reader) == training.pid
    assert training.returncode == -signal.SIGKILL
    assert reader.status == "crashed"

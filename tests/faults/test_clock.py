"""The clock may say what it likes: order, pruning and exactness come from steps and counters."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from harness import ENVIRONMENT, HERE, Training, assert_exact

import rekindle
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_runs

LIBRARIES = [
    path
    for directory in ("/usr/lib", "/usr/lib64", "/usr/local/lib")
    for path in sorted(Path(directory).glob("**/faketime/libfaketimeMT.so*"))
]
pytestmark = pytest.mark.skipif(not LIBRARIES, reason="faketime is not installed")


@pytest.fixture
def clock(tmp_path: Path) -> Path:
    """What the clock of a process under `faked` says; it may be changed while the process runs."""
    path = tmp_path / "clock"
    path.write_text("+0\n")
    return path


def faked(clock: Path) -> dict[str, str]:
    return {
        **ENVIRONMENT,
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def test_the_fake_works(clock: Path) -> None:
    clock.write_text("-10y\n")
    program = "import time; print(time.time())"
    said = subprocess.run([sys.executable, "-c", program], env=faked(clock), capture_output=True, text=True, check=True)
    assert abs(float(said.stdout) - time.time()) > 9 * 365 * 86400


def test_a_clock_that_goes_back_with_every_checkpoint_changes_nothing(
    training: Training, clock: Path, reference: Mapping[str, str | None]
) -> None:
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        sys.path.insert(0, sys.argv[1])
        import worker
        take = worker.Acknowledgements.take
        def go_back(self, event):
            take(self, event)
            if isinstance(event, worker.CheckpointSaved):
                Path(sys.argv[4]).write_text(f"-{event.stamp.env_steps}d\\n")
        worker.Acknowledgements.take = go_back
        worker.train(sys.argv[2], sys.argv[3])
    """)
    arguments = [str(path) for path in (HERE, training.root, training.acknowledged_path, clock)]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=faked(clock), capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert_exact(training, reference)
    times = [row["wall_time"] for row in rekindle.RunReader(training.run).train_episodes()]
    assert max(times) - min(times) > 70 * 86400
    assert times != sorted(times)


def test_a_resume_in_the_past_goes_on_from_the_newest_checkpoint_and_prunes_the_oldest(
    training: Training, clock: Path, reference: Mapping[str, str | None]
) -> None:
    clock.write_text("+300d\n")
    first = subprocess.run(
        training.command("--steps=70"), env=faked(clock), capture_output=True, text=True, check=False
    )
    assert first.returncode == 0, first.stderr
    run = TrainingRun.resume(training.run)
    run.update_metadata(status="running")
    run.close()
    for path in training.run.rglob("*"):
        os.utime(path, (0, 0))
    clock.write_text("-300d\n")
    second = subprocess.run(training.command(), env=faked(clock), capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert "resumed 70" in training.acknowledged
    assert training.steps_on_disk == [100, 120]
    assert_exact(training, reference)


def test_run_ids_never_go_back(tmp_path: Path, clock: Path) -> None:
    program = textwrap.dedent("""
        import sys, rekindle
        run = rekindle.TrainingRun.create("past", root=sys.argv[1])
        print(run.run_id)
        run.close()
    """)
    made: list[str] = []
    for offset in ("+0", "-1d", "-10y", "+1y", "+0"):
        clock.write_text(offset + "\n")
        said = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], env=faked(clock), capture_output=True, text=True, check=True
        )
        made.append(said.stdout.strip())
    assert [path.name for path in find_runs(tmp_path)] == made
    assert made[1:3] == [f"{made[0]}_2", f"{made[0]}_3"]
    assert made[4] == f"{made[3]}_2"
    assert rekindle.RunReader(tmp_path / "past").path.name == made[-1]


def test_a_lock_is_waited_for_by_a_clock_that_only_goes_forward(tmp_path: Path, clock: Path) -> None:
    run = TrainingRun.create("held", root=tmp_path)
    program = textwrap.dedent("""
        import sys, threading, time, rekindle
        from pathlib import Path
        time.sleep = lambda seconds: threading.Event().wait(seconds)  # which libfaketime 0.9.10 would break
        threading.Timer(0.3, lambda: Path(sys.argv[2]).write_text("-1d\\n")).start()
        try:
            rekindle.TrainingRun.resume(sys.argv[1])
        except rekindle.RekindleError as error:
            print(type(error).__name__)
    """)
    said = subprocess.run(
        [sys.executable, "-c", program, str(run.path), str(clock)],
        env=faked(clock),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,  # and not a day
    )
    run.close()
    assert said.stdout == "RunLocked\n"

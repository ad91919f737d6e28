"""Examples as processes of their own, to be watched, killed and started again."""

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from rekindle import RunReader, verify
from rekindle.run.finding import find_runs

EXAMPLES = Path(__file__).parents[2] / "examples"


def command(example: str, runs: Path, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{example}.py"), "--runs", str(runs), *arguments]


def run(example: str, runs: Path, *arguments: str) -> str:
    done = subprocess.run(command(example, runs, *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def start(example: str, runs: Path, steps: int) -> subprocess.Popen[str]:
    arguments = command(example, runs, "--steps", str(steps))
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, f"it ended too early: {process.communicate()}"
        time.sleep(0.001)


def checkpointed_steps(runs: Path) -> int:
    """The newest checkpoint of the one run there; -1 when there is no run yet."""
    paths = find_runs(runs)
    if not paths:
        return -1
    names = [path.stem for path in (paths[0] / "checkpoints").glob("step_*.mpk")]
    return max((int(name.removeprefix("step_")) for name in names), default=0)


def run_with_kills(example: str, runs: Path, steps: int, kills: list[int]) -> str:
    """Kill an example soon after each of these checkpoints, start it again each time, and let it end."""
    for number, checkpoint in enumerate(kills, 1):
        process = start(example, runs, steps)
        # The metadata names a resume when it is complete: else this would see the process before.
        wait_until(lambda checkpoint=checkpoint: checkpointed_steps(runs) >= checkpoint, process)
        wait_until(lambda number=number: len(RunReader(find_runs(runs)[0]).metadata.resumes) == number - 1, process)
        time.sleep(0.02 * number)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.communicate()
    told = run(example, runs, "--steps", str(steps))
    (path,) = find_runs(runs)
    result, metadata = verify(path), RunReader(path).metadata
    assert (result.ok, result.grade, result.problems) == (True, "exact", [])
    assert (metadata.status, metadata.total_steps) == ("finished", steps)
    assert len(metadata.resumes) == len(kills)
    return told


def load(example: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(example, EXAMPLES / f"{example}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""The examples run, do what they say, and survive what they say they survive."""

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from example_runs import checkpointed_steps, command, load, run, run_with_kills, start, wait_until
from rich.console import Console

from rekindle import RunReader, verify
from rekindle.run.finding import find_runs

pytestmark = pytest.mark.slow

STEPS = {"own_loop": 12_000, "custom_agent": 30_000}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str | None]]:
    known: dict[str, dict[str, str | None]] = {}

    def digests(example: str) -> dict[str, str | None]:
        if example not in known:
            runs = tmp_path_factory.mktemp(example)
            run(example, runs, "--steps", str(STEPS[example]))
            known[example] = verify(find_runs(runs)[0]).digests
        return known[example]

    return digests


@pytest.mark.parametrize(
    ("example", "kills"),
    [
        ("own_loop", [0]),
        ("own_loop", [3_500]),
        ("own_loop", [0, 1_500, 1_500, 5_000]),
        ("custom_agent", [4_000, 12_000]),
    ],
)
def test_a_run_killed_at_any_time_and_started_again_ends_like_one_that_was_not(
    example: str, kills: list[int], tmp_path: Path, uninterrupted: Callable[[str], dict[str, str | None]]
) -> None:
    run_with_kills(example, tmp_path, STEPS[example], kills)
    assert verify(find_runs(tmp_path)[0]).digests == uninterrupted(example)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_asked_to_stop_says_so_and_goes_on_when_started_again(
    number: signal.Signals, tmp_path: Path, uninterrupted: Callable[[str], dict[str, str | None]]
) -> None:
    process = start("own_loop", tmp_path, STEPS["own_loop"])
    wait_until(lambda: checkpointed_steps(tmp_path) >= 1_000, process)
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    metadata = RunReader(find_runs(tmp_path)[0]).metadata
    assert (metadata.status, metadata.stop_reason) == ("stopped", number.name)
    told = run("own_loop", tmp_path, "--steps", str(STEPS["own_loop"]))
    assert f"going on from step {metadata.total_steps} (exact)" in told
    assert verify(find_runs(tmp_path)[0]).digests == uninterrupted("own_loop")


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    for seed in ("0", "1"):
        run("own_loop", tmp_path / seed, "--steps", "1000", "--seed", seed)
    first, second = (verify(find_runs(tmp_path / seed)[0]).digests for seed in ("0", "1"))
    assert all(first[name] != second[name] for name in first)


def test_an_agent_of_ones_own_learns(tmp_path: Path) -> None:
    before, after = re.findall(r"(\d+) steps upright", run("custom_agent", tmp_path))
    assert int(before) < 50
    assert int(after) >= 450


def test_the_demo_is_killed_goes_on_and_ends_equal(tmp_path: Path) -> None:
    told = run("demo", tmp_path, "--steps", "6000")
    assert "kill -9 after step" in told
    assert "the run is now crashed" in told
    assert re.search(r"gone on from the checkpoint at step [2-5],\d+.*: exact", told)
    assert re.search(r"killed +finished +6,000 .* 1 +exact", told)
    assert re.search(r"uninterrupted +finished +6,000 .* 0 +exact", told)
    assert len(re.findall(r" equal *\n", told)) == 3
    assert "Equal to the bit" in told
    assert re.search(r"Its learning curve: .*demo.png \(.+ kB\): 1 run\n", told)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_the_demo_stopped_by_ctrl_c_leaves_no_traceback_and_no_process(tmp_path: Path) -> None:
    # A shell starts what it puts into the background with SIGINT ignored, and that would be inherited.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command("demo", tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, inherited)
    wait_until(lambda: checkpointed_steps(tmp_path) >= 2_000, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (130, "\nStopped.\n")
    assert RunReader(find_runs(tmp_path)[0]).status == "crashed"


def test_the_demo_fails_when_the_runs_differ(tmp_path: Path) -> None:
    demo, reports = load("demo"), []
    for seed in ("0", "1"):
        run("own_loop", tmp_path / seed, "--steps", "1000", "--seed", seed)
        path = find_runs(tmp_path / seed)[0]
        reports.append(demo.Report(str(path), 1000, 1, 1, 0.0, evaluation=0.0))
    console = Console(record=True, quiet=True)
    assert demo.compare(console, *reports) == 1
    assert demo.compare(console, reports[0], reports[0]) == 0


def test_a_controller_of_a_robot_is_killed_in_mid_episode_and_goes_on(tmp_path: Path) -> None:
    told = run("robot_loop", tmp_path, "--kills", "3")
    assert len(re.findall(r"kill \d: after step \d+\n", told)) == 3
    assert len(re.findall(r"resume \d: from the checkpoint of step \d+, \d+ calls replayed \(exact\)\n", told)) == 3
    assert re.search(r"verify: ok, exact, \d+ steps\n", told)
    assert re.search(r"replay: \d+ calls replayed without the arm, \d checkpoints equal to the bit\n", told)
    (path,) = find_runs(tmp_path)
    assert RunReader(path).metadata.status == "finished"

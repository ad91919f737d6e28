"""`rekindle train --seeds`: several runs by one command."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle import RunReader
from rekindle.cli.seeds import parse_seeds
from rekindle.errors import ConfigError

Rekindle = Callable[..., Any]
LAKE = ("train", "tabular", "FrozenLake-v1", "--name", "lake", "--eval-episodes", "2")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("text", "seeds"), [("3", [3]), ("0-2", [0, 1, 2]), ("5,1-2", [5, 1, 2])])
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "-1", "3-1", "1,1", "0-", "1.5", "3-1,5"])
def test_what_are_no_seeds_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="use different whole numbers such as 0-4"):
        parse_seeds(text)


def test_so_many_seeds_that_they_must_be_a_mistake_are_refused() -> None:
    with pytest.raises(ConfigError, match="use at most 10,000"):
        parse_seeds("0-999999999")


@pytest.mark.slow
def test_each_seed_has_a_run_and_all_have_one_table(rekindle: Rekindle) -> None:
    outcome = rekindle(*LAKE, "--steps", 300, "--seeds", "2-3", "--jobs", 2)
    assert outcome.code == 0
    assert "of 2 seeds" in outcome.out
    assert "seed 2: step 300 of 300 (100 %)" in outcome.err
    for seed in (2, 3):
        metadata = RunReader(f"runs/lake/v1-seed{seed}").metadata
        assert (metadata.seed, metadata.status, metadata.total_steps) == (seed, "finished", 300)


@pytest.mark.slow
def test_a_seed_that_fails_does_not_stop_the_others(rekindle: Rekindle, here: Path) -> None:
    (here / "runs/lake").mkdir(parents=True)
    (here / "runs/lake/v1-seed0").write_text("in the way")
    outcome = rekindle(*LAKE, "--steps", 100, "--seeds=0,1", "--json", "--ui", "none")
    assert outcome.code == 1
    failed, trained = outcome.json
    assert failed["report"] is None
    assert "v1-seed0" in failed["error"]
    assert (trained["seed"], trained["error"], trained["report"]["env_steps"]) == (1, None, 100)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_stops_all_with_checkpoints(here: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "rekindle", *LAKE, "--steps", "None", "--seeds", "0-2", "--jobs", "2"]
    # A shell starts what it puts into the background with SIGINT ignored, nohup with SIGHUP: that would be inherited.
    inherited = {name: signal.signal(name, signal.SIG_DFL) for name in (signal.SIGINT, signal.SIGHUP)}
    process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for name, handler in inherited.items():
        signal.signal(name, handler)
    assert process.stderr is not None
    seen: set[str] = set()
    try:
        while len(seen) < 2:
            line = process.stderr.readline()
            assert line, "it ended"
            if line.startswith("seed"):
                seen.add(line[:6])
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    finally:
        process.terminate()  # passes it on to the trainings, which would never end
    assert process.returncode == 130
    assert out.count(" stopped ") == 2
    assert out.count("not begun") == 1
    for seed in (0, 1):
        reader = RunReader(here / f"runs/lake/v1-seed{seed}")
        assert reader.status == "stopped"
        assert (reader.path / f"checkpoints/step_{reader.metadata.total_steps}.mpk").exists()

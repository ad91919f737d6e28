"""Configs that come with a run from elsewhere: nothing outside of the run happens unless the user asks for it too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle import RunReader
from rekindle.cli import main
from rekindle.errors import ConfigError
from rekindle.training import Trainer, rebuild
from rekindle.training.algorithms import make_agent
from rekindle.training.config import Parent, TrainerSettings


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Trainer("FrozenLake-v1", "tabular", name="lake", steps=60, eval_episodes=1).train()
    return RunReader("runs/lake").path


def rewrite(run: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the config and what the metadata repeat of it, as somebody who wrote both could."""
    config = json.loads((run / "config.json").read_text())
    change(config)
    (run / "config.json").write_text(json.dumps(config))
    metadata = json.loads((run / "metadata.json").read_text())
    change(metadata["training"])
    (run / "metadata.json").write_text(json.dumps(metadata))


# Ray clusters


def test_a_ray_cluster_must_be_named_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"actors": 2, "envs_each": 1, "num_envs": 2, "round_steps": 5, "actors_on": "ray"}
    rewrite(run, lambda config: config.update(settings))
    (run / "config.json").write_text(
        json.dumps({**json.loads((run / "config.json").read_text()), "ray_address": "203.0.113.9:6379"})
    )
    assert main(["resume", str(run), "--steps", "1060", "--ui", "none"]) == 2
    told = capsys.readouterr().err
    assert "connects to the Ray cluster at '203.0.113.9:6379', which is done only if you name it too" in told
    for resume in (Trainer.resume, rekindle.fork):
        with pytest.raises(ConfigError, match="done only if you name it too"):
            resume(run)
    Trainer.resume(run, ray_address="10.0.0.1:6379")
    Trainer.resume(run, actors_on="processes")


# Recorders


@pytest.mark.parametrize("recorder", ["mlflow", "wandb"])
def test_a_recorder_outside_of_the_run_must_be_named_again(
    run: Path, recorder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    class Recorder:
        def record(self, values: object, stamp: object) -> None:
            made.append(recorder)

        def close(self, status: str) -> None:
            made.append(status)

    monkeypatch.setitem(Trainer.__init__.__globals__["RECORDERS"], recorder, Recorder)
    rewrite(run, lambda config: config.update(record=["tensorboard", recorder]))
    before = sorted(run.parent.parent.parent.rglob("*"))
    assert main(["resume", str(run), "--steps", "1060", "--ui", "none", "--json"]) == 2
    told = capsys.readouterr().err
    assert f"sends metrics to {recorder}, outside of the run" in told
    assert f"--record tensorboard {recorder}" in told
    assert sorted(run.parent.parent.parent.rglob("*")) == before
    with pytest.raises(ConfigError, match="done only if you name it too"):
        Trainer.resume(run)
    assert made == []
    assert main(["resume", str(run), "--steps", "1060", "--record", recorder, "--ui", "none", "--json"]) == 0
    assert made


def test_a_run_goes_on_without_its_recorders(run: Path) -> None:
    rewrite(run, lambda config: config.update(record=["mlflow"]))
    assert main(["resume", str(run), "--steps", "80", "--ui", "none", "--json", "--record"]) == 0
    assert RunReader(run).read_config()["record"] == []


# Files


OPENED = """
import gymnasium
opened = []
def make(level="", **_):
    opened.append(level)
    return gymnasium.make("FrozenLake-v1")
"""


@pytest.mark.parametrize(
    "file", ["/etc/passwd", "../level", "levels/one", "~/level", "./level", "http://evil/x", "a\\b"]
)
def test_a_file_for_the_environment_must_be_named_again(
    run: Path, tmp_path: Path, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "opening.py").write_text(OPENED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "opening", raising=False)
    rewrite(run, lambda config: config["env"].update(id="opening:make", arguments={"level": file, "map": ["4x4"]}))
    modules = ["--env-module", "opening"]
    for command in (["eval"], ["export", "-o", "policy.mpk"], ["resume", "--steps", "80", "--ui", "none"]):
        assert main([command[0], str(run), *command[1:], *modules]) == 2
        assert f"--env-file {file}" in capsys.readouterr().err
    assert "opening" not in sys.modules
    assert main(["eval", str(run), "--episodes", "1", *modules, "--env-file", file]) == 0
    assert main(["resume", str(run), "--steps", "80", "--ui", "none", *modules, "--env-file", file]) == 0
    assert set(sys.modules["opening"].opened) == {file}


@pytest.mark.parametrize("arguments", [{"a": {"b": ["x", "/etc/passwd"]}}, {"/etc/passwd": 1}, {"a": ["~"]}])
def test_files_are_found_wherever_they_stand(run: Path, arguments: dict[str, Any]) -> None:
    rewrite(run, lambda config: config["env"].update(arguments=arguments))
    with pytest.raises(ConfigError, match="may open it only if you name it too"):
        rebuild(run)


def test_mujoco_opens_no_file_that_only_the_run_names(run: Path) -> None:
    pytest.importorskip("mujoco")
    rewrite(run, lambda config: config["env"].update(id="Ant-v5", arguments={"xml_file": "/etc/passwd"}))
    with pytest.raises(ConfigError, match="'/etc/passwd' to the environment, which may open it only if"):
        rebuild(run)


@pytest.mark.parametrize("file", ["../../lock", "/etc/passwd", "step_1.mpk/../x", "", "metadata.json"])
def test_the_checkpoint_of_a_parent_is_one_of_its_checkpoints(file: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a checkpoint"):
        Parent("runs/other", file)
    assert Parent("runs/other", "step_100.mpk").file == "step_100.mpk"


# Bounds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_envs", 10**9),
        ("workers", 10**6),
        ("eval_envs", 10**9),
        ("eval_episodes", 10**12),
    ],
)
def test_absurd_numbers_of_a_training_are_refused(run: Path, name: str, value: int) -> None:
    changed: dict[str, Any] = {name: value}
    with pytest.raises(ConfigError, match=rf"{name} is {value}: use a whole number of at least \d and at most \d+"):
        TrainerSettings(**changed)
    rewrite(run, lambda config: config.update(changed))
    assert main(["resume", str(run), "--steps", "80", "--ui", "none"]) == 2
    assert main(["eval", str(run)]) == 2


def test_a_vector_environment_may_have_many_rows() -> None:
    assert TrainerSettings(num_envs=100_000, vectorization="native").num_envs == 100_000
    with pytest.raises(ConfigError, match="at most 4096"):
        TrainerSettings(num_envs=100_000)


ABSURD: list[dict[str, Any]] = [
    {"capacity": 10**18},
    {"capacity": 10**30},
    {"hidden_sizes": [10**9, 10**9]},
    {"hidden_sizes": [60_000, 60_000]},
    {"hidden_sizes": [8] * 100_000},
    {"atoms": 10**9},
    {"batch_size": 10**12},
    {"n_step": 10**12},
    {"updates_each": 10**12},
]


@pytest.mark.parametrize("settings", ABSURD, ids="-".join)
def test_absurd_settings_of_an_agent_are_refused(settings: dict[str, Any]) -> None:
    pytest.importorskip("jax")
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    with pytest.raises(ConfigError, match=f"{next(iter(settings))} is .*: use .*at most"):
        make_agent("dqn", Box(-1, 1, (2,), np.float32), Discrete(2), seed=0, settings=settings)


def test_more_memory_than_there_is_is_told_with_the_settings() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "from gymnasium.spaces import Discrete; from rekindle.training.algorithms import make_agent\n"
        "make_agent('tabular', Discrete(5), Discrete(2), seed=0, settings={'capacity': 2**32})"
    )
    few_threads = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=few_threads)
    assert "ConfigError: tabular needs more memory than this machine has: lower capacity=4294967296" in done.stderr

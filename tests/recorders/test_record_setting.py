"""What a trainer and the command line record: by name, kept in the config, with the environment's own numbers."""

from __future__ import annotations

from pathlib import Path

import env_worlds
import pytest

pytest.importorskip("tensorboardX")

from event_files import scalars, texts
from toys import ToyAgent

from rekindle import RunReader
from rekindle.cli import main
from rekindle.errors import ConfigError
from rekindle.recorders import RECORDERS
from rekindle.training import Trainer


def test_a_resumed_trainer_records_where_the_first_did(tmp_path: Path) -> None:
    trainer = Trainer("FrozenLake-v1", "tabular", steps=200, name="lake", root=tmp_path, metrics_every=100,
                      eval_episodes=0, record=("tensorboard",))  # fmt: skip
    trainer.train()
    assert trainer.path is not None
    Trainer.resume(trainer.path, steps=400).train()
    assert [step for step, _ in scalars(trainer.path / "tensorboard")] == [100, 200, 300, 400]
    assert '"algorithm": "tabular"' in texts(trainer.path / "tensorboard")["config"]


def test_success_in_the_last_info_becomes_a_rate(tmp_path: Path) -> None:
    trainer = Trainer(env_worlds.Path, ToyAgent(), steps=200, name="path", root=tmp_path, metrics_every=200,
                      eval_episodes=2, record=("tensorboard",))  # fmt: skip
    trainer.train()
    assert trainer.path is not None
    shown = {name: value for _, values in scalars(trainer.path / "tensorboard") for name, value in values.items()}
    rows = RunReader(trainer.path).train_episodes()
    rate = sum(row["extras"]["is_success"] for row in rows) / len(rows)
    assert shown["episode/is_success"] == pytest.approx(rate, rel=1e-6)
    assert 0.0 <= shown["eval/is_success"] <= 1.0


def test_only_chosen_extras_are_recorded(tmp_path: Path) -> None:
    trainer = Trainer(env_worlds.Path, ToyAgent(), steps=100, name="path", root=tmp_path, eval_episodes=0, extras=())
    trainer.train()
    assert trainer.path is not None
    names = {name for row in RunReader(trainer.path).metric_windows() for name in row["metrics"]}
    assert "episode/is_success" not in names
    assert {"time/cpu_seconds", "time/memory_mb", "time/steps_per_sec"} <= names


def test_an_unknown_recorder_is_named_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="record is 'tensorbored': use one of 'tensorboard', 'mlflow', 'wandb'"):
        Trainer("FrozenLake-v1", "tabular", name="lake", root=tmp_path, record=("tensorbored",))
    assert list(tmp_path.iterdir()) == []


def test_every_name_makes_a_recorder() -> None:
    assert [type(RECORDERS[name]()).__name__ for name in RECORDERS] == ["TensorBoard", "MLflow", "WandB"]


def test_the_command_line_records_and_a_resume_can_add_a_recorder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quiet = ["--ui", "none", "--json"]
    assert main(["train", "tabular", "FrozenLake-v1", "--name", "lake", "--steps", "2000", *quiet]) == 0
    assert main(["resume", "runs/lake", "--steps", "3000", "--record", "tensorboard", *quiet]) == 0
    run = RunReader("runs/lake").path
    assert [step for step, _ in scalars(run / "tensorboard")][:3] == [1000, 2000, 3000]
    assert RunReader(run).read_config()["record"] == ["tensorboard"]

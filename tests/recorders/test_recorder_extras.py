"""A recorder whose library is missing says what to install, before anything is trained."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle.errors import MissingExtra
from rekindle.recorders import MLflow, TensorBoard, WandB


@pytest.mark.parametrize(
    ("recorder", "message"),
    [
        (TensorBoard, r'TensorBoard needs tensorboardX: pip install "rekindle-rl\[tensorboard\]"'),
        (MLflow, r'MLflow needs mlflow: pip install "rekindle-rl\[mlflow\]"'),
        (WandB, r'WandB needs wandb: pip install "rekindle-rl\[wandb\]"'),
    ],
)
def test_a_missing_library_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, recorder: Callable[[], Any], message: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=message):
        recorder()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorder", "module"),
    [
        ("wandb", "wandb"),
        pytest.param("mlflow", "mlflow", marks=pytest.mark.exhaustive),
        pytest.param("tensorboard", "tensorboardX", marks=pytest.mark.exhaustive),
    ],
)
def test_a_library_is_imported_before_the_training(tmp_path: Path, recorder: str, module: str) -> None:
    pytest.importorskip(module)
    program = f"""
import sys, threading
class Watch:
    def find_spec(self, name, *_):
        if name == {module!r}:
            threads.add(threading.current_thread().name)
threads = set()
sys.meta_path.insert(0, Watch())
from rekindle.training import Trainer
trainer = Trainer("FrozenLake-v1", "tabular", steps=50, eval_episodes=0, name="lake", record=[{recorder!r}])
assert {module!r} in sys.modules
trainer.train()
print(*threads)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "MainThread\n"), done.stderr

"""A recorder whose library is missing says what to install, before anything is trained."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
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

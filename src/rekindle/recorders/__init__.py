"""Recorders: a run's metrics in TensorBoard, MLflow or Weights & Biases, continued there after a resume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from rekindle.events import RunRecorder
from rekindle.recorders.mlflow import MLflow
from rekindle.recorders.tensorboard import TensorBoard
from rekindle.recorders.wandb import WandB

__all__ = ["MLflow", "RECORDERS", "RecorderName", "TensorBoard", "WandB"]

RecorderName: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]

RECORDERS: dict[RecorderName, Callable[[], RunRecorder]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""What `record` of a trainer may name: each as it is without arguments."""

"""Recorders by name, with default arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from rekindle.events import RunRecorder
from rekindle.recorders.mlflow import MLflow
from rekindle.recorders.tensorboard import TensorBoard
from rekindle.recorders.wandb import WandB

__all__ = ["OUTSIDE", "RECORDERS", "RecorderName"]

RecorderName: TypeAlias = Literal["tensorboard", "mlflow", "wandb"]

RECORDERS: dict[RecorderName, Callable[[], RunRecorder]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}
"""The recorders that `record` of a trainer accepts."""

OUTSIDE: tuple[RecorderName, ...] = ("mlflow", "wandb")
"""The recorders that write outside of the run: to a database or a service."""

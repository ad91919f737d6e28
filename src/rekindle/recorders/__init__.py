"""Recorders: send a run's metrics to TensorBoard, MLflow or Weights & Biases, and continue there after a resume."""

from __future__ import annotations

from rekindle.recorders.known import RECORDERS, RecorderName
from rekindle.recorders.mlflow import MLflow
from rekindle.recorders.tensorboard import TensorBoard
from rekindle.recorders.wandb import WandB

__all__ = ["MLflow", "RECORDERS", "RecorderName", "TensorBoard", "WandB"]

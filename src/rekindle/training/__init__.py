"""The trainer: owns a loop, and drives a session with it."""

from __future__ import annotations

from rekindle.training.algorithms import ALGORITHMS, Algorithm, make_agent
from rekindle.training.config import TrainerConfig
from rekindle.training.evaluation import EpisodeEvaluator, Evaluation, Evaluator
from rekindle.training.report import TrainingReport
from rekindle.training.sampling import Round, Sampler, StepProcessor
from rekindle.training.strategies import Components, Strategy, Synchronous
from rekindle.training.trainer import Step, Trainer

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Components",
    "EpisodeEvaluator",
    "Evaluation",
    "Evaluator",
    "Round",
    "Sampler",
    "Step",
    "StepProcessor",
    "Strategy",
    "Synchronous",
    "Trainer",
    "TrainerConfig",
    "TrainingReport",
    "make_agent",
]

"""The trainer: runs the training loop and drives a session."""

from __future__ import annotations

from rekindle.training.algorithms import ALGORITHMS, Algorithm, make_agent
from rekindle.training.config import TrainerConfig, TrainerSettings
from rekindle.training.diagnosing import Diagnosis, Fault, diagnose
from rekindle.training.evaluation import EpisodeEvaluator, Evaluation, Evaluator
from rekindle.training.forking import fork
from rekindle.training.rebuilding import Rebuilt, rebuild
from rekindle.training.replaying import ComparedCheckpoint, ReplayedRun, replay_run
from rekindle.training.report import TrainingReport
from rekindle.training.sampling import Round, Sampler, StepProcessor
from rekindle.training.steps import Step
from rekindle.training.strategies import Actors, Components, Offline, Strategy, Synchronous
from rekindle.training.trainer import Trainer

__all__ = [
    "ALGORITHMS",
    "Actors",
    "Algorithm",
    "ComparedCheckpoint",
    "Components",
    "Diagnosis",
    "EpisodeEvaluator",
    "Evaluation",
    "Evaluator",
    "Fault",
    "Offline",
    "Rebuilt",
    "ReplayedRun",
    "Round",
    "Sampler",
    "Step",
    "StepProcessor",
    "Strategy",
    "Synchronous",
    "Trainer",
    "TrainerConfig",
    "TrainerSettings",
    "TrainingReport",
    "diagnose",
    "fork",
    "make_agent",
    "rebuild",
    "replay_run",
]

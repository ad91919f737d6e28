"""Environments: create them from an id or a function, step several at once, and restore them after a resume."""

from __future__ import annotations

from rekindle.envs.autoreset import AutoresetEnvs
from rekindle.envs.checks import Finding, check_env
from rekindle.envs.determinism import Determinism, probe
from rekindle.envs.factory import EnvFactory, EnvSettings, EnvWrapping
from rekindle.envs.making import make_envs
from rekindle.envs.vector import Envs, EnvSlot, LocalEnvs, Outcome
from rekindle.envs.workers import WorkerEnvs

__all__ = [
    "AutoresetEnvs",
    "Determinism",
    "EnvFactory",
    "EnvSettings",
    "EnvSlot",
    "EnvWrapping",
    "Envs",
    "Finding",
    "LocalEnvs",
    "Outcome",
    "WorkerEnvs",
    "check_env",
    "make_envs",
    "probe",
]

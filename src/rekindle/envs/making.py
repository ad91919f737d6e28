"""Create environments that are stepped together."""

from __future__ import annotations

from typing import Literal

from rekindle.checks import checked_choice
from rekindle.envs.autoreset import AutoresetEnvs
from rekindle.envs.determinism import Determinism
from rekindle.envs.factory import EnvFactory
from rekindle.envs.vector import Envs, LocalEnvs
from rekindle.envs.workers import WorkerEnvs

__all__ = ["Vectorization", "make_envs"]

Vectorization = Literal["sync", "async", "native"]


def make_envs(
    factory: EnvFactory,
    num_envs: int,
    *,
    vectorization: Vectorization = "sync",
    workers: int | None = None,
    determinism: Determinism = Determinism.REPEATS,
) -> Envs:
    """Environments for training.

    Args:
        factory: creates each environment.
        num_envs: the number of environments.
        vectorization: `sync` steps them one after the other, `async` in worker processes, and `native` uses the
            environment's own vector environment, whose open episodes a resume cannot restore.
        workers: the number of processes for `async`; by default one per processor, at most one per environment.
        determinism: the result of `probe`.
    """
    checked_choice("vectorization", vectorization, ("sync", "async", "native"))
    rebuilds = determinism is Determinism.LEAKS
    if vectorization == "native":
        return AutoresetEnvs(factory.make_vector(num_envs), factory.name)
    envs = (
        LocalEnvs(factory, num_envs, rebuilds=rebuilds)
        if vectorization == "sync"
        else WorkerEnvs(factory, num_envs, workers=workers, rebuilds=rebuilds)
    )
    if determinism is Determinism.RANDOM:
        envs.inexact = f"{factory.name} does not repeat an episode from the same seed and actions"
    return envs

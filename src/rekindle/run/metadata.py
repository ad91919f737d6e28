"""What `metadata.json` holds: counters, status, resumes, and the versions a result depends on."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np

from rekindle.version import __version__

__all__ = ["Resume", "RunDetails", "RunMetadata"]

Status = Literal["running", "finished", "stopped", "failed"]
Grade = Literal["exact", "approximate"]
Log = Literal["train_episodes", "eval_episodes", "metrics", "warnings"]

LOGS: tuple[Log, ...] = ("train_episodes", "eval_episodes", "metrics")
"""The logs of the training, which a resume cuts back to the checkpoint."""
ALL_LOGS: tuple[Log, ...] = (*LOGS, "warnings")
"""The warnings tell of the run, and stay."""
MOST_JSON = 2**22
"""Bytes of `metadata.json` or `config.json` that are read: a run may come from anywhere."""
MOST_CONFIG = 2**20
"""Bytes of a config that is written; the metadata repeat most of it."""


class Resume(msgspec.Struct, frozen=True):
    """One resume of a run: from where, and how exact it was."""

    number: int
    """1 for the first; segments written after it carry this number."""
    step: int
    """Env steps of the checkpoint gone back to; 0 when there was none."""
    checkpoint: str | None
    grade: Grade
    lost: tuple[str, ...] = ()
    """What makes it approximate, and what a reader should know."""
    wall_time: str = ""


class RunMetadata(msgspec.Struct, frozen=True):
    """What `metadata.json` says; counters are those of the last checkpoint or change of status."""

    name: str
    version: str
    run_id: str
    seed: int
    status: Status
    started_at: str
    last_updated: str
    total_steps: int = 0
    total_episodes: int = 0
    updates: int = 0
    stop_reason: str | None = None
    exact: bool = True
    """False once anything (a background learner, an approximate resume) made the run one of its kind."""
    resumes: tuple[Resume, ...] = ()
    agent: str | None = None
    """The class of the agent."""
    max_steps: int | None = None
    """Env steps at which the training is finished; None if it has no such end."""
    parent: str | None = None
    """The run and checkpoint that it began with, as `PATH@STEP`."""
    training: dict[str, Any] | None = None
    """What the config said at the beginning that makes it this training; None if no trainer made it."""
    environment: dict[str, str] = {}
    """Versions, processor and host: what the last bits of a result depend on."""


class RunDetails(TypedDict, total=False):
    """Those fields of the metadata that whoever makes a run may know from the beginning."""

    agent: str
    max_steps: int | None
    parent: str | None
    training: dict[str, Any]


FRAMEWORKS = ("jax", "jaxlib", "torch")
"""Libraries that an agent may compute with: only what is loaded counts."""


def environment() -> dict[str, str]:
    """What the last bits of a result may depend on, besides the code that asks."""
    frameworks = {name: str(sys.modules[name].__version__) for name in FRAMEWORKS if name in sys.modules}
    return {**_platform(), **frameworks}


@cache
def _platform() -> dict[str, str]:
    return {
        "rekindle": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processors": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def timestamp() -> str:
    """This moment, as it stands in the metadata."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

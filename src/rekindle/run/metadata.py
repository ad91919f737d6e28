"""The contents of `metadata.json`: counters, status, resumes, and the versions that a result depends on."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from functools import cache
from typing import Any, Literal, TypedDict

import msgspec
import numpy as np

from rekindle.processors import processors
from rekindle.version import __version__

__all__ = ["Fork", "Resume", "RunDetails", "RunMetadata"]

Status = Literal["running", "finished", "stopped", "failed"]
Grade = Literal["exact", "approximate"]
StepUnit = Literal["env steps", "updates"]
Log = Literal["train_episodes", "eval_episodes", "metrics", "warnings"]

LOGS: tuple[Log, ...] = ("train_episodes", "eval_episodes", "metrics")
"""The logs of the training, which a resume truncates to the checkpoint."""
ALL_LOGS: tuple[Log, ...] = (*LOGS, "warnings")
"""All logs; a resume does not truncate the warnings, which are about the run."""
MOST_JSON = 2**22
"""The largest `metadata.json` or `config.json` to read, in bytes: a run may come from anywhere."""
MOST_CONFIG = 2**20
"""The largest config to write, in bytes; the metadata repeat most of it."""


class Resume(msgspec.Struct, frozen=True):
    """One resume of a run: from which checkpoint, and whether it was exact."""

    number: int
    """1 for the first resume; replay segments written after it carry this number."""
    step: int
    """Env steps of the checkpoint; 0 if there was none."""
    checkpoint: str | None
    grade: Grade
    lost: tuple[str, ...] = ()
    """Why it is approximate, and notes for the user."""
    wall_time: str = ""
    replayed: int = 0
    """Calls of the input journal that were replayed."""


class Fork(msgspec.Struct, frozen=True):
    """The checkpoint of another run from which a run continues, and the settings that differ."""

    run: str
    """The other run, as `name/version/run_id`."""
    path: str
    """Its directory at that time, absolute; as a `file:` URI if it is not valid UTF-8."""
    step: int
    changes: dict[str, tuple[Any, Any]] = {}
    """By setting, such as `agent.learning_rate`: the value in the other run, and the value in this one."""


class RunMetadata(msgspec.Struct, frozen=True):
    """The contents of `metadata.json`; counters are those of the last checkpoint or change of status."""

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
    """False once anything (a background learner, an approximate resume) made the run impossible to reproduce."""
    resumes: tuple[Resume, ...] = ()
    agent: str | None = None
    """The class of the agent."""
    max_steps: int | None = None
    """Steps at which the training finishes; None if it has no limit."""
    step_unit: StepUnit = "env steps"
    """What its steps are, also those in the field `env_steps` of its logs: updates, if it learns from data alone."""
    parent: str | None = None
    """The run and checkpoint whose weights it started with, as `PATH@STEP`."""
    fork: Fork | None = None
    """If it continues another run, with everything: where from, and what was changed."""
    training: dict[str, Any] | None = None
    """The settings at the start that must not change at a resume; None if no trainer created the run."""
    environment: dict[str, str] = {}
    """Versions, processor and host, on which the last bits of a result may depend."""


class RunDetails(TypedDict, total=False):
    """The metadata fields that may be set when a run is created."""

    agent: str
    max_steps: int | None
    parent: str | None
    training: dict[str, Any]


FRAMEWORKS = ("jax", "jaxlib", "torch")
"""Libraries that an agent may compute with; recorded only if they are loaded."""


def environment() -> dict[str, str]:
    """Everything other than the user's code that the last bits of a result may depend on."""
    frameworks = {name: str(sys.modules[name].__version__) for name in FRAMEWORKS if name in sys.modules}
    return {**_platform(), **frameworks}


@cache
def _platform() -> dict[str, str]:
    return {
        "rekindle": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "processors": str(processors()),
        "threads": os.environ.get("OMP_NUM_THREADS", "default"),
    }


def timestamp() -> str:
    """The current time, as written in the metadata."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""Runs to record: a walk whose rows are the same however often it is killed, in this process or one of its own."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from toys import Corridor, ToyAgent, drive

from rekindle import RunReader, TrainingSession
from rekindle.errors import AgentError
from rekindle.events import Histogram, Media, Stamp, Text, Video
from rekindle.experience import Array, Transitions
from rekindle.recorders.following import Follower, Row
from rekindle.run.processor import EventProcessor

STEPS, METRICS_EVERY, CHECKPOINT_EVERY = 40, 5, 10
MARKS = list(range(5, 45, 5))
FRAMES = np.random.default_rng(0).integers(0, 256, (3, 8, 10, 3), np.uint8)
MEDIA = {
    "agent/weights": Histogram(np.arange(10.0)),
    "train/remark": Text("all is well"),
    "eval/episode": Video(FRAMES, fps=10),
}


class Breakable(ToyAgent):
    """An agent that can fail at its next step, so that nothing is saved any more."""

    is_broken = False

    def break_down(self) -> None:
        self.is_broken = True

    def observe(self, transitions: Transitions, streams: Array) -> None:
        if self.is_broken:
            raise AgentError("on purpose")
        super().observe(transitions, streams)


def train(
    root: Path,
    recorders: Sequence[Any],
    *,
    stop_at: int | None = None,
    fail_at: int | None = None,
    loss: str | None = None,
    media: Mapping[str, Media] | None = None,
    **options: Any,
) -> Path:
    """Train to the end, a stop or a failure of the agent, or go on; a loss makes the resume approximate."""
    chosen = {"max_steps": STEPS, "metrics_every": METRICS_EVERY, "checkpoint_every": CHECKPOINT_EVERY, **options}
    agent = ToyAgent() if fail_at is None else Breakable()
    session = TrainingSession.open("walk", agent, root=root, recorders=recorders, **chosen)
    assert session.run is not None
    if not session.run.read_config():
        session.run.write_config({"agent": {"learning_rate": 0.1}, "steps": STEPS})
    for name, item in (media or {}).items():
        session.every(METRICS_EVERY, partial(session.show, name, item))
    if stop_at is not None:
        session.every(stop_at, lambda: session.stop("enough for now"))
    if fail_at is not None and isinstance(agent, Breakable):
        session.every(fail_at, agent.break_down)
    if loss is not None:
        session.mark_inexact(loss)
    with contextlib.suppress(AgentError), session:
        drive(session, Corridor(wind=0.0 if loss is None else 0.5))
    return session.run.path


def expected(path: Path) -> list[tuple[int, dict[str, float]]]:
    """What a service should show: step and values of each row of the log, times aside."""
    rows = [Row(**row) for row in RunReader(path).metric_windows()]
    return [(row.env_steps, timeless(row.values)) for row in rows]


def timeless(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not name.startswith("time/")}


def killed_at_save(recorder: str, root: Path, save: int) -> bool:
    """Train in a process that is killed in place of the nth write of the recorder's place; says whether it was.

    1 and 2 are at the start; then each row has one before it is sent, and one after.
    """
    here = Path(__file__)
    inherited = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # it has its own
    environment = {**inherited, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here.parent)])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(here), recorder, str(root), str(save)],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0


def _train_until_killed(recorder: str, root: str, save: int) -> None:
    module, name = recorder.split(":")
    original: Callable[..., None] = Follower._save
    saves = 0

    def save_or_die(follower: Any, place: Any) -> None:
        nonlocal saves
        saves += 1
        if saves == save:
            os.kill(os.getpid(), signal.SIGKILL)
        original(follower, place)

    def record_and_wait(follower: Any, values: Any, stamp: Stamp) -> None:
        notice(follower, values, stamp)
        while follower._place is None or follower._place.last.env_steps < stamp.env_steps:
            time.sleep(0.002)

    def submit_and_wait(processor: EventProcessor, event: Any) -> None:
        submit(processor, event)
        processor.flush()  # or training would log more rows meanwhile, and they would be sent together

    submit, notice = EventProcessor.submit, Follower.record
    setattr(EventProcessor, "submit", submit_and_wait)  # noqa: B010
    setattr(Follower, "record", record_and_wait)  # noqa: B010
    setattr(Follower, "_save", save_or_die)  # noqa: B010
    made = getattr(importlib.import_module(module), name)
    train(Path(root), [made()])


if __name__ == "__main__":
    _train_until_killed(sys.argv[1], sys.argv[2], int(sys.argv[3]))

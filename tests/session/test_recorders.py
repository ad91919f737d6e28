"""Recorders beside a session: they delay neither training nor checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from toys import ToyAgent

from rekindle.events import Stamp
from rekindle.experience import Experience
from rekindle.session import TrainingSession


class StuckRecorder:
    """Takes nothing before it is allowed to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.steps: list[int] = []

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        self.gate.wait()
        self.steps.append(stamp.env_steps)

    def close(self, status: str) -> None:
        pass


def test_a_recorder_that_is_stuck_delays_no_checkpoint(tmp_path: Path) -> None:
    recorder = StuckRecorder()
    with TrainingSession.open(
        "slow", ToyAgent(), root=tmp_path, metrics_every=10, checkpoint_every=10, recorders=[recorder]
    ) as session:
        observation = np.zeros(2, np.float32)
        for _ in range(60):
            action = session.act(observation)
            following = observation + np.float32(1)
            session.observe(Experience(observation, action, 1.0, following))
            observation = following
        session.checkpoint(wait=True)
        assert recorder.steps == []
        recorder.gate.set()
        session.flush()
        assert recorder.steps == [10, 20, 30, 40, 50, 60]

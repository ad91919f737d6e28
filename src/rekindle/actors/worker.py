"""A worker process: plays the rounds of some actors. It imports no ML library, and ends with the learner."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from io import TextIOWrapper
from typing import Any, cast

import numpy as np

from rekindle.actors.packing import aligned
from rekindle.actors.policies import unpacked_policy
from rekindle.actors.rounds import RoundArrays
from rekindle.actors.shared import Link, Region, WorkerEnded
from rekindle.actors.stage import Stage, error_report
from rekindle.agent import Policy, State
from rekindle.envs.factory import ENV_ERRORS
from rekindle.envs.pickling import unpickled
from rekindle.envs.worker import ignore_signals
from rekindle.experience import Array

__all__ = ["serve"]

_PDEATHSIG = 1


def serve(arguments: str) -> None:
    """Play until the learner ends, or asks to end."""
    given: dict[str, Any] = json.loads(arguments)
    _end_with(given["learner"])
    ignore_signals()
    for stream in (sys.stdout, sys.stderr):  # pipes that all workers share, behind which may be a terminal
        cast("TextIOWrapper", stream).reconfigure(line_buffering=True, write_through=False)
    worker = _Worker(Link(given["link"]), [Region(descriptor) for descriptor in given["policies"]])
    with contextlib.suppress(WorkerEnded):
        while (message := worker.link.wait(given["alive"])) is not None:
            try:
                answer = worker.answer(cast("State", message))
            except ENV_ERRORS as error:
                answer = error_report(error)
            worker.link.answer(answer)
    worker.close()


def _end_with(learner: int) -> None:
    """Let the kernel kill this process when the learner dies, however it dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != learner:  # it died before that
        os._exit(0)


class _Worker:
    """Answers the orders of the learner."""

    def __init__(self, link: Link, policies: list[Region]) -> None:
        self.link, self._policies = link, policies
        self._stage: Stage | None = None

    def answer(self, order: State) -> State:
        if self._stage is None:
            # Only the learner writes to this memory, so nobody else can send a pickle.
            made = unpickled(order["cast"])
            self._stage = Stage(made, range(*order["actors"]), beat=self.link.beat)
            self.link.set_ready()
            size = RoundArrays.size(made.shape, self._stage.rows)
            self._arrays = RoundArrays.in_memory(made.shape, self._stage.rows, self.link.arrays(size))
        policy = self._policy(order["policy"])
        if order["kind"] == "evaluate":
            return {"played": self._stage.evaluate(order, policy)}
        return {"ends": self._stage.play(order, policy, self._arrays)}

    def _policy(self, given: Array | list[int]) -> Policy:
        """The policy of an order, or where it is in the memory of all workers."""
        if isinstance(given, np.ndarray):
            return unpacked_policy(given)
        place, size = given
        data = aligned(size)
        data[:] = self._policies[place].view(size)
        return unpacked_policy(data)

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()

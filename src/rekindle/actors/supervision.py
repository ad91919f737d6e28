"""What workers have in common, wherever they run: how long their actors played, and how often one may die."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import EnvError

__all__ = ["Supervised", "Worker"]

_MOST_DEATHS = 3
"""Deaths of a worker in one round, or in one evaluation, at which the training ends."""


class Worker(Protocol):
    """Plays for some actors."""

    name: str
    deaths: int

    def start_again(self) -> None:
        """Replace it by a new one."""
        ...


class Supervised:
    """Counts what workers do, and starts those again that died."""

    def __init__(self, what: str, actors: int) -> None:
        """`what` are the environment and the kind of worker, for messages."""
        self._what = what
        self.report: Callable[[str], object] = lambda _: None
        """Is called with a message when a worker is started again."""
        self._restarts = 0
        self._seconds: NDArray[np.float64] = np.zeros(actors)

    def _start_again(self, worker: Worker, death: str) -> None:
        worker.deaths += 1
        what = f"{self._what} of {worker.name} {death}"
        if worker.deaths >= _MOST_DEATHS:
            raise EnvError(f"{what}, for the third time: the training ends")
        self._restarts += 1
        self.report(f"{what}: it is started again, and plays again")
        worker.start_again()

    def timings(self) -> dict[str, Any]:
        """Seconds that each actor has played, and workers that were started again, since the last call."""
        seconds, self._seconds = self._seconds, np.zeros_like(self._seconds)
        restarts, self._restarts = self._restarts, 0
        return {"seconds": seconds.tolist(), "restarts": restarts}

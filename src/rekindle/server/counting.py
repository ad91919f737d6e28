"""The counters of a server, for `/metrics`, `stats`, and the metrics of the run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Protocol

__all__ = ["Counters"]

_RECENT = 4096
"""The number of recent latencies for percentiles."""


class _Timed(Protocol):
    arrived: float
    steps: Sequence[int]


class Counters:
    """Counts since this process started."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.connections = 0
        """Open connections."""
        self.accepted = 0
        """All connections so far."""
        self.requests = 0
        """Processed requests."""
        self.steps = 0
        """Transitions in processed requests."""
        self.ticks = 0
        self.repeated = 0
        """Requests that were received again."""
        self.refused: dict[str, int] = {}
        """Errors sent, by code."""
        self.latencies: deque[float] = deque(maxlen=_RECENT)
        """Seconds from the arrival of a request to its answer, for recent requests."""
        self._before = (self.started, 0, 0)
        self.requests_per_second = 0.0
        self.steps_per_second = 0.0

    def processed(self, requests: Sequence[_Timed]) -> None:
        """Count requests that were answered in one tick."""
        now = time.perf_counter()
        self.ticks += 1
        if len(requests) == 1:
            self.requests += 1
            self.steps += len(requests[0].steps)
            self.latencies.append(now - requests[0].arrived)
            return
        self.requests += len(requests)
        self.steps += sum(map(len, [request.steps for request in requests]))
        self.latencies.extend(map(float.__sub__, repeat(now), [request.arrived for request in requests]))

    def refuse(self, code: str) -> None:
        """Count an error that was sent."""
        self.refused[code] = self.refused.get(code, 0) + 1

    def measure(self) -> None:
        """Compute the rates since the last call; called about once a second."""
        now = time.monotonic()
        then, requests, steps = self._before
        seconds = max(now - then, 1e-3)
        self.requests_per_second = (self.requests - requests) / seconds
        self.steps_per_second = (self.steps - steps) / seconds
        self._before = now, self.requests, self.steps

    def percentile(self, share: float) -> float:
        """A percentile of recent latencies, in seconds; 0 if there are none."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

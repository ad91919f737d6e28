"""Statistics of a data set."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.links import FRAGMENT, NO_STEP

__all__ = ["EpisodeTable", "Statistics", "Summary"]


class Summary(msgspec.Struct, frozen=True):
    """Some numbers."""

    mean: float
    std: float
    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Array) -> Summary | None:
        """None if there are no values."""
        if not len(values):
            return None
        numbers = values.astype(np.float64)
        named = (numbers.mean(), numbers.std(), numbers.min(), np.median(numbers), numbers.max())
        return cls(*map(float, named))


class Statistics(msgspec.Struct, frozen=True):
    """Statistics of a data set."""

    transitions: int
    episodes: int
    """Episodes and fragments of episodes."""
    terminated: int
    truncated: int
    open: int
    """Episodes whose end is not in the data."""
    fragments: int
    """Episodes whose beginning is not in the data."""
    returns: Summary | None
    """Of the episodes whose beginning and end are in the data; None if there are none."""
    lengths: Summary | None
    rewards: Summary | None
    nbytes: int


class EpisodeTable:
    """The position, length, return and end of each episode of a data set."""

    def __init__(self, status: Array, reward: Array) -> None:
        starts = np.flatnonzero(status >= NO_STEP)
        self.starts: NDArray[np.int64] = starts
        """The row of the first observation of each episode."""
        self.ends = np.append(starts[1:], len(status))
        """The row after the last of each episode."""
        self.lengths = self.ends - starts - 1
        """The transitions of each episode."""
        self.final = status[self.ends - 1]
        """The status of each episode's last transition."""
        self.is_fragment = status[starts] == FRAGMENT
        self._reward = reward

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """Which episodes have their beginning and their end in the data."""
        return ~self.is_fragment & (self.final != EpisodeStatus.CONTINUING)

    @property
    def returns(self) -> NDArray[np.float64]:
        """The sum of the rewards of each episode."""
        return np.add.reduceat(self._reward, self.starts, dtype=np.float64)

    def statistics(self, nbytes: int) -> Statistics:
        """All numbers."""
        whole = self.is_whole
        is_step = np.ones(len(self._reward), np.bool_)
        is_step[self.starts] = False
        return Statistics(
            transitions=int(self.lengths.sum()),
            episodes=len(self.starts),
            terminated=int((self.final == EpisodeStatus.TERMINATED).sum()),
            truncated=int((self.final == EpisodeStatus.TRUNCATED).sum()),
            open=int((self.final == EpisodeStatus.CONTINUING).sum()),
            fragments=int(self.is_fragment.sum()),
            returns=Summary.of(self.returns[whole]),
            lengths=Summary.of(self.lengths[whole]),
            rewards=Summary.of(self._reward[is_step]),
            nbytes=nbytes,
        )

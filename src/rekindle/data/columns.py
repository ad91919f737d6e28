"""The columns of a data set: one row for each observation, with the step that led to it.

    row      0    1    2    3    4    5        an episode of 3 steps, then one of 1
    status   3    0    0    1    3    2        3: the first observation of an episode; no step led to it

The step in a row starts from the observation in the row before, so that each observation is stored once. A row with
the status 4 is a first observation too, but of a piece of an episode whose beginning is not in the data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rekindle.errors import ConfigError, DataError
from rekindle.experience import Array, EpisodeStatus
from rekindle.replay.columns import ObservationColumns, space_column
from rekindle.replay.links import FRAGMENT, NO_STEP
from rekindle.spaces import ActionStructure, ArraySpec, Layout

__all__ = ["DataLayout", "check_statuses", "is_start"]

_STATUS = ArraySpec(np.dtype(np.uint8))


class DataLayout:
    """The columns for values of an observation and an action space."""

    def __init__(self, observation_space: Any, action_space: Any, reward: np.dtype[Any], *, name: str) -> None:
        """Raises `DataError` that begins with `name` for a space that agents cannot learn from."""
        self.observation_space, self.action_space = observation_space, action_space
        try:
            self.observation = ObservationColumns.of(observation_space)
            self.action = space_column(action_space, "action")
        except ConfigError as error:
            raise DataError(f"{name}: {error}") from None
        self.layout = Layout.of_space(observation_space)
        self.structure = ActionStructure.of(action_space)
        self.reward = ArraySpec(np.dtype(np.float32 if reward == np.float32 else np.float64))

    @property
    def columns(self) -> dict[str, ArraySpec]:
        """The columns by name."""
        return {**self.observation.columns, "action": self.action, "reward": self.reward, "status": _STATUS}


def is_start(status: Array) -> NDArray[np.bool_]:
    """Which rows are first observations, to which no step led."""
    return status >= NO_STEP


def check_statuses(status: Array, *, name: str) -> None:
    """Raise `DataError` unless the rows are episodes one after the other, each with at least one step."""
    starts = is_start(status)
    ended = (status != EpisodeStatus.CONTINUING) & ~starts
    wrong = status > FRAGMENT
    wrong[:1] |= ~starts[:1]
    wrong[-1:] |= starts[-1:]
    wrong[1:] |= starts[1:] & starts[:-1]
    wrong[1:] |= ended[:-1] & ~starts[1:]
    if wrong.any():
        raise DataError(f"{name}: status: row {int(np.argmax(wrong))} does not follow from the row before it")

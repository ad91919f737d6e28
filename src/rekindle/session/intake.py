"""Convert observations and actions of the host to arrays of a fixed layout, or refuse them, and actions back.

Whatever a value is, and whatever the host's encoder or mapper raises, a value that cannot be converted is refused with
`InputError`: nothing has changed yet, so the agent is sound.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from rekindle.errors import InputError
from rekindle.experience import ActionMapper, Array, ObservationEncoder
from rekindle.session.refusals import Converting
from rekindle.session.table import StreamTable
from rekindle.spaces import ActionStructure, ArraySpec, Layout

__all__ = ["Intake", "row_count"]


class Intake:
    """Holds the layout of observations and actions: from the agent's spaces, or from the first of each."""

    def __init__(
        self,
        table: StreamTable,
        agent: object,
        encoder: ObservationEncoder | None,
        mapper: ActionMapper | None,
    ) -> None:
        self._table = table
        self._encoder = encoder
        self._mapper = mapper
        layout = Layout.of_space(getattr(agent, "observation_space", None))
        if layout is not None:
            table.use_observation_layout(layout)
        space = getattr(agent, "action_space", None)
        actions = Layout.of_space(space)
        self._structure = ActionStructure.of(space)
        self._range: range | None = None
        self._converters = (encoder, mapper, self._structure)
        if self._structure is not None:
            table.use_action_layout(self._structure.spec)
        elif actions is not None and not actions.is_dict:
            table.use_action_layout(actions.leaves[""])
            count, start = getattr(space, "n", None), getattr(space, "start", 0)
            if count is not None and actions.leaves[""].shape == ():
                self._range = range(int(start), int(start) + int(count))
        self._learns_observations = table.observation_layout is None
        self._learns_actions = table.action_layout is None

    @property
    def converts(self) -> bool:
        """Whether the host sees other observations or actions than the agent."""
        return self._converters[:2] != (None, None)

    def forget_first(self) -> None:
        """After a call that was refused before the first step: its values set no layout."""
        if self._learns_observations:
            self._table.observation_layout = self._table.plain_layout = None
        if self._learns_actions:
            self._table.action_layout = None

    def take_agents_form(self, is_on: bool) -> None:
        """Convert nothing while it is on: observations and actions of an input journal are in the agent's form."""
        self._encoder, self._mapper, self._structure = (None, None, None) if is_on else self._converters

    def observation(self, observation: Any, what: str) -> list[Array]:
        """Convert one observation."""
        plain = self._table.plain_layout
        if (
            plain is not None
            and type(observation) is np.ndarray
            and observation.dtype == plain.dtype
            and observation.shape == plain.shape
            and self._encoder is None
        ):
            return [observation]
        with Converting(what):
            if self._encoder is not None:
                observation = self._encoder.encode(observation)
            layout = self._table.observation_layout or Layout.of_value(observation)
            arrays = layout.conform(observation, what)
        if self._table.observation_layout is None:
            self._table.use_observation_layout(layout)
        return arrays

    def rows(self, observations: Any) -> int:
        """The number of rows in a batch of observations; raises `InputError` for an empty batch."""
        layout = self._table.observation_layout
        with Converting("observations"):
            if layout is not None and layout.nesting is not None and self._encoder is None:
                rows = len(layout.nesting.leaves(observations, "observations")[0])
            else:
                rows = row_count(observations)
        if not rows:
            raise InputError("the batch is empty: give at least one observation")
        return rows

    def observations(self, observations: Any, what: str, rows: int) -> list[Array]:
        """Convert a batch of observations."""
        with Converting(what):
            if self._encoder is not None:
                encoded = [self.observation(_row(observations, row), what) for row in range(rows)]
                return [np.stack(column) for column in zip(*encoded, strict=True)]
            layout = self._table.observation_layout or Layout.of_value(_row(observations, 0))
            arrays = layout.conform(observations, what, rows=rows)
        if self._table.observation_layout is None:
            self._table.use_observation_layout(layout)
        return arrays

    def action(self, action: Any) -> Array:
        """Convert one action that the host executed."""
        with Converting("action"):
            value = action if self._mapper is None else self._mapper.to_agent(action)
            if self._structure is not None:
                return self._structure.flat(value, "action")
            array = self.action_layout(value).conform(value, "action")
        if self._range is not None and int(array) not in self._range:
            raise InputError(f"the action {action!r} is outside {self._range}")
        return array

    def actions(self, actions: Any, rows: int) -> Array:
        """Convert a batch of actions that the host executed."""
        with Converting("actions"):
            if self._structure is not None:
                if self._mapper is not None:
                    return np.stack([self.action(action) for action in actions])
                return self._structure.flat(actions, "actions", rows=rows)
            if self._mapper is not None:
                actions = np.stack([np.asarray(self._mapper.to_agent(action)) for action in actions])
            array = self.action_layout(actions[0]).conform(actions, "actions", rows=rows)
        if self._range is not None:
            # The methods `min` and `max` take twice as long.
            least, most = np.minimum.reduce(array), np.maximum.reduce(array)
            if not (least >= self._range.start and most < self._range.stop):
                raise InputError(f"an action is outside {self._range}: {array}")
        return array

    def action_layout(self, example: Any) -> ArraySpec:
        """The layout of every action; without an action space, the first action sets it."""
        layout = self._table.action_layout
        if layout is None:
            layout = Layout.of_value(example).leaves[""]
            self._table.use_action_layout(layout)
        return layout

    def to_host(self, action: Any) -> Any:
        """Convert an action of the agent to one that the host executes."""
        if self._structure is not None:
            action = self._structure.nested(action)
        return action if self._mapper is None else self._mapper.to_host(action)

    def to_host_many(self, actions: Array) -> Any:
        """Convert a batch of actions of the agent to those that the host executes."""
        if self._mapper is not None:
            return [self.to_host(action) for action in actions]
        return actions if self._structure is None else self._structure.nested(actions)


def row_count(observations: Any) -> int:
    """The number of rows in a batch of observations."""
    while type(observations) is not np.ndarray and isinstance(observations, Mapping):
        observations = next(iter(cast("Mapping[str, Any]", observations).values()), ())
    return len(observations)


def _row(observations: Any, row: int) -> Any:
    if isinstance(observations, Mapping):
        return {name: _row(values, row) for name, values in cast("Mapping[str, Any]", observations).items()}
    return observations[row]

"""Act greedily, which changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rekindle.agent import StreamSlots
from rekindle.errors import InputError
from rekindle.experience import ActMode, Array, Observations
from rekindle.session.owed import OwedWork
from rekindle.session.parts import Parts
from rekindle.session.table import StreamId

__all__ = ["Greedy"]


class Greedy:
    """Chooses greedy actions, with the agent after the last call of the journal; the streams need not exist."""

    def __init__(self, parts: Parts, owed: OwedWork) -> None:
        self._parts, self._owed = parts, owed
        self._table, self._intake = parts.streams.table, parts.streams.intake

    def act(self, stream: StreamId, observation: Any) -> Any:
        """Choose the greedy action for one observation."""
        self._owed.replay_journal()
        table = self._table
        arrays = self._intake.observation(observation, "observation")
        return self._intake.to_host(self._act(table.batch_of_one(arrays), table.peek([stream]))[0])

    def act_many(self, observations: Any, names: Sequence[StreamId] | Array | None) -> Any:
        """Choose the greedy action for each row of a batch."""
        self._owed.replay_journal()
        table = self._table
        rows = self._intake.rows(observations)
        arrays = self._intake.observations(observations, "observations", rows)
        slots = table.peek(range(rows) if names is None else names)
        return self._intake.to_host_many(self._act(table.observations(arrays), slots))

    def rows(self, arrays: Sequence[Array]) -> Array:
        """Choose the greedy action for each row of the arrays of a layout; the result is in the agent's form."""
        self._owed.replay_journal()
        return self._act(self._table.observations(arrays), self._table.peek(range(len(arrays[0]))))

    def _act(self, observations: Observations, slots: StreamSlots) -> Array:
        try:
            return self._parts.learner.act(observations, ActMode.EXPLOIT, slots)
        except InputError:
            raise
        except BaseException as error:
            self._parts.learner.fail(error)
            raise

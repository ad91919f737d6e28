"""Sampling: step the environments and pass the transitions to the session, one round at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.envs import AutoresetEnvs, Envs, Outcome
from rekindle.envs.factory import ENV_ERRORS
from rekindle.envs.vector import failed, numbers_in
from rekindle.errors import EnvError, InputError, Interrupted
from rekindle.experience import Array, EpisodeStatus, Observations, Transitions
from rekindle.session.session import TrainingSession
from rekindle.session.stream import Stream
from rekindle.spaces import ActionStructure, Layout
from rekindle.stats import EpisodeRecord
from rekindle.traces import ResettableEnv

__all__ = ["ResetOptions", "Round", "Sampler", "StepProcessor", "make_sampler"]

ResetOptions = Callable[[int, int, int], dict[str, Any] | None]
"""Returns the options of a reset for a stream, an episode number and the env steps so far; must be deterministic."""


class Round(msgspec.Struct, frozen=True, eq=False):
    """The result of one round of steps, row by row."""

    rows: Sequence[int]
    rewards: Sequence[float] | Array
    statuses: Sequence[int] | Array
    records: Mapping[int, EpisodeRecord]
    """The records of the episodes that ended, by row."""


class Sampler(Protocol):
    """Steps environments and passes the transitions to the session, which learns from them."""

    def sample(self) -> Round:
        """Make one round of steps."""
        ...


class StepProcessor(Protocol):
    """Changes rewards before the agent sees them; must depend only on the transition."""

    def __call__(self, transitions: Transitions, streams: Sequence[int]) -> Array:
        """The rewards to learn from."""
        ...


def make_sampler(
    session: TrainingSession,
    envs: Envs,
    *,
    processor: StepProcessor | None = None,
    reset_options: ResetOptions | None = None,
    extras: Sequence[str] | None = None,
) -> Sampler:
    """The fastest sampler for these environments."""
    starts = _Starts(session, envs, processor, reset_options)
    if envs.num_envs == 1 and processor is None and not isinstance(envs, AutoresetEnvs):
        return StreamSampler(session, envs, starts, extras)
    ends = _Ends(session, envs.name, processor, extras)
    if isinstance(envs, AutoresetEnvs):
        return AutoresetSampler(session, envs, starts, ends)
    return VectorSampler(session, envs, starts, ends)


class _Starts:
    """Starts episodes, or restores those that were open before a resume.

    If an environment can save its state, the state is part of the checkpoint; otherwise the episode is replayed.
    """

    def __init__(
        self,
        session: TrainingSession,
        envs: Envs,
        processor: StepProcessor | None,
        reset_options: ResetOptions | None,
    ) -> None:
        self.streams = [session.stream(row) for row in range(envs.num_envs)]
        self._session, self._envs = session, envs
        self._processor, self._options = processor, reset_options
        self.steps_made = session.total_steps
        """Env steps that the environments have made; the session may not have processed the last of them."""
        self._states: dict[str, State] = {}
        """The states of environments in the checkpoint, until they are restored."""
        if session.resumed is not None and envs.inexact is not None:
            session.mark_inexact(envs.inexact)
        if not isinstance(envs, AutoresetEnvs) and envs.one(0).has_state:
            session.attach("environments", self)

    def state(self) -> State:
        """The state of each environment with an open episode."""
        if self.steps_made != self._session.total_steps:
            return {}
        rows = [row for row, stream in enumerate(self.streams) if stream.is_open and str(row) not in self._states]
        return {**self._states, **{str(row): self._envs.one(row).get_state() for row in rows}}

    def load_state(self, state: State) -> None:
        """Keep the states until the environments are reset."""
        self._states = dict(state)

    def reset(self, row: int) -> Any:
        """The first observation of a new episode, or the newest observation of an open one."""
        stream, single = self.streams[row], self._envs.one(row)
        env = single if self._processor is None else _Processed(single, row, self._processor, self._envs)
        state = self._states.pop(str(row), None)
        try:
            if state is not None:
                single.reset(seed=stream.episode_seed)
                single.set_state(state)
                return stream.bring_back()
            return stream.reset(env, options=None if stream.is_open else self.options(stream))
        except (EnvError, Interrupted):
            raise
        except ENV_ERRORS as error:
            raise self.failure(row, "reset", error) from error

    def options(self, stream: Stream) -> dict[str, Any] | None:
        """The reset options for the next episode of a stream."""
        if self._options is None:
            return None
        return self._options(cast("int", stream.id), stream.episode, self._session.total_steps)

    def failure(self, row: int, what: str, error: Exception | SystemExit) -> EnvError:
        """An error of an environment, with its row and env step."""
        return EnvError(f"{failed(self._envs.name, row, what, error)} (env step {self._session.total_steps})")


class _Ends:
    """Passes rounds to the session, and announces the episodes that end with them."""

    def __init__(
        self, session: TrainingSession, env: str, processor: StepProcessor | None, extras: Sequence[str] | None
    ) -> None:
        self._session, self._env, self._processor, self._extras = session, env, processor, extras

    def hand_over(
        self, transitions: Transitions, rows: range | Array, extras: Mapping[int, dict[str, float]]
    ) -> tuple[Sequence[int], dict[int, EpisodeRecord]]:
        """Returns the rows whose episodes ended, and their records; `rows` is a range if it contains all rows."""
        session, streams = self._session, None if isinstance(rows, range) else rows
        if self._processor is not None:
            names = rows if isinstance(rows, range) else rows.tolist()
            rewards = np.asarray(self._processor(transitions, names), np.float64)
            transitions = msgspec.structs.replace(transitions, rewards=rewards)
        try:
            ended = cast("list[int]", session.observe_many(transitions, streams=streams))
        except InputError as error:
            raise EnvError(f"{self._env}: {error} (env step {session.total_steps})") from error
        if not ended:
            return ended, _NONE
        records = session.on_episodes({row: numbers_in(extras[row], self._extras) for row in ended})
        return ended, cast("dict[int, EpisodeRecord]", records)


class _Processed:
    """An environment with processed rewards, so that a replay compares what the agent saw."""

    def __init__(self, env: ResettableEnv, row: int, processor: StepProcessor, envs: Envs) -> None:
        self._env, self._row, self._processor = env, row, processor
        self._layout = cast("Layout", Layout.of_space(envs.observation_space))
        self._structure = ActionStructure.of(envs.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._last, info = self._env.reset(seed=seed, options=options)
        return self._last, info

    def step(self, action: Any, /) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        before = self._last
        self._last, reward, terminated, truncated, info = self._env.step(action)
        transitions = Transitions(
            self._batch_of_one(before),
            np.asarray(action if self._structure is None else self._structure.flat(action, "action"))[None],
            np.array([float(reward)]),
            self._batch_of_one(self._last),
            np.array([EpisodeStatus.of(terminated, truncated)], np.uint8),
        )
        return self._last, self._processor(transitions, [self._row])[0], terminated, truncated, info

    def _batch_of_one(self, observation: Any) -> Observations:
        return self._layout.observations([array[None] for array in self._layout.conform(observation, "observation")])


class StreamSampler:
    """One environment: the fast path, with a stream."""

    def __init__(self, session: TrainingSession, envs: Envs, starts: _Starts, extras: Sequence[str] | None) -> None:
        self._session, self._starts, self._extras = session, starts, extras
        self._stream, self._env = starts.streams[0], envs.one(0)
        self._action: Any = None

    def sample(self) -> Round:
        """Make one step."""
        stream = self._stream
        if self._action is None:
            self._action = stream.begin(self._starts.reset(0))
        self._starts.steps_made = self._session.total_steps + 1
        try:
            observation, reward, terminated, truncated, info = self._env.step(self._action)
            is_over = bool(terminated or truncated)
        except EnvError:
            raise
        except ENV_ERRORS as error:
            raise self._starts.failure(0, "step", error) from error
        try:
            if not is_over:
                self._action = stream.step(observation, reward)
                return Round(_ROW, (reward,), _CONTINUING, _NONE)
            extras = numbers_in(info, self._extras)
            length, total = stream.length + 1, stream.total_reward + float(reward)
            self._action = stream.step(observation, reward, terminated, truncated, extras)
        except InputError as error:
            raise self._starts.failure(0, "step", error) from error
        status = EpisodeStatus.of(terminated, truncated)
        record = EpisodeRecord(total, length, status, extras)
        return Round(_ROW, (reward,), (status,), {0: record})


_ROW = range(1)
_CONTINUING = (EpisodeStatus.CONTINUING,)
_NONE: dict[int, EpisodeRecord] = {}


class VectorSampler:
    """Several environments, each reset when its episode has ended."""

    def __init__(self, session: TrainingSession, envs: Envs, starts: _Starts, ends: _Ends) -> None:
        self._session, self._envs, self._starts, self._ends = session, envs, starts, ends
        self._layout = cast("Layout", Layout.of_space(envs.observation_space))
        self._structure = ActionStructure.of(envs.action_space)
        self._rows = range(envs.num_envs)
        self._to_start: Sequence[int] = self._rows
        self._observations: Observations | None = None

    def sample(self) -> Round:
        """Make one step in each environment."""
        if self._to_start:
            self._start(self._to_start)
        observations = cast("Observations", self._observations)
        actions = self._session.act_many(observations)
        self._starts.steps_made = self._session.total_steps + len(self._rows)
        executed = actions
        if self._structure is not None:
            actions = self._structure.flat(actions, "actions", rows=len(self._rows))
            executed = [self._structure.nested(row) for row in actions]
        outcome = _stepped(self._envs, executed, self._session)
        transitions = Transitions(observations, actions, outcome.rewards, outcome.observations, outcome.statuses)
        self._to_start, records = self._ends.hand_over(transitions, self._rows, outcome.extras)
        self._observations = outcome.observations
        return Round(self._rows, outcome.rewards, outcome.statuses, records)

    def _start(self, rows: Sequence[int]) -> None:
        firsts = [self._starts.reset(row) for row in rows]
        if self._observations is None:
            columns = zip(*[self._layout.conform(first, "the observation") for first in firsts], strict=True)
            self._observations = self._layout.observations([np.stack(column) for column in columns])
            return
        if not isinstance(self._observations, Mapping):
            for row, first in zip(rows, firsts, strict=True):
                self._observations[row] = first
            return
        for row, first in zip(rows, firsts, strict=True):
            arrays = self._layout.conform(first, "the observation")
            for column, array in zip(self._observations.values(), arrays, strict=True):
                column[row] = array


class AutoresetSampler:
    """A vector environment, which may reset itself."""

    def __init__(self, session: TrainingSession, envs: AutoresetEnvs, starts: _Starts, ends: _Ends) -> None:
        self._session, self._envs, self._starts, self._ends = session, envs, starts, ends
        self._to_start: Array | None = np.ones(envs.num_envs, np.bool_)
        self._observations: Observations | None = None
        for stream in starts.streams:
            if stream.is_open:  # it cannot be restored
                stream.abandon()
        self._structure = ActionStructure.of(envs.action_space)
        if self._structure is not None:
            self._idle_actions = np.tile(self._structure.idle, (envs.num_envs, 1))
        else:
            shape, dtype = envs.action_space.shape, envs.action_space.dtype
            self._idle_actions = np.zeros((envs.num_envs, *shape), dtype) + getattr(envs.action_space, "start", 0)

    def sample(self) -> Round:
        """Make one step in each row; rows that only reset themselves make no transition."""
        envs = self._envs
        if self._to_start is not None:
            seeds = [stream.episode_seed for stream in self._starts.streams]
            self._observations = envs.reset(self._to_start, seeds, self._starts.options(self._starts.streams[0]))
            self._to_start = None
        # None stands for all rows, which is the usual case, and faster.
        rows = (~envs.resting).nonzero()[0] if np.count_nonzero(envs.resting) else None
        if rows is not None and not len(rows):
            self._step(self._idle_actions, None)
            return Round((), (), (), {})
        observations = _taken(cast("Observations", self._observations), rows)
        actions = self._session.act_many(observations, streams=rows)
        if self._structure is not None:
            actions = self._structure.flat(actions, "actions", rows=envs.num_envs if rows is None else len(rows))
        outcome = self._step(actions, rows)
        transitions = Transitions(
            observations,
            actions,
            _taken(outcome.rewards, rows),
            _taken(outcome.observations, rows),
            _taken(outcome.statuses, rows),
        )
        every = range(envs.num_envs)
        ended, records = self._ends.hand_over(transitions, every if rows is None else rows, outcome.extras)
        if ended and not envs.resets_itself:
            self._to_start = np.zeros(envs.num_envs, np.bool_)
            self._to_start[list(ended)] = True
        names: Sequence[int] = every if rows is None else rows.tolist()
        return Round(names, transitions.rewards, transitions.statuses, records)

    def _step(self, actions: Array, rows: Array | None) -> Outcome:
        """Step all rows, with these actions of some of them."""
        if rows is not None:
            chosen, actions = actions, self._idle_actions.copy()
            actions[rows] = chosen
        executed = actions if self._structure is None else self._structure.nested(actions)
        outcome = _stepped(self._envs, executed, self._session)
        self._observations = outcome.observations if outcome.following is None else outcome.following
        return outcome


def _stepped(envs: Envs, actions: Any, session: TrainingSession) -> Outcome:
    try:
        return envs.step(actions)
    except EnvError as error:
        named = EnvError(f"{error} (env step {session.total_steps})")
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named from error


_Values = TypeVar("_Values", bound="Observations | Array")


def _taken(values: _Values, rows: Array | None) -> _Values:
    """Some rows of observations or of a column; None for all."""
    if rows is None:
        return values
    if isinstance(values, Mapping):
        return cast("_Values", {name: column.take(rows, axis=0) for name, column in values.items()})
    return cast("_Values", values.take(rows, axis=0))

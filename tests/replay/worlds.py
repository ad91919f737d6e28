"""Streams of episodes to remember, in several kinds of observation, and a memory of them in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import strategies as st

from rekindle.experience import Array, Experience, Observations, Transitions
from rekindle.replay import Batch, Memory

Frames = tuple[int, ...]
"""An observation as the world knows it: the numbers of its frames, oldest first (without stacks only one)."""


class Kind(NamedTuple):
    """A kind of observation and of action."""

    observation_space: Any
    action_space: Any
    stack: int
    observation: Callable[[Frames], Any]
    action: Callable[[int], Any]

    def memory(self, capacity: int) -> Memory:
        frame_stack = self.stack if self.stack > 1 else None
        return Memory(capacity, self.observation_space, self.action_space, frame_stack=frame_stack)


def _discrete(number: int) -> np.int64:
    return np.int64(number)


def _bits(number: int) -> Array:
    return np.array([number >> bit & 1 for bit in range(8)], np.int8)


KINDS = {
    "vector": Kind(
        Box(-1000, 1000, (2,), np.float32),
        Discrete(1000),
        1,
        lambda frames: np.array([frames[0], -frames[0]], np.float32),
        _discrete,
    ),
    "number": Kind(
        Discrete(1000),
        MultiDiscrete([1000, 7]),
        1,
        lambda frames: np.int64(frames[0]),
        lambda number: np.array([number, number % 7], np.int64),
    ),
    "bits": Kind(
        MultiBinary(8),
        MultiBinary(8),
        1,
        lambda frames: _bits(frames[0]),
        _bits,
    ),
    "dict": Kind(
        Dict({"wheel": Discrete(1000), "camera": Box(0, 255, (2, 2), np.uint8)}),
        Box(-1000, 1000, (2,), np.float32),
        1,
        lambda frames: {"wheel": np.int64(frames[0]), "camera": np.full((2, 2), frames[0], np.uint8)},
        lambda number: np.array([number, -number], np.float32),
    ),
    "pairs of frames": Kind(
        Box(0, 255, (2, 3), np.uint8),
        Discrete(1000),
        2,
        lambda frames: np.array([[frame] * 3 for frame in frames], np.uint8),
        _discrete,
    ),
    "stacks of 4": Kind(
        Box(-1, 1, (4,), np.float32), Discrete(1000), 4, lambda frames: np.array(frames, np.float32), _discrete
    ),
}


class Event(NamedTuple):
    """What happens to a stream, by choice of hypothesis."""

    stream: int
    status: int
    reward: int
    leaps: bool
    """The transition does not start from where the last one led to."""
    slides: bool
    """The next observation continues the stack."""
    returns: bool
    """A new episode starts where the last one ended."""


def events(streams: int = 5) -> st.SearchStrategy[list[Event]]:
    seldom = st.sampled_from([False] * 9 + [True])
    return st.lists(
        st.builds(
            Event,
            stream=st.integers(0, streams - 1),
            status=st.sampled_from([0] * 6 + [1, 2]),
            reward=st.integers(-8, 8),
            leaps=seldom,
            slides=seldom.map(lambda value: not value),
            returns=st.booleans(),
        ),
        max_size=8,
    )


def plain(stream: int = 0, status: int = 0) -> Event:
    """What happens nearly always."""
    return Event(stream=stream, status=status, reward=1, leaps=False, slides=True, returns=False)


class Step(NamedTuple):
    """A transition of the world."""

    stream: int
    before: Frames
    action: int
    reward: int
    after: Frames
    status: int


class World:
    """Turns events into transitions that make sense."""

    def __init__(self, stack: int) -> None:
        self._stack = stack
        self._frames = 0
        self._actions = 0
        self._current: dict[int, Frames] = {}
        self._ended: dict[int, Frames] = {}

    def steps(self, chosen: Iterable[Event]) -> list[Step]:
        return [self._step(event) for event in chosen]

    def cut(self, stream: int) -> None:
        if stream in self._current:
            self._ended[stream] = self._current.pop(stream)

    def _step(self, event: Event) -> Step:
        before = self._current.pop(event.stream, None)
        if before is None and event.returns:
            before = self._ended.get(event.stream)
        if before is None or event.leaps:
            before = (self._frame(),) * self._stack
        newest = self._frame()
        after = (*before[1:], newest) if event.slides else tuple(self._frame() for _ in range(self._stack))
        (self._ended if event.status else self._current)[event.stream] = after
        self._actions = (self._actions + 1) % 256
        return Step(event.stream, before, self._actions, event.reward, after, event.status)

    def _frame(self) -> int:
        self._frames = (self._frames + 1) % 256
        return self._frames


def transitions(kind: Kind, steps: list[Step]) -> tuple[Transitions, Array]:
    experiences = [
        Experience(
            kind.observation(step.before),
            kind.action(step.action),
            float(step.reward),
            kind.observation(step.after),
            step.status,  # type: ignore[arg-type]
        )
        for step in steps
    ]
    return Transitions.of(experiences), np.array([step.stream for step in steps])


class Row(NamedTuple):
    """A transition that the model remembers, and the rows it cannot be put together without."""

    step: Step
    number: int
    needs: tuple[int, ...]


class Model:
    """What a memory should do, said plainly: every transition ever, and how many rows each has taken."""

    def __init__(self, capacity: int, stack: int) -> None:
        self._capacity = capacity
        self._stack = stack
        self._end = 0
        self._rows: dict[int, Row] = {}
        self._next: dict[int, int] = {}
        self._heads: dict[int, tuple[Frames, tuple[int, ...]]] = {}
        """By stream, the last observation and the rows of its frames."""
        self.broken_chains = 0

    @property
    def first(self) -> int:
        return max(0, self._end - self._capacity)

    def append(self, steps: list[Step]) -> list[int]:
        streams = [step.stream for step in steps]
        at_once = len(set(streams)) == len(streams) and len(steps) * 2 * self._stack <= self._capacity
        first = self.first
        return [self._append(step, first if at_once else self.first) for step in steps]

    def cut(self, stream: int) -> None:
        self._heads.pop(stream, None)

    def _new_rows(self, count: int) -> tuple[int, ...]:
        self._end += count
        return tuple(range(self._end - count, self._end))

    def _append(self, step: Step, first: int) -> int:
        head, frames = self._heads.pop(step.stream, ((), (-1,)))
        goes_on = head == step.before and min(frames) >= first
        self.broken_chains += head != step.before and min(frames) >= first
        if not goes_on:
            frames = self._new_rows(self._stack)
        slides = step.after[:-1] == step.before[1:]
        after = frames[1:] + self._new_rows(1) if slides else self._new_rows(self._stack)
        number = after[-1]
        self._rows[number] = Row(step, number, frames)
        if goes_on:
            self._next[frames[-1]] = number
        if not step.status:
            self._heads[step.stream] = (step.after, after)
        return number

    def numbers(self) -> list[int]:
        """The transitions that can be sampled."""
        return [row.number for row in self._rows.values() if min(row.needs) >= self.first]

    def window(self, number: int, n_step: int) -> list[Step]:
        """The steps of a window."""
        steps = [self._rows[number].step]
        while len(steps) < n_step and number in self._next:
            number = self._next[number]
            steps.append(self._rows[number].step)
        return steps


def assert_batch_is(batch: Batch, kind: Kind, windows: list[list[Step]], gamma: float) -> None:
    """Compare a batch with what its windows should become."""
    expected_returns = [sum(gamma**index * step.reward for index, step in enumerate(window)) for window in windows]
    expected_discounts = [0.0 if window[-1].status == 1 else gamma ** len(window) for window in windows]
    whole, _ = transitions(
        kind, [window[0]._replace(after=window[-1].after, status=window[-1].status) for window in windows]
    )
    assert_same_observations(batch.observations, whole.observations)
    assert_same_observations(batch.next_observations, whole.next_observations)
    assert batch.actions.dtype == whole.actions.dtype
    np.testing.assert_array_equal(batch.actions, whole.actions)
    assert batch.rewards.dtype == batch.discounts.dtype == np.float32
    np.testing.assert_array_equal(batch.rewards, np.array(expected_returns, np.float32))
    np.testing.assert_array_equal(batch.discounts, np.array(expected_discounts, np.float32))


def assert_same_observations(some: Observations, others: Observations) -> None:
    assert parts(some).keys() == parts(others).keys()
    for name, values in parts(some).items():
        assert values.dtype == parts(others)[name].dtype
        np.testing.assert_array_equal(values, parts(others)[name])


def assert_same_batch(one: Batch, other: Batch) -> None:
    assert_same_observations(one.observations, other.observations)
    assert_same_observations(one.next_observations, other.next_observations)
    for name in ("actions", "rewards", "discounts", "rows"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def parts(observations: Observations) -> dict[str, Array]:
    return {"": observations} if isinstance(observations, np.ndarray) else dict(observations)


def walk(count: int, *, stack: int = 1, stream: int = 0, last: int = 0) -> list[Step]:
    """An episode of one stream: frame 0 (repeated to a stack), then 1, 2, 3..."""
    frames = [0] * stack + list(range(1, count + 1))
    return [
        Step(
            stream,
            tuple(frames[index : index + stack]),
            index,
            1,
            tuple(frames[index + 1 : index + 1 + stack]),
            last if index == count - 1 else 0,
        )
        for index in range(count)
    ]


def remembered(kind: Kind, capacity: int, *episodes: list[Step]) -> Memory:
    memory = kind.memory(capacity)
    for episode in episodes:
        for step in episode:
            memory.append(*transitions(kind, [step]))
    return memory

"""A rollout keeps each stream's steps apart, and its advantages are those of each episode by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import KINDS, Event, Frames, Kind, Step, World, assert_same_observations, events, plain, transitions

from rekindle.checkpoint import decode, encode
from rekindle.errors import InputError, StateError
from rekindle.experience import Transitions
from rekindle.replay import Rollout
from rekindle.replay import rollout as rollout_module

kinds = st.sampled_from(sorted(KINDS)).map(KINDS.__getitem__)


def value(frames: Frames) -> float:
    """What some critic makes of an observation."""
    return float(frames[-1] % 7) - 3.0


class Chains:
    """Which steps go on from which, in lists."""

    def __init__(self) -> None:
        self.chains: list[list[Step]] = []
        self.steps: list[Step] = []
        self._open: dict[int, list[Step]] = {}

    def append(self, step: Step) -> None:
        chain = self._open.pop(step.stream, None)
        if chain is None or chain[-1].after != step.before:
            chain = []
            self.chains.append(chain)
        chain.append(step)
        self.steps.append(step)
        if not step.status:
            self._open[step.stream] = chain

    def cut(self, stream: int) -> None:
        self._open.pop(stream, None)

    def advantages(self, gamma: float, gae_lambda: float) -> dict[int, float]:
        """By identity of the step: the sum of all later errors of its chain, each decayed by its distance."""
        found: dict[int, float] = {}
        for chain in self.chains:
            errors = [
                step.reward + (gamma * value(step.after) if step.status != 1 else 0.0) - value(step.before)
                for step in chain
            ]
            for start, step in enumerate(chain):
                found[id(step)] = sum(
                    (gamma * gae_lambda) ** distance * error for distance, error in enumerate(errors[start:])
                )
        return found


def collect(rollout: Rollout, kind: Kind, steps: list[Step], version: int = 0) -> None:
    rollout.append(*transitions(kind, steps), np.full(len(steps), version))


@settings(max_examples=120, deadline=None)
@given(kind=kinds, gamma=st.sampled_from([0.0, 0.9, 1.0]), gae_lambda=st.sampled_from([0.0, 0.8, 1.0]), data=st.data())
def test_it_matches_episodes_taken_one_by_one(kind: Kind, gamma: float, gae_lambda: float, data: st.DataObject) -> None:
    rollout, world, chains = Rollout(kind.observation_space, kind.action_space), World(kind.stack), Chains()
    versions: list[int] = []
    for version in range(data.draw(st.integers(1, 20))):
        if data.draw(st.sampled_from([False] * 4 + [True])):
            stream = data.draw(st.integers(0, 5))
            for each in (world, chains):
                each.cut(stream)
            rollout.cut(np.array([stream]))
        if data.draw(st.sampled_from([False] * 4 + [True])):
            rollout = reloaded(rollout, kind)
        steps = world.steps(data.draw(events()))
        if steps:
            collect(rollout, kind, steps, version)
            versions += [version] * len(steps)
            for step in steps:
                chains.append(step)
    assert len(rollout) == len(chains.steps)
    if not chains.steps:
        return
    steps = rollout.steps()
    whole, _ = transitions(kind, chains.steps)
    assert_same_observations(steps.observations, whole.observations)
    for name in ("actions", "rewards", "statuses"):
        np.testing.assert_array_equal(getattr(steps, name), getattr(whole, name))
    assert steps.versions.tolist() == versions
    last = [chains.steps[index] for index in steps.last_steps.tolist()]
    assert sorted(map(id, last)) == sorted(id(chain[-1]) for chain in chains.chains)
    assert_same_observations(steps.last_observations, transitions(kind, last)[0].next_observations)
    found = steps.advantages(
        [value(step.before) for step in chains.steps],
        [value(step.after) for step in last],
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    expected = chains.advantages(gamma, gae_lambda)
    np.testing.assert_allclose(found.advantages, [expected[id(step)] for step in chains.steps], rtol=1e-5, atol=1e-5)
    returns = [expected[id(step)] + value(step.before) for step in chains.steps]
    np.testing.assert_allclose(found.returns, returns, rtol=1e-5, atol=1e-5)
    assert found.advantages.dtype == found.returns.dtype == np.float32


def reloaded(rollout: Rollout, kind: Kind) -> Rollout:
    state = decode(b"".join(map(bytes, encode(rollout.state()))), name="state")
    fresh = Rollout(kind.observation_space, kind.action_space)
    fresh.load_state(state)
    assert encode(fresh.state()) == encode(rollout.state())
    return fresh


KIND = KINDS["vector"]


def rollout_of(*chosen: Event) -> Rollout:
    rollout = Rollout(KIND.observation_space, KIND.action_space)
    for step in World(1).steps(chosen):
        collect(rollout, KIND, [step])
    return rollout


def test_a_truncated_step_bootstraps_and_a_terminated_one_does_not() -> None:
    steps = rollout_of(plain(0, 1), plain(1, 2), plain(2)).steps()
    assert steps.last_steps.tolist() == [0, 1, 2]
    found = steps.advantages([0, 0, 0], [100, 100, 100], gamma=0.5, gae_lambda=0.9)
    assert found.advantages.tolist() == [1, 51, 51]


@pytest.mark.parametrize("streams", [1, 3, 300])
def test_advantages_computed_in_blocks_are_those_computed_step_by_step_to_the_bit(
    streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rollout = Rollout(Box(-1, 1, (2,), np.float32), Discrete(2))
    seen = rng.normal(size=(streams, 2)).astype(np.float32)
    for _ in range(20):
        slots = np.flatnonzero(rng.random(streams) < 0.9)  # some streams pause
        count = len(slots)
        after = rng.normal(size=(count, 2)).astype(np.float32)
        statuses = rng.choice(3, count, p=[0.8, 0.1, 0.1]).astype(np.uint8)
        made = Transitions(seen[slots], np.zeros(count, np.int64), rng.normal(size=count), after, statuses)
        rollout.append(made, slots, np.zeros(count, np.int64))
        seen[slots] = np.where(rng.random((count, 1)) < 0.05, after + 1, after)  # some continue from elsewhere
    steps = rollout.steps()
    values, lasts = rng.normal(size=len(rollout)), rng.normal(size=len(steps.last_steps))
    found: list[Any] = []
    for rows in (1, 1_000_000):
        monkeypatch.setattr(rollout_module, "_ROWS_IN_A_BLOCK", rows)
        found.append(steps.advantages(values, lasts, gamma=0.99, gae_lambda=0.95))
    np.testing.assert_array_equal(found[0].advantages, found[1].advantages)
    np.testing.assert_array_equal(found[0].returns, found[1].returns)


def test_rewards_can_be_replaced_by_scaled_ones() -> None:
    steps = rollout_of(plain(), plain()).steps()
    found = steps.advantages([0, 0], [0], gamma=1.0, gae_lambda=1.0, rewards=steps.rewards * 10)
    assert found.returns.tolist() == [20, 10]


def test_after_a_clear_nothing_goes_on_from_before() -> None:
    world, rollout = World(1), Rollout(KIND.observation_space, KIND.action_space)
    collect(rollout, KIND, world.steps([plain()]))
    rollout.clear()
    assert len(rollout) == 0
    collect(rollout, KIND, world.steps([plain()]))
    assert rollout.steps().following.tolist() == [-1]
    assert rollout.steps().last_steps.tolist() == [0]


def test_what_was_given_may_be_reused_by_the_host() -> None:
    rollout = Rollout(KIND.observation_space, KIND.action_space)
    given, streams = transitions(KIND, World(1).steps([plain()]))
    rollout.append(given, streams, np.array([3]))
    last = np.array(rollout.steps().last_observations)
    np.asarray(given.next_observations)[...] = 77
    np.testing.assert_array_equal(np.asarray(rollout.steps().last_observations), last)


@pytest.mark.parametrize(("streams", "versions"), [([0], [0, 0]), ([0, 1], [0]), ([0, 1], [0.0, 0.0])])
def test_transitions_that_do_not_fit_are_refused_and_change_nothing(streams: list[int], versions: list[Any]) -> None:
    rollout = rollout_of(plain(), plain())
    before = encode(rollout.state())
    given, _ = transitions(KIND, World(1).steps([plain(), plain(1)]))
    with pytest.raises(InputError):
        rollout.append(given, np.array(streams), np.array(versions))
    assert encode(rollout.state()) == before


def changed(state: dict[str, Any], **steps: Any) -> dict[str, Any]:
    return {**state, "steps": {**state["steps"], **steps}}


@pytest.mark.parametrize(
    "break_it",
    [
        lambda state: {},
        lambda state: {**state, "more": 1},
        lambda state: {**state, "last_steps": []},
        lambda state: {**state, "last_steps": [0]},
        lambda state: {**state, "heads": [[0, 0]]},
        lambda state: {**state, "heads": [[0, 5]]},
        lambda state: {**state, "last_observations": {}},
        lambda state: {**state, "last_observations": {"observation": np.zeros((0, 2), np.float32)}},
        lambda state: changed(state, reward=np.zeros(1)),
        lambda state: changed(state, reward=None),
        lambda state: changed(state, previous=np.array([-1, 1])),
        lambda state: changed(state, previous=np.array([-2, 0])),
        lambda state: {**state, "steps": {}},
    ],
)
def test_a_state_that_is_none_is_refused_and_changes_nothing(break_it: Any) -> None:
    rollout = rollout_of(plain(), plain())
    before = encode(rollout.state())
    with pytest.raises(StateError):
        rollout.load_state(break_it(rollout.state()))
    assert encode(rollout.state()) == before

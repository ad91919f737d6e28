"""What the agent is given is what plain environments do, whichever way they are put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import env_worlds
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import ToyAgent

from rekindle.envs import AutoresetEnvs, EnvFactory, Envs, LocalEnvs, WorkerEnvs
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.rng import episode_seed
from rekindle.session.session import TrainingSession
from rekindle.training.sampling import make_sampler

Seen = dict[int, list[tuple[Any, int, float, Any, int]]]
"""By stream: observation, action, reward, next observation, status."""


class Witness(ToyAgent):
    """Remembers every transition that it was given."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seen: Seen = {}

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        for stream, item in zip(streams.tolist(), transitions.experiences(), strict=True):
            row = (plain(item.observation), int(item.action), item.reward, plain(item.next_observation), item.status)
            self.seen.setdefault(stream, []).append((*row[:4], int(row[4])))


def plain(observation: Any) -> Any:
    if isinstance(observation, dict):
        return {name: np.asarray(part).tolist() for name, part in observation.items()}
    return np.asarray(observation).tolist()


def autoreset(mode: AutoresetMode, factory: EnvFactory, count: int) -> AutoresetEnvs:
    return AutoresetEnvs(SyncVectorEnv([factory] * count, autoreset_mode=mode), "vector")


KINDS: dict[str, Callable[[EnvFactory, int], Envs]] = {
    "single": lambda factory, _: LocalEnvs(factory, 1),
    "sync": LocalEnvs,
    **{mode.value: partial(autoreset, mode) for mode in AutoresetMode},
}
SEEDS_ITSELF = {AutoresetMode.NEXT_STEP.value, AutoresetMode.SAME_STEP.value}


def check(kind: str, envs: Envs, factory: EnvFactory, seed: int) -> None:
    """Sample, then live every episode again in plain environments."""
    agent = Witness(seed)
    session = TrainingSession(agent, seed=seed, max_steps=150)
    sampler = make_sampler(session, envs)
    records = []
    while not session.is_done:
        made = sampler.sample()
        assert len(made.rows) == len(made.rewards) == len(made.statuses)
        records += made.records.values()
    session.close()
    envs.close()
    assert sorted(agent.seen) == list(range(envs.num_envs))
    ended = []
    for stream, transitions in agent.seen.items():
        env, episode, observation = factory(), 0, None
        for before, action, reward, after, status in transitions:
            if observation is None:
                own = episode > 0 and kind in SEEDS_ITSELF
                observation = env.reset(seed=None if own else episode_seed(seed, stream, episode))[0]
            assert before == plain(observation)
            observation, true_reward, terminated, truncated, info = env.step(action)
            assert after == plain(observation)
            assert reward == float(true_reward)
            assert status == EpisodeStatus.of(terminated, truncated)
            if terminated or truncated:
                observation, episode = None, episode + 1
                ended.append((EpisodeStatus(status), {"is_success": float(info["is_success"])}))
    assert len(records) == session.episodes
    key = repr
    assert sorted(map(key, ended)) == sorted(key((record.status, dict(record.extras))) for record in records)
    assert {record.status for record in records} <= {EpisodeStatus.TERMINATED, EpisodeStatus.TRUNCATED}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), count=st.integers(1, 4), limit=st.integers(1, 9), named=st.booleans())
def test_transitions_are_those_of_plain_environments(kind: str, seed: int, count: int, limit: int, named: bool) -> None:
    factory = EnvFactory("env_worlds:Path", arguments={"limit": limit, "named": named})
    check(kind, KINDS[kind](factory, count), factory, seed)


def test_transitions_from_workers_are_those_of_plain_environments() -> None:
    factory = EnvFactory(env_worlds.Path)
    check("workers", WorkerEnvs(factory, 3, workers=2), factory, 4)


def test_rewards_are_processed_on_their_way_to_the_agent() -> None:
    agent = Witness(0)
    session = TrainingSession(agent, seed=0, max_steps=40)

    def half(transitions: Transitions, streams: Any) -> Array:
        assert len(streams) == len(transitions)
        return transitions.rewards / 2

    sampler = make_sampler(session, LocalEnvs(EnvFactory(env_worlds.Path), 2), processor=half)
    while not session.is_done:
        sampler.sample()
    session.close()
    for before, _, reward, after, _ in agent.seen[0] + agent.seen[1]:
        assert reward == pytest.approx(after[0] / 2)
        assert before != after

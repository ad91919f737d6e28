"""An evaluation plays the same episodes each time, favours none, and leaves the training alone."""

from __future__ import annotations

from typing import Any

import env_worlds
import numpy as np
import pytest

from rekindle.envs import EnvFactory
from rekindle.errors import EnvError
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.rng import episode_seed
from rekindle.stats import EpisodeRecord
from rekindle.training import EpisodeEvaluator


def right(observations: Observations) -> Array:
    return np.ones(len(next(iter(observations.values())) if isinstance(observations, dict) else observations), int)


def alone(episode: int, *, limit: int = 9) -> EpisodeRecord:
    env, total, length = env_worlds.Path(limit=limit), 0.0, 0
    env.reset(seed=episode_seed(3, "evaluation", episode))
    while True:
        _, reward, terminated, truncated, info = env.step(1)
        total, length = total + reward, length + 1
        if terminated or truncated:
            status = EpisodeStatus.of(terminated, truncated)
            return EpisodeRecord(total, length, status, {"is_success": float(info["is_success"])})


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("named", [False, True])
def test_episode_i_is_the_same_however_many_play_together(num_envs: int, named: bool) -> None:
    factory = EnvFactory("env_worlds:Path", arguments={"named": named})
    evaluator = EpisodeEvaluator(factory, seed=3, num_envs=num_envs)
    for _ in range(2):
        found = evaluator.evaluate(right, 7)
        assert list(found.records) == [alone(episode) for episode in range(7)]
        assert found.score == pytest.approx(np.mean([record.total_reward for record in found.records]))
    evaluator.close()


def test_batches_have_one_size_to_the_end() -> None:
    sizes: set[int] = set()

    def act(observations: Any) -> Array:
        sizes.add(len(observations))
        return right(observations)

    EpisodeEvaluator(EnvFactory(env_worlds.Path), seed=3, num_envs=3).evaluate(act, 7)
    assert sizes == {3}


def test_rewards_count_whole_though_training_sees_their_sign() -> None:
    factory = EnvFactory(env_worlds.Path, sign_rewards=True)
    found = EpisodeEvaluator(factory, seed=3).evaluate(right, 2)
    assert list(found.records) == [alone(0), alone(1)]


def test_only_chosen_extras_are_kept() -> None:
    found = EpisodeEvaluator(EnvFactory(env_worlds.Path), seed=3, extras=()).evaluate(right, 1)
    assert found.records[0].extras == {}


def test_a_leaky_environment_is_made_anew_for_each_episode() -> None:
    evaluator = EpisodeEvaluator(EnvFactory(env_worlds.Leaky), seed=3, num_envs=2, rebuilds=True)
    assert evaluator.evaluate(right, 5) == evaluator.evaluate(right, 5)


def test_a_failure_says_that_it_was_in_an_evaluation() -> None:
    evaluator = EpisodeEvaluator(EnvFactory(lambda: env_worlds.Broken(how="raises")), seed=3)
    with pytest.raises(EnvError, match=r"\(evaluation\), env 0, failed in step: ZeroDivisionError: by nothing"):
        evaluator.evaluate(right, 2)

"""Atari: the vector environment that comes with it shows agents what single environments show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers
from toys import ToyAgent

from rekindle import RunReader
from rekindle.envs import AutoresetEnvs, EnvFactory, make_envs
from rekindle.errors import ConfigError
from rekindle.experience import EpisodeStatus
from rekindle.training import Trainer

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

ROWS, FRAMES = 2, 240
SHORT = {"max_num_frames_per_episode": FRAMES, "repeat_action_probability": 0.0}


def alone(game: str) -> Any:
    """What a row must show: no no-ops at the start, as which of them are drawn differs."""
    env = wrappers.AtariPreprocessing(gymnasium.make(game, frameskip=1, **SHORT), noop_max=0)
    return wrappers.FrameStackObservation(env, 4, padding_type="zero")


@pytest.mark.parametrize(
    ("game", "sign", "mode"), [("ALE/Breakout-v5", False, "NextStep"), ("ALE/SpaceInvaders-v5", True, "SameStep")]
)
def test_rows_are_single_environments_with_true_last_observations(game: str, sign: bool, mode: str) -> None:
    arguments = {**SHORT, "noop_max": 0, "autoreset_mode": mode}
    factory = EnvFactory(game, atari=True, frame_stack=4, sign_rewards=sign, arguments=arguments)
    envs = make_envs(factory, ROWS, vectorization="native")
    assert isinstance(envs, AutoresetEnvs)
    singles = [alone(game) for _ in range(ROWS)]
    rng = np.random.default_rng(0)
    ends = 0
    rewards = set()
    try:
        seen: Any = envs.reset(np.ones(ROWS, np.bool_), [2**32 - 1, 7])
        for row, env in enumerate(singles):
            assert (seen[row] == env.reset(seed=row)[0]).all()
        for _ in range(200):
            actions = rng.integers(envs.action_space.n, size=ROWS)
            resting = envs.resting.copy()
            outcome = envs.step(actions)
            shown: Any = outcome.observations
            following: Any = outcome.following
            for row, env in enumerate(singles):
                if resting[row]:
                    assert (shown[row] == env.reset()[0]).all()
                    assert outcome.statuses[row] == EpisodeStatus.CONTINUING
                    continue
                observation, reward, terminated, truncated, _ = env.step(actions[row])
                assert (shown[row] == observation).all()
                assert outcome.rewards[row] == (np.sign(reward) if sign else reward)
                assert outcome.statuses[row] == EpisodeStatus.of(terminated, truncated)
                rewards.add(float(outcome.rewards[row]))
                if terminated or truncated:
                    ends += 1
                    if mode == "SameStep":
                        assert (following[row] == env.reset()[0]).all()
        assert ends >= 2 * ROWS
        assert len(rewards) > 1
    finally:
        envs.close()
        for env in singles:
            env.close()


def test_single_environments_are_made_alike() -> None:
    factory = EnvFactory("ALE/Breakout-v5", atari=True, frame_stack=4, max_episode_steps=5)
    env = factory()
    try:
        native = EnvFactory("ALE/Breakout-v5", atari=True, frame_stack=4).make_vector(1)
        assert (env.observation_space, env.action_space) == (
            native.single_observation_space,
            native.single_action_space,
        )
        native.close()
        observation, _ = env.reset(seed=0)
        assert (observation[:3] == 0).all()
        assert observation[3].any()
        assert [env.step(0)[3] for _ in range(5)] == [False] * 4 + [True]  # steps of the agent, not frames
    finally:
        env.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "set atari and frame_stack"),
        ({"atari": True}, "set atari and frame_stack"),
        ({"atari": True, "frame_stack": 4, "max_episode_steps": 9}, "pass max_num_frames_per_episode"),
        ({"atari": True, "frame_stack": 4, "clip_actions": True}, "clip_actions cannot wrap"),
    ],
)
def test_what_it_cannot_do_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EnvFactory("ALE/Breakout-v5", **settings).make_vector(2)


def test_a_trainer_trains_on_it_and_evaluates_on_whole_rewards(tmp_path: Path) -> None:
    factory = EnvFactory("ALE/Breakout-v5", atari=True, frame_stack=4, sign_rewards=True, arguments=SHORT)
    options: dict[str, Any] = {"num_envs": 3, "vectorization": "native", "eval_episodes": 1}
    options["determinism"] = "repeats"
    Trainer(factory, FewPixels(), name="t", root=tmp_path, steps=200, **options).train()
    reader = RunReader(tmp_path / "t")
    assert (reader.status, reader.metadata.total_steps >= 200) == ("finished", True)
    assert len(reader.train_episodes()) >= 3
    assert len(reader.eval_episodes()) == 1


class FewPixels(ToyAgent):
    """Looks at a few pixels only."""

    def act(self, observations: Any, mode: Any, streams: Any) -> Any:
        return super().act(observations[:, 0, 40, :3].astype(np.float64), mode, streams)

    def observe(self, transitions: Any, streams: Any) -> None:
        few = transitions.next_observations[:, 0, 40, :3].astype(np.float64)
        super().observe(
            type(transitions)(few, transitions.actions, transitions.rewards, few, transitions.statuses), streams
        )

"""Vector environments of somebody's own: given as a function of `num_envs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import env_worlds
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from toys import ToyAgent

from rekindle import RunReader, verify
from rekindle.envs import AutoresetEnvs, Determinism, EnvFactory, check_env, make_envs, probe
from rekindle.errors import ConfigError
from rekindle.training import Trainer

OPTIONS: dict[str, Any] = {
    "name": "t",
    "num_envs": 3,
    "vectorization": "native",
    "steps": 120,
    "eval_every": 60,
    "eval_episodes": 3,
    "checkpoint_every": 30,
    "metrics_every": 20,
}


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_one_row_alone_is_the_environment_it_is_made_of(mode: AutoresetMode, named: bool) -> None:
    alone = EnvFactory(env_worlds.paths, arguments={"mode": mode, "named": named})()
    plain = env_worlds.Path(named=named)
    for seed in range(5):
        seen, expected = [alone.reset(seed=seed)[0]], [plain.reset(seed=seed)[0]]
        ended = False
        while not ended:
            observation, reward, terminated, truncated, info = plain.step(seed % 2)
            ended = terminated or truncated
            expected += [
                observation,
                reward,
                terminated,
                truncated,
                {"is_success": info["is_success"]} if ended else {},
            ]
            seen += alone.step(seed % 2)
        np.testing.assert_equal(seen, expected)


def test_what_can_be_found_out_about_it_is() -> None:
    assert probe(EnvFactory(env_worlds.paths)) is Determinism.REPEATS
    assert not [finding for finding in check_env(env_worlds.paths) if finding.level == "error"]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_trainer_trains_on_it_and_evaluates_on_one_row(tmp_path: Path, mode: AutoresetMode) -> None:
    def make(num_envs: int) -> SyncVectorEnv:
        return env_worlds.paths(num_envs, mode=mode)

    Trainer(make, ToyAgent(), root=tmp_path, **OPTIONS).train()
    reader = RunReader(tmp_path / "t")
    assert reader.status == "finished"
    assert reader.metadata.total_steps in range(120, 123)
    assert {row["stream"] for row in reader.train_episodes()} == {0, 1, 2}
    assert {row["extras"]["is_success"] for row in reader.train_episodes()} == {0.0, 1.0}
    assert len(reader.eval_episodes()) == 9
    assert verify(tmp_path / "t").ok


def test_a_run_on_one_that_can_be_imported_goes_on_from_its_path(tmp_path: Path) -> None:
    first = Trainer("env_worlds:paths", ToyAgent(), root=tmp_path, **OPTIONS)
    for step in first.steps():
        if step.total_steps >= 60:
            break
    report = Trainer.resume(tmp_path / "t", agent=ToyAgent(), modules=["env_worlds"]).train()
    assert (report.status, report.env_steps >= 120) == ("finished", True)
    assert RunReader(tmp_path / "t").metadata.resumes[0].grade == "approximate"


def test_rows_of_it_can_be_made_one_by_one_and_are_exact_then() -> None:
    envs = make_envs(EnvFactory(env_worlds.paths), 2, vectorization="sync")
    assert not isinstance(envs, AutoresetEnvs)
    assert envs.inexact is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: env_worlds.paths(3), "created a vector environment of 3 rows, but one was needed: .* num_envs"),
        (lambda num_envs: env_worlds.paths(2), "is not a vector environment of 3 rows|of 2 rows, but one"),
        (lambda num_envs: env_worlds.Path(), "is not a vector environment of 3 rows"),
    ],
)
def test_what_makes_something_else_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Trainer(make, ToyAgent(), root=tmp_path, **OPTIONS).train()
    assert list(tmp_path.rglob("metadata.json")) == []

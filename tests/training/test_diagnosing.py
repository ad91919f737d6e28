"""A failed training is repeated, and the update, layer and row that failed are named."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle import RunReader, Trainer
from rekindle.envs import EnvFactory
from rekindle.errors import ConfigError, RekindleError
from rekindle.training import Diagnosis

pytest.importorskip("jax")

OFF_POLICY: dict[str, Any] = {"capacity": 500, "warmup_steps": 50, "batch_size": 16, "update_every": 4}
DQN: dict[str, Any] = {**OFF_POLICY, "hidden_sizes": [8]}
PPO: dict[str, Any] = {"hidden_sizes": [8], "rollout_steps": 64, "minibatch_size": 32, "epochs": 2}


def trained(root: Path, algorithm: str, settings: dict[str, Any], **arguments: Any) -> Path:
    """The run of a training that may fail."""
    env = EnvFactory("faulty_worlds:Walk", arguments=arguments)
    trainer = Trainer(
        env,
        algorithm,
        name="run",
        root=root,
        steps=600,
        seed=2,
        checkpoint_every=100,
        metrics_every=50,
        eval_episodes=0,
        agent_settings=settings,
    )
    with contextlib.suppress(RekindleError):
        trainer.train()
    return RunReader(root / "run").path


def diagnosed(path: Path, **options: Any) -> Diagnosis:
    before = contents(path.parent)
    found = rekindle.diagnose(path, modules=["faulty_worlds"], **options)
    assert contents(path.parent) == before  # nothing is changed, and nothing is left behind
    return found


def contents(path: Path) -> dict[str, str]:
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    return {file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.exhaustive
def test_a_reward_that_is_nan_is_named_with_the_step_and_the_stream(tmp_path: Path) -> None:
    path = trained(tmp_path, "dqn", {**DQN, "update_every": 1000}, reward_at=130)
    assert RunReader(path).status == "failed"
    found = diagnosed(path)
    fault = found.fault
    assert fault is not None
    assert (fault.kind, fault.layer, fault.row) == ("refused", "environment (reward)", 0)
    assert (fault.env_steps, fault.update) == (130, RunReader(path).metadata.updates)
    assert "the reward nan is not finite" in fault.message
    assert (found.from_step, found.to_step) == (129, 129)


@pytest.mark.slow
def test_a_mistake_in_a_network_is_named_with_its_layer_and_row(tmp_path: Path) -> None:
    path = trained(tmp_path, "dqn", {**OFF_POLICY, "network": "faulty_worlds:broken"})
    metadata = RunReader(path).metadata
    assert metadata.status == "failed"
    found = diagnosed(path)
    fault = found.fault
    assert fault is not None
    assert (fault.kind, fault.layer, fault.operation) == ("not finite", "QNetwork.body.module.second", "sqrt")
    assert fault.update == len(found.metrics)
    assert [one["update"] for one in found.metrics] == [*range(1, fault.update + 1)]
    assert fault.row is not None
    assert 0 <= fault.row < 16
    assert f"update {fault.update} gives nan in QNetwork.body.module.second" in fault.message
    assert f"row {fault.row} of the batch: sqrt of numbers up to" in fault.message
    # The layer takes the root of 0.35 minus what the first one gives.
    assert {"observations", "next_observations", "actions", "rewards"} <= fault.transition.keys()


@pytest.mark.exhaustive
@pytest.mark.parametrize("most", [None, 10.0])
def test_an_observation_of_1e30_is_named_with_the_row_that_has_it(most: float | None, tmp_path: Path) -> None:
    path = trained(tmp_path, "dqn", {**DQN, "max_grad_norm": most}, observation_at=333, size=1e30)
    found = diagnosed(path)
    fault = found.fault
    assert fault is not None
    assert fault.kind == "not finite"
    assert fault.update == found.metrics[-1]["update"]
    seen = [*fault.transition["observations"], *fault.transition["next_observations"]]
    assert max(map(abs, seen)) == pytest.approx(1e30)
    assert fault.layer.startswith("QNetwork.advantage.modules")
    assert fault.row is not None
    assert 0 <= fault.row < 16


@pytest.mark.exhaustive
def test_an_overflow_in_one_layer_is_named(tmp_path: Path) -> None:
    path = trained(tmp_path, "dqn", {**OFF_POLICY, "network": "faulty_worlds:overflowing"})
    assert RunReader(path).status == "failed"
    found = diagnosed(path)
    fault = found.fault
    assert fault is not None
    assert (fault.kind, fault.layer, fault.operation) == ("not finite", "QNetwork.body.module.second", "exp")
    assert fault.update == found.metrics[-1]["update"]
    assert fault.row is not None
    assert "gives inf" in fault.message


@pytest.mark.exhaustive
@pytest.mark.parametrize("rate", [1e4, 1e10])
def test_an_exploding_learning_rate_is_named_with_the_first_update_that_shows_it(rate: float, tmp_path: Path) -> None:
    path = trained(tmp_path, "dqn", {**DQN, "learning_rate": rate})
    found = diagnosed(path)
    fault = found.onset or found.fault
    assert fault is not None
    assert fault.update == 2  # the first after the weights have moved
    assert fault.layer.startswith("QNetwork.advantage.modules")
    assert fault.row is not None
    if rate == 1e4:
        assert fault.kind == "exploding gradient"
        assert fault.grad_norm is not None
        assert fault.usual_grad_norm is not None
        assert fault.grad_norm > 100 * fault.usual_grad_norm


@pytest.mark.exhaustive
def test_a_value_that_comes_from_no_layer_is_told_without_one(tmp_path: Path) -> None:
    fault = diagnosed(trained(tmp_path, "dqn", {**DQN, "learning_rate": 1e30})).fault
    assert fault is not None
    assert (fault.update, fault.layer, fault.row) == (1, "the loss", None)
    assert fault.message == "update 1 gives inf in the loss or the optimiser: square of numbers up to 1e+30"


@pytest.mark.exhaustive
def test_a_network_that_fails_in_acting_is_named(tmp_path: Path) -> None:
    path = trained(tmp_path, "ppo", {**PPO, "network": "faulty_worlds:broken"})
    fault = diagnosed(path).fault
    assert fault is not None
    assert (fault.kind, fault.layer) == ("not finite", "ActorCritic.body.module.second")
    assert fault.row is not None


@pytest.mark.exhaustive
def test_a_healthy_run_can_be_looked_at_up_to_any_step(tmp_path: Path) -> None:
    path = trained(tmp_path, "dqn", DQN)
    with pytest.raises(ConfigError, match="has not failed"):
        diagnosed(path)
    found = diagnosed(path, step=450)
    assert (found.fault, found.is_reproduced) == (None, False)
    assert (found.from_step, found.to_step) == (400, 450)
    rows = [row for row in RunReader(path).metric_windows() if row["env_steps"] == 450]
    losses = [one["loss"] for one in found.metrics[-rows[0]["metrics"]["agent/loss"]["count"] :]]
    assert max(losses) == pytest.approx(rows[0]["metrics"]["agent/loss"]["max"], rel=1e-6)

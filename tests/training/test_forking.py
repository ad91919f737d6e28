"""Forks: a run that continues from a checkpoint of another, which stays as it is."""

import hashlib
import importlib.util
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rekindle
from rekindle import RunReader, Trainer, verify
from rekindle.checkpoint import forking
from rekindle.checkpoint.store import list_steps
from rekindle.data import Dataset
from rekindle.errors import CheckpointError, ConfigError
from rekindle.run.finding import find_runs
from rekindle.storage import codec, files

TRAINING: dict[str, Any] = {
    "seed": 3,
    "checkpoint_every": 150,
    "metrics_every": 70,
    "eval_every": 200,
    "eval_episodes": 2,
    "keep_checkpoints": 10,
}
OFF_POLICY: dict[str, Any] = {"hidden_sizes": [8], "capacity": 250, "warmup_steps": 100, "batch_size": 16}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "tabular": ("FrozenLake-v1", {"capacity": 120, "replay_updates": 1}),
    "dqn": ("CartPole-v1", {**OFF_POLICY, "update_every": 4, "n_step": 2, "prioritised": True}),
    "ppo": ("CartPole-v1", {"hidden_sizes": [8], "rollout_steps": 64, "minibatch_size": 32, "epochs": 2}),
    "sac": ("Pendulum-v1", {**OFF_POLICY, "update_every": 10, "normalise_observations": True}),
    "td3": ("Pendulum-v1", {**OFF_POLICY, "update_every": 10, "noise": "ou"}),
}
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")


def trained(algorithm: str, root: Path, steps: int = 600, **options: Any) -> Path:
    env, settings = AGENTS[algorithm]
    trainer = Trainer(
        env, algorithm, name="parent", root=root, steps=steps, agent_settings=settings, **TRAINING | options
    )
    path = trainer.train().path
    assert path is not None
    return path


def contents(path: Path) -> dict[str, str]:
    """The digest of every file below a directory."""
    return {
        file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def forked(source: str, output: str | Path | None = None, **changes: Any) -> Path:
    path = rekindle.fork(source, output, **changes).train().path
    assert path is not None
    return path


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [
        ("tabular", None),
        pytest.param("dqn", 1, marks=[needs_jax, pytest.mark.slow]),
        *(pytest.param(name, None, marks=[needs_jax, pytest.mark.exhaustive]) for name in ("dqn", "ppo", "sac", "td3")),
    ],
)
def test_an_unchanged_fork_from_any_kept_checkpoint_ends_like_its_parent(
    algorithm: str, most: int | None, tmp_path: Path
) -> None:
    parent = trained(algorithm, tmp_path)
    before, expected = contents(parent), verify(parent)
    assert expected.ok
    steps = list_steps(parent / "checkpoints")
    assert steps == [150, 300, 450, 600]
    for step in steps if most is None else steps[1 : 1 + most]:
        child = forked(f"{parent}@{step}", f"from-{step}")
        found = verify(child)
        assert (found.ok, found.grade, found.digests) == (True, "exact", expected.digests)
        metadata = RunReader(child).metadata
        assert metadata.status == "finished"
        assert metadata.parent == f"{parent}@{step}"
        assert metadata.fork is not None
        assert (metadata.fork.step, metadata.fork.changes) == (step, {})
        assert metadata.fork.run == f"parent/v1/{parent.name}"
        assert contents(parent) == before


@pytest.mark.parametrize("streams", [{"num_envs": 7}, {"actors": 1, "envs_each": 3, "round_steps": 7}])
def test_a_fork_from_the_end_may_be_past_the_steps_of_the_run(streams: dict[str, int], tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path, steps=500, **streams)
    assert list_steps(parent / "checkpoints")[-1] > 500
    assert verify(forked(str(parent), "end")).digests == verify(parent).digests
    with pytest.raises(ConfigError, match="steps is 499, but the checkpoint is of step"):
        rekindle.fork(parent, "shorter", steps=499)


def test_a_changed_fork_records_what_changed(tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path)
    before = contents(parent)
    child = forked(
        f"{parent}@300", tmp_path / "elsewhere" / "faster", agent_settings={"learning_rate": 0.5}, steps=700, seed=9
    )
    assert child.parent.parent == tmp_path / "elsewhere" / "faster"
    metadata = RunReader(child).metadata
    assert metadata.fork is not None
    assert metadata.fork.changes == {
        "seed": (3, 9),
        "steps": (600, 700),
        "agent.learning_rate": (0.1, 0.5),
    }
    assert (metadata.seed, metadata.max_steps, metadata.total_steps) == (9, 700, 700)
    assert RunReader(child).read_config()["agent"]["learning_rate"] == 0.5
    # It is reproducible itself, and continues where its parent was.
    assert verify(forked(f"{child}@450", "again")).digests == verify(child).digests
    rows = RunReader(child).metric_windows()
    assert rows[:4] == RunReader(parent).metric_windows()[:4]
    assert verify(child).digests != verify(parent).digests
    assert contents(parent) == before


def test_replay_memory_and_checkpoints_are_shared_and_logs_are_not(tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path, keep_data=True)
    child = rekindle.fork(f"{parent}@450", "child").path
    assert child is not None
    shared = [
        "checkpoints/step_450.mpk",
        *(f"{name}/{file.name}" for name in ("replay", "data") for file in (child / name).glob("rows_*")),
    ]
    assert len(shared) > 2
    for file in shared:
        assert os.path.samefile(parent / file, child / file)
    for log in ("metrics", "train_episodes", "eval_episodes"):
        assert not os.path.samefile(parent / f"{log}.jsonl", child / f"{log}.jsonl")
    assert list_steps(child / "checkpoints") == [450]
    metadata = RunReader(child).metadata
    assert (metadata.status, metadata.total_steps) == ("stopped", 450)
    assert verify(child).ok
    assert not Dataset.open(child, cache=tmp_path / "cache").inferred
    # Each may be removed without the other.
    expected = verify(parent).digests
    shutil.rmtree(parent)
    assert verify(Trainer.resume(child).train().path or "").digests == expected


def test_a_fork_is_a_copy_where_files_cannot_be_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = trained("tabular", tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        patch.setattr(files, "_NO_HARD_LINKS", {18})
        child = rekindle.fork(f"{parent}@300", "child").path
    assert child is not None
    assert not os.path.samefile(parent / "checkpoints/step_300.mpk", child / "checkpoints/step_300.mpk")
    assert verify(Trainer.resume(child).train().path or "").digests == verify(parent).digests


def test_the_default_is_the_latest_checkpoint_and_a_name_beside_the_run(tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path)
    child = rekindle.fork(parent, steps=800).path
    assert child is not None
    assert child.parent == tmp_path / "parent-fork" / "v1"
    assert RunReader(child).metadata.total_steps == 600


@pytest.mark.parametrize(
    ("at", "changes", "message"),
    [
        ("@301", {}, "has no checkpoint of step 301: there are 150, 300, 450, 600"),
        ("@300", {"num_envs": 2}, "num_envs is 2, but was 1 at the checkpoint: a fork keeps"),
        ("@300", {"keep_data": True}, "keep_data is True, but was False: a run keeps its data from its beginning on"),
        ("@300", {"steps": 200}, "steps is 200, but the checkpoint is of step 300"),
        ("@300", {"agent_settings": {"lerning_rate": 1}}, "did you mean learning_rate"),
        ("@300", {"agent_settings": {"capacity": 50}}, "does not fit the changed settings: .*120 rows do not fit"),
        ("@300", {"env": "CliffWalking-v1"}, "does not fit the changed settings"),
    ],
)
def test_a_fork_that_cannot_work_is_refused_before_anything_is_written(
    at: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    parent = trained("tabular", tmp_path)
    before = contents(tmp_path)
    with pytest.raises((ConfigError, CheckpointError), match=message):
        rekindle.fork(f"{parent}{at}", "child", **changes)
    assert contents(tmp_path) == before


def test_the_best_checkpoint_can_be_forked_if_it_was_kept(tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path, eval_every=150)
    best = codec.read_file(parent / "checkpoints" / "best.mpk")["step"]
    assert forking.find_fork_point(f"{parent}@best").step == best
    (parent / "checkpoints" / f"step_{best}.mpk").unlink()
    with pytest.raises(CheckpointError, match=f"the best agent is of step {best}, and no checkpoint of that step was"):
        rekindle.fork(f"{parent}@best")


def test_everything_in_a_fork_is_durable_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = trained("tabular", tmp_path, keep_data=True)
    point = forking.find_fork_point(f"{parent}@300")
    synced: list[str] = []
    sync, rename = files.sync_directory, os.rename
    named: list[set[str]] = []

    def syncing(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    def renaming(source: Path, target: Path) -> None:
        if source.name.startswith(".new-"):
            assert not any(file.name.endswith(".tmp") for file in source.rglob("*"))
            named.append({*synced})
            synced.clear()
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_directory", syncing)
        patch.setattr(os, "rename", renaming)
        child = forking.fork_run(point, name="child", root=tmp_path)
    (before,) = named
    building = [name for name in before if name.startswith(".new-")]
    assert {"checkpoints", "replay", "data"} <= before
    assert len(building) == 1  # the names of its logs, config and metadata
    assert "v1" in synced  # and then its own name
    assert verify(child).ok


@pytest.mark.parametrize("calls", [1, 2])
def test_a_fork_that_is_killed_leaves_no_run(calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = trained("tabular", tmp_path)
    point = forking.find_fork_point(f"{parent}@300")
    share, left = files.share, calls

    def killed(source: Path, target: Path) -> None:
        nonlocal left
        left -= 1
        if not left:
            os._exit(9)
        share(source, target)

    process = multiprocessing.get_context("fork").Process(
        target=lambda: (
            monkeypatch.setattr(files, "share", killed),
            forking.fork_run(point, name="child", root=tmp_path),
        )
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python and JAX warn of forks of processes
        process.start()
    process.join(60)
    assert process.exitcode == 9
    assert find_runs(tmp_path / "child") == []
    child = forking.fork_run(point, name="child", root=tmp_path)
    assert sorted(path.name for path in child.parent.iterdir()) == [".lock", child.name]
    assert verify(Trainer.resume(child).train().path or "").digests == verify(parent).digests


def test_a_damaged_checkpoint_is_not_forked(tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path)
    file = parent / "checkpoints" / "step_300.mpk"
    segment = sorted((parent / "replay").iterdir())[0]
    segment.unlink()
    point = forking.find_fork_point(f"{parent}@300")
    with pytest.raises(CheckpointError, match=f"step_300.mpk cannot be forked: .*{segment.name}"):
        forking.fork_run(point, name="child", root=tmp_path)
    assert not list((tmp_path / "child" / "v1").glob("[0-9]*"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(rekindle.RekindleError, match=r"step_300\.mpk"):
        rekindle.fork(f"{parent}@300", "child")


def test_the_metadata_of_a_fork_survive_a_resume(tmp_path: Path) -> None:
    parent = trained("tabular", tmp_path)
    child = rekindle.fork(f"{parent}@300", "child", agent_settings={"gamma": 0.5}).path
    assert child is not None
    made = RunReader(child).metadata.fork
    Trainer.resume(child).train()
    assert RunReader(child).metadata.fork == made
    assert msgspec.json.decode((child / "metadata.json").read_bytes())["fork"]["changes"] == {
        "agent.gamma": [0.99, 0.5]
    }
    assert codec.read_file(child / "checkpoints" / "latest.mpk")["step"] == 600

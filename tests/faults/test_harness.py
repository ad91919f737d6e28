"""The harness itself: the worker is whole, quick and deterministic, and the injector does what it says."""

from __future__ import annotations

from collections.abc import Mapping

from harness import Training, assert_exact, assert_nothing_lost

import rekindle


def test_a_training_that_nobody_disturbs_is_the_reference(
    training: Training, reference: Mapping[str, str | None]
) -> None:
    assert training.fork().code == 0
    assert training.acknowledged[-1] == "finished"
    assert_nothing_lost(training)
    assert_exact(training, reference)


def test_a_fresh_interpreter_gives_the_same(training: Training, reference: Mapping[str, str | None]) -> None:
    ended = training.spawn()
    assert ended.code == 0, ended.errors
    assert_exact(training, reference)


def test_the_worker_uses_everything_that_a_run_has(undisturbed: Training) -> None:
    reader = rekindle.RunReader(undisturbed.run)
    assert len(reader.train_episodes()) > 5
    assert len(reader.eval_episodes()) == 4
    assert len(reader.metric_windows()) == 8
    assert undisturbed.acknowledged_steps == [20, 40, 60, 70, 70, 80, 100, 120]
    assert undisturbed.steps_on_disk == [100, 120]
    names = {path.name for path in (undisturbed.run / "checkpoints").iterdir()}
    assert {"best_100.mpk", "best.mpk", "latest.mpk"} <= names
    assert list((undisturbed.run / "replay").iterdir())


def test_a_kill_kills_where_it_says(training: Training) -> None:
    assert training.fork("kill 1").killed
    assert training.reported == [f"mkdir {training.root}"]
    assert not training.root.exists()


def test_a_failed_call_is_a_clear_error(training: Training) -> None:
    ended = training.fork("fail 1 ENOSPC")
    assert ended.code == 1
    assert ended.errors == f"StorageError: cannot make the directory {training.root}: No space left on device\n"

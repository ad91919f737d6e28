"""Checkpoints are found again, the newest intact one first, and only what nobody names is removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.checkpoint import replay_journal as journal_module
from rekindle.checkpoint.replay_journal import NewRows
from rekindle.checkpoint.retention import CheckpointInfo, KeepEvery, KeepLast, RetentionPolicy
from rekindle.checkpoint.store import Best, Checkpoint, CheckpointStore, list_steps, read_agent_state
from rekindle.errors import CheckpointError, FileRefused, StorageError
from rekindle.run.metadata import LOGS
from rekindle.spaces import ArraySpec
from rekindle.storage import codec
from rekindle.storage.logs import LogPosition


@pytest.fixture(autouse=True)
def no_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_MERGE_LIMIT", 0)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    for name in ("checkpoints", "replay", "rewound"):
        (tmp_path / name).mkdir()
    return tmp_path


def store_of(run_path: Path, policy: RetentionPolicy | None = None, *, resume_count: int = 0) -> CheckpointStore:
    return CheckpointStore(run_path, policy=policy or KeepLast(3), resume_count=resume_count)


def checkpoint(step: int, *, best: Best | None = None, metrics: dict[str, float] | None = None) -> Checkpoint:
    return Checkpoint(
        step=step,
        counters={"env_steps": step, "updates": 2, "episodes": 1, "wall_time": 0.5},
        agent={"weights": {"w": np.full(3, step, np.float32)}},
        session={"episodes": 1},
        attached={"world": {"x": 1.0}},
        metrics=metrics or {},
        best=best,
        replay=None,
        logs={log: LogPosition(1, 20, 7) for log in LOGS},
        environment={"python": "3"},
    )


def new_rows(start: int, end: int, *, first: int = 0) -> NewRows:
    return NewRows(first, start, end, {"x": ArraySpec(np.dtype("<i8"))}, {"x": np.arange(start, end)})


def best_of(step: int, score: float = 1.0) -> Best:
    return Best(f"best_{step}.mpk", score, step)


def saved(store: CheckpointStore, *steps: int) -> CheckpointStore:
    """Save and tidy at each step, with ten rows of replay each."""
    for step in steps:
        end = store.journal.segments[-1].end if store.journal.segments else 0
        store.save(checkpoint(step), new_rows(end, end + 10))
        store.tidy()
    return store


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


# Saving and finding


def test_a_checkpoint_is_found_as_it_was_saved(run_path: Path) -> None:
    path = store_of(run_path).save(checkpoint(100), None)
    assert path == run_path / "checkpoints" / "step_100.mpk"
    found = store_of(run_path).find()
    assert found.checkpoint is not None
    assert codec.tree_digest(found.checkpoint.tree()) == codec.tree_digest(checkpoint(100).tree())
    assert (found.rows, found.rejected) == (None, ())


def test_replay_rows_are_found_with_their_checkpoint(run_path: Path) -> None:
    saved(store_of(run_path), 100, 200)
    rows = store_of(run_path).find().rows
    assert rows is not None
    np.testing.assert_array_equal(rows["x"], np.arange(20))


def test_nothing_is_found_where_nothing_was_saved(run_path: Path) -> None:
    found = store_of(run_path).find()
    assert (found.checkpoint, found.rows, found.rejected) == (None, None, ())


def test_the_newest_is_the_one_of_most_steps(run_path: Path) -> None:
    store = store_of(run_path)
    for step in (9, 100, 20):
        store.save(checkpoint(step), None)
    assert list_steps(store.directory) == [9, 20, 100]
    found = store.find().checkpoint
    assert found is not None
    assert found.step == 100


@pytest.mark.parametrize("broken", ["checkpoints/step_300.mpk", "replay/rows_20_30_r0.mpk", "checkpoints/best_300.mpk"])
def test_a_damaged_checkpoint_or_part_of_it_is_passed_over_and_named(run_path: Path, broken: str) -> None:
    store = saved(store_of(run_path), 100, 200)
    store.save_best(best_of(300), {"weights": {}})
    store.save(checkpoint(300, best=best_of(300)), new_rows(20, 30))
    damage(run_path / broken)
    found = store_of(run_path).find()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 200
    assert len(found.rejected) == 1
    assert broken in found.rejected[0]


def test_a_checkpoint_under_the_name_of_another_is_passed_over(run_path: Path) -> None:
    saved(store_of(run_path), 100)
    os.link(run_path / "checkpoints" / "step_100.mpk", run_path / "checkpoints" / "step_900.mpk")
    found = store_of(run_path).find()
    assert found.checkpoint is not None
    assert found.checkpoint.step == 100
    assert "it is the checkpoint of step 100" in found.rejected[0]


def test_if_none_is_intact_that_is_an_error_that_lists_them(run_path: Path) -> None:
    store = saved(store_of(run_path), 100, 200)
    for step in (100, 200):
        damage(store.path(step))
    with pytest.raises(CheckpointError, match=r"(?s)no checkpoint.*step_200.*step_100"):
        store_of(run_path).find()


def test_other_files_are_not_taken_for_checkpoints(run_path: Path) -> None:
    for name in ("step_.mpk", "step_5.mpk.tmp", ".step_5.mpk.tmp", "best_5.mpk", "notes.txt"):
        (run_path / "checkpoints" / name).touch()
    assert list_steps(run_path / "checkpoints") == []


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("kind", "best", "not a checkpoint"),
        ("step", "1", r"Expected `int`, got `str` - at `\$\.step`"),
        ("agent", [], r"Expected `object`, got `array` - at `\$\.agent`"),
        ("logs", {"metrics": [1, "2"]}, r"step_1\.mpk"),
        ("best", {"file": "../best.mpk", "score": 1.0, "step": 1}, "not the name of a best file"),
        ("best", {"file": "best_1.mpk"}, r"step_1\.mpk"),
        ("replay", {}, "manifest"),
    ],
)
def test_a_sound_file_with_something_else_in_it_is_refused(
    run_path: Path, field: str, value: Any, problem: str
) -> None:
    path = run_path / "checkpoints" / "step_1.mpk"
    path.write_bytes(b"".join(codec.encode({**checkpoint(1).tree(), field: value})))
    with pytest.raises(FileRefused, match=problem):
        Checkpoint.read(path)


# Latest and best


def test_latest_is_another_name_of_the_newest(run_path: Path) -> None:
    store = saved(store_of(run_path), 100, 200)
    assert (store.directory / "latest.mpk").samefile(store.path(200))


def test_best_is_another_name_of_the_best(run_path: Path) -> None:
    store = store_of(run_path)
    store.save_best(best_of(100), {"weights": {"w": np.ones(2)}})
    assert (store.directory / "best.mpk").samefile(store.directory / "best_100.mpk")
    step, agent = read_agent_state(store.directory / "best.mpk")
    assert step == 100
    np.testing.assert_array_equal(agent["weights"]["w"], np.ones(2))


def test_an_agent_is_read_from_a_checkpoint_too(run_path: Path) -> None:
    path = store_of(run_path).save(checkpoint(100), None)
    assert read_agent_state(path)[0] == 100


def test_an_agent_is_not_read_from_a_segment(run_path: Path) -> None:
    store = saved(store_of(run_path), 100)
    with pytest.raises(FileRefused, match="neither a checkpoint nor a best file"):
        read_agent_state(store.journal.files()[0])


def test_a_best_that_could_not_be_written_is_written_before_the_checkpoint_that_names_it(run_path: Path) -> None:
    store = store_of(run_path)
    (store.directory / "best_100.mpk").mkdir()
    with pytest.raises(StorageError):
        store.save_best(best_of(100), {"weights": {}})
    with pytest.raises(StorageError):
        store.save(checkpoint(110, best=best_of(100)), None)
    assert list_steps(store.directory) == []
    (store.directory / "best_100.mpk").rmdir()
    store.save(checkpoint(120, best=best_of(100)), None)
    found = store_of(run_path).find()
    assert found.checkpoint is not None
    assert found.checkpoint.best == best_of(100)


# Tidying


def test_old_checkpoints_go_with_their_segments(run_path: Path) -> None:
    store = store_of(run_path, KeepLast(2))
    for number in range(1, 5):
        store.save(checkpoint(100 * number), new_rows(10 * number, 10 * number + 10, first=10 * number))
        store.tidy()
    assert list_steps(store.directory) == [300, 400]
    assert names(run_path / "replay") == ["rows_30_40_r0.mpk", "rows_40_50_r0.mpk"]


def test_a_segment_stays_while_a_kept_checkpoint_names_it(run_path: Path) -> None:
    store = store_of(run_path, KeepEvery(1000))
    for number in range(1, 5):
        store.save(checkpoint(100 * number), new_rows(10 * number, 10 * number + 10, first=10 * number))
        store.tidy()
    assert list_steps(store.directory) == [100, 400]
    assert names(run_path / "replay") == ["rows_10_20_r0.mpk", "rows_40_50_r0.mpk"]


def test_the_newest_stays_whatever_the_policy_says(run_path: Path) -> None:
    class KeepNothing:
        def keep(self, checkpoints: object) -> set[int]:
            return set()

    assert list_steps(saved(store_of(run_path, KeepNothing()), 100, 200).directory) == [200]


def test_a_policy_is_asked_about_those_that_exist_and_their_metrics(run_path: Path) -> None:
    asked: list[list[CheckpointInfo]] = []

    class Noting:
        def keep(self, checkpoints: Any) -> set[int]:
            asked.append(list(checkpoints))
            return {info.step for info in checkpoints}

    store = store_of(run_path, Noting())
    store.save(checkpoint(200, metrics={"loss": 2.0}), None)
    store.save(checkpoint(100, metrics={"loss": 1.0}), None)
    store.tidy()
    assert asked == [[CheckpointInfo(100, {"loss": 1.0}), CheckpointInfo(200, {"loss": 2.0})]]


def test_a_best_goes_when_no_kept_checkpoint_names_it(run_path: Path) -> None:
    store = store_of(run_path, KeepLast(1))
    for step in (100, 200):
        store.save_best(best_of(step), {"weights": {}})
        store.save(checkpoint(step, best=best_of(step)), None)
        store.tidy()
    assert sorted(path.name for path in store.directory.glob("best_*")) == ["best_200.mpk"]


def test_an_older_best_stays_while_a_kept_checkpoint_names_it(run_path: Path) -> None:
    store = store_of(run_path, KeepLast(2))
    store.save_best(best_of(100), {"weights": {}})
    for step in (100, 200):
        store.save(checkpoint(step, best=best_of(100)), None)
    store.save_best(best_of(300), {"weights": {}})
    store.save(checkpoint(300, best=best_of(300)), None)
    store.tidy()
    assert sorted(path.name for path in store.directory.glob("best_*")) == ["best_100.mpk", "best_300.mpk"]


def test_segments_of_a_failed_save_are_named_by_the_next_checkpoint(run_path: Path) -> None:
    store = saved(store_of(run_path), 100)
    store.path(200).mkdir()
    with pytest.raises(StorageError):
        store.save(checkpoint(200), new_rows(10, 20))
    store.path(200).rmdir()
    store.tidy()
    store.save(checkpoint(300), new_rows(20, 30))
    rows = store_of(run_path).find().rows
    assert rows is not None
    np.testing.assert_array_equal(rows["x"], np.arange(30))


def test_while_a_kept_checkpoint_cannot_be_read_nothing_it_may_name_is_removed(run_path: Path) -> None:
    saved(store_of(run_path), 100, 200)
    damage(run_path / "checkpoints" / "step_100.mpk")
    resumed = store_of(run_path, resume_count=1)
    resumed.go_back_to(resumed.find().checkpoint, run_path / "rewound" / "resume_1")
    stray = run_path / "replay" / "rows_900_910_r0.mpk"
    stray.touch()
    resumed.tidy()
    assert stray.exists()


# Going back


def gone_back(run_path: Path) -> tuple[CheckpointStore, Path]:
    store, rewound = store_of(run_path, resume_count=1), run_path / "rewound" / "resume_1"
    store.go_back_to(store.find().checkpoint, rewound)
    return store, rewound


def test_a_damaged_newer_checkpoint_moves_aside_with_what_only_it_named(run_path: Path) -> None:
    store = saved(store_of(run_path), 100, 200)
    store.save_best(best_of(200), {"weights": {}})
    store.save(checkpoint(300, best=best_of(200)), new_rows(20, 30))
    store.tidy()
    damage(store.path(300))
    resumed, rewound = gone_back(run_path)
    assert names(rewound) == ["best_200.mpk", "rows_20_30_r0.mpk", "step_300.mpk"]
    assert list_steps(resumed.directory) == [100, 200]
    assert (resumed.directory / "latest.mpk").samefile(resumed.path(200))


def test_best_goes_back_to_the_one_the_checkpoint_knew(run_path: Path) -> None:
    store = store_of(run_path)
    store.save_best(best_of(100), {"weights": {}})
    store.save(checkpoint(100, best=best_of(100)), None)
    store.save_best(best_of(150), {"weights": {}})
    resumed, rewound = gone_back(run_path)
    assert (resumed.directory / "best.mpk").samefile(resumed.directory / "best_100.mpk")
    assert names(rewound) == ["best_150.mpk"]


def test_there_is_no_best_after_going_back_to_a_checkpoint_that_knew_none(run_path: Path) -> None:
    store = saved(store_of(run_path), 100)
    store.save_best(best_of(150), {"weights": {}})
    resumed, _ = gone_back(run_path)
    assert not (resumed.directory / "best.mpk").exists()


def test_going_back_to_nothing_moves_everything_aside(run_path: Path) -> None:
    store = store_of(run_path)
    store.save_best(best_of(50), {"weights": {}})
    store.journal.write(new_rows(0, 10))
    resumed, rewound = gone_back(run_path)
    assert names(rewound) == ["best_50.mpk", "rows_0_10_r0.mpk"]
    assert names(resumed.directory) == []


def test_the_journal_goes_on_from_the_checkpoint(run_path: Path) -> None:
    saved(store_of(run_path), 100, 200)
    resumed, _ = gone_back(run_path)
    resumed.journal.resume_count = 1
    saved(resumed, 300)
    assert names(run_path / "replay") == ["rows_0_10_r0.mpk", "rows_10_20_r0.mpk", "rows_20_30_r1.mpk"]
    rows = store_of(run_path).find().rows
    assert rows is not None
    np.testing.assert_array_equal(rows["x"], np.arange(30))


def test_old_checkpoints_of_an_earlier_process_are_pruned_too(run_path: Path) -> None:
    saved(store_of(run_path, KeepLast(3)), 100, 200, 300)
    resumed, _ = gone_back(run_path)
    saved(resumed, 400)
    assert list_steps(resumed.directory) == [200, 300, 400]


@pytest.mark.parametrize(
    "tree",
    [
        {"kind": "best"},
        {"kind": "best", "step": 5},
        {"kind": "best", "step": "5", "agent": {}},
        {"kind": "best", "step": -1, "agent": {}},
        {"kind": "checkpoint", "step": 5, "agent": np.zeros(3)},
        {"kind": "policy", "step": 5, "agent": {}},
    ],
)
def test_a_file_without_the_state_of_an_agent_is_refused(tmp_path: Path, tree: Any) -> None:
    path = tmp_path / "best.mpk"
    path.write_bytes(b"".join(codec.encode(tree)))
    with pytest.raises(FileRefused, match=r"best\.mpk"):
        read_agent_state(path)

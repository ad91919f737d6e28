"""Two runs have equal digests if and only if they are the same, and what is damaged is listed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from toys import ReplayAgent, drive

from rekindle import TrainingSession, verify
from rekindle.checkpoint import replay_journal as journal_module
from rekindle.checkpoint.input_segments import RECORD
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.errors import RunError
from rekindle.run.reader import RunReader
from rekindle.storage import codec


def trained(root: Path, *, seed: int = 0, steps: int = 60, **options: Any) -> Path:
    """A run with replay, a best agent, evaluation, an attached world and logs of every kind."""
    settings = {"checkpoint_every": 20, "metrics_every": 15, **options}
    with TrainingSession.open("walk", ReplayAgent(seed), root=root, max_steps=steps, seed=seed, **settings) as session:
        session.attach("world", World())
        session.every(25, lambda: session.maybe_save_best(float(session.total_steps)))
        drive(session)
    assert session.run is not None
    return session.run.path


class World:
    """Something of the host's."""

    def state(self) -> dict[str, Any]:
        return {"position": np.zeros(2)}

    def load_state(self, state: dict[str, Any]) -> None:
        pass


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("original"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained(tmp_path)


def rewrite(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a tree and write it as a sound file."""
    tree = writable(codec.read_file(path))
    change(tree)
    path.write_bytes(b"".join(codec.encode(tree)))


def writable(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: writable(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [writable(value) for value in tree]
    return tree.copy() if isinstance(tree, np.ndarray) else tree


def newest(run: Path) -> Path:
    return run / "checkpoints" / f"step_{list_steps(run / 'checkpoints')[-1]}.mpk"


def edit_log(run: Path, log: str, change: Callable[[dict[str, Any]], None], *, row: int = -1) -> None:
    path = run / f"{log}.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows[row])
    path.write_bytes(b"".join(msgspec.json.encode(fields) + b"\n" for fields in rows))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# Equal runs


def test_warnings_are_in_no_digest(run: Path) -> None:
    digests = verify(run).digests
    (run / "warnings.jsonl").write_text('{"row":0,"message":"the disk was full"}\n')
    assert verify(run).digests == digests


def test_a_sound_run_is_said_to_be_one(original: Path) -> None:
    found = verify(original)
    assert (found.ok, found.grade, found.problems, found.path) == (True, "exact", [], str(original))
    assert all(digest is not None and len(digest) == 64 for digest in found.digests.values())
    assert list(found.digests) == ["weights", "state", "logs"]


def test_a_run_may_be_named_by_its_version_or_name(original: Path) -> None:
    assert verify(original.parent.parent) == verify(str(original))


def test_the_same_training_has_the_same_digests(original: Path, run: Path) -> None:
    assert verify(run).digests == verify(original).digests


def test_a_checkpoint_that_a_training_removes_while_it_is_read_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Checkpoint.read
    with TrainingSession.open(
        "walk", ReplayAgent(0), root=tmp_path, checkpoint_every=None, keep_checkpoints=2
    ) as session:
        assert session.run is not None
        path = session.run.path

        def save() -> None:
            drive(session, until=session.total_steps + 5)
            session.checkpoint(wait=True)

        def train_on(path: Path) -> Checkpoint:
            monkeypatch.setattr(Checkpoint, "read", read)
            checkpoint = read(path)
            save()
            save()  # removes the other one too
            return checkpoint

        save()
        save()
        monkeypatch.setattr(Checkpoint, "read", train_on)
        found = verify(path)
        assert (found.problems, found.ok) == ([], True)
        (path / "checkpoints" / "step_20.mpk").write_bytes(b"")
        assert not verify(path).ok


def test_verifying_changes_nothing(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    verify(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_how_rows_are_cut_into_segments_does_not_count(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "_MERGE_LIMIT", 0)
    other = trained(tmp_path)
    assert names(other / "replay") != names(original / "replay")
    assert verify(other).digests == verify(original).digests


@pytest.mark.parametrize("log", ["metrics", "train_episodes"])
def test_wall_times_in_logs_do_not_count(run: Path, original: Path, log: str) -> None:
    edit_log(run, log, lambda row: row.update(wall_time=1.0))
    assert verify(run).digests == verify(original).digests


def test_metrics_under_time_do_not_count(run: Path, original: Path) -> None:
    edit_log(run, "metrics", lambda row: row["metrics"]["time/steps_per_sec"].update(mean=1.0))
    rewrite(newest(run), lambda tree: tree["metrics"].update({"time/steps_per_sec": 1.0}))
    assert verify(run).digests == verify(original).digests


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["counters"].update(wall_time=1.0),
        lambda tree: tree["environment"].update(python="2.7"),
        lambda tree: tree["logs"].update(metrics=[0, 0, 0]),
    ],
)
def test_clock_versions_and_positions_do_not_count(
    run: Path, original: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    rewrite(newest(run), change)
    assert verify(run).digests == verify(original).digests


# Different runs


def test_another_seed_is_another_run(original: Path, tmp_path: Path) -> None:
    other = verify(trained(tmp_path, seed=1)).digests
    assert all(other[name] != digest for name, digest in verify(original).digests.items())


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["counters"].update(updates=0),
        lambda tree: tree["session"].update(episodes=0),
        lambda tree: tree["session"]["streams"]["table"]["total_reward"].__setitem__(0, 1e-9),
        lambda tree: tree["attached"]["world"]["position"].__setitem__(0, -0.0),
        lambda tree: tree["metrics"].update({"agent/loss": 0.0}),
        lambda tree: tree["best"].update(score=0.0),
        lambda tree: tree["agent"]["rng"].update(has_uint32=1 - tree["agent"]["rng"]["has_uint32"]),
    ],
)
def test_anything_else_in_the_checkpoint_counts(
    run: Path, original: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    rewrite(newest(run), change)
    found, expected = verify(run).digests, verify(original).digests
    assert found["state"] != expected["state"]
    assert found["weights"] == expected["weights"]


def test_the_last_bit_of_a_weight_counts(run: Path, original: Path) -> None:
    def nudge(tree: dict[str, Any]) -> None:
        weights = tree["agent"]["weights"]["all"]
        weights[0] = np.nextafter(weights[0], np.inf)

    rewrite(newest(run), nudge)
    found, expected = verify(run).digests, verify(original).digests
    assert found["weights"] != expected["weights"]
    assert found["state"] != expected["state"]


def test_a_row_of_the_replay_memory_counts(run: Path, original: Path) -> None:
    manifest = codec.read_file(newest(run))["replay"]
    segment = run / "replay" / manifest["segments"][-1]["file"]

    def change_row(tree: dict[str, Any]) -> None:
        tree["columns"]["number"][-1] += 1

    rewrite(segment, change_row)
    checksum = codec.stored_checksum(segment.read_bytes()[:52])
    rewrite(newest(run), lambda tree: tree["replay"]["segments"][-1].update(checksum=checksum))
    assert verify(run).digests["state"] != verify(original).digests["state"]


@pytest.mark.parametrize(
    ("log", "change"),
    [
        ("metrics", lambda row: row["metrics"]["agent/loss"].update(mean=0.0)),
        ("metrics", lambda row: row.update(env_steps=0)),
        ("metrics", lambda row: row["metrics"].pop("episode/return")),
        ("train_episodes", lambda row: row.update(total_reward=0.0)),
        ("train_episodes", lambda row: row.update(stream="0")),
    ],
)
def test_anything_else_in_the_logs_counts(
    run: Path, original: Path, log: str, change: Callable[[dict[str, Any]], None]
) -> None:
    edit_log(run, log, change)
    assert verify(run).digests["logs"] != verify(original).digests["logs"]


def test_a_missing_last_row_counts(run: Path, original: Path) -> None:
    path = run / "train_episodes.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify(run).digests["logs"] != verify(original).digests["logs"]


def test_a_run_that_is_one_of_its_kind_says_so(tmp_path: Path) -> None:
    run = trained(tmp_path, learner="manual", steps=5)
    assert verify(run).grade == "exact"
    metadata = json.loads((run / "metadata.json").read_text())
    (run / "metadata.json").write_text(json.dumps({**metadata, "exact": False}))
    assert verify(run).grade == "approximate"


# Damage


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x55
    path.write_bytes(data)


def test_every_kind_of_file_is_looked_at(run: Path) -> None:
    (run / "config.json").write_text("{}")
    files = [path for path in run.rglob("*") if path.is_file() and path.suffix in (".mpk", ".jsonl", ".json")]
    sound = {path: path.read_bytes() for path in files}
    assert len(files) > 10
    for path, data in sound.items():
        if not data or path.name == "metadata.json":
            continue
        path.write_bytes(b"\xff" + data[1:])
        found = verify(run)
        assert not found.ok, path
        assert any(path.name in problem for problem in found.problems), path
        path.write_bytes(data)
    assert verify(run).ok


def test_a_newest_checkpoint_that_is_damaged_has_no_digests(run: Path) -> None:
    damage(newest(run))
    found = verify(run)
    assert (found.digests["weights"], found.digests["state"]) == (None, None)
    assert found.digests["logs"] is not None


def test_an_older_checkpoint_that_is_damaged_leaves_the_digests(run: Path, original: Path) -> None:
    oldest = run / "checkpoints" / f"step_{list_steps(run / 'checkpoints')[0]}.mpk"
    damage(oldest)
    found = verify(run)
    assert not found.ok
    assert found.digests == verify(original).digests


def test_a_missing_segment_is_a_problem(run: Path) -> None:
    manifest = codec.read_file(newest(run))["replay"]
    (run / "replay" / manifest["segments"][-1]["file"]).unlink()
    assert any("missing" in problem for problem in verify(run).problems)


def test_every_damaged_log_is_listed(run: Path) -> None:
    for log in ("metrics", "train_episodes"):
        (run / f"{log}.jsonl").write_bytes(b"nonsense\n")
    problems = verify(run).problems
    assert [name for name in ("metrics", "train_episodes") if any(name in problem for problem in problems)] == [
        "metrics",
        "train_episodes",
    ]
    assert verify(run).digests["logs"] is None


def test_a_log_that_lacks_rows_the_checkpoint_knew_is_a_problem(run: Path) -> None:
    path = run / "train_episodes.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert any("rows are missing" in problem for problem in verify(run).problems)


def test_a_log_whose_rows_are_not_those_that_were_written_is_a_problem(run: Path) -> None:
    edit_log(run, "train_episodes", lambda row: row.update(episodes=2), row=0)
    assert any("not the ones that were written" in problem for problem in verify(run).problems)


def test_what_is_no_run_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        verify(tmp_path)


def test_a_run_without_checkpoints_has_digests_of_its_logs_alone(tmp_path: Path) -> None:
    run = trained(tmp_path)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    found = verify(run)
    assert found.ok
    assert (found.digests["weights"], found.digests["state"]) == (None, None)
    assert RunReader(run).status == "finished"


class TestInputJournal:
    @staticmethod
    def journalled(root: Path, *, closes: bool = True) -> Path:
        """A run with a journal of a `begin` and 30 steps; a checkpoint was taken after 25 of them."""
        session = TrainingSession.open(
            "walk", ReplayAgent(), root=root, journal=True, journal_keep="all", checkpoint_every=None, signals=False
        )
        stream = session.stream()
        stream.begin(np.zeros(2, np.float32))
        for step in range(30):
            stream.step(np.full(2, step, np.float32), 1.0)
            if step == 24:
                session.checkpoint(wait=True)
        assert session.run is not None
        if closes:
            session.close()
        else:
            session._parts.learner.fail(RuntimeError("killed"))  # pyright: ignore[reportPrivateUsage]
            with pytest.raises(RuntimeError), session:
                raise RuntimeError("killed")
        return session.run.path

    def test_its_records_are_counted(self, tmp_path: Path) -> None:
        found = verify(self.journalled(tmp_path, closes=False))
        assert (found.ok, found.problems) == (True, [])
        assert found.journal is not None
        assert (found.journal.segments, found.journal.first) == (2, 0)
        assert (found.journal.records, found.journal.after_checkpoint, found.journal.torn) == (32, 5, 0)
        assert found.journal.size > 1000

    def test_after_a_close_no_record_is_needed(self, tmp_path: Path) -> None:
        journal = verify(self.journalled(tmp_path)).journal
        assert journal is not None
        assert (journal.records, journal.after_checkpoint) == (32, 0)

    def test_the_reserved_room_of_an_open_segment_is_no_damage(self, tmp_path: Path) -> None:
        with TrainingSession.open("walk", ReplayAgent(), root=tmp_path, journal=True) as session:
            session.stream().begin(np.zeros(2, np.float32))
            assert session.run is not None
            found = verify(session.run.path)
            assert (found.ok, found.problems) == (True, [])
            assert found.journal is not None
            assert (found.journal.records, found.journal.torn) == (2, 0)

    def test_damage_to_durable_records_is_a_problem(self, tmp_path: Path) -> None:
        run = self.journalled(tmp_path)
        first = run / "inputs" / "inputs_0_r0.journal"
        data = bytearray(first.read_bytes())
        data[-RECORD.size - 1] ^= 1  # the data of the last record before the end
        first.write_bytes(data)
        found = verify(run)
        assert not found.ok
        assert found.journal is None
        (problem,) = found.problems
        assert str(first) in problem
        assert "record 26" in problem

    def test_a_missing_segment_is_a_problem(self, tmp_path: Path) -> None:
        run = self.journalled(tmp_path, closes=False)
        (run / "inputs" / "inputs_27_r0.journal").unlink()
        (problem,) = verify(run).problems
        assert "inputs_27_r0.journal is missing" in problem

    def test_records_before_the_newest_checkpoint_may_be_gone_and_those_after_it_may_not(self, tmp_path: Path) -> None:
        run = self.journalled(tmp_path, closes=False)
        (run / "inputs" / "inputs_0_r0.journal").unlink()
        kept = verify(run)
        assert kept.ok
        assert kept.journal is not None
        assert (kept.journal.first, kept.journal.records, kept.journal.after_checkpoint) == (27, 5, 5)
        newest(run).unlink()
        (problem, *_) = [text for text in verify(run).problems if "journal" in text]
        assert "record 0 of the input journal is missing" in problem

    def test_a_tail_that_a_power_cut_has_torn_is_mentioned_and_no_problem(self, tmp_path: Path) -> None:
        run = tmp_path / "torn"
        with TrainingSession.open("walk", ReplayAgent(), root=tmp_path, journal=True, journal_sync=100) as session:
            stream = session.stream()
            stream.begin(np.zeros(2, np.float32))
            stream.step(np.ones(2, np.float32), 1.0)
            assert session.run is not None
            shutil.copytree(session.run.path, run)  # nothing has been synced yet
        segment = run / "inputs" / "inputs_0_r0.journal"
        data = bytearray(segment.read_bytes())
        end = len(data.rstrip(b"\0"))
        data[end - 3] ^= 1
        segment.write_bytes(data)
        found = verify(run)
        assert (found.ok, found.problems) == (True, [])
        assert found.journal is not None
        assert found.journal.records == 2
        assert found.journal.torn > 0

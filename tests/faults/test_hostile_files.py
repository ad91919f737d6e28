"""Files that somebody made on purpose: refused by name, with no code run, and nothing changed."""

from __future__ import annotations

import copy
import hashlib
import io
import os
import pickle
import shutil
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import forms
import numpy as np
import pytest
from crashes import NEWER, OLDER, contents, crash, newest, overwrite, reencode
from harness import ForkServer, Training, assert_exact
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rekindle
from rekindle.errors import ConfigError, FileRefused, RekindleError, StateError, StorageError
from rekindle.run.directory import TrainingRun
from rekindle.storage import codec


class Exploit:
    """Leaves a trace if anything unpickles it."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (self.trace,))


def pickled(trace: str) -> bytes:
    return pickle.dumps(Exploit(trace))


def zipped(trace: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("data.pkl", pickled(trace))
    return buffer.getvalue()


def npz(trace: str) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, weights=np.array([Exploit(trace)], object))
    return buffer.getvalue()


def signed(payload: bytes) -> bytes:
    """A file of our format around any payload, with a checksum that is right."""
    prefix = b"\x89RKNDL\r\n" + struct.pack("<IQ", 1, len(payload))
    return prefix + hashlib.sha256(prefix + payload).digest() + payload


BOMBS: dict[str, bytes] = {
    "a list of four billion": signed(b"\x81\xa5agent\xdd\xff\xff\xff\xff"),
    "a map of four billion": signed(b"\xdf\xff\xff\xff\xff"),
    "a str of four gigabytes": signed(b"\x81\xa5agent\xdb\xff\xff\xff\xff"),
    "an array of terabytes": signed(b"\x81\xa5agent\xc9\x00\x00\x00\x0b\x01\x0c\x01\x00" + struct.pack("<Q", 2**40)),
    "two million empty maps": signed(b"\x81\xa5agent\xdd" + struct.pack(">I", 2_000_000) + b"\x80" * 2_000_000),
    "a hundred thousand levels": signed(b"\x81\xa5agent" + b"\x91" * 100_000 + b"\xc0"),
    "a key twice": signed(b"\x82\xa5agent\x80\xa5agent\x80"),
    "a future version": b"\x89RKNDL\r\n" + struct.pack("<IQ", 99, 0) + bytes(32),
}


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Training:
    """Not to be changed: copy it."""
    return crash(Training(tmp_path_factory.mktemp("crashed") / "training", server))


@pytest.fixture
def broken(crashed: Training, tmp_path: Path) -> Training:
    return crashed.copy_to(tmp_path / "broken")


class TestForeignFiles:
    @pytest.mark.parametrize("make", [pickled, zipped, npz])
    @pytest.mark.parametrize("kind", ["checkpoint", "segment", "best"])
    def test_a_pickle_in_any_wrapping_is_passed_over_and_not_run(
        self,
        broken: Training,
        tmp_path: Path,
        make: Callable[[str], bytes],
        kind: str,
        reference: Mapping[str, str | None],
    ) -> None:
        trace = tmp_path / "code_was_run"
        overwrite(newest(broken.run, kind), make(str(trace)))
        broken.finish()
        assert f"resumed {OLDER}" in broken.acknowledged
        assert not trace.exists()
        assert_exact(broken, reference)

    @pytest.mark.parametrize("make", [pickled, zipped, npz])
    def test_where_there_is_nothing_else_it_is_an_error(
        self, broken: Training, tmp_path: Path, make: Callable[[str], bytes]
    ) -> None:
        trace = tmp_path / "code_was_run"
        for path in (broken.run / "checkpoints").iterdir():
            overwrite(path, make(str(trace)))
        before = contents(broken.run)
        ended = broken.fork()
        assert ended.code == 1
        assert ended.errors.startswith("CheckpointError: no checkpoint of")
        assert ended.errors.count("not a rekindle file") == 2
        assert contents(broken.run) == before
        assert not trace.exists()

    @pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
    def test_a_bomb_with_a_good_checksum_is_passed_over_within_bounds(self, broken: Training, bomb: bytes) -> None:
        from crashes import find

        overwrite(newest(broken.run, "checkpoint"), bomb)
        tracemalloc.start()
        try:
            found = find(broken.run)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert found.checkpoint is not None
        assert found.checkpoint.step == OLDER
        assert f"step_{NEWER}.mpk" in found.rejected[0]
        assert peak < 40e6

    @pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
    def test_verify_names_a_bomb(self, broken: Training, bomb: bytes) -> None:
        overwrite(newest(broken.run, "checkpoint"), bomb)
        (problem,) = [text for text in rekindle.verify(broken.run).problems if "step_" in text]
        assert str(newest(broken.run, "checkpoint")) in problem

    def test_a_directory_or_pipe_in_place_of_a_checkpoint_is_passed_over(
        self, broken: Training, reference: Mapping[str, str | None]
    ) -> None:
        newest(broken.run, "checkpoint").unlink()
        os.mkfifo(newest(broken.run, "checkpoint"))
        (broken.run / "checkpoints" / f"step_{NEWER + 1}.mpk").mkdir()
        broken.finish()
        assert f"resumed {OLDER}" in broken.acknowledged
        assert_exact(broken, reference)

    @pytest.mark.parametrize("name", ["train_episodes.jsonl", "config.json"])
    def test_a_pipe_in_place_of_another_file_is_refused_without_waiting(self, broken: Training, name: str) -> None:
        (broken.run / name).unlink()
        os.mkfifo(broken.run / name)
        ended = broken.fork()
        assert ended.code == 1
        assert f"cannot read {broken.run / name}: it is not a regular file" in ended.errors

    @pytest.mark.parametrize(
        "text", ["", "null", "[]", "{}", '{"name": 1}', "\x00\xff", "[" * 100_000, '{"seed": ' + "9" * 5000 + "}"]
    )
    def test_metadata_that_is_none_is_an_error_with_the_path(self, broken: Training, text: str) -> None:
        path = broken.run / "metadata.json"
        path.write_bytes(text.encode("latin-1"))
        before = contents(broken.run)
        ended = broken.fork()
        assert ended.code == 1
        assert ended.errors.startswith(f"RunError: {path} is not the metadata of a run")
        assert contents(broken.run) == before


# Trees that are well-formed, and wrong


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a run of a tabular agent that was stopped in an open episode; not to be changed."""
    root = tmp_path_factory.mktemp("stopped")
    with forms.begin(root, "two_calls", "sarsa", steps=24) as session:
        for _ in forms.two_calls(session):
            if session.total_steps == 17:
                session.stop("enough")
    assert session.stream("only").is_open
    return root


def checkpoint_of(root: Path) -> Path:
    return next(root.rglob("step_17.mpk"))


def go_on(root: Path, agent: Any = None) -> rekindle.TrainingSession:
    run = TrainingRun.resume(root / forms.NAME)
    agent = forms.tabular("sarsa") if agent is None else agent
    try:
        return rekindle.TrainingSession(agent, run=run, max_steps=24, checkpoint_every=5, metrics_every=4)
    except BaseException:
        run.close()
        raise


def at(tree: Any, *path: str | int) -> Any:
    for step in path:
        tree = tree[step]
    return tree


GONE = object()


class Change:
    """Another value at one place of a tree, or none."""

    def __init__(self, *path: str | int, value: Any = GONE) -> None:
        self._path, self._value = path, value

    def __call__(self, tree: Any) -> None:
        *above, last = self._path
        if self._value is GONE:
            del at(tree, *above)[last]
        else:
            at(tree, *above)[last] = self._value

    def __repr__(self) -> str:
        what = "gone" if self._value is GONE else f"{self._value!r:.30}"
        return f"{'.'.join(map(str, self._path))} {what}"


put = drop = Change


TABLE = ("session", "streams", "table")


class TestTreesThatDoNotFit:
    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (put("agent", "weights", "table", value=np.zeros((3, 2))), "the table is (3, 2) of float64"),
            (put("agent", "weights", "table", value=np.zeros((7, 2), np.float32)), "of float32"),
            (drop("agent", "weights", "table"), "the table is missing"),
            (drop("agent", "exploring"), "exploring"),
            (put("agent", "env_steps", value=-1), "env_steps"),
            (put("agent", "env_steps", value=16), "env_steps"),
            (put("replay", "first", value=0), "16 rows do not fit"),
            (put("agent", "exploring", value={"bit_generator": "Chaos"}), "Chaos"),
            (drop("session", "streams"), "streams"),
            (drop(*TABLE, "phase"), "phase"),
            (put(*TABLE, "phase", value=np.zeros(4, np.uint8)), "phase"),
            (put(*TABLE, "phase", value=np.full(1, 9, np.uint8)), "phase"),
            (put(*TABLE, "length", value=np.zeros(1, np.float32)), "length"),
            (put(*TABLE, "last", value=[]), "last"),
            (put(*TABLE, "last", value=[np.zeros((1, 5))]), "last"),
            (put(*TABLE, "pending", value=np.zeros((1, 5), np.int64)), "pending"),
            (put(*TABLE, "ids", value=[["a"]]), "'a'"),
            (put(*TABLE, "ids", value=["only", "only"]), "ids"),
            (put(*TABLE, "traces", value={"7": {}}), "traces"),
            (put(*TABLE, "observation_layout", value={"is_dict": False, "leaves": {"": ["<i8", [2**40]]}}), "layout"),
            (put(*TABLE, "action_layout", value=["S9999999999", []]), "layout"),
            (put(*TABLE, "action_layout", value=["<i8", [2**40]]), "layout"),
            (put("session", "episodes", value="many"), "episodes"),
            (put("session", "episodes", value=-3), "episodes"),
            (put("session", "best_score", value=None), "best_score"),
            (put("session", "skipped_updates", value=0.5), "skipped_updates"),
            (put("session", "window", value={"agent/loss": np.zeros(4)}), "window"),
            (put("session", "stats", value={}), "stats"),
            (put("session", "exploration", value={}), "generator"),
            (put("session", "streams", "dropped", value=-1), "dropped"),
        ],
        ids=repr,
    )
    def test_it_is_an_error_that_names_it_and_nothing_has_changed(
        self, stopped: Path, tmp_path: Path, change: Change, named: str
    ) -> None:
        root = Path(shutil.copytree(stopped, tmp_path / "root"))
        tree = codec.read_file(checkpoint_of(root))
        change(tree)
        reencode(checkpoint_of(root), tree)
        before, agent = contents(root), forms.tabular("sarsa")
        untouched = codec.tree_digest(agent.state())
        with pytest.raises((StateError, FileRefused, rekindle.RekindleError)) as caught:
            go_on(root, agent)
        assert named in str(caught.value)
        assert str(checkpoint_of(root)) in str(caught.value)
        assert contents(root) == before
        assert codec.tree_digest(agent.state()) == untouched
        assert agent.replay().end == 0

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (put("replay", "columns", "reward", "dtype", value="<f8f8"), "reward"),
            (put("replay", "columns", "reward", "shape", value=[2**62, 2**62]), "reward"),
            (put("replay", "columns", "reward", "shape", value=[-1]), "reward"),
            (put("replay", "columns", "reward", value={"dtype": "O", "shape": []}), "reward"),
            (drop("replay", "columns", "reward"), "rows_"),
            (put("replay", "segments", 0, "file", value="../../secret.mpk"), "../../secret.mpk"),
            (put("replay", "segments", 0, "file", value="/etc/passwd"), "/etc/passwd"),
            (put("replay", "segments", 0, "file", value=".."), ".."),
            (put("replay", "segments", 0, "file", value="a\0b"), "a\\x00b"),
            (put("replay", "end", value=2**63), "row"),
            (put("replay", "first", value=-5), "manifest"),
            (put("replay", "surprise", value=1), "surprise"),
            (put("best", value={"file": "../../../secret.mpk", "score": 1.0, "step": 1}), "secret"),
            (put("best", value={"file": "a\0b", "score": 1.0, "step": 1}), "a\\x00b"),
            (put("best", value={"file": "best_1.mpk"}), "score"),
            (put("logs", "metrics", value=[1, -2, 3]), "logs"),
            (put("logs", "metrics", value=[1]), "logs"),
            (put("logs", "../metrics", value=[1, 2, 3]), "logs"),
            (drop("logs", "metrics"), "logs"),
            (put("metrics", value={"loss": "low"}), "metrics"),
            (put("attached", value=3), "attached"),
            (put("environment", value={"numpy": 2}), "environment"),
            (put("counters", value=[]), "counters"),
            (drop("counters", "env_steps"), "env_steps"),
            (put("counters", "env_steps", value="17"), "env_steps"),
            (put("counters", "env_steps", value=16), "env_steps"),
            (put("step", value=18), "step"),
            (drop("agent"), "not a checkpoint"),
            (put("more", value=1), "more"),
        ],
        ids=repr,
    )
    def test_what_is_no_checkpoint_of_ours_is_passed_over_for_an_older_one(
        self, stopped: Path, tmp_path: Path, change: Change, named: str
    ) -> None:
        root = Path(shutil.copytree(stopped, tmp_path / "root"))
        (tmp_path / "secret.mpk").write_bytes(b"".join(codec.encode({"kind": "secret"})))
        tree = codec.read_file(checkpoint_of(root))
        change(tree)
        reencode(checkpoint_of(root), tree)
        session = go_on(root)
        assert session.resumed is not None
        assert session.resumed.step == 15
        (lost,) = session.resumed.lost
        assert named in lost
        session.close()

    def test_a_memory_of_another_layout_is_refused_by_column(self, stopped: Path, tmp_path: Path) -> None:
        root = Path(shutil.copytree(stopped, tmp_path / "root"))
        before = contents(root)
        with pytest.raises(RekindleError, match=r"replay buffer does not fit this agent: .*observations"):
            go_on(root, forms.AGENTS["learner"]())
        with pytest.raises(StateError, match="the agent has no replay buffer, but the checkpoint has one"):
            go_on(root, forms.AGENTS["rollouts"]())
        assert contents(root) == before

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            (put("columns", "reward", value=np.zeros((2, 2))), "the column 'reward' is (2, 2)"),
            (put("columns", "reward", value="none"), "the column 'reward'"),
            (drop("columns", "reward"), "not the segment"),
            (put("columns", value=[1]), "not the segment"),
            (put("first", value=99), "not the segment"),
        ],
        ids=repr,
    )
    def test_a_segment_that_was_swapped_for_another_is_noticed(
        self, stopped: Path, tmp_path: Path, change: Change, named: str
    ) -> None:
        """Also when the checkpoint was changed to name it."""
        root = Path(shutil.copytree(stopped, tmp_path / "root"))
        tree = codec.read_file(checkpoint_of(root))
        segment = tree["replay"]["segments"][-1]
        (path,) = root.rglob(segment["file"])
        rows = codec.read_file(path)
        change(rows)
        pieces = codec.encode(rows)
        overwrite(path, b"".join(pieces))
        with pytest.raises(rekindle.RekindleError, match="not the file that was written under this name"):
            harmless(root)
        segment["checksum"] = codec.stored_checksum(pieces[0])
        reencode(checkpoint_of(root), tree)
        with pytest.raises(rekindle.RekindleError) as caught:
            harmless(root)
        assert named in str(caught.value)

    def test_an_attached_object_may_refuse_and_its_state_is_not_lost(self, stopped: Path, tmp_path: Path) -> None:
        root = Path(shutil.copytree(stopped, tmp_path / "root"))
        tree = codec.read_file(checkpoint_of(root))
        tree["attached"] = {"diary": {"pages": 3}}
        reencode(checkpoint_of(root), tree)

        class Diary:
            pages = 0

            def state(self) -> Any:
                return {"pages": self.pages}

            def load_state(self, state: Any) -> None:
                if self.pages:
                    raise StateError("the diary is not empty")
                self.pages = state["pages"]

        session, diary = go_on(root), Diary()
        diary.pages = 9
        with pytest.raises(StateError, match="the diary is not empty"):
            session.attach("diary", diary)
        session.attach("diary", empty := Diary())
        assert empty.pages == 3
        session.close()


def harmless(root: Path) -> None:
    """Read the newest checkpoint, changing nothing; raises what it is refused for."""
    from harness import read_checkpoint

    read_checkpoint(checkpoint_of(root).parents[1], 17)


# Anything at all


def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a tree."""
    items: Any = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from paths(value, (*path, key))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2**31, 2**63 - 1, -(2**63), 2**64 - 1]),
    st.floats(),
    st.sampled_from(["", "0", "..", "../x", "\0", "<f8", "O", "S999999999", "é"]),
    st.just([]),
    st.just({}),
    st.just([None]),
    st.just({"": {}}),
    st.sampled_from([np.zeros(0), np.zeros((2, 3)), np.array(0.0), np.zeros(1, np.int8)]),
)


class TestAnythingAtAll:
    @settings(
        max_examples=250,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def test_a_tree_with_anything_anywhere_is_refused_cleanly_or_trains_on(self, stopped: Path, data: Any) -> None:
        self._check(stopped, data)

    @pytest.mark.exhaustive
    @pytest.mark.timeout(1800)
    @settings(
        max_examples=10_000,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def test_the_same_many_times(self, stopped: Path, data: Any) -> None:
        self._check(stopped, data)

    def _check(self, stopped: Path, data: Any) -> None:
        import tempfile

        tree = copy.deepcopy(codec.read_file(checkpoint_of(stopped)))
        places = sorted(paths(tree), key=str)
        for path in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=2)):
            try:
                (put(*path, value=copy.deepcopy(data.draw(anything))) if data.draw(st.booleans()) else drop(*path))(
                    tree
                )
            except (KeyError, IndexError, TypeError, ValueError):
                return  # the first change took the place of the second away
        with tempfile.TemporaryDirectory() as top:
            root = Path(shutil.copytree(stopped, Path(top) / "root"))
            reencode(checkpoint_of(root), tree)
            before = contents(root)
            agent = forms.tabular("sarsa")
            untouched = codec.tree_digest(agent.state())
            try:
                session = go_on(root, agent)
            except RekindleError:
                assert contents(root) == before
                assert codec.tree_digest(agent.state()) == untouched
                return
            try:
                with session:
                    list(forms.two_calls(session))
            except RekindleError:
                pass  # a value that nobody could have known to be wrong


# Names and links


class TestLinks:
    @pytest.mark.parametrize("name", ["checkpoints", "replay", "control", "rewound"])
    @pytest.mark.parametrize("exists", [True, False])
    def test_a_linked_directory_of_a_run_is_refused(
        self, broken: Training, tmp_path: Path, name: str, exists: bool
    ) -> None:
        outside = tmp_path / "outside"
        (broken.run / name).rename(outside)
        if not exists:
            shutil.rmtree(outside)
        (broken.run / name).symlink_to(outside)
        before = contents(tmp_path)
        ended = broken.fork()
        assert ended.code == 1
        assert f"cannot use {broken.run / name}: it is a symbolic link" in ended.errors
        assert without_errors(contents(tmp_path)) == without_errors(before)

    @pytest.mark.parametrize("level", [0, 1, 2])
    def test_a_linked_run_version_or_name_directory_is_refused(
        self, broken: Training, tmp_path: Path, level: int
    ) -> None:
        directory = [broken.run, *broken.run.parents][level]
        outside = tmp_path / "outside"
        directory.rename(outside)
        directory.symlink_to(outside)
        before = contents(outside)
        ended = broken.fork()
        assert contents(outside) == before
        if level == 0:  # a link beside the runs is nobody's run
            assert ended.code == 0
            (started,) = [path for path in directory.parent.iterdir() if path != directory and path.name != ".lock"]
            assert not started.is_symlink()
        else:
            assert ended.code == 1
            assert f"cannot use {directory}: it is a symbolic link" in ended.errors

    def test_a_linked_run_is_refused_when_it_is_asked_for_by_its_path(self, broken: Training, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(broken.run)
        before = contents(broken.run)
        with pytest.raises(StorageError, match="it is a symbolic link"):
            TrainingRun.resume(tmp_path / "link")
        assert contents(broken.run) == before

    def test_a_link_to_the_newest_run_is_not_taken_for_a_run(
        self, broken: Training, reference: Mapping[str, str | None]
    ) -> None:
        run = broken.run
        (run.parent / "latest").symlink_to(run.name)
        assert rekindle.RunReader(run.parent).path == run
        broken.finish()
        assert_exact(broken, reference)

    @pytest.mark.parametrize(
        "name",
        [
            "metadata.json",
            "config.json",
            "lock",
            "train_episodes.jsonl",
            "metrics.jsonl",
            "warnings.jsonl",
        ],
    )
    def test_a_linked_file_is_refused_and_its_target_is_left_alone(
        self, broken: Training, tmp_path: Path, name: str
    ) -> None:
        path, outside = broken.run / name, tmp_path / "outside"
        path.rename(outside)
        path.symlink_to(outside)
        before = outside.read_bytes()
        ended = broken.fork()
        assert ended.code == 1
        assert str(path) in ended.errors
        assert outside.read_bytes() == before

    @pytest.mark.parametrize("kind", ["checkpoint", "segment", "best"])
    def test_a_linked_checkpoint_is_passed_over_and_its_target_is_left_alone(
        self, broken: Training, tmp_path: Path, kind: str, reference: Mapping[str, str | None]
    ) -> None:
        path, outside = newest(broken.run, kind), tmp_path / "outside"
        path.rename(outside)
        path.symlink_to(outside)
        before = outside.read_bytes()
        broken.finish()
        assert outside.read_bytes() == before
        assert_exact(broken, reference)

    @pytest.mark.parametrize(
        "name",
        [
            "checkpoints/latest.mpk",
            "checkpoints/best.mpk",
            "checkpoints/.latest.mpk.tmp",
            "checkpoints/.best.mpk.tmp",
            "checkpoints/.step_120.mpk.tmp",
            "checkpoints/best_999.mpk",
            "replay/.rows_80_120_r1.mpk.tmp",
            ".metadata.json.tmp",
            ".config.json.tmp",
            "control/stop",
            "control/.stop.tmp",
        ],
    )
    @pytest.mark.parametrize("exists", [True, False])
    def test_a_planted_link_is_replaced_or_removed_and_never_followed(
        self,
        broken: Training,
        tmp_path: Path,
        name: str,
        exists: bool,
        reference: Mapping[str, str | None],
    ) -> None:
        outside = tmp_path / "outside"
        if exists:
            outside.write_bytes(b"precious")
        (broken.run / name).unlink(missing_ok=True)
        (broken.run / name).symlink_to(outside)
        broken.finish()
        assert outside.read_bytes() == b"precious" if exists else not outside.exists()
        assert_exact(broken, reference)
        assert not [path for path in broken.run.rglob("*") if path.is_symlink() and "rewound" not in path.parts]

    @pytest.mark.parametrize("name", ["resume_1", "resume_1/metrics.jsonl", "resume_1/.metrics.jsonl.tmp"])
    def test_nothing_is_moved_out_of_the_run_through_a_link_in_rewound(
        self, broken: Training, tmp_path: Path, name: str
    ) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "metrics.jsonl").write_bytes(b"precious")
        link = broken.run / "rewound" / name
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(outside if name == "resume_1" else outside / "metrics.jsonl")
        before = contents(outside)
        broken.fork()
        assert contents(outside) == before

    def test_a_linked_root_is_the_users_own_business(
        self, training: Training, tmp_path: Path, reference: Mapping[str, str | None]
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        training.root.symlink_to(tmp_path / "elsewhere")
        training.finish()
        assert_exact(training, reference)


class TestNames:
    @pytest.mark.parametrize(
        "name",
        ["../escape", "..", ".", "", "/abs", "a/b/c", "a/..", "a/../../b", ".hidden", "a\0b", "é", "a" * 101, "-x"],
    )
    def test_a_name_that_could_leave_the_root_is_refused(self, tmp_path: Path, name: str) -> None:
        root = tmp_path / "runs"
        with pytest.raises(ConfigError, match="cannot be a directory"):
            rekindle.TrainingSession.open(name, forms.AGENTS["learner"](), root=root)
        for kind in ("name", "version"):
            with pytest.raises(ConfigError, match=f"{kind} .* cannot be a directory"):
                TrainingRun.create(*(name if kind == part else "good" for part in ("name", "version")), root=root)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("name", ["step_007.mpk", "step_٣.mpk", "step_-1.mpk", "step_1.mpk.mpk", "xstep_1.mpk"])
    def test_files_that_only_resemble_a_checkpoint_are_no_obstacle(
        self, broken: Training, name: str, reference: Mapping[str, str | None]
    ) -> None:
        shutil.copy(newest(broken.run, "checkpoint"), broken.run / "checkpoints" / name)
        broken.finish()
        assert f"resumed {NEWER}" in broken.acknowledged
        assert_exact(broken, reference)

    @pytest.mark.parametrize("name", ["replay/surprise", "checkpoints/best_surprise.mpk"])
    def test_a_directory_among_the_files_is_no_obstacle(
        self, broken: Training, name: str, reference: Mapping[str, str | None]
    ) -> None:
        (broken.run / name).mkdir()
        broken.finish()
        assert_exact(broken, reference)


def without_errors(found: dict[str, Any]) -> dict[str, Any]:
    """What the harness itself writes beside the run does not count."""
    return {name: value for name, value in found.items() if Path(name).name not in ("errors", "report")}

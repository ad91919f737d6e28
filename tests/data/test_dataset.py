"""Data sets in every form become the same columns."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from data_files import (
    ACTIONS,
    ENDS,
    OBSERVATIONS,
    TERMINATED,
    TRUNCATED,
    Played,
    assert_holds,
    episodes,
    flat,
    write_d4rl,
    write_minari,
    write_npz,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rekindle.data import Dataset, export_npz
from rekindle.errors import DataError, Interrupted, MissingExtra, StorageError
from rekindle.experience import EpisodeStatus

WRITERS: dict[str, Callable[[Path], Path]] = {
    "minari": lambda path: write_minari(path / "set", episodes()),
    "minari in data": lambda path: write_minari(path / "set" / "data", episodes()).parent,
    "minari by its file": lambda path: write_minari(path / "set", episodes()) / "main_data.hdf5",
    "d4rl": lambda path: write_d4rl(path / "set.hdf5", flat(episodes())),
    "npz": lambda path: write_npz(path / "set.npz", flat(episodes())),
}


@pytest.mark.parametrize("form", WRITERS)
def test_every_form_holds_the_episodes_with_both_kinds_of_ends(form: str, tmp_path: Path) -> None:
    dataset = Dataset.open(WRITERS[form](tmp_path))
    assert_holds(dataset, episodes())
    assert dataset.format == form.split(maxsplit=1)[0]
    assert len(dataset) == sum(steps for steps, _ in ENDS)
    assert [episode.status for episode in dataset.episodes()] == [end for _, end in ENDS]


def test_the_digest_is_the_same_whatever_the_form(tmp_path: Path) -> None:
    spaces: dict[str, Any] = {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    digests = {Dataset.open(write(tmp_path / str(number)), **spaces).digest for number, write in numbered(tmp_path)}
    assert len(digests) == 1


def numbered(path: Path) -> list[tuple[int, Callable[[Path], Path]]]:
    for number in range(len(WRITERS)):
        (path / str(number)).mkdir()
    return list(enumerate(WRITERS.values()))


def test_a_data_set_is_converted_once(tmp_path: Path) -> None:
    path, reports = write_minari(tmp_path / "set", episodes()), []
    first = Dataset.open(path, progress=lambda done, total: reports.append((done, total)))
    assert reports[-1] == (17, 17)
    reports.clear()
    again = Dataset.open(path, progress=lambda done, total: reports.append((done, total)))
    assert reports == []
    assert again.digest == first.digest


def test_a_changed_file_is_another_data_set(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "set", episodes())
    before = Dataset.open(path).digest
    with h5py.File(path / "main_data.hdf5", "a") as file:
        rewards: Any = file["episode_1/rewards"]
        rewards[2] += 1.0
    assert Dataset.open(path).digest != before


def test_a_damaged_cache_is_noticed(tmp_path: Path, cache: Path) -> None:
    path = write_minari(tmp_path / "set", episodes())
    Dataset.open(path)
    column = sorted(cache.rglob("000.npy"))[0]
    data = bytearray(column.read_bytes())
    data[-1] ^= 1
    column.write_bytes(data)
    with pytest.raises(DataError, match=r"the cache is damaged, delete .* its bytes have changed"):
        Dataset.open(path)


def test_a_cache_that_has_lost_a_file_is_noticed(tmp_path: Path, cache: Path) -> None:
    path = write_minari(tmp_path / "set", episodes())
    for name, message in (("000.npy", "cannot read"), ("dataset.json", "dataset.json is missing")):
        Dataset.open(path)
        file = next(iter(cache.rglob(name)))
        file.unlink()
        with pytest.raises(DataError, match=rf"the cache is damaged, delete .* to convert the data again: {message}"):
            Dataset.open(path)
        shutil.rmtree(file.parent)


@pytest.mark.parametrize(
    "change",
    [
        {"columns": {}},
        {"observation_space": '{"type": "Discrete", "dtype": "int64", "start": 0, "n": 9}'},
        {"action_space": "{"},
    ],
    ids=["no columns", "other space", "no space"],
)
def test_a_cache_whose_columns_are_not_those_of_its_spaces_is_noticed(
    change: dict[str, Any], tmp_path: Path, cache: Path
) -> None:
    path = write_minari(tmp_path / "set", episodes())
    Dataset.open(path)
    file = next(iter(cache.rglob("dataset.json")))
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(DataError, match=r"the cache is damaged, delete .* dataset.json"):
        Dataset.open(path)


def test_a_cache_that_cannot_be_written_says_how_to_choose_another(tmp_path: Path) -> None:
    path = WRITERS["npz"](tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file.*: data sets are converted there; set REKINDLE_CACHE to a directory"):
        Dataset.open(path, cache=tmp_path / "file")


def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    path = write_minari(tmp_path / "set", episodes())
    calls = iter(range(100))
    with pytest.raises(Interrupted):
        Dataset.open(path, should_stop=lambda: next(calls) > 3)
    assert [entry.name for entry in (cache / "data").iterdir()] == [".lock"]


KILLED = """
import os, signal, sys
from rekindle.data import Dataset
def kill(done, total):
    if done == 10:
        os.kill(os.getpid(), signal.SIGKILL)
Dataset.open(sys.argv[1], progress=kill)
"""


def test_a_killed_conversion_leaves_nothing_that_is_opened_and_the_next_one_removes_it(
    tmp_path: Path, cache: Path
) -> None:
    path = write_minari(tmp_path / "set", episodes())
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    left = [entry for entry in (cache / "data").iterdir() if entry.name != ".lock"]
    assert [entry.name[:5] for entry in left] == [".new-"]
    assert_holds(Dataset.open(path), episodes())
    assert not left[0].exists()


def test_nested_observations_and_composite_actions_are_read_by_name(tmp_path: Path) -> None:
    box = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    spaces = (
        gymnasium.spaces.Dict({"arm": gymnasium.spaces.Tuple([box, gymnasium.spaces.Discrete(4)]), "eye": box}),
        gymnasium.spaces.Dict({"move": box, "fire": gymnasium.spaces.Discrete(2)}),
    )
    played = episodes()
    for episode in played:
        rows = len(episode.observations)
        arm, eye = np.full((rows, 2), 0.5, np.float32), np.zeros((rows, 2), np.float32)
        episode.observations = {"arm": (arm, np.arange(rows) % 4), "eye": eye}  # pyright: ignore[reportAttributeAccessIssue]
        episode.actions = {"move": arm[1:], "fire": np.arange(rows - 1) % 2}  # pyright: ignore[reportAttributeAccessIssue]
    dataset = Dataset.open(write_minari(tmp_path / "set", played, spaces=spaces))
    held = dataset.episode(1)
    assert isinstance(held.observations, dict)
    assert sorted(held.observations) == ["arm/0", "arm/1", "eye"]
    assert held.observations["arm/1"].tolist() == [0, 1, 2, 3, 0, 1]
    fire = dataset.action_space.spaces["fire"]
    assert fire == gymnasium.spaces.Discrete(2)
    assert held.actions.shape == (5, 3)
    export_npz(dataset, tmp_path / "set.npz")
    assert Dataset.open(tmp_path / "set.npz").digest == dataset.digest


def test_without_next_observations_a_cut_loses_its_last_transition(tmp_path: Path) -> None:
    dataset = Dataset.open(write_d4rl(tmp_path / "set.hdf5", flat(episodes(), has_next=False)))
    whole = episodes()
    assert [len(episode) for episode in dataset.episodes()] == [3, 4, 1, 3]
    cut = dataset.episode(1)
    np.testing.assert_array_equal(cut.observations, whole[1].observations[:5])
    assert cut.status == TRUNCATED
    ended = dataset.episode(0)
    assert ended.status == TERMINATED
    np.testing.assert_array_equal(np.asarray(ended.observations)[-1], whole[0].observations[2])
    assert "2 transitions at the ends of episodes are left out" in dataset.notes[0]


def test_an_episode_of_one_transition_without_its_next_observation_is_left_out(tmp_path: Path) -> None:
    played = episodes([(1, TRUNCATED), (3, TERMINATED), (1, TRUNCATED), (2, TRUNCATED)])
    dataset = Dataset.open(write_d4rl(tmp_path / "set.hdf5", flat(played, has_next=False)))
    assert [len(episode) for episode in dataset.episodes()] == [3, 1]
    np.testing.assert_array_equal(dataset.episode(0).rewards, played[1].rewards)


@pytest.mark.parametrize("has_next", [True, False])
def test_an_episode_at_the_end_of_a_file_stays_open(has_next: bool, tmp_path: Path) -> None:
    fields = flat(episodes(), has_next=has_next)
    fields["timeouts"][-1] = False
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", fields))
    assert dataset.episode(3).status == EpisodeStatus.CONTINUING
    assert len(dataset.episode(3)) == (4 if has_next else 3)
    assert dataset.statistics().open == 1


def test_timeouts_can_be_given_as_a_number_of_steps(tmp_path: Path) -> None:
    played = episodes([(4, TRUNCATED), (2, TERMINATED), (4, TRUNCATED), (4, TRUNCATED)])
    fields = flat(played)
    del fields["timeouts"]
    dataset = Dataset.open(write_d4rl(tmp_path / "set.hdf5", fields), timeout_after=4)
    assert_holds(dataset, played)


def test_statistics_count_whole_episodes(tmp_path: Path) -> None:
    found = Dataset.open(write_minari(tmp_path / "set", episodes())).statistics()
    returns = [episode.rewards.sum() for episode in episodes()]
    assert (found.transitions, found.episodes, found.terminated, found.truncated) == (13, 4, 2, 2)
    assert found.returns is not None
    assert found.returns.mean == pytest.approx(np.mean(returns))
    assert found.returns.max == pytest.approx(max(returns))
    assert found.lengths is not None
    assert (found.lengths.min, found.lengths.max) == (1, 5)


def test_spaces_are_inferred_from_the_values_if_the_file_has_none(tmp_path: Path) -> None:
    dataset = Dataset.open(write_d4rl(tmp_path / "set.hdf5", flat(episodes())))
    assert dataset.inferred == ("observation_space", "action_space")
    assert dataset.action_space == gymnasium.spaces.Discrete(3)
    assert dataset.observation_space == OBSERVATIONS
    known = Dataset.open(tmp_path / "set.hdf5", action_space=gymnasium.spaces.Discrete(5))
    assert known.action_space == gymnasium.spaces.Discrete(5)
    assert known.inferred == ("observation_space",)


def test_an_inferred_space_has_the_observations_that_only_end_episodes(tmp_path: Path) -> None:
    fields = flat(episodes()) | {"observations": np.arange(13), "next_observations": np.arange(1, 14)}
    assert Dataset.open(write_npz(tmp_path / "set.npz", fields)).observation_space == gymnasium.spaces.Discrete(14)


def test_numbers_of_more_than_64_bits_are_converted(tmp_path: Path) -> None:
    fields = flat(episodes())
    for name in ("observations", "next_observations"):
        fields[name] = fields[name].astype(np.longdouble)
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", fields))
    assert dataset.observation_space.dtype == np.float64


def test_an_inferred_space_has_the_byte_order_of_the_machine(tmp_path: Path) -> None:
    fields = flat(episodes())
    for name in ("observations", "next_observations"):
        fields[name] = fields[name].astype(">f4")
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", fields))
    assert dataset.observation_space.dtype.isnative
    assert dataset.digest == Dataset.open(write_npz(tmp_path / "native.npz", flat(episodes()))).digest


def test_files_larger_than_one_piece_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.data.flat._PIECE_BYTES", 16)
    for has_next in (True, False):
        fields = flat(episodes(), has_next=has_next)
        whole = Dataset.open(write_npz(tmp_path / f"{has_next}.npz", fields))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("rekindle.data.flat._PIECE_BYTES", 2**20)
            at_once = Dataset.open(tmp_path / f"{has_next}.npz", cache=tmp_path / "other")
        assert whole.digest == at_once.digest


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ends=st.lists(st.tuples(st.integers(1, 4), st.sampled_from([TERMINATED, TRUNCATED])), min_size=1, max_size=6),
    has_next=st.booleans(),
    is_open=st.booleans(),
    piece=st.integers(1, 40),
)
def test_flat_files_of_any_episodes_hold_what_a_simple_reading_of_them_finds(
    ends: list[tuple[int, EpisodeStatus]], has_next: bool, is_open: bool, piece: int, tmp_path: Path
) -> None:
    played = episodes(ends)
    fields = flat(played, has_next=has_next)
    if is_open:
        fields["terminals"][-1] = fields["timeouts"][-1] = False
    expected: list[Any] = []
    for episode, (steps, end) in zip(played, ends, strict=True):
        final = EpisodeStatus.CONTINUING if is_open and episode is played[-1] else end
        if not has_next and final != TERMINATED:  # the observation after the last step is unknown
            steps -= 1  # noqa: PLW2901
            final = EpisodeStatus.CONTINUING if final == EpisodeStatus.CONTINUING else TRUNCATED
        if steps:
            expected.append((episode.actions[:steps].tolist(), episode.rewards[:steps].tolist(), final))
    path = write_npz(tmp_path / "set.npz", fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rekindle.data.flat._PIECE_BYTES", piece)
        patch.setattr("rekindle.storage.npy.os.fsync", lambda _: None)
        options: dict[str, Any] = {"cache": tmp_path / f"cache-{piece}", "fixed_length": True}
        if not expected:
            with pytest.raises(DataError, match="it has no complete transition"):
                Dataset.open(path, **options)
            return
        dataset = Dataset.open(path, **options)
    held = [(each.actions.tolist(), each.rewards.tolist(), each.status) for each in dataset.episodes()]
    assert held == expected
    for each in dataset.episodes():
        assert len(np.asarray(each.observations)) == len(each) + 1


def test_a_file_that_changes_while_it_is_converted_is_refused(tmp_path: Path, cache: Path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(episodes()))

    def change(done: int, total: int) -> None:
        if done == total:
            with open(path, "ab") as file:
                file.write(b"more")

    with pytest.raises(DataError, match="has changed while it was converted"):
        Dataset.open(path, progress=change)
    assert [entry.name for entry in (cache / "data").iterdir()] == [".lock"]


def test_two_conversions_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "set", episodes())
    inside: list[Dataset] = []

    def convert_again(done: int, total: int) -> None:
        if not inside:
            inside.append(Dataset.open(path))

    outside = Dataset.open(path, progress=convert_again)
    assert outside.digest == inside[0].digest
    assert_holds(outside, episodes())


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_d4rl(tmp_path / "set.hdf5", flat(episodes()))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtra, match=r'HDF5 files need h5py: pip install "rekindle-rl\[data\]"'):
        Dataset.open(path)
    assert len(Dataset.open(write_npz(tmp_path / "set.npz", flat(episodes())))) == 13


def test_the_columns_cannot_be_changed(tmp_path: Path) -> None:
    dataset = Dataset.open(write_minari(tmp_path / "set", episodes()))
    with pytest.raises(ValueError, match="read-only"):
        dataset.episode(0).rewards[0] = 1.0


def test_played_episodes_are_what_the_tests_take_them_for() -> None:
    assert all(isinstance(episode, Played) for episode in episodes())

"""Data that cannot be learned from are refused, with the field and the row."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from data_files import TERMINATED, TRUNCATED, episodes, flat, write_d4rl, write_minari, write_npz
from gymnasium.spaces import Discrete

from rekindle.data import Dataset
from rekindle.errors import DataError, RekindleError

Fields = dict[str, Any]


def changed(name: str, row: Any, value: Any) -> Callable[[Fields], None]:
    def change(fields: Fields) -> None:
        fields[name][row] = value

    return change


def without(name: str) -> Callable[[Fields], None]:
    return lambda fields: fields.pop(name)


def shorter(name: str) -> Callable[[Fields], None]:
    return lambda fields: fields.update({name: fields[name][:-1]})


def replaced(name: str, value: Any) -> Callable[[Fields], None]:
    return lambda fields: fields.update({name: value})


def reshaped(name: str) -> Callable[[Fields], None]:
    return lambda fields: fields.update({name: np.stack([fields[name], fields[name]], axis=1)})


FLAT = {
    "NaN in observations": (changed("observations", (7, 1), np.nan), r"observations: row 7 is not finite"),
    "NaN in next observations": (changed("next_observations", (2, 0), np.nan), r"next_observations: row 2 is not fin"),
    "infinite reward": (changed("rewards", 4, -np.inf), r"rewards: row 4 is not finite"),
    "a reward beyond float32": (changed("rewards", 4, 1e39), r"rewards: row 4 is 1e\+39, which is too large"),
    "an observation beyond float32": (
        replaced("observations", np.where(np.arange(26).reshape(13, 2) == 15, -1e39, 0.0)),
        r"observations: row 7 is \[0\.0, -1e\+39\], which is too large for a float32",
    ),
    "an action beyond float32": (
        replaced("actions", np.where(np.arange(13)[:, None] == 3, 1e39, 0.0)),
        r"actions: row 3 is \[1e\+39\], which is too large",
    ),
    "no timeouts": (without("timeouts"), r"timeouts is missing, .* cannot be told apart: add one flag a row"),
    "no terminals": (without("terminals"), r"terminals is missing: add one flag a row"),
    "no rewards": (without("rewards"), r"rewards is missing"),
    "no observations": (without("observations"), r"observations is missing; there are actions, next_observations"),
    "fewer actions": (shorter("actions"), r"actions has 12 rows, but rewards has 13"),
    "fewer observations": (shorter("observations"), r"observations has 12 rows, but rewards has 13"),
    "fewer flags": (shorter("timeouts"), r"timeouts has the shape \(12,\), and 13 rows need \(13,\)"),
    "an action that is a number between": (replaced("actions", np.linspace(0, 3, 13)), None),
    "a flag that is none": (replaced("timeouts", np.arange(13)), r"timeouts: row 2 is 2, which is neither"),
    "an unmarked cut": (changed("timeouts", 7, False), r"timeouts: row 7 is not marked as the end of an episode"),
    "both names": (replaced("truncations", np.zeros(13, np.bool_)), r"timeouts and truncations, which mean the same"),
    "rewards of two numbers": (reshaped("rewards"), r"rewards is float64 \(13, 2\): one number a row"),
    "actions of no numbers": (replaced("actions", np.zeros((13, 0))), r"actions has the shape \(13, 0\): .*no numbers"),
    "an action beyond int64": (replaced("actions", np.full(13, 2**63, np.uint64)), r"actions is from \d+ to \d+: too"),
    "nothing": (lambda fields: fields.update({name: fields[name][:0] for name in fields}), r"has no rows"),
    "complex numbers": (
        lambda fields: fields.update(observations=fields["observations"] * 1j),
        r"observations .*dtype",
    ),
}


@pytest.mark.parametrize("form", ["d4rl", "npz"])
@pytest.mark.parametrize("case", [case for case, (_, message) in FLAT.items() if message is not None])
def test_a_bad_flat_file_is_refused_with_the_field_and_the_row(case: str, form: str, tmp_path: Path) -> None:
    change, message = FLAT[case]
    fields = flat(episodes())
    change(fields)
    path = write_d4rl(tmp_path / "set.hdf5", fields) if form == "d4rl" else write_npz(tmp_path / "set.npz", fields)
    with pytest.raises(DataError, match=message) as refusal:
        Dataset.open(path)
    assert str(path) in str(refusal.value)


def test_terminals_that_are_time_limits_are_refused_unless_the_task_ends_there(tmp_path: Path) -> None:
    played = episodes([(4, TERMINATED)] * 5)
    for path in (write_npz(tmp_path / "set.npz", flat(played)), write_minari(tmp_path / "set", played)):
        with pytest.raises(DataError, match=r"all 5 episodes terminate after exactly 4 steps.*first is row 3"):
            Dataset.open(path)
        assert Dataset.open(path, fixed_length=True).num_episodes == 5


def test_terminals_of_the_longest_episodes_that_may_be_time_limits_are_doubted(tmp_path: Path) -> None:
    ends = [(30, TERMINATED), (12, TERMINATED), (30, TERMINATED), (5, TERMINATED), (30, TERMINATED)]
    path = write_npz(tmp_path / "set.npz", flat(episodes(ends)))
    doubt = Dataset.open(path).doubt
    assert doubt is not None
    assert "terminals: 3 of 5 episodes terminate after exactly 30 steps, and none is longer" in doubt
    assert doubt in Dataset.open(path).notes
    assert Dataset.open(path, fixed_length=True).doubt is None
    for number, other in enumerate((ends[:-1], [*ends, (31, TERMINATED)], [*ends, (7, TRUNCATED)])):
        assert Dataset.open(write_npz(tmp_path / f"{number}.npz", flat(episodes(other)))).doubt is None


@pytest.mark.parametrize("form", ["d4rl", "minari"])
def test_observations_that_a_discrete_space_does_not_have_are_refused(form: str, tmp_path: Path) -> None:
    played: list[Any] = episodes()
    for episode in played:
        episode.observations = np.arange(len(episode.observations))
    if form == "d4rl":
        path, where = write_d4rl(tmp_path / "set.hdf5", flat(played)), "next_observations: row 7"
    else:
        path, where = write_minari(tmp_path / "set", played), "episode_1/observations: row 5"
    assert Dataset.open(path, observation_space=Discrete(6)).num_episodes == 4
    with pytest.raises(DataError, match=rf"{where} is .*5.*, outside of the space Discrete\(5\)"):
        Dataset.open(path, observation_space=Discrete(5))


def test_actions_outside_of_the_space_are_refused(tmp_path: Path) -> None:
    played = episodes()
    played[1].actions[3] = 3
    with pytest.raises(DataError, match=r"episode_1/actions: row 3 is .*3.*, outside of the space Discrete\(3\)"):
        Dataset.open(write_minari(tmp_path / "set", played))


def edited(change: Callable[[Any], object]) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        with h5py.File(directory / "main_data.hdf5", "a") as file:
            change(file)

    return edit


def put(name: str, values: Any, **options: Any) -> Callable[[Path], None]:
    def change(file: Any) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, data=values, **options)

    return edited(change)


def linked(name: str, link: Any) -> Callable[[Path], None]:
    def change(file: Any) -> None:
        del file[name]
        file[name] = link

    return edited(change)


def described(**changes: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "metadata.json"
        known = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in known.items() if value is not None}))

    return edit


def cut(share: float) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        path = directory / "main_data.hdf5"
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])

    return edit


NUMBERS = np.zeros((5, 2), np.float32)
MINARI = {
    "T observations": (put("episode_1/observations", NUMBERS), r"episode_1/observations has 5 rows for 5 steps: 6 are"),
    "ragged": (put("episode_1/observations", NUMBERS[:3]), r"episode_1/observations has \(3,\) rows, and 5 rewards"),
    "wrong shape": (
        put("episode_1/observations", np.zeros((6, 3))),
        r"a value has the shape \(3,\), but \(2,\) in the",
    ),
    "ragged actions": (put("episode_1/actions", np.zeros(4, int)), r"episode_1/actions has \(4,\) rows"),
    "float actions": (put("episode_1/actions", np.full(5, 0.5)), r"episode_1/actions: it is float64, but int64"),
    "NaN": (put("episode_2/rewards", [np.nan]), r"episode_2/rewards: row 0 is not finite: nan$"),
    "no truncations": (
        edited(lambda file: file.pop("episode_0/truncations")),
        r"episode_0/truncations is missing: term",
    ),
    "no rewards": (edited(lambda file: file.pop("episode_0/rewards")), r"episode_0/rewards is missing"),
    "early end": (put("episode_1/terminations", np.arange(5) == 2), r"episode_1/terminations: row 2 ends the episode"),
    "text": (put("episode_1/observations", [b"x"] * 6), r"episode_1/observations has the dtype .*not numbers"),
    "objects": (
        put("episode_1/observations", ["x"] * 6, dtype=h5py.string_dtype()),
        r"episode_1/observations has the dtype object, not numbers; objects are never loaded",
    ),
    "no episodes": (edited(lambda file: file.clear()), r"there is no group episode_0"),
    "soft link": (linked("episode_0/rewards", h5py.SoftLink("/episode_1/rewards")), r"is a link to another place"),
    "external link": (linked("episode_0/rewards", h5py.ExternalLink("/etc/passwd", "/x")), r"is a link to another"),
    "other file": (
        put("episode_1/rewards", None, shape=(5,), dtype="f8", external=[("/etc/passwd", 0, 40)]),
        r"episode_1/rewards is stored in another file",
    ),
    "declared only": (
        put("episode_1/rewards", None, shape=(2**40,), dtype="f8", chunks=(1024,)),
        r"episode_1/rewards declares \d+ bytes, but 0 are stored",
    ),
    "a group as an array": (
        edited(lambda file: (file.pop("episode_0/rewards"), file.create_group("episode_0/rewards"))),
        r"episode_0/rewards is a group",
    ),
    "truncated": (cut(0.5), r"cannot be read, the file may be damaged"),
    "almost whole": (cut(0.99), r"cannot be read, the file may be damaged"),
    "empty": (cut(0), r"cannot be read, the file may be damaged"),
    "episodes that are missing": (described(total_episodes=5), r"total_episodes is 5, but main_data.hdf5 has 4: copy"),
    "steps that are missing": (described(total_steps=14), r"total_steps is 14, but main_data.hdf5 has 13: copy"),
    "a total that is no number": (described(total_steps="many"), r"total_steps is 'many', but main_data.hdf5 has 13"),
    "other format": (described(data_format="arrow"), r"data_format is 'arrow': only hdf5"),
    "no space": (described(action_space=None), r"metadata.json: action_space is missing"),
    "bad space": (described(action_space="{}"), r"action_space is not a space that can be read: 'type' is missing"),
    "unknown space": (described(action_space='{"type": "Text"}'), r"action_space is not a space .*'Text' is none of"),
    "huge space": (
        described(observation_space=json.dumps({"type": "Box", "dtype": "f4", "shape": [2**40], "low": 0, "high": 1})),
        r"observation_space is not a space .*its shape is",
    ),
    "deep space": (
        described(observation_space='{"type":"Tuple","subspaces":[' * 40 + "]}" * 40),
        r"observation_space is not a space .*more than 32 levels",
    ),
    "jpeg": (
        described(
            observation_space=json.dumps(
                {"type": "Box", "dtype": "uint8", "shape": [40, 40, 3], "low": 0, "high": 255},
            ),
        ),
        r"observations",
    ),
}


@pytest.mark.parametrize("case", MINARI)
def test_a_bad_minari_data_set_is_refused_with_the_field_and_the_row(case: str, tmp_path: Path) -> None:
    change, message = MINARI[case]
    path = write_minari(tmp_path / "set", episodes())
    change(path)
    with pytest.raises(DataError, match=message) as refusal:
        Dataset.open(path)
    assert str(path) in str(refusal.value)


def test_a_data_set_in_minaris_arrow_format_is_refused(tmp_path: Path) -> None:
    path = write_minari(tmp_path / "set", episodes())
    described(data_format="arrow")(path)
    (path / "main_data.hdf5").unlink()  # the arrow format has a directory for each episode instead
    with pytest.raises(DataError, match=r"metadata\.json: data_format is 'arrow': only hdf5 can be read"):
        Dataset.open(path)


class Planted:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("planted",)


def test_an_npz_file_with_objects_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fields = flat(episodes())
    fields["observations"] = np.array([Planted()] * 13, object)
    with pytest.raises(DataError, match=r"observations has the dtype object, not numbers; objects are never unpickled"):
        Dataset.open(write_npz(tmp_path / "set.npz", fields))
    assert not (tmp_path / "planted").exists()


def test_a_pickle_is_not_a_data_set_and_runs_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set.pkl").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(DataError, match=r"is not a data set"):
        Dataset.open(tmp_path / "set.pkl")
    assert not (tmp_path / "planted").exists()


def test_a_zip_member_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("observations.npy", b"\0" * 2**20)
    with zipfile.ZipFile(path, "a") as archive:
        archive.getinfo("observations.npy").file_size = 2**50
    with pytest.raises(DataError):
        Dataset.open(path)


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
@pytest.mark.parametrize("shape", [(13, 2**34), (13, 2**31, 2**31, 4), (13, -2), (-1, 2), (13, *[1] * 70)])
def test_a_shape_that_the_bytes_of_an_npz_file_do_not_fill_is_refused(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    fields = flat(episodes())
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": shape})
    del fields[name]
    path = write_npz(tmp_path / "set.npz", fields)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(f"{name}.npy", header.getvalue() + b"\0" * 104)
    with pytest.raises(DataError, match=rf"set\.npz: {name} (declares|has) the shape \(-?\d+, "):
        Dataset.open(path)


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "-" * 9_000 + "1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1+" * 4_000 + "1j,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0x" + "f" * 9_000 + ",)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (13,)}",
        "{{}: 1}",
    ],
    ids=["nested signs", "long sum", "huge shape", "no bytes", "no key"],
)
def test_a_header_that_no_array_has_is_refused(header: str, tmp_path: Path) -> None:
    fields = flat(episodes())
    del fields["rewards"]
    path = write_npz(tmp_path / "set.npz", fields)
    with zipfile.ZipFile(path, "a") as archive:
        length = len(header).to_bytes(2, "little")
        archive.writestr("rewards.npy", b"\x93NUMPY\x01\x00" + length + header.encode() + b"\0" * 104)
    with pytest.raises(DataError, match=r"set\.npz: rewards "):
        Dataset.open(path)


def test_an_npz_file_with_two_arrays_of_one_name_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(episodes()))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("rewards", archive.read("rewards.npy"))
    with pytest.raises(DataError, match=r"set\.npz: it has two arrays rewards: remove one"):
        Dataset.open(path)


def test_an_npz_file_with_another_compression_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("observations.npy", b"")
        archive.writestr("actions.npy", b"")
        archive.writestr("rewards.npy", b"")
    with pytest.raises(DataError, match=r"rewards has another compression than np\.savez_compressed"):
        Dataset.open(path)


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals", "timeouts"])
def test_an_hdf5_array_without_a_shape_is_refused(name: str, tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "set.hdf5", flat(episodes()))
    with h5py.File(path, "a") as file:
        del file[name]
        file.create_dataset(name, data=h5py.Empty("f4"))
    with pytest.raises(DataError, match=rf"set\.hdf5: {name} has no rows"):
        Dataset.open(path)


def test_a_name_in_an_hdf5_file_that_is_not_text_is_ignored(tmp_path: Path) -> None:
    path = write_d4rl(tmp_path / "set.hdf5", flat(episodes()))
    with h5py.File(path, "a") as file:
        file.create_group(b"\xff\xfe")
    assert "ignored what is not part of transitions" in Dataset.open(path).notes[0]


@pytest.mark.filterwarnings("error")
def test_rewards_of_half_precision_are_read(tmp_path: Path) -> None:
    fields = flat(episodes())
    fields["rewards"] = fields["rewards"].astype(np.float16)
    assert len(Dataset.open(write_npz(tmp_path / "set.npz", fields))) == 13


@pytest.mark.parametrize("form", ["d4rl", "npz"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(form: str, share: float, tmp_path: Path) -> None:
    fields = flat(episodes())
    path = write_d4rl(tmp_path / "set.hdf5", fields) if form == "d4rl" else write_npz(tmp_path / "set.npz", fields)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(DataError, match=str(path)):
        Dataset.open(path)


def test_a_damaged_byte_is_refused_or_mentioned_if_it_matters(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(episodes()))
    data, rng = path.read_bytes(), np.random.default_rng(0)
    whole = Dataset.open(path)
    for place in rng.integers(len(data), size=60).tolist():
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            found = Dataset.open(path)
        except RekindleError:
            continue
        # What is left are bytes that mean nothing, such as the time of a zip member, and other names of arrays.
        assert found.digest == whole.digest or "ignored what is not part of transitions" in found.notes[0]


def test_the_last_observation_must_be_there_with_episode_lengths(tmp_path: Path) -> None:
    fields = flat(episodes())
    fields["episode_lengths"] = np.array([3, 5, 1, 4])
    with pytest.raises(DataError, match=r"observations has 13 rows, one a transition: .*\(17 in all\); add them"):
        Dataset.open(write_npz(tmp_path / "set.npz", fields))
    fields["episode_lengths"] = np.array([3, 5, 1, 3])
    with pytest.raises(DataError, match=r"episode_lengths has the sum 12, but rewards has 13 rows"):
        Dataset.open(write_npz(tmp_path / "set.npz", fields))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2**62], "episode_lengths has the sum 4611686018427387904, but rewards has 13 rows"),
        ([2**62, 2**62, 2**62, 2**62, 13], "has the sum 18446744073709551629, but"),
        (np.array([2**64 - 1], np.uint64), "has the sum 18446744073709551615, but"),
        (np.array([100] * 3, np.int8), "has the sum 300, but"),
        ([-(2**62), 13], "must be whole numbers of at least 1, one an episode"),
        ([0, 13], "must be whole numbers of at least 1"),
        ([[13]], "must be whole numbers of at least 1"),
        ([13.0], "must be whole numbers of at least 1"),
        (np.array(["13"]), "must be whole numbers of at least 1"),
        (np.zeros(0, np.int64), "episode_lengths has no rows"),
        (np.array(13), "episode_lengths has no rows"),
    ],
)
def test_lengths_of_episodes_that_cannot_be_are_refused(lengths: Any, message: str, tmp_path: Path) -> None:
    fields = {**flat(episodes()), "episode_lengths": np.asarray(lengths)}
    with pytest.raises(DataError, match=rf"set\.npz: .*{message}"):
        Dataset.open(write_npz(tmp_path / "set.npz", fields))


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals", "timeouts", "next_observations"])
@pytest.mark.parametrize("value", [np.zeros(0), np.array(1.0)])
def test_a_field_without_rows_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    for further in ({}, {"episode_lengths": np.array([3, 5, 1, 4])}):
        path = write_npz(tmp_path / "set.npz", {**flat(episodes()), name: value, **further})
        with pytest.raises(DataError, match=rf"{name} has (no|0) rows"):
            Dataset.open(path)


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        Dataset.open(tmp_path / "nothing.npz")
    with pytest.raises(RekindleError, match="there is no run at"):
        Dataset.open(tmp_path)


def test_the_name_of_a_shipped_data_set_without_its_prefix_is_answered_with_the_full_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist; did you mean rekindle:pendulum-medium\?"):
        Dataset.open(tmp_path / "pendulum-medium")


def test_truncations_are_kept_apart_from_terminations(tmp_path: Path) -> None:
    played = episodes([(4, TRUNCATED)] * 5)
    found = Dataset.open(write_npz(tmp_path / "set.npz", flat(played))).statistics()
    assert (found.terminated, found.truncated) == (0, 5)

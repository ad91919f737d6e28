"""Exported data sets are the same data sets."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium
import h5py
import numpy as np
import pytest
from data_files import ACTIONS, TERMINATED, TRUNCATED, assert_holds, episodes, flat, write_minari, write_npz

from rekindle.data import Dataset, export_minari, export_npz
from rekindle.data.export import MinariWriter
from rekindle.errors import ConfigError, Interrupted, StorageError
from rekindle.replay.links import FRAGMENT

BOX = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
SPACES = {
    "plain": (gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32), ACTIONS),
    "image": (gymnasium.spaces.Box(0, 255, (40, 40, 3), np.uint8), gymnasium.spaces.MultiDiscrete([3, 2])),
    "nested": (
        gymnasium.spaces.Dict({"arm": gymnasium.spaces.Tuple([BOX, gymnasium.spaces.Discrete(4)]), "eye": BOX}),
        gymnasium.spaces.Tuple([BOX, gymnasium.spaces.Discrete(2), gymnasium.spaces.MultiBinary(3)]),
    ),
    "a part without numbers": (
        gymnasium.spaces.Dict({"eye": BOX, "nothing": gymnasium.spaces.Box(-1, 1, (0,), np.float32)}),
        ACTIONS,
    ),
}


def batch(space: Any, rows: int) -> Any:
    """So many values of a space, nested like it."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {key: batch(part, rows) for key, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(batch(part, rows) for part in space.spaces)
    return np.stack([space.sample() for _ in range(rows)])


@pytest.fixture(params=SPACES)
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> Dataset:
    spaces = SPACES[request.param]
    for number, space in enumerate(spaces):
        space.seed(number)
    played: list[Any] = episodes()
    for episode in played:
        episode.observations = batch(spaces[0], len(episode.rewards) + 1)
        episode.actions = batch(spaces[1], len(episode.rewards))
    return Dataset.open(write_minari(tmp_path / "source", played, spaces=spaces, metadata={"jpeg_encoding": False}))


def test_an_exported_data_set_has_the_same_digest_and_spaces(dataset: Dataset, tmp_path: Path) -> None:
    export_minari(dataset, tmp_path / "exported-v0")
    export_npz(dataset, tmp_path / "exported.npz")
    for path in (tmp_path / "exported-v0", tmp_path / "exported.npz"):
        again = Dataset.open(path)
        assert again.digest == dataset.digest
        assert (again.observation_space, again.action_space) == (dataset.observation_space, dataset.action_space)
        assert again.inferred == ()


def test_a_long_episode_is_stored_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", flat(episodes())))
    monkeypatch.setattr("rekindle.data.export._MOST_CHUNK", 20)  # an observation has 8 bytes
    export_minari(dataset, tmp_path / "exported")
    with h5py.File(tmp_path / "exported/data/main_data.hdf5") as file:
        arrays: Any = [file[f"episode_1/{name}"] for name in ("observations", "rewards", "truncations")]
        assert [array.chunks for array in arrays] == [(2, 2), (2,), (5,)]
    assert Dataset.open(tmp_path / "exported").digest == dataset.digest


def test_a_part_without_a_name_is_refused_in_minaris_layout(tmp_path: Path) -> None:
    fields = flat(episodes())
    parts = {f"{name}/": fields.pop(name) for name in ("observations", "next_observations")}
    space = gymnasium.spaces.Dict({"": gymnasium.spaces.Box(-np.inf, np.inf, (2,))})
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", {**fields, **parts}), observation_space=space)
    with pytest.raises(ConfigError, match="HDF5 cannot hold observations with the key ''"):
        export_minari(dataset, tmp_path / "exported")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "set.npz"]


def test_an_open_episode_is_exported_to_minari_as_truncated(tmp_path: Path) -> None:
    fields = flat(episodes())
    fields["timeouts"][-1] = False
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", fields))
    export_minari(dataset, tmp_path / "exported")
    assert_holds(Dataset.open(tmp_path / "exported"), episodes())
    export_npz(dataset, tmp_path / "again.npz")
    assert Dataset.open(tmp_path / "again.npz").digest == dataset.digest


def test_the_digest_of_what_is_written_is_returned(tmp_path: Path) -> None:
    fields = flat(episodes())
    fields["timeouts"][-1] = False
    plain = Dataset.open(write_npz(tmp_path / "set.npz", fields))
    status = np.array(plain.columns["status"])
    status[0] = FRAGMENT
    columns = {**plain.columns, "status": status}
    dataset = Dataset(plain.path, "npz", plain._converted._replace(columns=columns))
    found = export_minari(dataset, tmp_path / "exported"), export_npz(dataset, tmp_path / "exported.npz")
    assert found == tuple(Dataset.open(tmp_path / name).digest for name in ("exported", "exported.npz"))
    assert found[1] == plain.digest != found[0]


def test_an_existing_directory_is_never_replaced(tmp_path: Path) -> None:
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", flat(episodes())))
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="exists already: choose another directory"):
        export_minari(dataset, tmp_path / "there")


def test_a_file_is_never_replaced_even_by_its_own_transitions(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "set.npz", flat(episodes()))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="exists already: choose another file"):
        export_npz(Dataset.open(path), path)
    assert path.read_bytes() == before


def test_an_interrupted_export_leaves_nothing(tmp_path: Path) -> None:
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", flat(episodes())))
    before = sorted(entry.name for entry in tmp_path.iterdir())
    calls = iter([False, False, True])
    with pytest.raises(Interrupted):
        export_minari(dataset, tmp_path / "exported", should_stop=lambda: next(calls))
    calls = iter([False, False, True])
    with pytest.raises(Interrupted):
        export_npz(dataset, tmp_path / "exported.npz", should_stop=lambda: next(calls))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Dataset.open(write_npz(tmp_path / "set.npz", flat(episodes())))
    failed = "file write failed: time = now, errno = 28, error message = 'No space left on device'"
    for kind in (RuntimeError, OSError):
        monkeypatch.setattr(MinariWriter, "add", mock.Mock(side_effect=kind(failed)))
        with pytest.raises(StorageError, match=r"cannot write .*exported: No space left on device$"):
            export_minari(dataset, tmp_path / "exported")
        assert {path.name for path in tmp_path.iterdir()} == {"set.npz", "cache"}
    monkeypatch.setattr(MinariWriter, "add", mock.Mock(side_effect=RuntimeError("of an agent")))
    with pytest.raises(RuntimeError, match="of an agent"):
        export_minari(dataset, tmp_path / "exported")


def test_the_metadata_are_those_that_minari_reads(tmp_path: Path) -> None:
    export_minari(Dataset.open(write_npz(tmp_path / "set.npz", flat(episodes()))), tmp_path / "cart pole")
    found = json.loads((tmp_path / "cart pole" / "data" / "metadata.json").read_text())
    assert (found["dataset_id"], found["total_episodes"], found["total_steps"]) == ("cart-pole-v0", 4, 13)
    assert found["data_format"] == "hdf5"


READ_BY_MINARI = """
import json, sys
import minari
import numpy as np

dataset = minari.MinariDataset(sys.argv[1])
def totals(value):
    if isinstance(value, dict):
        return [number for key in sorted(value) for number in totals(value[key])]
    if isinstance(value, tuple):
        return [number for part in value for number in totals(part)]
    return [float(np.asarray(value, np.float64).sum()), *np.shape(value)]
print(json.dumps([
    [totals(episode.observations), totals(episode.actions), float(episode.rewards.sum()),
     episode.terminations.tolist(), episode.truncations.tolist()]
    for episode in dataset.iterate_episodes()
]))
"""


WRITTEN_BY_MINARI = """
import sys
import gymnasium, minari
import numpy as np
from minari.dataset.minari_storage import MinariStorage
from minari.data_collector import EpisodeBuffer

env = gymnasium.make("CartPole-v1", max_episode_steps=15)
storage = MinariStorage.new(sys.argv[1], env.observation_space, env.action_space, env_spec=env.spec)
for number in range(4):
    seen, _ = env.reset(seed=number)
    observations, actions, rewards, ended, cut = [seen], [], [], [], []
    while not (ended and (ended[-1] or cut[-1])):
        seen, reward, terminated, truncated, _ = env.step(number % 2)
        observations.append(seen), actions.append(number % 2), rewards.append(reward)
        ended.append(terminated), cut.append(truncated)
    storage.update_episodes([EpisodeBuffer(id=number, seed=number, observations=observations, actions=actions,
        rewards=rewards, terminations=ended, truncations=cut)])
"""


def minari(program: str, *arguments: object) -> str:
    """The output of a program that uses Minari's own library."""
    python = os.environ.get("MINARI_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import minari, PIL, h5py"], capture_output=True, check=False).returncode:
        pytest.skip("minari is not installed: pip install 'minari[hdf5]', or name its python in MINARI_PYTHON")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.exhaustive
def test_a_data_set_that_minari_wrote_is_opened(tmp_path: Path) -> None:
    (tmp_path / "written").mkdir()
    minari(WRITTEN_BY_MINARI, tmp_path / "written")
    dataset = Dataset.open(tmp_path / "written")
    assert dataset.num_episodes == 4
    assert dataset.action_space == gymnasium.spaces.Discrete(2)
    env = gymnasium.make("CartPole-v1")
    for number, episode in enumerate(dataset.episodes()):
        seen = [env.reset(seed=number)[0], *(env.step(int(action))[0] for action in episode.actions)]
        np.testing.assert_array_equal(episode.observations, np.array(seen))
    env.close()


@pytest.mark.exhaustive
def test_minari_opens_an_exported_data_set(dataset: Dataset, tmp_path: Path) -> None:
    export_minari(dataset, tmp_path / "exported-v0")
    found = json.loads(minari(READ_BY_MINARI, tmp_path / "exported-v0" / "data"))
    for (observations, _, rewards, terminations, truncations), held in zip(found, dataset.episodes(), strict=True):
        assert rewards == pytest.approx(held.total_reward)
        assert (terminations[-1], truncations[-1]) == (held.status == TERMINATED, held.status == TRUNCATED)
        seen: Any = held.observations
        parts: dict[str, Any] = seen if isinstance(seen, dict) else {"": seen}
        expected = [n for key in sorted(parts) for n in (float(parts[key].sum(dtype=np.float64)), *parts[key].shape)]
        assert observations == pytest.approx(expected)

"""Small data sets in every form, made from the same episodes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np

from rekindle.data import Dataset
from rekindle.experience import EpisodeStatus
from rekindle.space_json import space_text

OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)
TERMINATED, TRUNCATED = EpisodeStatus.TERMINATED, EpisodeStatus.TRUNCATED
ENDS = [(3, TERMINATED), (5, TRUNCATED), (1, TERMINATED), (4, TRUNCATED)]
"""The lengths and ends of the episodes."""


class Played:
    """One episode."""

    def __init__(self, rng: np.random.Generator, steps: int, end: EpisodeStatus) -> None:
        self.observations = rng.normal(size=(steps + 1, 2)).astype(np.float32)
        self.actions = rng.integers(3, size=steps)
        self.rewards = rng.normal(size=steps)
        self.terminations = np.arange(steps) == (steps - 1 if end == TERMINATED else -1)
        self.truncations = np.arange(steps) == (steps - 1 if end == TRUNCATED else -1)


def episodes(ends: Sequence[tuple[int, EpisodeStatus]] = ENDS) -> list[Played]:
    rng = np.random.default_rng(0)
    return [Played(rng, steps, end) for steps, end in ends]


FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def write_minari(
    directory: Path,
    played: Sequence[Any],
    *,
    spaces: tuple[Any, Any] = (OBSERVATIONS, ACTIONS),
    metadata: Mapping[str, Any] = {},
) -> Path:
    directory.mkdir(parents=True)
    with h5py.File(directory / "main_data.hdf5", "w") as file:
        for number, episode in enumerate(played):
            group = file.create_group(f"episode_{number}")
            for field in FIELDS:
                put(group, field, getattr(episode, field))
    known = {
        "data_format": "hdf5",
        "observation_space": space_text(spaces[0]),
        "action_space": space_text(spaces[1]),
        **metadata,
    }
    (directory / "metadata.json").write_text(json.dumps(known))
    return directory


def put(group: Any, name: str, value: Any) -> None:
    if isinstance(value, dict):
        for key, part in value.items():
            put(group.require_group(name), key, part)
    elif isinstance(value, tuple):
        for key, part in enumerate(value):
            put(group.require_group(name), f"_index_{key}", part)
    else:
        group.create_dataset(name, data=value)


def flat(played: Sequence[Played], *, has_next: bool = True) -> dict[str, np.ndarray]:
    fields = {
        "observations": np.concatenate([episode.observations[:-1] for episode in played]),
        "actions": np.concatenate([episode.actions for episode in played]),
        "rewards": np.concatenate([episode.rewards for episode in played]),
        "terminals": np.concatenate([episode.terminations for episode in played]),
        "timeouts": np.concatenate([episode.truncations for episode in played]),
    }
    if has_next:
        fields["next_observations"] = np.concatenate([episode.observations[1:] for episode in played])
    return fields


def write_d4rl(path: Path, fields: Mapping[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = values
    return path


def write_npz(path: Path, fields: Mapping[str, Any]) -> Path:
    np.savez(path, allow_pickle=True, **fields)
    return path


def assert_holds(dataset: Dataset, played: Sequence[Played]) -> None:
    assert dataset.num_episodes == len(played)
    for held, episode in zip(dataset.episodes(), played, strict=True):
        np.testing.assert_array_equal(held.observations, episode.observations)
        np.testing.assert_array_equal(held.actions, episode.actions)
        np.testing.assert_array_equal(held.rewards, episode.rewards)
        statuses = EpisodeStatus.of_many(episode.terminations, episode.truncations)
        np.testing.assert_array_equal(held.statuses, statuses)

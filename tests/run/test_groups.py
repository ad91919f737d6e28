"""Runs of the same training are those of one name whose configs are equal, except for the seed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rekindle import Trainer
from rekindle.run import groups
from rekindle.run.groups import config_identity, differing_settings, group_labels
from rekindle.run.reader import RunReader
from rekindle.run.scores import score_curve

CONFIG: dict[str, Any] = {"steps": 100, "seed": 0, "agent": {"rate": 0.1, "sizes": [64, 64]}, "env": {"id": "Lake"}}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 5},
        {"checkpoint_every": 7},
        {"record": ["wandb"]},
        {"workers": 3},
        {"agent": CONFIG["agent"] | {"seed": 3}},
    ],
)
def test_the_seed_and_what_records_a_run_are_not_part_of_its_training(change: dict[str, Any]) -> None:
    assert config_identity(CONFIG | change) == config_identity(CONFIG)


@pytest.mark.parametrize(
    "change",
    [{"steps": 200}, {"agent": {"rate": 0.2, "sizes": [64, 64]}}, {"agent": {"rate": 0.1, "sizes": [64]}}, {"new": 1}],
)
def test_any_other_setting_is(change: dict[str, Any]) -> None:
    assert config_identity(CONFIG | change) != config_identity(CONFIG)
    assert differing_settings([CONFIG, CONFIG | change]) != []


def test_the_order_of_settings_does_not_matter() -> None:
    assert config_identity(dict(reversed(CONFIG.items()))) == config_identity(CONFIG)


def test_labels_differ() -> None:
    deep = [("a", {"agent": {"x": n, "y": 1}}) for n in (1, 2)]
    assert group_labels([*deep, ("b", {})]) == ["a, x 1", "a, x 2", "b"]
    many = [("a", dict.fromkeys("pqrst", n)) for n in (1, 2)]
    assert group_labels(many) == ["a, p 1, q 1, r 1", "a, p 2, q 2, r 2"]
    hidden = [("a", {"p": 1, "q": 1, "r": 1, "s": n}) for n in (1, 2)] + [("a", {"p": 2, "q": 2, "r": 2, "s": 1})]
    assert len(set(group_labels(hidden))) == 3


def test_long_numbers_are_rounded_in_labels_that_differ_without_the_other_digits() -> None:
    assert group_labels([("a", {"x": 0.1 + 0.2}), ("a", {"x": 0.5})]) == ["a, x 0.3", "a, x 0.5"]
    assert group_labels([("a", {"x": 0.1 + 0.2}), ("a", {"x": 0.3})]) == ["a, x 0.30000000000000004", "a, x 0.3"]


def test_the_settings_of_many_groups_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def differing(configs: Sequence[Any]) -> list[str]:
        compared.append(len(configs))
        return ["x"]

    monkeypatch.setattr(groups, "differing_settings", differing)
    assert len(set(group_labels(("a", {"x": n}) for n in range(50)))) == 50
    assert compared == [50]


def test_a_trainers_seeds_are_one_training_and_its_last_evaluation_counts_once(tmp_path: Path) -> None:
    paths: list[Path] = []
    for seed in (0, 1):
        trainer = Trainer(
            "FrozenLake-v1",
            "tabular",
            steps=60,
            name=f"lake/v{seed}",
            root=tmp_path,
            seed=seed,
            eval_every=20,
            eval_episodes=2,
        )
        trainer.train()
        assert trainer.path is not None
        paths.append(trainer.path)
    first, second = (RunReader(path).read_config() for path in paths)
    assert config_identity(first) == config_identity(second)
    curve = score_curve(paths[0])
    assert curve.steps == [20, 40, 60]
    assert curve.at(40) == curve.scores[1]
    assert curve.at(50) is None

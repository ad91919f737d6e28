"""Samplers: proposals are reproducible and in the space, and TPE learns from results."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

from rekindle.sweep import Choice, parse_space
from rekindle.sweep.samplers import SamplerName, propose

SPACE = parse_space(
    """
    rate = { low = 1e-4, high = 1.0, log = true }
    share = { low = 0.0, high = 1.0 }
    layers = { low = 1, high = 9 }
    kind = { choice = ["a", "b", "c"] }
    """
)


def quality(settings: dict[str, Any]) -> float:
    """Highest at rate 0.01, share 0.3, 4 layers, kind b."""
    kinds = {"a": 1.0, "b": 0.0, "c": 2.0}
    distance = (math.log10(settings["rate"]) + 2) ** 2 + 4 * (settings["share"] - 0.3) ** 2
    return -(distance + 0.3 * abs(settings["layers"] - 4) + kinds[settings["kind"]])


def study(sampler: SamplerName, seed: int, trials: int = 44, ahead: int = 4) -> list[dict[str, Any]]:
    """The settings of each trial of a study of `quality`."""
    asked: list[dict[str, Any]] = []
    for number in range(trials):
        known = asked[: max(0, number - ahead + 1)]
        ranked = sorted(known, key=quality, reverse=True)
        asked.append(propose(sampler, SPACE, number, seed=seed, ranked=ranked, pending=asked[len(known) :]))
    return asked


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_the_same_study_proposes_the_same_settings_and_another_seed_others(sampler: SamplerName) -> None:
    assert study(sampler, 1, 16) == study(sampler, 1, 16) != study(sampler, 2, 16)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_every_proposal_lies_in_the_space(sampler: SamplerName) -> None:
    for settings in study(sampler, 3, 30):
        assert settings.keys() == SPACE.keys()
        for name, parameter in SPACE.items():
            if isinstance(parameter, Choice):
                assert settings[name] in parameter.choice
            else:
                assert parameter.low <= settings[name] <= parameter.high


def test_random_proposals_are_spread_evenly() -> None:
    drawn = study("random", 0, 600)
    assert np.mean([settings["share"] for settings in drawn]) == pytest.approx(0.5, abs=0.04)
    assert [sum(settings["kind"] == kind for settings in drawn) for kind in "abc"] == pytest.approx([200] * 3, abs=35)


def test_tpe_finds_better_settings_than_chance() -> None:
    best = {
        sampler: statistics.mean(max(map(quality, study(sampler, seed))) for seed in range(6))
        for sampler in ("random", "tpe")
    }
    assert best["tpe"] > best["random"] + 0.2


def test_tpe_stays_away_from_trials_that_are_still_running() -> None:
    ranked = sorted(study("random", 5, 20), key=quality, reverse=True)
    good = ranked[0]
    near = [
        propose("tpe", SPACE, number, seed=5, ranked=ranked, pending=pending)
        for number in range(100, 130)
        for pending in ([], [good] * 20)
    ]
    apart = [abs(math.log10(settings["rate"]) - math.log10(good["rate"])) for settings in near]
    assert statistics.mean(apart[1::2]) > statistics.mean(apart[::2])

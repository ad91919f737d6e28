"""The importance of settings."""

from __future__ import annotations

import numpy as np
import pytest

from rekindle.sweep import Trial, parse_space
from rekindle.sweep.importance import importance

SPACE = parse_space(
    "rate = { low = 1e-4, high = 1.0, log = true }\nkind = { choice = ['a', 'b'] }\nidle = { low = 0.0, high = 1.0 }"
)


def trials(count: int, rate: float, kind: float, noise: float) -> list[Trial]:
    """Trials whose value is a sum of parts of known weights."""
    rng = np.random.default_rng(0)
    made: list[Trial] = []
    for number in range(count):
        unit, which = float(rng.random()), int(rng.integers(2))
        settings = {"rate": SPACE["rate"].value(unit), "kind": "ab"[which], "idle": float(rng.random())}  # type: ignore[union-attr]
        value = rate * unit + kind * which + noise * float(rng.normal())
        made.append(Trial(number, settings, "complete", value))
    return made


def test_the_setting_that_decides_has_the_highest_importance() -> None:
    by_rate = importance(SPACE, trials(60, rate=1, kind=0, noise=0.05))
    assert by_rate["rate"] > 0.85
    assert max(by_rate["kind"], by_rate["idle"]) < 0.15
    by_kind = importance(SPACE, trials(60, rate=0.1, kind=1, noise=0.05))
    assert by_kind["kind"] > 0.7 > by_kind["rate"]


def test_noise_explains_nothing() -> None:
    found = importance(SPACE, trials(100, rate=0, kind=0, noise=1))
    assert max(found.values()) < 0.1


def test_equal_values_have_no_importance_and_few_trials_none() -> None:
    assert importance(SPACE, trials(20, 0, 0, 0)) == dict.fromkeys(SPACE, 0.0)
    assert importance(SPACE, trials(7, 1, 1, 1)) == {}


def test_pruned_and_failed_trials_do_not_count() -> None:
    known = trials(40, rate=1, kind=0, noise=0)
    others = [Trial(100 + number, {}, "pruned", None, (), (5.0,)) for number in range(9)]
    assert importance(SPACE, [*known, *others]) == pytest.approx(importance(SPACE, known))

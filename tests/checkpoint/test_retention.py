"""Which checkpoints stay: each policy says what it wants, and one that nobody wants goes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.checkpoint.retention import CheckpointInfo, KeepAny, KeepBest, KeepEvery, KeepLast, retention
from rekindle.errors import ConfigError


def taken(*steps: int) -> list[CheckpointInfo]:
    return [CheckpointInfo(step) for step in steps]


def scored(*values: float | None) -> list[CheckpointInfo]:
    """Checkpoints at 10, 20, ... with a score each, or without."""
    return [
        CheckpointInfo(10 * number, {} if value is None else {"score": value}) for number, value in enumerate(values, 1)
    ]


def test_the_newest_are_kept() -> None:
    assert KeepLast(2).keep(taken(10, 20, 30)) == {20, 30}


def test_all_are_kept_while_there_are_few() -> None:
    assert KeepLast(5).keep(taken(10, 20)) == {10, 20}


def test_the_first_of_each_stretch_is_kept() -> None:
    assert KeepEvery(100).keep(taken(40, 80, 100, 199, 200, 450)) == {40, 100, 200, 450}


@given(st.lists(st.integers(0, 1000), unique=True), st.integers(1, 300))
def test_what_was_kept_for_its_stretch_is_kept_for_ever(steps: list[int], stretch: int) -> None:
    policy = KeepEvery(stretch)
    kept: list[int] = []
    for step in sorted(steps):
        before = policy.keep(taken(*kept))
        kept = sorted(policy.keep(taken(*kept, step)))
        assert before <= set(kept)
    assert policy.keep(taken(*sorted(steps))) == set(kept)


def test_the_best_is_kept() -> None:
    assert KeepBest("score").keep(scored(1.0, 3.0, 2.0)) == {20}
    assert KeepBest("score", mode="min").keep(scored(1.0, 3.0, 2.0)) == {10}
    assert KeepBest("score", count=2).keep(scored(1.0, 3.0, 2.0)) == {20, 30}


def test_the_earlier_of_two_equals_is_kept() -> None:
    assert KeepBest("score").keep(scored(1.0, 3.0, 3.0)) == {20}
    assert KeepBest("score", mode="min").keep(scored(1.0, 1.0, 3.0)) == {10}


def test_a_checkpoint_without_the_metric_is_not_among_the_best() -> None:
    assert KeepBest("score", count=3).keep(scored(None, 3.0, None)) == {20}


@pytest.mark.parametrize("mode", ["max", "min"])
def test_a_score_that_is_no_number_is_not_among_the_best(mode: Literal["max", "min"]) -> None:
    assert KeepBest("score", mode=mode).keep(scored(nan, 3.0, nan)) == {20}


def test_infinity_is_a_score() -> None:
    assert KeepBest("score").keep(scored(-inf, 3.0, inf)) == {30}


def test_a_checkpoint_goes_only_if_all_agree() -> None:
    policy = KeepAny([KeepLast(1), KeepEvery(100)])
    assert policy.keep(taken(40, 80, 120, 160)) == {40, 120, 160}


def test_nobody_keeps_anything_of_nothing() -> None:
    for policy in (KeepLast(1), KeepEvery(10), KeepBest("score"), KeepAny([])):
        assert policy.keep([]) == set()


@pytest.mark.parametrize("make", [lambda: KeepLast(0), lambda: KeepEvery(0), lambda: KeepBest("score", count=0)])
def test_a_policy_that_keeps_nothing_is_refused(make: type) -> None:
    with pytest.raises(ConfigError):
        make()


class KeepEven:
    """A policy of a user's own."""

    def keep(self, checkpoints: Sequence[CheckpointInfo]) -> set[int]:
        return {info.step for info in checkpoints if info.step % 2 == 0}


def test_a_setting_may_be_a_number_a_policy_or_several() -> None:
    steps = taken(1, 2, 3, 4, 5)
    assert retention(2).keep(steps) == {4, 5}
    assert retention(KeepEven()).keep(steps) == {2, 4}
    assert retention([KeepEven(), KeepLast(1)]).keep(steps) == {2, 4, 5}


def test_a_number_to_keep_may_be_an_integer_of_numpy() -> None:
    assert retention(np.int64(2)).keep(taken(1, 2, 3)) == {2, 3}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("setting", ["3", 2.0, None, True, [3], [KeepLast(1), "all"]])
def test_a_setting_that_is_no_policy_is_refused(setting: Any) -> None:
    with pytest.raises(ConfigError, match="keep_checkpoints"):
        retention(setting)

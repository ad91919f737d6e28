"""Every transition is as likely to be drawn, and becomes a window of up to n steps of its own episode."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import KINDS, assert_same_batch, remembered, transitions, walk

from rekindle.errors import InputError
from rekindle.replay import mixed


def test_windows_end_at_terminations_truncations_cuts_and_the_newest_step_each_with_its_own_discount() -> None:
    kind = KINDS["vector"]
    memory = remembered(kind, 100, walk(3, last=1), walk(3, last=2), walk(3))
    memory.cut(np.array([0]))
    for step in walk(2):
        memory.append(*transitions(kind, [step]))
    batch = memory.gather(np.array([1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14]), n_step=2, gamma=0.5)
    np.testing.assert_array_equal(batch.rewards, np.array([1.5, 1.5, 1, 1.5, 1.5, 1, 1.5, 1.5, 1, 1.5, 1], np.float32))
    np.testing.assert_array_equal(
        batch.discounts, np.array([0.25, 0, 0, 0.25, 0.25, 0.5, 0.25, 0.25, 0.5, 0.25, 0.5], np.float32)
    )


def test_every_transition_is_drawn_equally_often() -> None:
    for memory in (
        remembered(KINDS["vector"], 30, *[walk(3, last=1)] * 4, walk(9)),
        remembered(KINDS["stacks of 4"], 60, *[walk(1, stack=4, last=1)] * 20),  # too few to find by trying
    ):
        drawn, times = np.unique(memory.sample(np.random.default_rng(1), 40_000).rows, return_counts=True)
        assert len(drawn) == len(memory)
        np.testing.assert_allclose(times * len(memory) / 40_000, 1, atol=0.1)


def test_sampling_depends_on_nothing_but_the_generator() -> None:
    memory = remembered(KINDS["vector"], 50, *[walk(4, last=1)] * 5)
    assert_same_batch(memory.sample(np.random.default_rng(5), 64), memory.sample(np.random.default_rng(5), 64))


def test_a_sample_does_not_change_when_its_rows_are_overwritten() -> None:
    kind = KINDS["dict"]
    memory = remembered(kind, 10, walk(9))
    batch, before = memory.sample(np.random.default_rng(0), 5), memory.sample(np.random.default_rng(0), 5)
    for step in walk(20):
        memory.append(*transitions(kind, [step]))
    assert_same_batch(batch, before)


def test_nothing_can_be_sampled_that_is_not_there() -> None:
    memory = KINDS["vector"].memory(10)
    with pytest.raises(InputError, match="has no transition"):
        memory.sample(np.random.default_rng(0), 1)
    memory = remembered(KINDS["vector"], 10, walk(3))
    for rows in ([0], [4], [-1]):
        with pytest.raises(InputError, match="no longer be sampled"):
            memory.gather(np.array(rows))
    with pytest.raises(InputError, match="n_step is 0"):
        memory.sample(np.random.default_rng(0), 1, n_step=0)


@pytest.mark.parametrize("kind", ["vector", "dict"])
def test_batches_of_two_sources_are_mixed_with_those_of_the_first_at_the_start_of_each(kind: str) -> None:
    memory = remembered(KINDS[kind], 50, *[walk(4, last=1)] * 5)
    first, second = (memory.sample(np.random.default_rng(seed), count) for seed, count in ((0, 6), (1, 9)))
    both = mixed(first, second, batches=3)
    expected = np.concatenate(
        [np.concatenate([first.rows[2 * i : 2 * i + 2], second.rows[3 * i : 3 * i + 3]]) for i in range(3)]
    )
    np.testing.assert_array_equal(both.rows, expected)
    assert_same_batch(both, memory.gather(expected))

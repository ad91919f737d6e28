"""Trials: which is better, and the median that prunes."""

from __future__ import annotations

import statistics

from rekindle.sweep.trials import Trial, best_trial, medians, ranked

COMPLETE = Trial(0, {}, "complete", 1.0, (1.0,), (0.5, 0.8))
BETTER = Trial(1, {}, "complete", 2.0, (2.0,), (0.1, 0.9))
EARLY = Trial(2, {}, "pruned", None, (9.0,), (9.0,))
LATE = Trial(3, {}, "pruned", None, (0.2,), (0.7, 0.2))
FAILED = Trial(4, {}, "failed", reason="it diverged")
RUNNING = Trial(5, {})
TRIALS = [RUNNING, FAILED, LATE, EARLY, COMPLETE, BETTER]


def test_complete_trials_are_better_than_pruned_and_these_than_failed_ones() -> None:
    assert ranked(TRIALS) == [BETTER, COMPLETE, LATE, EARLY, FAILED]


def test_the_best_is_complete_and_the_first_of_equals() -> None:
    assert best_trial(TRIALS) == BETTER
    assert best_trial([Trial(7, {}, "complete", 2.0), BETTER]) == BETTER
    assert best_trial([EARLY, FAILED, RUNNING]) is None


def test_a_median_is_over_all_trials_that_came_so_far_if_there_are_four() -> None:
    assert medians(TRIALS, 2) == {0: statistics.median([0.5, 0.1, 9.0, 0.7])}
    assert medians(TRIALS[:3], 2) == {}
    assert medians(TRIALS, 0) == {}

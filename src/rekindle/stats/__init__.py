"""Statistics of episodes, and of the scores of many runs.

>>> from rekindle.stats import iqm, permutation_test
>>> iqm([1.0, 2.0, 3.0, 100.0])
2.5
>>> round(permutation_test([1.0, 2.0, 3.0, 4.0], [11.0, 12.0, 13.0, 14.0]), 3)
0.029
"""

from __future__ import annotations

from rekindle.stats.episodes import (
    Aggregator,
    EpisodeRecord,
    EvalReport,
    Extra,
    Last,
    Length,
    Max,
    Mean,
    Min,
    RollingMean,
    Source,
    StatsTracker,
    Std,
    TotalReward,
)
from rekindle.stats.inference import (
    Interval,
    ProfileBand,
    Scores,
    difference_interval,
    holm,
    improvement_interval,
    iqm,
    iqm_interval,
    mean_interval,
    performance_profile,
    permutation_test,
    probability_of_improvement,
    profile_band,
)
from rekindle.stats.verdict import Difference, compare_groups

__all__ = [
    "Aggregator",
    "Difference",
    "EpisodeRecord",
    "EvalReport",
    "Extra",
    "Interval",
    "Last",
    "Length",
    "Max",
    "Mean",
    "Min",
    "ProfileBand",
    "RollingMean",
    "Scores",
    "Source",
    "StatsTracker",
    "Std",
    "TotalReward",
    "compare_groups",
    "difference_interval",
    "holm",
    "improvement_interval",
    "iqm",
    "iqm_interval",
    "mean_interval",
    "performance_profile",
    "permutation_test",
    "probability_of_improvement",
    "profile_band",
]

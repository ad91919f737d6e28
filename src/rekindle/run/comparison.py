"""Groups of runs of the same training, their scores, and whether these differ by more than noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.errors import RekindleError
from rekindle.run.groups import config_identity, group_labels
from rekindle.run.reader import RunReader
from rekindle.run.scores import Measure, ScoreCurve, score_curve
from rekindle.run.settings import environment_name, flat_settings
from rekindle.stats import Difference, Interval, compare_groups, iqm_interval, mean_interval
from rekindle.text import decimal, path_text

__all__ = [
    "GroupComparison",
    "GroupedRun",
    "RunGroup",
    "by_environment",
    "compare_trainings",
    "difference_text",
    "read_grouped_run",
]


class GroupedRun(msgspec.Struct, frozen=True):
    """What is needed of a run to put it into a group."""

    path: Path
    name: str
    config: dict[str, Any]
    seed: int | None
    status: str

    @property
    def key(self) -> tuple[str, str]:
        """Equal for runs of one name and the same training."""
        return self.name, config_identity(self.config)


class RunGroup(msgspec.Struct, frozen=True):
    """Runs of the same training with different seeds, and their scores."""

    label: str
    identity: str
    """A digest of the settings that determine the training."""
    environment: str | None
    """The name of the environment, if the config has it."""
    runs: list[str]
    """The runs whose scores count."""
    scores: list[float]
    """One for each of these runs."""
    left_out: dict[str, str]
    """The other runs, and why they do not count."""
    mean: Interval | None
    """The mean score with its 95 % interval; None without scores."""
    iqm: Interval | None
    """The interquartile mean, likewise."""


class GroupComparison(msgspec.Struct, frozen=True):
    """Groups of runs, and the differences between them."""

    measure: Measure
    of: Literal["evaluations", "episodes"]
    """Whether scores are those of evaluations, or of training episodes because a run has no evaluations."""
    groups: list[RunGroup]
    differences: list[Difference]
    """Between groups of the same environment; returns of different environments cannot be compared."""


def read_grouped_run(path: Path) -> GroupedRun | None:
    """Read what a group needs of a run; None if its metadata cannot be read."""
    try:
        reader = RunReader(path)
        metadata = reader.metadata
        return GroupedRun(path, metadata.name, _config(reader), metadata.seed, reader.status)
    except (RekindleError, OSError, UnicodeDecodeError):
        return None  # shown as unreadable in the table of runs


def _config(reader: RunReader) -> dict[str, Any]:
    stored = reader.read_config()
    metadata = reader.metadata
    # A run of a host's own loop may have no config: then its agent and its length are what is known.
    return stored or {"agent": metadata.agent, "steps": metadata.max_steps}


def compare_trainings(
    runs: Sequence[GroupedRun], *, measure: Measure = "final", part_of: Callable[[GroupedRun], str] | None = None
) -> GroupComparison:
    """Group runs by name and training, and compare the scores of finished ones of the same environment.

    If there is only one such group, `part_of` divides it.
    """
    groups: dict[tuple[str, ...], list[GroupedRun]] = {}
    for run in runs:
        groups.setdefault(run.key, []).append(run)
    if len(groups) == 1 and part_of is not None:
        ((key, members),) = groups.items()
        groups = {}
        for run in members:
            groups.setdefault((part_of(run), *key[1:]), []).append(run)
    curves = {run.path: _curve(run.path, "evaluations") for run in runs}
    of: Literal["evaluations", "episodes"] = "evaluations"
    counted = [run for run in runs if run.status == "finished"]
    if not all(curve.scores for run in counted if (curve := curves[run.path])):
        of, curves = "episodes", {run.path: _curve(run.path, "episodes") for run in runs}
    labels = group_labels((key[0], members[0].config) for key, members in groups.items())
    made = [_group(label, members, curves, measure) for label, members in zip(labels, groups.values(), strict=True)]
    comparable = by_environment(made).values()
    differences = [compare_groups({group.label: group.scores for group in groups}) for groups in comparable]
    return GroupComparison(measure, of, made, list(itertools.chain(*differences)))


def by_environment(groups: Sequence[RunGroup]) -> dict[str | None, list[RunGroup]]:
    """The groups of each environment, whose scores can be compared."""
    found: dict[str | None, list[RunGroup]] = {}
    for group in groups:
        found.setdefault(group.environment, []).append(group)
    return found


def _curve(path: Path, of: Literal["evaluations", "episodes"]) -> ScoreCurve:
    try:
        return score_curve(path, of=of)
    except (RekindleError, OSError, UnicodeDecodeError, MemoryError):
        return ScoreCurve([], [])  # listed as having no scores


def _group(label: str, members: Sequence[GroupedRun], curves: Mapping[Path, ScoreCurve], measure: Measure) -> RunGroup:
    counted: dict[str, float] = {}
    left_out: dict[str, str] = {}
    known: list[tuple[int | None, list[float]]] = []
    for run in members:
        curve, shown = curves[run.path], path_text(run.path)
        score = curve.score(measure)
        if run.status != "finished":
            left_out[shown] = run.status
        elif score is None:
            left_out[shown] = "it has no scores"
        elif (run.seed, curve.scores) in known:
            left_out[shown] = "it repeats another run: same seed, same scores"
        else:
            known.append((run.seed, curve.scores))
            counted[shown] = score
    scores = list(counted.values())
    return RunGroup(
        label=label,
        identity=members[0].key[1],
        environment=environment_name(flat_settings(members[0].config)),
        runs=list(counted),
        scores=scores,
        left_out=left_out,
        mean=mean_interval(scores) if scores else None,
        iqm=iqm_interval(scores) if scores else None,
    )


def difference_text(difference: Difference) -> str:
    """A difference in one sentence."""
    first, second, gap = difference.first, difference.second, difference.difference
    interval = f"[{decimal(gap.low)}, {decimal(gap.high)}]"
    by = f"{decimal(abs(gap.value))}"
    p_value = f"p = {difference.p_value:.2g}"
    if difference.verdict == "too few runs":
        return f"{first} and {second}: too few runs to tell; the means differ by {by}, {p_value}"
    if difference.verdict == "noise":
        return f"{first} and {second}: no difference beyond noise; {decimal(gap.value)} {interval}, {p_value}"
    if difference.verdict == "worse":
        first, second = second, first
        interval = f"[{decimal(-gap.high)}, {decimal(-gap.low)}]"
    share = difference.improvement.value if difference.verdict == "better" else 1 - difference.improvement.value
    return f"{second} is better than {first} by {by} {interval}, in {share:.0%} of pairs of runs, {p_value}"

"""Errors for options of `train` that would have no effect together."""

from __future__ import annotations

from collections.abc import Sequence

from rekindle.errors import ConfigError
from rekindle.training import TrainerSettings

__all__ = ["check_conflicts"]


def check_conflicts(
    words: Sequence[str], training: TrainerSettings, *, seeds: str | None, parent: str | None, ui: str
) -> None:
    """Raise `ConfigError` for the first option among `words`, the command as typed, that would be ignored."""
    given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    is_unseen = ui in ("plain", "none")
    has_workers = training.vectorization == "async" or (training.actors is not None and training.actors_on != "here")
    for option, is_ignored, advice in (
        ("--seed", seeds is not None, "--seeds names the seeds: use one of the two"),
        ("--jobs", seeds is None, "it is the number of runs at the same time with --seeds: use both"),
        ("--ui", seeds is not None and ui == "tui", "the terminal UI shows one run, and --seeds trains several"),
        ("--stay", seeds is not None or is_unseen, "it is for the terminal UI: use --ui tui, without --seeds"),
        ("--with-optimiser", parent is None, "it is for a training that starts from another run: add --from PATH"),
        ("--workers", not has_workers, "it is for worker processes: add --vectorization async, or --actors N"),
        *((option, training.actors is None, "it is for actors: add --actors N") for option in _OF_ACTORS),
        ("--patience", training.eval_episodes == 0, _EVALUATIONS),
        ("--target-score", training.eval_episodes == 0, _EVALUATIONS),
    ):
        if is_ignored and option in given:
            raise ConfigError(f"{option} would have no effect: {advice}")


_OF_ACTORS = (
    *("--envs-each", "--round-steps", "--pipeline", "--actors-on", "--ray-address", "--actor-patience", "--free"),
    "--eval-workers",
)
_EVALUATIONS = "it depends on evaluations, and --eval-episodes 0 turns them off"

"""Errors for options of `train` that would have no effect together."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rekindle.errors import ConfigError
from rekindle.training import TrainerSettings

__all__ = ["check_conflicts", "check_placement"]


def check_conflicts(
    words: Sequence[str], training: TrainerSettings, *, seeds: str | None, parent: str | None, ui: str
) -> None:
    """Raise `ConfigError` for the first option among `words`, the command as typed, that would be ignored."""
    given = {word.partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    is_unseen = ui in ("plain", "none")
    has_actors, is_here = training.actors is not None, training.actors_on == "here"
    has_workers = training.vectorization == "async" or (has_actors and not is_here)
    for option, is_ignored, advice in (
        ("--seed", seeds is not None, "--seeds names the seeds: use one of the two"),
        ("--jobs", seeds is None, "it is the number of runs at the same time with --seeds: use both"),
        ("--ui", seeds is not None and ui == "tui", "the terminal UI shows one run, and --seeds trains several"),
        ("--stay", seeds is not None or is_unseen, "it is for the terminal UI: use --ui tui, without --seeds"),
        ("--with-optimiser", parent is None, "it is for a training that starts from another run: add --from PATH"),
        ("--workers", not has_workers, "it is for worker processes: add --vectorization async, or --actors N"),
        *((option, not has_actors, "it is for actors: add --actors N") for option in _OF_ACTORS),
        ("--num-envs", has_actors, "with --actors there are actors x envs-each of them: use --envs-each"),
        ("--eval-envs", has_actors and not is_here, "actors evaluate one episode at a time: use --eval-workers"),
        ("--eval-workers", is_here, "actors run here: add --actors-on processes"),
        ("--eval-workers", training.free, "free actors have no time for evaluations: they are played here"),
        ("--actor-patience", is_here, "actors run here: add --actors-on processes"),
        ("--ray-address", training.actors_on != "ray", "add --actors-on ray"),
        ("--pipeline", training.free, "free actors play no rounds: use one of the two"),
        ("--patience", training.eval_episodes == 0, _EVALUATIONS),
        ("--target-score", training.eval_episodes == 0, _EVALUATIONS),
    ):
        if is_ignored and option in given:
            raise ConfigError(f"{option} would have no effect: {advice}")


def check_placement(given: Collection[str], config: TrainerSettings) -> None:
    """Raise `ConfigError` for the first option of `resume` that would be ignored."""
    has_actors, is_here = config.actors is not None, config.actors_on == "here"
    for name, is_ignored, why in (
        ("actors_on", not has_actors, "the run has no actors"),
        ("ray_address", not has_actors or config.actors_on != "ray", "its actors do not run on Ray"),
        ("workers", config.vectorization != "async" and (not has_actors or is_here), "the run has no worker processes"),
    ):
        if is_ignored and name in given:
            raise ConfigError(f"--{name.replace('_', '-')} would have no effect: {why}")


_OF_ACTORS = (
    *("--envs-each", "--round-steps", "--pipeline", "--actors-on", "--ray-address", "--actor-patience", "--free"),
    "--eval-workers",
)
_EVALUATIONS = "it depends on evaluations, and --eval-episodes 0 turns them off"

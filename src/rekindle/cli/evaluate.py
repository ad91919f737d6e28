"""`rekindle eval` and `rekindle export`: use the agent of a run without training it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rekindle.agent import HasPolicy
from rekindle.cli.modules import find_modules_here
from rekindle.cli.video import Studio
from rekindle.envs import Determinism
from rekindle.errors import ConfigError
from rekindle.interrupt import Interrupter
from rekindle.policy import policy as policies
from rekindle.policy.onnx_graph import save_onnx
from rekindle.rng import episode_seed
from rekindle.run.finding import find_run
from rekindle.stats import EvalReport
from rekindle.text import decimal, path_text, whole
from rekindle.training import EpisodeEvaluator, rebuild
from rekindle.training.evaluation import greedy
from rekindle.training.rebuilding import checkpoint_files, load, rebuild_agent
from rekindle.ui.output import write_json
from rekindle.ui.tables import cell, console, number, print_whole, table, words

__all__ = ["evaluate_run", "export_policy"]


def evaluate_run(
    path: Path,
    *,
    checkpoint: str,
    episodes: int,
    seed: int | None,
    max_steps: int | None,
    video: Path | None,
    modules: Sequence[str],
    files: Sequence[str],
    as_json: bool,
) -> int:
    """Evaluate one or all checkpoints of a run, and print the results."""
    for name, count in (("episodes", episodes), ("max-steps", max_steps)):
        if count is not None and count < 1:
            raise ConfigError(f"{name} is {count}: use at least 1")
    find_modules_here(modules)
    run = find_run(path)  # once: another run may be started in the meantime
    checkpoints = checkpoint_files(run, checkpoint)
    rebuilt = rebuild(run, modules=modules, files=files)
    config = rebuilt.config
    # The best agent was chosen by the episodes of the run's own seed, so that its score in these is too good.
    first = episode_seed(config.seed, "rekindle eval", 0) if seed is None else seed
    rebuilds = config.determinism is Determinism.LEAKS
    most = config.eval_max_steps if max_steps is None else max_steps
    evaluator = EpisodeEvaluator(
        rebuilt.factory, seed=first, num_envs=config.eval_envs, rebuilds=rebuilds, extras=config.extras, max_steps=most
    )
    studio = None if video is None else Studio(rebuilt.factory, video, seed=first, rebuilds=rebuilds, max_steps=most)
    films: list[Path] = []
    interrupter = Interrupter()
    act = greedy(rebuilt.agent, interrupter.should_stop)
    with interrupter.signals(), contextlib.closing(evaluator):
        reports: list[EvalReport] = []
        for file in checkpoints:
            step = load(rebuilt.agent, file)
            evaluation = evaluator.evaluate(act, episodes)
            reports.append(EvalReport.of(evaluation.records, step))
            if studio is not None:
                films += studio.film(act, episodes, step, should_stop=interrupter.should_stop)
    if as_json:
        write_json(reports)
    else:
        out = console()
        print_whole(out, cell(f"{path_text(run)}, {whole(episodes)} episodes each", "bold"))
        out.print(table(_COLUMNS, [_row(report) for report in reports]))
        for film in films:
            print_whole(out, cell(path_text(film)))
    return 0


_COLUMNS = (words("step"), *map(number, ("return", "std", "min", "max", "length", "terminated", "truncated")))


def _row(report: EvalReport) -> list[str]:
    names = ("episode_reward_mean", "episode_reward_std", "episode_reward_min", "episode_reward_max")
    numbers = [decimal(report.stats[name]) for name in (*names, "episode_length_mean")]
    ends = [whole(int(report.stats[name])) for name in ("terminated", "truncated")]
    return [whole(report.total_steps), *numbers, *ends]


def export_policy(
    path: Path, output: Path, *, checkpoint: str, modules: Sequence[str], files: Sequence[str], as_json: bool
) -> int:
    """Write the policy of a run's agent to a file."""
    find_modules_here(modules)
    run = find_run(path)
    checkpoints = checkpoint_files(run, checkpoint)
    if len(checkpoints) > 1:
        raise ConfigError("a file holds only one policy: use best, latest or a step")
    agent = rebuild_agent(run, modules=modules, files=files)
    step = load(agent, checkpoints[0])
    if not isinstance(agent, HasPolicy):
        raise ConfigError(f"{type(agent).__name__} cannot be exported: it has no policy()")
    policy = policies.exportable(agent.policy())
    is_onnx = output.suffix.lower() == ".onnx"
    (save_onnx if is_onnx else policies.save)(policy, output)
    if as_json:
        write_json({"file": path_text(output), "algorithm": policy.algorithm, "step": step})
    else:
        advice = "run it with any ONNX runtime" if is_onnx else "load it with rekindle.policy.load"
        print(f"{path_text(output)}: the policy of step {whole(step)}; {advice}")
    return 0

"""`rekindle data` and `rekindle record`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rekindle.cli.modules import find_modules_here, module_of
from rekindle.data import Dataset, Statistics, export_minari, export_npz
from rekindle.data.recording import acting, record
from rekindle.data.statistics import Summary
from rekindle.envs import Determinism, EnvFactory
from rekindle.envs.factory import close_env
from rekindle.errors import ConfigError, RekindleError
from rekindle.experience import ActMode
from rekindle.interrupt import Interrupter
from rekindle.spaces import ActionStructure, Layout
from rekindle.text import NOTHING, bytes_text, decimal, path_text, printable, whole
from rekindle.training import rebuild
from rekindle.training.rebuilding import Rebuilt, find_parent, load
from rekindle.ui.output import complain, write_json
from rekindle.ui.tables import cell, console, facts, headline, number, print_problems, print_whole, table

__all__ = ["record_data", "use_data"]

_SECONDS = 2.0
"""Minimum time between two lines of progress without a terminal."""
_BINS, _WIDTH = 10, 40


def use_data(
    action: str,
    path: Path,
    *,
    output: Path | None,
    timeout_after: int | None,
    fixed_length: bool,
    cache: Path | None,
    as_json: bool,
) -> int:
    """Show, check or export a data set."""
    if (output is None) == (action == "export"):
        advice = "export needs -o: a directory, or a file that ends in .npz" if output is None else "-o is for export"
        raise ConfigError(f"rekindle data {action}: {advice}")
    interrupter = Interrupter()
    with interrupter.signals(), _progress("converting", "rows") as progress:
        try:
            dataset = Dataset.open(
                path,
                cache=cache,
                timeout_after=timeout_after,
                fixed_length=fixed_length,
                progress=progress,
                should_stop=interrupter.should_stop,
            )
        except RekindleError as error:
            if action != "check" or not as_json or interrupter.is_stopped:
                raise
            write_json({"path": path_text(path), "ok": False, "problem": str(error)})
            return 1
    digest = dataset.digest
    if output is not None:
        with interrupter.signals(), _progress("writing", "episodes") as progress:
            if output.suffix == ".npz":
                digest = export_npz(dataset, output, should_stop=interrupter.should_stop)
            else:
                digest = export_minari(dataset, output, progress=progress, should_stop=interrupter.should_stop)
    if as_json:
        written = {} if output is None else {"written": path_text(output), "written_digest": digest}
        write_json({**_facts(dataset), "ok": True, **written})
    elif output is not None:
        print(f"{path_text(output)}: {whole(len(dataset))} transitions, digest {digest}")
    else:
        _print(dataset, is_check=action == "check")
    return 0


class _Histogram(msgspec.Struct, frozen=True):
    """How many episodes have a return in each interval."""

    edges: list[float]
    counts: list[int]

    @classmethod
    def of(cls, dataset: Dataset) -> _Histogram | None:
        returns = dataset.returns[dataset.is_whole]
        if not len(returns):
            return None
        # Returns that differ by rounding only are too close for several intervals.
        are_apart = np.ptp(returns) > 1e-9 * np.abs(returns).max()
        counts, edges = np.histogram(returns, bins=_BINS if are_apart else 1)
        return cls(edges.tolist(), counts.tolist())


def _facts(dataset: Dataset) -> dict[str, Any]:
    return {
        "path": path_text(dataset.path),
        "format": dataset.format,
        "digest": dataset.digest,
        "statistics": dataset.statistics(),
        "histogram": _Histogram.of(dataset),
        "observation_space": repr(dataset.observation_space),
        "action_space": repr(dataset.action_space),
        "inferred": dataset.inferred,
        "notes": dataset.notes,
    }


def _print(dataset: Dataset, *, is_check: bool) -> None:
    out, found = console(), dataset.statistics()
    print_whole(out, cell(path_text(dataset.path), "bold"))
    rows = [("check", cell("ok", "bold green"))] if is_check else []
    inferred = ["  (inferred from the data)" if name in dataset.inferred else "" for name in _SPACES]
    out.print(
        facts(
            [
                *rows,
                ("format", dataset.format),
                ("transitions", f"{whole(found.transitions)}, {bytes_text(found.nbytes)}"),
                ("episodes", _episodes(found)),
                ("observations", f"{dataset.observation_space}{inferred[0]}"),
                ("actions", f"{dataset.action_space}{inferred[1]}"),
                ("digest", dataset.digest),
            ]
        )
    )
    print_problems(out, dataset.notes)
    columns = ("", *map(number, ("mean", "std", "min", "median", "max")))
    named = (("return", found.returns), ("length", found.lengths), ("reward", found.rewards))
    out.print()
    out.print(table(columns, [[name, *_numbers(summary)] for name, summary in named]))
    histogram = _Histogram.of(dataset)
    if histogram is not None:
        out.print(headline("Returns", "episodes whose beginning and end are in the data"))
        most = max(histogram.counts)
        for low, high, count in zip(histogram.edges, histogram.edges[1:], histogram.counts, strict=False):
            bar = "█" * max(round(_WIDTH * count / most), 1 if count else 0)
            out.print(cell(f"{decimal(low):>10} to {decimal(high):>10}  {bar} {whole(count)}"))


_SPACES = ("observation_space", "action_space")


def _episodes(found: Statistics) -> str:
    parts = [f"{whole(found.terminated)} terminated", f"{whole(found.truncated)} truncated"]
    if found.open:
        parts.append(f"{whole(found.open)} without an end")
    if found.fragments:
        parts.append(f"{whole(found.fragments)} without a beginning")
    return f"{whole(found.episodes)}: {', '.join(parts)}"


def _numbers(summary: Summary | None) -> list[str]:
    if summary is None:
        return [NOTHING] * 5
    return [decimal(value) for value in msgspec.structs.astuple(summary)]


@contextlib.contextmanager
def _progress(what: str, unit: str) -> Generator[Any]:
    """Lines about the progress on standard error: in place on a terminal, every few seconds elsewhere."""
    stream, is_live = sys.stderr, sys.stderr.isatty()
    last = [time.monotonic()]

    def show(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] < (0.1 if is_live else _SECONDS):
            return
        last[0] = now
        line = printable(f"{what}: {whole(done)} of {whole(total)} {unit} ({100 * done / max(1, total):.0f} %)")
        stream.write(f"\r\x1b[K{line}" if is_live else f"{line}\n")
        stream.flush()

    try:
        yield show
    finally:
        if is_live:
            stream.write("\r\x1b[K")
            stream.flush()


def record_data(  # noqa: PLR0913 - these are the options of a command
    env: str,
    source: str,
    output: Path,
    *,
    episodes: int,
    greedy: bool,
    seed: int,
    max_steps: int | None,
    modules: Sequence[str],
    files: Sequence[str],
    cache: Path | None,
    as_json: bool,
) -> int:
    """Play episodes with the agent of a run, and write them in Minari's layout."""
    for name, count, least in (("episodes", episodes, 1), ("max-steps", max_steps, 1), ("seed", seed, 0)):
        if count is not None and count < least:
            raise ConfigError(f"{name} is {count}: use at least {least}")
    named = [*modules, *module_of(env)]
    find_modules_here(named)
    parent = find_parent(source, with_optimiser=False)
    rebuilt = rebuild(parent.directory, modules=named, files=files, env=env)
    step = load(rebuilt.agent, parent.directory / "checkpoints" / parent.file)
    factory, config = _factory(env, rebuilt), rebuilt.config
    mode = ActMode.EXPLOIT if greedy else ActMode.EXPLORE
    interrupter = Interrupter()
    with interrupter.signals(), _progress("recording", "episodes") as progress:
        record(
            factory,
            acting(rebuilt.agent, mode, seed=seed),
            output,
            episodes=episodes,
            seed=seed,
            max_steps=config.eval_max_steps if max_steps is None else max_steps,
            rebuilds=config.determinism is Determinism.LEAKS,
            about={
                "algorithm_name": config.algorithm or "",
                "description": f"rekindle record, {mode.value}, seed {seed}, the agent at step {step}",
            },
            progress=progress,
            should_stop=interrupter.should_stop,
        )
    dataset = Dataset.open(output, cache=cache, fixed_length=True)
    if as_json:
        write_json({**_facts(dataset), "step": step, "seed": seed, "mode": mode.value})
        return 0
    found = dataset.statistics()
    print(f"{path_text(output)}: {whole(len(dataset))} transitions of the agent at step {whole(step)}")
    print(f"episodes {_episodes(found)}")
    print(f"return {NOTHING if found.returns is None else decimal(found.returns.mean)}, digest {dataset.digest}")
    return 0


def _factory(env: str, rebuilt: Rebuilt) -> EnvFactory:
    """The environment of the run, or another one with the same wrappers and spaces."""
    known = rebuilt.config.env
    if known is None or known.id == env:
        return rebuilt.factory
    complain(f"the agent was trained on {known.id}; its wrappers are used for {env}, and its arguments are not")
    factory = EnvFactory(msgspec.structs.replace(known, id=env, arguments={}))
    example = factory(training=False)
    try:
        for name in _SPACES:
            mine, trained = getattr(example, name), getattr(rebuilt.agent, name)
            if _arrays(mine) != _arrays(trained):
                raise ConfigError(f"the {name} of {env} is {mine}, but the agent was trained on {trained}")
    finally:
        close_env(example, factory.name)
    return factory


def _arrays(space: Any) -> Any:
    """What the values of a space are made of."""
    layout, structure = Layout.of_space(space), ActionStructure.of(space)
    return (None if layout is None else layout.leaves, None if structure is None else structure.spec, _choices(space))


def _choices(space: Any) -> str:
    return repr(space) if type(space).__name__ != "Box" else ""

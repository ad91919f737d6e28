"""Diagnose a failed training: repeat it from its last good checkpoint, and check every update."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from rekindle.agent import LearningAgent, session_steps
from rekindle.checkpoint.forking import ForkPoint, fork_run
from rekindle.checkpoint.store import list_steps
from rekindle.checks import checked_count
from rekindle.errors import AgentError, CheckpointError, ConfigError, EnvError, InputError, Interrupted, RekindleError
from rekindle.events import TrainingStarted
from rekindle.interrupt import Interrupter
from rekindle.run.finding import find_run
from rekindle.run.reader import RunReader
from rekindle.storage import files as storage
from rekindle.storage.logs import each_rows
from rekindle.training.config import TrainerConfig, read_config
from rekindle.training.resuming import trainer_arguments
from rekindle.training.trainer import AgentSource, Trainer

__all__ = ["Diagnosis", "Fault", "diagnose"]

_LOSS = "the loss"
"""Named in place of a layer if a value comes from none."""
_STREAM = re.compile(r"stream (\d+)")


class Fault(msgspec.Struct, frozen=True):
    """What went wrong, and where."""

    kind: Literal["not finite", "exploding gradient", "refused", "raised"]
    """A value stopped being finite; a gradient grew beyond all others; the session refused a transition; or the agent
    or the environment raised an error."""
    update: int
    """The number of the update, 1 for the first of the training; outside of an update, how many were made before."""
    env_steps: int
    layer: str
    """The layer of the network, such as `QNetwork.advantage.modules[0]`, or another place."""
    row: int | None
    """The row of the batch, or the stream of a transition that was refused."""
    message: str
    """The fault in one sentence."""
    operation: str = ""
    """The operation whose result it was, such as `exp`."""
    transition: dict[str, Any] = {}
    """The content of that row of the batch."""
    grad_norm: float | None = None
    usual_grad_norm: float | None = None
    """The median gradient norm of the updates before."""


class Diagnosis(msgspec.Struct, frozen=True):
    """The result of `diagnose`."""

    path: str
    failure: str | None
    """How the run ended."""
    from_step: int
    """The checkpoint from which the training was repeated; 0 for the start."""
    to_step: int
    """The env steps that it reached; updates, if it learns from data alone."""
    is_reproduced: bool
    """Whether anything went wrong again."""
    fault: Fault | None
    onset: Fault | None
    """If a gradient had been exploding before: the first update in which it did."""
    metrics: list[dict[str, float]]
    """The metrics of every update."""


def diagnose(
    path: str | Path,
    *,
    step: int | None = None,
    env: Any = None,
    agent: AgentSource | None = None,
    modules: Sequence[str] = (),
    files: Sequence[str] = (),
    interrupter: Interrupter | None = None,
    **options: Any,
) -> Diagnosis:
    """Repeat a failed training from its last good checkpoint, and find the update, layer and row that failed.

    The run itself is only read.

    Args:
        path: a run, or a version or name directory (its newest run).
        step: look at the updates up to this env step, of any run, instead of those up to its failure.
        env: needed if the environment was created by a lambda.
        agent: needed if the agent is your own and was not given by name.
        modules: modules named by the config that may be imported.
        files: files named by the config that the environment may open.
        interrupter: stops it from outside.
        options: the arguments of `Trainer` that a config cannot hold.
    """
    reader = RunReader(storage.absolute(find_run(path)))
    metadata, config = reader.metadata, read_config(reader)
    step = checked_count("step", step, 1)
    first, last = (0, step) if step is not None else _wrong_window(reader, config)
    given = {**options, "record": (), "checkpoint_every": None, "eval_episodes": 0, "target_score": None}
    if config.actors_on == "ray":  # the result is the same without a cluster
        given.setdefault("actors_on", "here")
    steps = min((limit for limit in (last, config.steps) if limit is not None), default=None)
    arguments = trainer_arguments(
        reader.path,
        config,
        env=env,
        agent=agent,
        steps=steps,
        modules=modules,
        files=files,
        options={**given, "interrupter": interrupter},
    )
    with _temporary(reader.path) as root:
        before = [known for known in list_steps(reader.path / "checkpoints") if known <= _newest(first, steps)]
        begun = _forked(reader.path, before, root)
        known: dict[str, Any] = (
            arguments.options if begun is not None else {**arguments.options, "name": "diagnosis", "root": root}
        )
        trainer = Trainer(arguments.env, arguments.agent, **known)
        if begun is not None:
            trainer.continue_run(begun[0])
        examination = _Examination(trainer)
        fault = examination.run()
        if fault is None and interrupter is not None and interrupter.is_stopped:
            raise Interrupted(f"stopped at step {session_steps(trainer.agent)}, before anything went wrong")
        onset = examination.onset()
        if fault is None:
            fault, onset = onset, None
        return Diagnosis(
            path=str(reader.path),
            failure=metadata.stop_reason if metadata.status == "failed" else None,
            from_step=0 if begun is None else begun[1],
            to_step=int(session_steps(trainer.agent)),
            is_reproduced=fault is not None,
            fault=fault,
            onset=onset,
            metrics=examination.metrics,
        )


def _newest(first: int, steps: int | None) -> float:
    """The newest step to begin at: at least one is repeated."""
    return first or (math.inf if steps is None else steps - 1)


@contextlib.contextmanager
def _temporary(path: Path) -> Generator[Path]:
    """A directory that is removed afterwards: on the file system of a run if possible, so that files can be shared."""
    try:
        holder = tempfile.TemporaryDirectory(prefix=".diagnosis-", dir=path.parent)
    except OSError:
        holder = tempfile.TemporaryDirectory(prefix="rekindle-")
    with holder as root:
        yield Path(root)


def _forked(path: Path, steps: Sequence[int], root: Path) -> tuple[Path, int] | None:
    """A fork from the newest of these checkpoints that is intact, and its step; None if there is none."""
    for step in reversed(steps):
        with contextlib.suppress(CheckpointError):
            return fork_run(ForkPoint(path, step), name="diagnosis", root=root), step
    return None


def _wrong_window(reader: RunReader, config: TrainerConfig) -> tuple[int, int | None]:
    """The env steps to begin before and to end at: of the failure of a run, or of its first metrics that are wrong."""
    if reader.status == "failed":
        # The metadata have the counts of the last checkpoint; the next one was never taken.
        each = config.checkpoint_every
        return 0, None if each is None else reader.metadata.total_steps + each + 2 * config.num_envs
    began = 0
    windows = [
        (int(window["env_steps"]), {name: _largest(window, name) for name in _TELLING})
        for part in each_rows(reader.path / "metrics.jsonl")
        for window in part
    ]
    usual = {name: _median([largest[name] for _, largest in windows]) for name in _TELLING}
    for step, window in windows:
        for name, largest in window.items():
            if largest is not None and largest > _WRONG * max(usual[name], _LEAST_USUAL):
                return began, step
        began = step
    raise ConfigError(
        f"{reader.path} has not failed (it is {reader.status}), and its losses and gradients are finite and none is "
        f"{_WRONG:g} times as large as the median: name a step to look at, with --step N"
    )


_TELLING = ("agent/loss", "agent/grad_norm")
_WRONG, _LEAST_USUAL = 100.0, 1e-6


def _largest(window: dict[str, Any], name: str) -> float | None:
    """The largest value of a metric in a window; infinite if one was not finite, None if there is none."""
    values: dict[str, Any] | None = window["metrics"].get(name)
    if values is None:
        return None
    found = [values.get("min"), values.get("max")]
    return max((math.inf if number is None else abs(number)) for number in found)


def _median(values: Sequence[float | None]) -> float:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(finite) if finite else 0.0


class _Examination:
    """A repeated training, with everything that was seen of it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._agent = trainer, trainer.agent
        self._watcher: Any = None
        self._observations: Any = None
        self._watch_acting(self._agent)
        trainer.on(TrainingStarted, lambda _: self._watch_updates())

    def _watch_acting(self, agent: LearningAgent) -> None:
        act: Callable[..., Any] = agent.act

        def watched(observations: Any, mode: Any, streams: Any) -> Any:
            self._observations = observations
            return act(observations, mode, streams)

        agent.act = watched

    def _watch_updates(self) -> None:
        """Once everything is compiled: that makes no updates which count."""
        if not hasattr(self._agent, "compiled"):
            return
        from rekindle.agents.diagnosis import Compiled, UpdateWatcher

        if isinstance(self._agent, Compiled):
            self._watcher = UpdateWatcher(int(self._agent.updates))
            self._agent.compiled()[0].watch(self._watcher)

    @property
    def metrics(self) -> list[dict[str, float]]:
        return [] if self._watcher is None else self._watcher.metrics

    def run(self) -> Fault | None:
        """Train, and return what went wrong; None if nothing did."""
        try:
            self._trainer.train(progress=False)
        except (Interrupted, ConfigError):
            raise
        except AgentError as error:
            return self._failed(error)
        except Exception as error:
            # The trainer adds the name of the environment to what the session says of a transition.
            is_refusal = isinstance(error, InputError) or isinstance(error.__cause__, InputError)
            return self._refused(error) if is_refusal else self._raised(error)
        return None

    def onset(self) -> Fault | None:
        found = None if self._watcher is None else self._watcher.onset()
        return None if found is None else self._fault("exploding gradient", found)

    def _refused(self, error: Exception) -> Fault:
        stream = _STREAM.search(str(error))
        return Fault(
            kind="refused",
            update=int(self._agent.updates),
            env_steps=int(self._agent.env_steps) + 1,
            layer=f"environment ({'reward' if 'reward' in str(error) else 'observation'})",
            row=None if stream is None else int(stream[1]),
            message=f"the environment gave what no agent can learn from: {error}",
        )

    def _failed(self, error: AgentError) -> Fault:
        watcher = self._watcher
        if watcher is None:
            return self._raised(error)
        if watcher.found is not None:
            return self._fault("not finite", watcher.found)
        from rekindle.agents.diagnosis import Compiled, located_output

        if isinstance(self._agent, Compiled) and self._observations is not None:
            found = located_output(self._agent.compiled()[1], self._observations, watcher.updates)
            if found is not None:
                return self._fault("not finite", found, acting=True)
        found = watcher.onset() or watcher.last()
        return self._raised(error) if found is None else self._fault("exploding gradient", found)

    def _raised(self, error: Exception) -> Fault:
        is_env = isinstance(error, EnvError)
        name = "" if isinstance(error, RekindleError) else f"{type(error).__name__}: "
        return Fault(
            kind="raised",
            update=int(self._agent.updates),
            env_steps=int(session_steps(self._agent)) + is_env,
            layer="environment" if is_env else type(self._agent).__name__,
            row=None,
            message=f"{name}{error}",
        )

    def _weight(self, part: tuple[int, int] | None) -> str:
        """The weights that part of a vector holds, if it is that of the network which acts."""
        from rekindle.agents.diagnosis import Compiled

        if part is None or not isinstance(self._agent, Compiled):
            return ""
        place, count = part
        paths = self._agent.compiled()[1].vector_paths
        return paths[place] if len(paths) == count else ""

    def _fault(self, kind: Literal["not finite", "exploding gradient"], found: Any, *, acting: bool = False) -> Fault:
        origin = found.origin
        layer = origin.layer or origin.argument or self._weight(origin.part) or _LOSS
        return Fault(
            kind=kind,
            update=found.update,
            env_steps=int(session_steps(self._agent)),
            layer=layer,
            row=origin.row,
            message=_sentence(kind, found, layer, acting=acting),
            operation=origin.operation,
            transition=found.transition,
            grad_norm=found.grad_norm,
            usual_grad_norm=found.usual_grad_norm,
        )


def _sentence(kind: str, found: Any, layer: str, *, acting: bool) -> str:
    origin = found.origin
    where = f"in {layer}, in the {'gradient' if origin.is_backward else 'forward pass'}"
    if origin.argument and not origin.layer:
        where = f"in {origin.argument}, before any operation"
    elif not origin.is_inside:
        where = "in the loss or the optimiser" + (f", from {layer}" if layer != _LOSS else "")
    rows = "every row" if origin.is_every_row else f"row {origin.row}"
    row = "" if origin.row is None else f", {rows} of the {'observations' if acting else 'batch'}"
    if kind == "exploding gradient":
        usual = "" if found.usual_grad_norm is None else f", usually {found.usual_grad_norm:.2g}"
        norm = "" if found.grad_norm is None else f" (norm {found.grad_norm:.2g}{usual})"
        return f"the gradient of update {found.update} explodes{norm}: it is largest {where}{row}"
    when = f"the action after update {found.update}" if acting else f"update {found.update}"
    operation = f": {origin.operation} of numbers up to {origin.largest_input:.3g}" if origin.operation else ""
    return f"{when} gives {origin.value} {where}{row}{operation}"

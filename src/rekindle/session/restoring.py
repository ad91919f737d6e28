"""Resume from the newest intact checkpoint of a run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rekindle.agent import HasReplay, LearningAgent, session_steps
from rekindle.checkpoint.replay_journal import check_layout
from rekindle.checkpoint.store import Checkpoint, CheckpointStore
from rekindle.errors import AgentError, CheckpointError, ConfigError, RekindleError, StateError
from rekindle.run.directory import TrainingRun
from rekindle.run.metadata import FRAMEWORKS, Resume, environment, timestamp
from rekindle.text import encodable, path_text

__all__ = ["differences", "restore"]

logger = logging.getLogger("rekindle")


def restore(
    run: TrainingRun,
    store: CheckpointStore,
    agent: LearningAgent,
    load_session: Callable[[Checkpoint], None],
    *,
    keeps_data: bool,
    not_exact: tuple[str, ...],
    strict: bool,
    has_journal: bool,
) -> tuple[Checkpoint | None, Resume]:
    """Load the newest intact checkpoint into agent and session, then truncate the logs of the run to it.

    Nothing in the run is changed before both have loaded their state.
    """
    found = store.find()
    checkpoint = found.checkpoint
    notes = [f"skipped a damaged checkpoint: {reason}" for reason in found.rejected]
    if checkpoint is not None:
        path = store.path(checkpoint.step)
        not_exact = (*not_exact, *differences(checkpoint.environment))
        if strict and not_exact:
            raise CheckpointError(f"{path} cannot be resumed exactly: {'; '.join(not_exact)}")
        _check_memory(agent, checkpoint, path)
        if keeps_data != (checkpoint.data is not None):
            kept, option = ("does not keep", "without") if keeps_data else ("keeps", "with")
            raise ConfigError(f"{run.path} {kept} its data, from its beginning on: continue it {option} keep_data")
        try:
            load_session(checkpoint)
        except Exception as error:
            raise StateError(f"{path}: the state of the session cannot be loaded: {_message(error)}") from error
    rewound = run.rewound
    before = agent.state()
    try:
        if checkpoint is not None:
            _load_agent(agent, checkpoint, found.rows, store.path(checkpoint.step))
        moved = run.rewind(checkpoint.logs if checkpoint else {})
    except RekindleError:
        # This session is discarded; the agent belongs to the host.
        with contextlib.suppress(Exception):
            agent.load_state(before)
        raise
    store.go_back_to(checkpoint, rewound)
    if moved and checkpoint is None and not has_journal:  # with a journal, the rows are written again
        notes.append(f"there was no checkpoint yet, so training starts over: {', '.join(moved)} moved to {rewound}")
    resume = Resume(
        number=run.resume_count + 1,
        step=checkpoint.step if checkpoint else 0,
        checkpoint=store.path(checkpoint.step).name if checkpoint else None,
        grade="approximate" if not_exact else "exact",
        lost=(*not_exact, *notes),
        wall_time=timestamp(),
    )
    for note in resume.lost:
        logger.warning("resuming %s: %s", path_text(run.path), encodable(note))
    counters: Mapping[str, int] = checkpoint.counters if checkpoint else {}
    run.add_resume(
        resume,
        total_steps=resume.step,
        total_episodes=counters.get("episodes", 0),
        updates=counters.get("updates", 0),
    )
    store.journal.resume_count = store.data.resume_count = run.resume_count
    return checkpoint, resume


def _check_memory(agent: LearningAgent, checkpoint: Checkpoint, path: Path) -> None:
    memory = agent.replay() if isinstance(agent, HasReplay) else None
    if (memory is None) != (checkpoint.replay is None):
        has, had = ("no", "one") if memory is None else ("a", "none")
        raise StateError(f"{path}: the agent has {has} replay buffer, but the checkpoint has {had}")
    if memory is not None and checkpoint.replay is not None:
        check_layout(checkpoint.replay, memory.columns, name=str(path))


def _load_agent(agent: LearningAgent, checkpoint: Checkpoint, rows: dict[str, Any] | None, path: Path) -> None:
    try:
        agent.load_state(checkpoint.agent)
        if isinstance(agent, HasReplay) and checkpoint.replay is not None:
            agent.replay().restore(checkpoint.replay.first, rows or {})
    except Exception as error:
        raise StateError(f"{path} does not fit this {type(agent).__name__}: {_message(error)}") from error
    if (steps := session_steps(agent)) != checkpoint.counters["env_steps"]:
        raise AgentError(
            f"{path} was taken after {checkpoint.counters['env_steps']} env steps, but the agent reports "
            f"{steps} after loading it: its state must include env_steps"
        )


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, RekindleError) else f"{type(error).__name__}: {error}"


def differences(saved: Mapping[str, str]) -> tuple[str, ...]:
    """Why results may differ from those of a checkpoint that was saved in this environment."""
    now = environment()
    names = (saved.keys() | now.keys()) - {name for name in FRAMEWORKS if name not in saved or name not in now}
    return tuple(
        f"not bit-exact: {name} was {saved.get(name)} and is {now.get(name)}"
        for name in sorted(names)
        if saved.get(name) != now.get(name)
    )

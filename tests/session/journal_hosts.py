"""Hosts with a world that cannot be brought back, for tests of the input journal."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.toys import PolicyAgent

from rekindle import EpisodeStatus, Experience, TrainingRun, TrainingSession, Transitions
from rekindle.agent import State
from rekindle.errors import InputError
from rekindle.events import EpisodeEnded, Event, MetricsFlushed
from rekindle.run.metadata import LOGS
from rekindle.stats import EpisodeRecord
from rekindle.storage import codec

OPTIONS: dict[str, Any] = {"journal": True, "checkpoint_every": 12, "metrics_every": 7, "signals": False}


class Learning(PolicyAgent):
    """The toy with all of its state in the checkpoint."""

    def state(self) -> State:
        return {**super().state(), "skipped": self.skipped, "starts": self.starts, "cuts": list(self.cuts)}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.skipped, self.starts, self.cuts = state["skipped"], state["starts"], list(state["cuts"])


class Counting:
    """A callback with a state, which logs."""

    def __init__(self) -> None:
        self.session: TrainingSession | None = None
        self.ends = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpisodeEnded) and self.session is not None:
            self.ends += 1
            self.session.log("ends", self.ends)

    def state(self) -> State:
        return {"ends": self.ends}

    def load_state(self, state: State) -> None:
        self.ends = state["ends"]


class Noting:
    """A callback without a state, which logs at the ends of episodes and of metric windows."""

    def __init__(self) -> None:
        self.session: TrainingSession | None = None

    def __call__(self, event: Event) -> None:
        if self.session is None:
            return
        if isinstance(event, EpisodeEnded):
            self.session.log("noted", event.stamp.episodes)
        elif isinstance(event, MetricsFlushed):
            with contextlib.suppress(InputError):  # the last window is flushed when the session is closed
                self.session.log("flushed", event.stamp.env_steps)


def opened(root: Path, agent: Any, **options: Any) -> TrainingSession:
    """A session with a journal, two callbacks and a hook."""
    counting, noting = Counting(), Noting()
    session = TrainingSession.open("world/v1", agent, root=root, callbacks=[counting, noting], **{**OPTIONS, **options})
    counting.session = noting.session = session

    def evaluate() -> None:
        session.on_eval_episode(EpisodeRecord(float(session.total_steps), 3, EpisodeStatus.TERMINATED))
        session.maybe_save_best(float(session.total_steps))

    session.every(9, evaluate)
    return session


class World:
    """Goes on, whatever happens to the session."""

    def __init__(self, *, states: int | None = None) -> None:
        """With `states`, an observation is one of so many numbers; otherwise it is 3 floats."""
        self._rng = np.random.default_rng(1)
        self._states = states
        self.ticks = 0

    def look(self, rows: int | None = None) -> Any:
        if self._states is not None:
            return self._rng.integers(self._states, size=rows)
        return self._rng.random((3,) if rows is None else (rows, 3), np.float32)

    def ends(self) -> bool:
        self.ticks += 1
        return self.ticks % 5 == 0


def by_streams(session: TrainingSession, world: World, calls: int) -> Iterator[None]:
    """Two streams, one of them closed and opened again; a log and a stream that is abandoned."""
    for call in range(calls):
        stream = session.stream(("left", 7)[call % 2])
        if call in (0, 1, 13):  # the stream is new
            yield
        if call == 11:
            stream.close()
        elif not stream.is_open:
            stream.begin(world.look())
        elif call == 17:
            stream.abandon()
        else:
            stream.step(world.look(), 0.5 * call, terminated=world.ends(), extras={"call": float(call)})
        yield
        if call % 8 == 3:
            session.log("host", [1.0, float(call)])
            yield


def by_calls(session: TrainingSession, world: World, calls: int) -> Iterator[None]:
    """`act`, `observe` and `on_episode`."""
    observation = world.look()
    for call in range(calls):
        action = session.act(observation)
        yield
        after, is_over = world.look(), world.ends()
        status = EpisodeStatus.TRUNCATED if is_over else EpisodeStatus.CONTINUING
        if call % 4 == 0 and np.asarray(action).dtype.kind == "i":  # the host did something else
            action = 1 - action
        session.observe(Experience(observation, action, float(call), after, status))
        yield
        if is_over:
            session.on_episode(extras={"call": float(call)})
            yield
            after = world.look()
            session.on_episode_start()
            yield
        observation = after


def by_batches(session: TrainingSession, world: World, calls: int) -> Iterator[None]:
    """`act_many`, `observe_many`, and `on_episodes` or `on_episode`; now and then with named streams."""
    observations = world.look(3)
    for call in range(calls):
        names = ["c", "b", "a"] if call >= calls // 2 else None
        actions = session.act_many(observations, streams=names)
        yield
        after = world.look(3)
        is_over = world.ends()
        statuses = np.array([is_over, is_over, 0], np.uint8)
        transitions = Transitions(observations, np.array(actions), np.arange(3.0), after, statuses)
        ended = session.observe_many(transitions, streams=names)
        if ended and call % 2:
            yield
            session.on_episodes({stream: {"call": float(call)} for stream in ended})
        else:
            for stream in ended:
                yield
                session.on_episode(stream=stream)
        yield
        observations = after if call + 1 != calls // 2 else world.look(3)


def by_hand(session: TrainingSession, world: World, calls: int) -> Iterator[None]:
    """A manual learner, with and without a budget."""
    for call, _ in enumerate(by_streams(session, world, calls)):
        yield
        if call % 3 == 2:
            session.learn(milliseconds=0.02 if call % 2 else None)
            yield


FORMS: Mapping[str, tuple[str, Callable[[TrainingSession, World, int], Iterator[None]]]] = {
    "streams": ("inline", by_streams),
    "calls": ("inline", by_calls),
    "batches": ("inline", by_batches),
    "manual": ("manual", by_hand),
    "background": ("background", by_streams),
    "background batches": ("background", by_batches),
}


def tree_of(session: TrainingSession) -> State:
    """Everything that a resume must bring back."""
    state = session._parts.state()  # pyright: ignore[reportPrivateUsage]
    attached = session._parts.attached.save()  # pyright: ignore[reportPrivateUsage]
    kept = {name: value for name, value in state.items() if name != "inputs"}
    window = session._parts.logbook.window  # pyright: ignore[reportPrivateUsage]
    window.read()
    kept["window"] = dict(window.state())
    return {"session": kept, "attached": attached}


def digest(tree: Any) -> str:
    """A digest of a tree of states."""
    hashed = hashlib.sha256()
    for chunk in codec.encode({"tree": tree}):
        hashed.update(chunk)
    return hashed.hexdigest()


def copied(source: Path, target: Path) -> Path:
    """The files of a run as a kill at this moment would leave them."""
    while True:
        try:
            shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*.tmp"))
        except shutil.Error:  # a file was removed or replaced meanwhile
            shutil.rmtree(target)
        else:
            return target


def rows_of(run: TrainingRun) -> dict[str, list[dict[str, Any]]]:
    """The rows of the training logs, without what depends on the clock."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for log in LOGS:
        run.log(log).sync()
        path = run.path / f"{log}.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        decoded = [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        rows[log] = [_timeless(row) for row in decoded]
    return rows


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in row.items() if not key.startswith(("time/", "wall_time"))}
    return {key: _timeless(value) if isinstance(value, dict) else value for key, value in kept.items()}

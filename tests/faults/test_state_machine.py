"""A session over a real run against a model that is never interrupted, in any order of events.

What a host feeds is a function of how often it has fed: after a crash it begins again where the checkpoint was.
So the model is a list of what was fed, and a session that is fed all of it in one go.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forms import Rollouts
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from worker import Learner

import rekindle
from rekindle import EpisodeStatus, Experience
from rekindle.storage import codec
from rekindle.verification import Verification

AGENTS = {"ring": lambda: Learner(seed=3), "rollouts": Rollouts}
STREAMS = (0, 1, "npc")
Action = tuple[Any, ...]


class Host:
    """Feeds a session, and can say and be told how far it has come."""

    def __init__(self, script: list[Action]) -> None:
        self.script = script
        self.fed = 0
        self.places: dict[str, int] = {}

    def state(self) -> dict[str, Any]:
        return {"fed": self.fed, "places": dict(self.places)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.fed, self.places = state["fed"], dict(state["places"])

    def catch_up(self, session: rekindle.TrainingSession) -> None:
        """Feed everything that the script has and the session has not seen."""
        while self.fed < len(self.script):
            action = self.script[self.fed]
            self.fed += 1  # before the call, which may take a checkpoint: it will have been fed then
            self._feed(session, *action)

    def _feed(self, session: rekindle.TrainingSession, kind: str, *details: Any) -> None:
        if kind == "observe":
            self._observe(session, *details)
        elif kind == "eval":
            session.on_eval_episode(rekindle.EpisodeRecord(details[0], 3, EpisodeStatus.TERMINATED))
        elif kind == "best":
            session.maybe_save_best(details[0])
        elif kind == "log":
            session.log(*details)
        elif kind == "greedy":
            session.act(np.array([details[0], 0], np.float32), rekindle.ActMode.EXPLOIT)

    def _observe(self, session: rekindle.TrainingSession, stream: int | str, reward: float, status: int) -> None:
        place = self.places.get(str(stream), 0)
        before, after = (np.array([place % 7, place], np.float32), np.array([(place + 1) % 7, place + 1], np.float32))
        self.places[str(stream)] = 0 if status else place + 1
        action = session.act(before, stream=stream) if place % 2 else np.int64(0)
        ends = EpisodeStatus(status)
        session.observe(Experience(before, action, reward, after, ends), stream=stream)
        if ends.is_done:
            # An end is fed in the same breath, or a crash between the two would feed it twice.
            session.on_episode(extras={"place": float(place)}, stream=stream)


class Machine(RuleBasedStateMachine):
    """Everything that can happen to a run."""

    @initialize(
        agent=st.sampled_from(sorted(AGENTS)),
        checkpoint_every=st.sampled_from([None, 1, 4]),
        metrics_every=st.sampled_from([1, 3]),
        keep=st.integers(1, 3),
    )
    def start(self, agent: str, checkpoint_every: int | None, metrics_every: int, keep: int) -> None:
        self.top = Path(tempfile.mkdtemp())
        self.root = self.top / "0"
        self.copies = 0
        self.agent = agent
        self.options = {
            "checkpoint_every": checkpoint_every,
            "metrics_every": metrics_every,
            "keep_checkpoints": keep,
        }
        self.script: list[Action] = []
        self.open()

    def make(self, root: Path) -> tuple[rekindle.TrainingSession, Host]:
        session = rekindle.TrainingSession.open(
            "machine", AGENTS[self.agent](), root=root, signals=False, **self.options
        )
        host = Host(self.script)
        session.attach("host", host)
        return session, host

    def open(self) -> None:
        self.session, self.host = self.make(self.root)
        if self.session.resumed is not None:
            assert self.session.resumed.grade == "exact"
        self.host.catch_up(self.session)

    def feed(self, *action: Any) -> None:
        self.script.append(action)
        self.host.catch_up(self.session)

    # What a host does

    @rule(
        stream=st.sampled_from(STREAMS),
        reward=st.floats(-2, 2, width=32),
        status=st.sampled_from([0, 0, 0, 0, 1, 2]),
    )
    def observe(self, stream: int | str, reward: float, status: int) -> None:
        self.feed("observe", stream, reward, status)

    @rule(stream=st.sampled_from(STREAMS), count=st.integers(2, 9))
    def observe_more(self, stream: int | str, count: int) -> None:
        for number in range(count):
            self.feed("observe", stream, number / 4, 0)

    @rule(score=st.floats(-3, 3, width=16))
    def evaluate(self, score: float) -> None:
        self.feed("eval", score)

    @rule(score=st.one_of(st.floats(-3, 3, width=16), st.sampled_from([math.nan, math.inf, -math.inf])))
    def best(self, score: float) -> None:
        self.feed("best", score)

    @rule(
        name=st.sampled_from(["a", "b/c"]),
        value=st.one_of(st.floats(-9, 9), st.integers(-9, 9), st.floats(-9, 9, width=32).map(np.float32)),
    )
    def log(self, name: str, value: Any) -> None:
        self.feed("log", name, value)

    @rule(place=st.integers(0, 6))
    def act_greedily(self, place: int) -> None:
        self.feed("greedy", place)

    # What happens to a run

    @rule(wait=st.booleans())
    def checkpoint(self, wait: bool) -> None:
        self.session.checkpoint(wait=wait)

    @rule()
    def crash(self) -> None:
        """Go on with the run as it is on disk at this instant; the process that wrote it is gone."""
        self.go_on_with_a_copy()
        self.host.catch_up(self.session)

    def go_on_with_a_copy(self) -> None:
        self.copies += 1
        after = self.top / str(self.copies)
        # What a kill in the middle of a write leaves is for other tests; here every example must repeat itself.
        self.session.flush()
        assert self.session._parts.saver is not None
        self.session._parts.saver.settle()
        shutil.copytree(self.root, after)
        self.session.close()
        shutil.rmtree(self.root)
        self.root = after
        self.session, self.host = self.make(self.root)

    @rule()
    def close_and_open(self) -> None:
        self.session.stop("a pause")
        self.session.close()
        self.check_reports()
        self.open()

    @rule(times=st.integers(1, 3))
    def crash_at_once_after_opening(self, times: int) -> None:
        for _ in range(times):
            self.go_on_with_a_copy()
        self.host.catch_up(self.session)

    @precondition(lambda self: len(self.script) > 3)
    @rule()
    def damage(self) -> None:
        """Lose the newest checkpoint of two or more, then go on from the one before it."""
        self.session.stop("a pause")
        self.session.close()
        steps = sorted((self.root / "machine").rglob("step_*.mpk"), key=lambda path: int(path.stem[5:]))
        steps = [path for path in steps if path.parent.name == "checkpoints"]
        if len(steps) > 1:
            steps[-1].write_bytes(b"damaged")
        self.open()

    # What must be true

    @invariant()
    def counters_are_those_of_the_script(self) -> None:
        if not hasattr(self, "session"):
            return
        observed = [action for action in self.script if action[0] == "observe"]
        assert self.session.total_steps == len(observed)
        scores = [action[1] for action in self.script if action[0] == "best" and not math.isnan(action[1])]
        assert self.session.best_score == max(scores, default=-math.inf)

    def check_reports(self) -> None:
        """After a close: the run is, to the bit, one that was never interrupted."""
        found = rekindle.verify(self.root / "machine")
        assert found.problems == []
        assert found.grade == "exact"
        expected, model = self.model()
        assert found.digests == expected.digests
        assert self.session.stats_summary() == pytest.approx(model.stats_summary(), nan_ok=True)
        assert self.session.episodes == model.episodes
        reader = rekindle.RunReader(self.root / "machine")
        assert [row["row"] for row in reader.train_episodes()] == list(range(model.episodes))
        best = reader.path / "checkpoints" / "best.mpk"
        if math.isinf(self.session.best_score) and self.session.best_score < 0:
            assert not best.exists()
        else:
            assert codec.read_file(best)["score"] == self.session.best_score

    def model(self) -> tuple[Verification, rekindle.TrainingSession]:
        with contextlib.ExitStack() as stack:
            root = self.top / "model"
            stack.callback(shutil.rmtree, root, ignore_errors=True)
            session, host = self.make(root)
            host.catch_up(session)
            session.stop("a pause")
            session.close()
            return rekindle.verify(root / "machine"), session

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        try:
            self.session.stop("a pause")
            self.session.close()
            self.check_reports()
        finally:
            shutil.rmtree(self.top, ignore_errors=True)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=15,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
class TestMachineForLong(Machine.TestCase):
    settings = settings(TestMachine.settings, max_examples=600, stateful_step_count=50)

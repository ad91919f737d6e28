"""Whatever a host or an agent does wrong: a clear error that names it, and a session that is none the worse for it."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import rekindle
from rekindle import EpisodeStatus, Experience, TrainingSession, Transitions
from rekindle.errors import AgentError, ConfigError, InputError, RunError, RunLocked, StateError, StorageError
from rekindle.events import Warned
from rekindle.run.directory import TrainingRun
from rekindle.storage import codec

CONTINUING, TERMINATED, TRUNCATED = EpisodeStatus


class Sum:
    """Remembers the sum of all that it saw: whatever reaches it shows."""

    def __init__(self) -> None:
        self.env_steps = self.updates = 0
        self.sums = np.zeros(4)
        self.metrics: Callable[[], Mapping[str, Any]] = lambda: {"loss": float(self.sums[2] ** 2)}
        self._due = 0

    def act(self, observations: Any, mode: Any, streams: Any) -> Any:
        return (observations[:, 0] > 0).astype(np.int64)

    def observe(self, transitions: Transitions, streams: Any) -> None:
        parts = (transitions.observations, transitions.actions, transitions.rewards, transitions.next_observations)
        self.sums += [float(np.sum(np.asarray(part))) for part in parts]
        self.env_steps += len(transitions)
        self._due = len(transitions)

    def updates_due(self) -> int:
        return self._due

    def update(self, n: int) -> Mapping[str, Any]:
        self._due = 0
        self.updates += n
        return self.metrics()

    def state(self) -> dict[str, Any]:
        return {"sums": self.sums.copy(), "counts": [self.env_steps, self.updates]}

    def load_state(self, state: dict[str, Any]) -> None:
        self.sums = state["sums"].copy()
        self.env_steps, self.updates = state["counts"]


def line(place: float) -> Any:
    return np.array([place, 1.0], np.float32)


def step(place: float, status: EpisodeStatus = CONTINUING, **changes: Any) -> Experience:
    """The transition from a place to the next."""
    fields = {"observation": line(place), "action": np.int64(1), "reward": 1.0, "next_observation": line(place + 1)}
    return Experience(**{**fields, **changes}, status=status)


def batch(place: float, *, rows: int = 3, **changes: Any) -> Transitions:
    """The same transition on several streams."""
    fields: dict[str, Any] = {
        "observations": np.stack([line(place)] * rows),
        "actions": np.ones(rows, np.int64),
        "rewards": np.ones(rows),
        "next_observations": np.stack([line(place + 1)] * rows),
        "statuses": np.zeros(rows, np.uint8),
    }
    return Transitions(**{**fields, **changes})


def changed(array: Any, row: int, value: Any) -> Any:
    array = np.array(array)
    array[row] = value
    return array


def open_session(root: Path, **options: Any) -> TrainingSession:
    settings: dict[str, Any] = {"checkpoint_every": 3, "metrics_every": 2, **options}
    return TrainingSession.open("bad", Sum(), root=root, **settings)


def train(session: TrainingSession, *, nuisance: Callable[[TrainingSession], None] = lambda session: None) -> None:
    """Ten steps in two episodes, with something in between."""
    for place in range(10):
        session.observe(step(place % 5, TERMINATED if place % 5 == 4 else CONTINUING))
        if place % 5 == 4:
            session.on_episode()
        if place in (1, 6):
            nuisance(session)


def digests(session: TrainingSession) -> Mapping[str, str | None]:
    assert session.run is not None
    found = rekindle.verify(session.run.path)
    assert found.ok, found.problems
    return found.digests


@pytest.fixture
def expected(tmp_path: Path) -> Mapping[str, str | None]:
    with open_session(tmp_path / "expected") as session:
        train(session)
    return digests(session)


NAN, INF = math.nan, math.inf
REFUSED: dict[str, tuple[Callable[[], Experience], str]] = {
    "an observation of another shape": (lambda: step(2, observation=np.zeros(3, np.float32)), r"observation .*\(3,\)"),
    "an observation of no numbers": (lambda: step(2, observation=["a", "b"]), "observation .*not numbers"),
    "a ragged observation": (lambda: step(2, observation=[[1], [1, 2]]), "observation is not an array"),
    "a complex observation": (lambda: step(2, observation=np.array([2, 1j])), "observation .*complex"),
    "no observation": (lambda: step(2, observation=None), "observation is missing"),
    "a next observation of another shape": (
        lambda: step(2, next_observation=np.zeros((1, 2), np.float32)),
        r"next_observation .*\(1, 2\)",
    ),
    "no next observation": (lambda: step(2, next_observation=None), "next_observation is missing"),
    "an action of another shape": (lambda: step(2, action=np.zeros(2, np.int64)), r"action .*\(2,\)"),
    "an action of another dtype": (lambda: step(2, action=0.5), "action is float64"),
    "no action": (lambda: step(2, action=None), "action is missing"),
    "a reward of another shape": (lambda: step(2, reward=np.zeros(2)), "reward .*not a number"),
    "a reward in words": (lambda: step(2, reward="high"), "reward 'high' is not a number"),
    "no reward": (lambda: step(2, reward=None), "reward None is not a number"),
    "a reward of NaN": (lambda: step(2, reward=NAN), "reward nan is not finite"),
    "a reward of infinity": (lambda: step(2, reward=-INF), "reward -inf is not finite"),
    "an observation of NaN": (lambda: step(2, next_observation=line(NAN)), r"observation .*nan.* is not finite"),
    "an observation of infinity": (lambda: step(2, next_observation=line(INF)), r"observation .*inf.* is not finite"),
    "an observation too large for its dtype": (
        lambda: step(2, next_observation=np.array([1e300, 0.0])),
        r"observation .*inf.* is not finite",
    ),
    "a status that is none": (lambda: step(2, 7), "status 7"),  # type: ignore[arg-type]
    "a transition from elsewhere": (lambda: step(4), "is not the last one seen"),
    "a transition from before": (lambda: step(1), "is not the last one seen"),
}


class TestOneTransition:
    @pytest.mark.parametrize("case", REFUSED)
    def test_what_cannot_be_right_is_refused_by_name_and_changes_nothing(
        self, tmp_path: Path, expected: Mapping[str, str | None], case: str
    ) -> None:
        make, message = REFUSED[case]

        def nuisance(session: TrainingSession) -> None:
            for _ in range(2):
                with pytest.raises(InputError, match=message):
                    session.observe(make())

        with open_session(tmp_path) as session:
            train(session, nuisance=nuisance)
        assert digests(session) == expected

    @pytest.mark.parametrize("case", ["an observation of another shape", "no observation", "an observation of NaN"])
    def test_the_first_transition_may_be_the_bad_one(
        self, tmp_path: Path, expected: Mapping[str, str | None], case: str
    ) -> None:
        with open_session(tmp_path) as session:
            with pytest.raises(InputError):
                session.observe(step(0, next_observation=np.zeros(3, np.float32)))
            with pytest.raises(InputError):
                session.observe(step(0, reward=NAN))
            train(session)
        assert digests(session) == expected

    def test_the_error_is_a_value_error_too(self) -> None:
        with pytest.raises(ValueError, match="not finite"):
            TrainingSession(Sum()).observe(step(0, reward=NAN))

    @pytest.mark.parametrize("stream", [-1, 1.5, None, True, (1,)])
    def test_what_cannot_name_a_stream_is_refused(
        self, tmp_path: Path, expected: Mapping[str, str | None], stream: Any
    ) -> None:
        def nuisance(session: TrainingSession) -> None:
            with pytest.raises(InputError, match="cannot name a stream"):
                session.observe(step(0), stream=stream)

        with open_session(tmp_path) as session:
            train(session, nuisance=nuisance)
        assert digests(session) == expected


class TestBatches:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: batch(2, observations=np.zeros((3, 3), np.float32)), "observations has the shape"),
            (lambda: batch(2, observations=np.zeros((2, 2), np.float32)), "observations has the shape"),
            (lambda: batch(2, next_observations=np.zeros((3, 1), np.float32)), "next_observations has the shape"),
            (lambda: batch(2, actions=np.zeros((3, 1), np.int64)), "actions has the shape"),
            (lambda: batch(2, actions=np.zeros(3)), "actions is float64"),
            (lambda: batch(2, rewards=np.zeros((3, 1))), "rewards has the shape"),
            (lambda: batch(2, rewards=np.array(["a", "b", "c"])), "rewards"),
            (lambda: batch(2, rewards=np.array([1, NAN, 1])), "stream 1: the reward nan is not finite"),
            (lambda: batch(2, rewards=np.array([1, 1, INF])), "stream 2: the reward inf is not finite"),
            (lambda: batch(2, next_observations=changed([line(3)] * 3, 1, NAN)), "stream 1: an observation"),
            (lambda: batch(2, statuses=np.array([0, 0, 7], np.uint8)), "statuses must be 0, 1 or 2"),
            (lambda: batch(2, statuses=np.zeros((3, 1), np.uint8)), "statuses has the shape"),
            (lambda: batch(2, observations=changed([line(2)] * 3, 2, 9)), "stream 2: .* is not the last one seen"),
            (lambda: batch(7), "stream 0: .* is not the last one seen"),
        ],
    )
    def test_one_bad_row_is_named_and_no_row_is_taken(
        self, tmp_path: Path, make: Callable[[], Transitions], message: str
    ) -> None:
        def play(root: Path, *, is_disturbed: bool) -> Mapping[str, str | None]:
            with open_session(root) as session:
                for place in range(6):
                    session.observe_many(batch(place))
                    if place == 1 and is_disturbed:
                        for _ in range(2):
                            with pytest.raises(InputError, match=message):
                                session.observe_many(make())
            return digests(session)

        assert play(tmp_path / "a", is_disturbed=True) == play(tmp_path / "b", is_disturbed=False)

    @pytest.mark.parametrize(
        ("streams", "message"), [([0, 1], "2 streams"), ([0, 1, 1], "twice"), ([0, 1, -2], "cannot name a stream")]
    )
    def test_streams_that_do_not_fit_the_batch_are_refused(self, streams: Any, message: str) -> None:
        session = TrainingSession(Sum())
        with pytest.raises(InputError, match=message):
            session.observe_many(batch(0), streams=streams)
        with pytest.raises(InputError, match=message):
            session.act_many(np.zeros((3, 2), np.float32), streams=streams)
        session.observe_many(batch(0))
        assert session.total_steps == 3


class TestOrder:
    def test_step_before_begin_is_refused(self, tmp_path: Path) -> None:
        session = TrainingSession(Sum())
        stream = session.stream("a")
        with pytest.raises(InputError, match="stream 'a': step was called before begin"):
            stream.step(line(1), 1.0)
        stream.begin(line(0))
        stream.step(line(1), 1.0, terminated=True)
        with pytest.raises(InputError, match="stream 'a': step was called before begin"):
            stream.step(line(2), 1.0)
        assert session.total_steps == 1

    def test_resume_without_an_open_episode_is_refused(self) -> None:
        session = TrainingSession(Sum())
        with pytest.raises(InputError, match="no episode is open"):
            session.stream().resume(line(0))
        session.stream().begin(line(0))
        with pytest.raises(InputError, match="cannot continue from"):
            session.stream().resume(line(5))
        session.stream().resume(line(0))

    def test_an_episode_that_never_ended_cannot_be_announced(
        self, tmp_path: Path, expected: Mapping[str, str | None]
    ) -> None:
        def nuisance(session: TrainingSession) -> None:
            with pytest.raises(InputError, match="stream 0: no episode has ended there"):
                session.on_episode()

        with open_session(tmp_path) as session:
            train(session, nuisance=nuisance)
        assert digests(session) == expected

    def test_an_end_that_was_not_announced_stops_everything_until_it_is(self) -> None:
        session = TrainingSession(Sum())
        session.observe(step(0, TERMINATED))
        for call in (
            lambda: session.observe(step(1)),
            lambda: session.observe_many(batch(1, rows=1)),
            lambda: session.act(line(0)),
            lambda: session.act_many(np.stack([line(0)])),
            lambda: session.stream().begin(line(0)),
            lambda: session.stream().abandon(),
        ):
            with pytest.raises(InputError, match=r"stream 0: .*never announced: call on_episode\(stream=0\) first"):
                call()
        session.on_episode()
        session.observe(step(0))
        assert (session.total_steps, session.episodes) == (2, 1)

    def test_a_checkpoint_waits_for_an_end_to_be_announced(self, tmp_path: Path) -> None:
        with open_session(tmp_path) as session:
            session.observe(step(0, TERMINATED))
            with pytest.raises(InputError, match="never announced"):
                session.checkpoint()
            session.on_episode()
            session.checkpoint(wait=True)

    def test_an_end_never_announced_is_announced_at_the_end_and_the_run_is_approximate(self, tmp_path: Path) -> None:
        with open_session(tmp_path) as session:
            session.observe(step(0, TERMINATED))
        assert session.run is not None
        assert session.episodes == 1
        assert rekindle.verify(session.run.path).grade == "approximate"
        assert len(session.run.reader.train_episodes()) == 1

    @pytest.mark.parametrize(
        ("totals", "message"),
        [
            ({"total_reward": 2.5}, "total_reward 2.5 was given, 2.0 was counted"),
            ({"total_reward": NAN}, "total_reward nan was given, 2.0 was counted"),
            ({"steps": 3}, "steps 3 was given, 2 was counted"),
            ({"status": TRUNCATED}, "TRUNCATED.* was given, .*TERMINATED.* was seen"),
            ({"steps": 3, "total_reward": 0.0}, "total_reward 0.0 .*; steps 3"),
            ({"extras": {"speed": "fast"}}, "the extra 'speed' is not a number: 'fast'"),
        ],
    )
    def test_totals_that_contradict_are_refused_and_may_be_given_again(
        self, totals: dict[str, Any], message: str
    ) -> None:
        session = TrainingSession(Sum())
        session.observe(step(0))
        session.observe(step(1, TERMINATED))
        with pytest.raises(InputError, match=message):
            session.on_episode(**totals)
        assert session.episodes == 0
        record = session.on_episode(2.0, 2, TERMINATED, {"speed": 1})
        assert (record.total_reward, record.length, record.extras) == (2.0, 2, {"speed": 1.0})
        assert session.episodes == 1


class TestDropping:
    """With `bad_values="drop"` a bad transition is left out and counted, and nothing is linked across it."""

    def test_one_by_one(self) -> None:
        session = TrainingSession(Sum(), bad_values="drop")
        session.observe(step(0))
        session.observe(step(1, reward=NAN))
        session.observe(step(2))
        session.observe(step(3, next_observation=line(NAN)))
        session.observe(step(NAN, next_observation=line(5)))
        session.observe(step(5, TERMINATED))
        record = session.on_episode()
        assert (session.dropped, session.total_steps, record.length) == (3, 3, 3)
        assert np.isfinite(session.agent.state()["sums"]).all()

    def test_in_batches(self) -> None:
        session = TrainingSession(Sum(), bad_values="drop")
        session.observe_many(batch(0, rewards=np.array([1, NAN, 1])))
        session.observe_many(batch(1, next_observations=changed([line(2)] * 3, 2, INF)))
        session.observe_many(batch(2, observations=changed([line(2)] * 3, 2, INF)))
        assert (session.dropped, session.total_steps) == (3, 6)
        session.observe_many(batch(3))
        assert session.total_steps == 9
        assert np.isfinite(session.agent.state()["sums"]).all()

    def test_in_two_calls(self) -> None:
        session = TrainingSession(Sum(), bad_values="drop")
        stream = session.stream()
        stream.begin(line(0))
        stream.step(line(1), NAN)
        stream.step(line(2), 1.0)
        stream.step(line(NAN), 1.0)
        stream.step(line(4), 1.0)
        stream.step(line(5), 1.0, terminated=True)
        assert (session.dropped, session.total_steps, session.episodes) == (3, 2, 1)
        assert np.isfinite(session.agent.state()["sums"]).all()

    def test_a_batch_says_of_every_stream_that_its_episode_ended(self) -> None:
        session = TrainingSession(Sum(), bad_values="drop")
        session.observe_many(batch(0))
        ended = session.observe_many(batch(1, rewards=np.array([1, NAN, 1]), statuses=np.array([1, 2, 0], np.uint8)))
        assert ended == [0, 1]
        for stream in ended:
            session.on_episode(stream=stream)
        session.observe_many(batch(0, rows=2))
        assert session.episodes == 2

    def test_a_host_may_announce_an_episode_of_which_nothing_was_left(self) -> None:
        session = TrainingSession(Sum(), bad_values="drop")
        session.observe(step(0, TERMINATED, reward=NAN))
        session.on_episode()
        session.observe(step(0, TERMINATED))
        session.on_episode()
        assert (session.dropped, session.total_steps) == (1, 1)

    def test_totals_that_count_what_was_dropped_are_no_contradiction(self) -> None:
        session = TrainingSession(Sum(), bad_values="drop")
        session.observe(step(0))
        session.observe(step(1, reward=NAN))
        session.observe(step(2, TERMINATED))
        record = session.on_episode(total_reward=2.0, steps=3)
        assert (record.total_reward, record.length) == (2.0, 2)

    def test_a_dropped_transition_does_not_make_a_resume_approximate(self, tmp_path: Path) -> None:
        def play(root: Path, *, cut: int) -> TrainingSession:
            for until in (cut, 12):
                with open_session(root, bad_values="drop") as session:
                    stream, env = session.stream(), Broken()
                    action = stream.begin(stream.reset(env))
                    while session.total_steps < until:
                        observation, reward, terminated, truncated, _ = env.step(action)
                        action = stream.step(observation, reward, terminated, truncated)
                        if action is None:
                            action = stream.begin(stream.reset(env))
                    session.stop("enough")
            return session

        whole = play(tmp_path / "whole", cut=12)
        for cut in range(1, 12):
            session = play(tmp_path / str(cut), cut=cut)
            assert session.resumed is not None
            assert (cut, session.resumed.lost) == (cut, ())
            assert digests(session) == digests(whole)

    def test_the_count_outlives_a_resume(self, tmp_path: Path) -> None:
        for count in (1, 2):
            with open_session(tmp_path, bad_values="drop") as session:
                session.observe(step(0, reward=NAN), stream=count)
                session.stop("enough")
            assert session.dropped == count

    def test_logs_stay_strict_json(self, tmp_path: Path) -> None:
        with open_session(tmp_path, bad_values="drop") as session:
            session.log("odd", NAN)
            session.observe(step(0, reward=NAN))
            session.observe(step(1, TERMINATED))
            session.log("odd", INF)
            session.on_episode(extras={"odd": NAN, "even": -INF})
            session.on_eval_episode(rekindle.EpisodeRecord(1.0, 1, TERMINATED, {"odd": NAN}))
        assert session.run is not None
        texts = [log.read_text() for log in session.run.path.glob("*.jsonl")]
        assert len(texts) == 4
        for text in "".join(texts).splitlines():
            json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
        assert session.run.reader.train_episodes()[0]["extras"] == {"odd": None, "even": None}


class Broken:
    """An environment whose sensor fails every third step."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._place, self._rng = 0, np.random.default_rng(seed)
        return line(0), {}

    def step(self, action: Any) -> Any:
        self._place += 1
        noise = float(self._rng.normal())
        seen = line(NAN) if self._place % 3 == 2 else line(self._place + noise)
        return seen, noise, False, self._place == 7, {}


def left_by_with(session: TrainingSession, body: Callable[[], None]) -> None:
    with session:
        body()


def left_by_close(session: TrainingSession, body: Callable[[], None]) -> None:
    try:
        body()
    finally:
        session.close()


LEAVE = {"with": left_by_with, "close": left_by_close}


class TestAgents:
    @pytest.mark.parametrize("member", ["act", "observe", "updates_due", "update", "state", "load_state"])
    def test_one_without_a_method_is_refused_by_name(self, member: str) -> None:
        members = {name: value for name, value in vars(Sum).items() if name != member}
        with pytest.raises(ConfigError, match=f"Lame is not a LearningAgent: it has no {member}"):
            TrainingSession(cast("Any", type("Lame", (), members)()))

    def test_one_that_is_none_is_told_all_that_it_lacks(self) -> None:
        with pytest.raises(ConfigError, match=r"object is not a LearningAgent: it has no act, .*env_steps, updates"):
            TrainingSession(object())  # type: ignore[arg-type]

    @pytest.mark.parametrize("value", [NAN, INF, np.float32(NAN), np.array([1.0, NAN]), np.array(-INF)])
    @pytest.mark.parametrize("leave", ["with", "close"])
    def test_a_loss_that_is_not_finite_ends_the_run_before_anything_of_it_is_saved(
        self, tmp_path: Path, value: Any, leave: str
    ) -> None:
        session = open_session(tmp_path)
        agent: Any = session.agent
        path = session.run.path if session.run else tmp_path

        def diverge() -> None:
            for place in range(4):
                session.observe(step(place))
            session.flush()
            agent.metrics = lambda: {"loss": value}
            for place in range(4, 20):
                session.observe(step(place))

        with pytest.raises(AgentError, match="agent/loss is not finite: training has diverged"):
            LEAVE[leave](session, diverge)
        metadata = rekindle.RunReader(path).metadata
        assert metadata.status == "failed"
        assert rekindle.verify(path).ok
        steps = sorted(int(file.stem[5:]) for file in (path / "checkpoints").glob("step_*.mpk"))
        assert steps == [3]
        with open_session(tmp_path) as session:
            assert session.resumed is not None
            assert session.total_steps == 3

    def test_a_diverged_agent_is_not_saved_on_request_either(self, tmp_path: Path) -> None:
        session = open_session(tmp_path)
        agent: Any = session.agent
        agent.metrics = lambda: {"loss": NAN}
        with pytest.raises(AgentError):
            session.observe(step(0))
        with pytest.raises(AgentError):
            session.checkpoint(wait=True)
        session.close()
        assert session.run is not None
        assert not list(session.run.path.glob("checkpoints/*.mpk"))

    @pytest.mark.parametrize("method", ["act", "observe", "update", "updates_due"])
    @pytest.mark.parametrize("leave", ["with", "close"])
    def test_one_that_raises_fails_the_run_with_the_last_good_checkpoint_kept(
        self, tmp_path: Path, method: str, leave: str
    ) -> None:
        class Moody(Sum):
            is_moody = False

        def raising(self: Any, *arguments: Any) -> Any:
            if self.is_moody:
                raise ZeroDivisionError("no mood")
            return getattr(Sum, method)(self, *arguments)

        setattr(Moody, method, raising)
        agent = Moody()
        session = TrainingSession.open("moody", agent, root=tmp_path, checkpoint_every=3)

        def play() -> None:
            for place in range(20):
                agent.is_moody = place == 4
                session.act(line(place))
                session.observe(step(place))

        with pytest.raises(ZeroDivisionError, match="no mood"):
            LEAVE[leave](session, play)
        assert session.run is not None
        reader = rekindle.RunReader(session.run.path)
        if leave == "with":
            assert (reader.metadata.status, reader.metadata.stop_reason) == ("failed", "ZeroDivisionError: no mood")
        assert rekindle.verify(reader.path).ok
        assert reader.metadata.status == "failed"
        with TrainingSession.open("moody", Sum(), root=tmp_path) as resumed:
            assert resumed.total_steps == 3

    def test_one_that_does_not_count_its_steps_is_found_out_at_the_checkpoint(self, tmp_path: Path) -> None:
        class Careless(Sum):
            def observe(self, transitions: Transitions, streams: Any) -> None:
                super().observe(transitions, streams)
                self.env_steps = 1

        with (
            pytest.raises(AgentError, match=r"Careless.env_steps is 1 after 3 transitions: observe must add"),
            TrainingSession.open("careless", Careless(), root=tmp_path, checkpoint_every=3) as session,
        ):
            train(session)
        assert session.run is not None
        assert rekindle.RunReader(session.run.path).metadata.status == "failed"
        assert not list(session.run.path.glob("checkpoints/*.mpk"))

    def test_one_that_forgets_its_steps_is_found_out_at_the_resume(self, tmp_path: Path) -> None:
        class Forgetful(Sum):
            def load_state(self, state: dict[str, Any]) -> None:
                super().load_state({**state, "counts": [0, 0]})

        with open_session(tmp_path) as session:
            train(session)
            session.stop("enough")
        with pytest.raises(AgentError, match="taken after 10 env steps, but the agent reports 0 after loading it"):
            TrainingSession.open("bad", Forgetful(), root=tmp_path)

    @pytest.mark.parametrize(
        ("value", "named"),
        [
            (object(), "agent.sums is a object"),
            ({1: 2}, "agent.sums has the key 1"),
            (np.array([None]), "agent.sums is an array of object"),
            (2**70, "agent.sums is an int beyond 64 bits"),
            ((1, 2), "agent.sums is a tuple"),
        ],
    )
    def test_a_state_that_cannot_be_saved_is_refused_at_the_start(self, tmp_path: Path, value: Any, named: str) -> None:
        class Odd(Sum):
            def state(self) -> dict[str, Any]:
                return {**super().state(), "sums": value}

        with pytest.raises(StateError, match=named):
            TrainingSession.open("odd", Odd(), root=tmp_path)
        with TrainingSession.open("odd", Sum(), root=tmp_path):  # nothing is locked
            pass

    def test_a_state_that_cannot_be_saved_any_more_is_reported_and_the_older_checkpoint_stays(
        self, tmp_path: Path
    ) -> None:
        class Spoilt(Sum):
            def state(self) -> dict[str, Any]:
                return {**super().state(), "odd": object() if self.env_steps > 4 else None}

        warned: list[str] = []
        session = TrainingSession.open(
            "spoilt",
            Spoilt(),
            root=tmp_path,
            checkpoint_every=3,
            callbacks=[lambda event: warned.append(event.message) if isinstance(event, Warned) else None],
        )
        train(session)
        with pytest.raises(StateError, match=r"agent\.odd is a object, which cannot be saved"):
            session.close()
        assert session.checkpoint_failures >= 2
        assert any("a checkpoint could not be saved; the previous one is kept" in text for text in warned)
        assert session.run is not None
        assert [file.name for file in session.run.path.glob("checkpoints/step_*.mpk")] == ["step_3.mpk"]

    @pytest.mark.parametrize(("value", "named"), [(object(), "attached"), (np.array(["a"]), "attached")])
    def test_an_attached_object_that_cannot_be_saved_is_named(self, tmp_path: Path, value: Any, named: str) -> None:
        class World:
            inner = value

            def state(self) -> Any:
                return {"inner": self.inner}

            def load_state(self, state: Any) -> None: ...

        with open_session(tmp_path, checkpoint_every=None) as session:
            world = World()
            session.attach("world", world)
            with pytest.raises(StateError, match=r"attached\['world'\].*inner"):
                session.checkpoint()
            world.inner = 0  # so that the session can be closed

    def test_what_cannot_be_attached_is_refused(self) -> None:
        session = TrainingSession(Sum())
        with pytest.raises(ConfigError, match=r"attach\('world'\): object has no state and no load_state"):
            session.attach("world", object())  # type: ignore[arg-type]
        session.attach("twin", Sum())
        with pytest.raises(ConfigError, match="that name is taken"):
            session.attach("twin", Sum())

    def test_a_metric_that_is_no_number_is_named(self, tmp_path: Path) -> None:
        session = TrainingSession(Sum(), metrics_every=2)
        agent: Any = session.agent
        agent.metrics = lambda: {"mood": "good"}
        with pytest.raises(InputError, match="the metric 'agent/mood' is not a number: 'good'"):
            train(session)


class TestSettings:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("max_steps", -1),
            ("max_steps", 1.5),
            ("checkpoint_every", 0),
            ("checkpoint_every", -5),
            ("checkpoint_every", True),
            ("metrics_every", -1),
            ("metrics_every", "often"),
            ("seed", -1),
            ("learner", "lazy"),
            ("bad_values", "keep"),
            ("keep_checkpoints", 0),
            ("keep_checkpoints", -2),
        ],
    )
    def test_what_is_out_of_range_is_refused_by_name_and_value(self, tmp_path: Path, option: str, value: Any) -> None:
        run = TrainingRun.create("settings", root=tmp_path)
        with pytest.raises(ConfigError) as caught:
            TrainingSession(Sum(), run=run, **{option: value})
        run.close()
        assert str(value) in str(caught.value)
        assert option in str(caught.value) or "KeepLast" in str(caught.value)

    @pytest.mark.parametrize("every", [0, -3, 2.5])
    def test_an_interval_that_is_none_is_refused(self, every: Any) -> None:
        with pytest.raises(ConfigError, match=f"every is {every}"):
            TrainingSession(Sum()).every(every, lambda: None)

    def test_another_seed_than_that_of_the_run_is_refused(self, tmp_path: Path) -> None:
        with open_session(tmp_path, seed=3) as session:
            session.stop("enough")
        with pytest.raises(ConfigError, match=r"seed 4 was given, but .* was made with 3"):
            open_session(tmp_path, seed=4)
        open_session(tmp_path, seed=3).close()

    def test_a_checkpoint_needs_a_run(self) -> None:
        with pytest.raises(ConfigError, match=r"checkpoint\(\) needs a run"):
            TrainingSession(Sum()).checkpoint()

    def test_learn_needs_a_manual_learner(self) -> None:
        with pytest.raises(ConfigError, match="learner='manual'"):
            TrainingSession(Sum()).learn()

    def test_a_background_learner_needs_a_policy(self) -> None:
        with pytest.raises(ConfigError, match=r"needs an agent with policy\(\), which Sum lacks"):
            TrainingSession(Sum(), learner="background")


class TestRuns:
    def test_a_directory_that_is_no_run_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "notes.txt").write_text("x")
        for path in (tmp_path, tmp_path / "nowhere", tmp_path / "notes.txt"):
            with pytest.raises(RunError, match=str(path)):
                TrainingRun.resume(path)
            with pytest.raises(RunError, match=str(path)):
                rekindle.verify(path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt"]

    def test_a_run_in_use_is_refused_and_the_holder_is_named(self, tmp_path: Path) -> None:
        with open_session(tmp_path) as session:
            with pytest.raises(RunLocked, match=rf"is being written by process {os.getpid()} on .*rekindle stop"):
                open_session(tmp_path)
            train(session)

    def test_a_config_that_is_no_json_is_refused(self, tmp_path: Path) -> None:
        with open_session(tmp_path) as session:
            assert session.run is not None
            with pytest.raises(ConfigError, match="cannot be written as JSON"):
                session.run.write_config({"env": object()})
            session.run.write_config({"env": "Line"})
            assert session.run.read_config() == {"env": "Line"}


class FullDisk:
    """Makes every write and sync below a directory fail while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.is_full = False
        self._root = str(root)
        self._write = os.write
        monkeypatch.setattr(os, "write", self._refuse)

    def _refuse(self, descriptor: int, data: Any) -> int:
        if self.is_full and os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._root):
            half = len(data) // 2
            if half and len(data) % 2:  # now and then a part still fits
                return self._write(descriptor, memoryview(data)[:half])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(descriptor, data)


class TestFullDisk:
    @pytest.fixture
    def disk(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FullDisk:
        return FullDisk(monkeypatch, tmp_path)

    def test_training_goes_on_and_nothing_is_lost(
        self, tmp_path: Path, expected: Mapping[str, str | None], disk: FullDisk
    ) -> None:
        warned: list[str] = []
        session = open_session(
            tmp_path, callbacks=[lambda event: warned.append(event.message) if hasattr(event, "message") else None]
        )
        with session:
            for place in range(10):
                disk.is_full = 2 <= place < 8
                session.observe(step(place % 5, TERMINATED if place % 5 == 4 else CONTINUING))
                if place % 5 == 4:
                    session.on_episode()
                session.flush()
        assert session.checkpoint_failures == 2
        assert any("rows are held in memory" in text for text in warned)
        assert any("a checkpoint could not be saved" in text for text in warned)
        assert digests(session) == expected
        assert session.run is not None
        assert not list(session.run.path.rglob("*.tmp"))

    def test_one_warning_for_each_log_tells_that_it_is_full_until_there_is_room(
        self, tmp_path: Path, disk: FullDisk, caplog: pytest.LogCaptureFixture
    ) -> None:
        logs = ("train_episodes.jsonl", "metrics.jsonl", "warnings.jsonl")
        with open_session(tmp_path, checkpoint_every=None, metrics_every=5) as session:
            for outage in (1, 2):
                disk.is_full = True
                for place in range(100):
                    session.observe(step(place % 5, TERMINATED if place % 5 == 4 else CONTINUING))
                    if place % 5 == 4:
                        session.on_episode()
                    session.flush()
                held = [record.message for record in caplog.records if "rows are held in memory" in record.message]
                assert [sum(log in text for text in held) for log in logs] == [outage] * 3
                disk.is_full = False
                session.warn("there is room")
                for place in range(5):
                    session.observe(step(place, TERMINATED if place == 4 else CONTINUING))
                session.on_episode()
                session.flush()
        assert session.run is not None
        assert len(rekindle.RunReader(session.run.path).train_episodes()) == 42

    def test_what_was_saved_before_stays_and_a_crash_while_it_is_full_costs_only_what_came_after(
        self, tmp_path: Path, expected: Mapping[str, str | None], disk: FullDisk
    ) -> None:
        session = open_session(tmp_path)
        for place in range(4):
            session.observe(step(place))
        session.checkpoint(wait=True)
        disk.is_full = True
        session.observe(step(4, TERMINATED))
        session.on_episode()
        with pytest.raises(StorageError, match="No space left on device"):
            session.checkpoint(wait=True)
        with pytest.raises(StorageError, match="No space left on device"):
            session.close()
        disk.is_full = False
        with open_session(tmp_path) as session:
            assert session.resumed is not None
            assert (session.resumed.step, session.resumed.grade) == (4, "exact")
            session.observe(step(4, TERMINATED))
            session.on_episode()
            for place in range(5):
                session.observe(step(place, TERMINATED if place == 4 else CONTINUING))
            session.on_episode()
        assert digests(session) == expected

    def test_a_run_cannot_be_made_and_says_so(self, tmp_path: Path, disk: FullDisk) -> None:
        disk.is_full = True
        with pytest.raises(StorageError, match="No space left on device"):
            open_session(tmp_path)
        disk.is_full = False
        with open_session(tmp_path) as session:
            train(session)


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = {thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("rekindle")}
    # Sessions without a run that a test never closed keep their processor; those with a run have closed.
    assert left <= {"rekindle-events"}


def test_a_digest_differs_for_different_trainings(tmp_path: Path, expected: Mapping[str, str | None]) -> None:
    with open_session(tmp_path) as session:
        train(session)
        session.observe(step(0))
    assert all(digests(session)[name] != value for name, value in expected.items())
    assert codec.tree_digest({"a": 1}) != codec.tree_digest({"a": 2})

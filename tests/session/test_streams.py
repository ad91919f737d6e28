"""Streams: two calls make an episode of what a host sees, and an open one is replayed after a resume."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import Corridor, PolicyAgent, ToyAgent, drive, line, move

from rekindle import TrainingSession, verify
from rekindle.errors import InputError
from rekindle.experience import ActMode, Array, EpisodeStatus, Experience, Transitions
from rekindle.rng import episode_seed


class Watching(PolicyAgent):
    """Keeps every transition it was given."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.transitions: list[tuple[Experience, int]] = []

    def observe(self, transitions: Transitions, streams: Array) -> None:
        super().observe(transitions, streams)
        self.transitions += zip(transitions.copy().experiences(), streams.tolist(), strict=True)


def session_of(agent: Any = None, **options: Any) -> TrainingSession:
    return TrainingSession(ToyAgent() if agent is None else agent, **options)


@contextlib.contextmanager
def opened(root: Path, agent: Any = None, **options: Any) -> Generator[TrainingSession]:
    """A session on the run of this directory, new or resumed."""
    agent = ToyAgent() if agent is None else agent
    with TrainingSession.open("walk", agent, root=root, checkpoint_every=None, **options) as session:
        yield session


# The two calls


def test_begin_and_step_make_the_transitions() -> None:
    agent = Watching()
    stream = session_of(agent).stream()
    actions = [stream.begin(line(0)), stream.step(line(1), 0.5), stream.step(line(2), 0.25)]
    assert stream.step(line(3), 2.0, terminated=True) is None
    seen = [experience for experience, _ in agent.transitions]
    assert [float(item.observation[0]) for item in seen] == [0.0, 1.0, 2.0]
    assert [float(item.next_observation[0]) for item in seen] == [1.0, 2.0, 3.0]
    assert [int(item.action) for item in seen] == [int(action) for action in actions]
    assert [item.reward for item in seen] == [0.5, 0.25, 2.0]
    assert [item.status for item in seen] == [0, 0, EpisodeStatus.TERMINATED]


@pytest.mark.parametrize(
    ("terminated", "truncated", "status"),
    [
        (True, False, EpisodeStatus.TERMINATED),
        (False, True, EpisodeStatus.TRUNCATED),
        (True, True, EpisodeStatus.TERMINATED),
    ],
)
def test_the_end_of_an_episode_is_announced_by_the_stream(
    terminated: bool, truncated: bool, status: EpisodeStatus, tmp_path: Path
) -> None:
    with opened(tmp_path) as session:
        stream = session.stream()
        stream.begin(line(0))
        stream.step(line(1), 0.5)
        stream.step(line(2), 1.5, terminated, truncated, {"hits": 3})
        assert session.run is not None
        (row,) = session.run.reader.train_episodes()
    assert (session.episodes, row["total_reward"], row["length"]) == (1, 2.0, 2)
    assert (row["status"], row["extras"]) == (status.label, {"hits": 3.0})


def test_a_stream_knows_whether_an_episode_is_open_and_which() -> None:
    stream = session_of().stream()
    states = [(stream.is_open, stream.episode)]
    stream.begin(line(0))
    states.append((stream.is_open, stream.episode))
    stream.step(line(1), 0.0)
    states.append((stream.is_open, stream.episode))
    stream.step(line(2), 0.0, terminated=True)
    states.append((stream.is_open, stream.episode))
    assert states == [(False, 0), (True, 0), (True, 0), (False, 1)]


def test_begin_closes_an_open_episode_as_truncated() -> None:
    agent = Watching()
    session = session_of(agent)
    stream = session.stream()
    stream.begin(line(0))
    stream.step(line(1), 0.5)
    stream.begin(line(9))
    assert (session.episodes, stream.episode) == (1, 1)
    assert agent.cuts == [[0]]


def test_an_episode_without_a_transition_is_not_counted() -> None:
    session = session_of()
    stream = session.stream()
    stream.begin(line(0))
    stream.begin(line(9))
    assert session.episodes == 0


def test_step_before_begin_is_refused() -> None:
    stream = session_of().stream()
    with pytest.raises(InputError, match="step was called before begin"):
        stream.step(line(1), 0.5)


def test_step_after_the_end_is_refused() -> None:
    stream = session_of().stream()
    stream.begin(line(0))
    stream.step(line(1), 0.5, terminated=True)
    with pytest.raises(InputError, match="step was called before begin"):
        stream.step(line(2), 0.5)


def test_two_handles_of_one_stream_are_the_same_stream() -> None:
    session = session_of()
    session.stream("npc").begin(line(0))
    assert session.stream("npc").is_open
    session.stream("npc").step(line(1), 0.5, terminated=True)
    assert session.episodes == 1


def test_streams_do_not_mix() -> None:
    agent = Watching()
    session = session_of(agent)
    left, right = session.stream("left"), session.stream("right")
    left.begin(line(0))
    right.begin(line(100))
    left.step(line(1), 1.0)
    right.step(line(101), 2.0)
    left.step(line(2), 1.0, terminated=True)
    assert [(float(item.observation[0]), slot) for item, slot in agent.transitions] == [(0, 0), (100, 1), (1, 0)]
    assert right.is_open


def test_abandoning_closes_an_episode_at_its_last_transition(tmp_path: Path) -> None:
    agent = Watching()
    with opened(tmp_path, agent) as session:
        stream = session.stream("npc")
        stream.begin(line(0))
        stream.step(line(1), 0.5)
        stream.step(line(2), 0.5)
        stream.abandon()
        assert session.run is not None
        (row,) = session.run.reader.train_episodes()
    assert (row["status"], row["length"], row["stream"]) == ("truncated", 2, "npc")
    assert agent.cuts == [[0]]
    assert not stream.is_open


def test_abandoning_where_nothing_is_open_is_no_error() -> None:
    session = session_of()
    session.stream().abandon()
    assert session.episodes == 0


def test_a_refused_step_changes_nothing() -> None:
    agent = Watching()
    session = session_of(agent)
    stream = session.stream()
    stream.begin(line(0))
    for observation, reward, extras in (
        (np.zeros(2, np.float32), 1.0, None),
        (line(1), "much", None),
        (line(1), np.nan, None),
        (line(np.nan), 1.0, None),
        (line(1), 1.0, {"name": "x"}),
    ):
        with pytest.raises(InputError):
            stream.step(observation, reward, True, extras=extras)  # type: ignore[arg-type]
    assert (session.total_steps, session.episodes, agent.transitions) == (0, 0, [])
    stream.step(line(1), 1.0)
    assert session.total_steps == 1


# What cannot follow


def test_a_transition_across_a_reset_is_refused() -> None:
    session = session_of()
    session.observe(move(0))
    with pytest.raises(InputError, match=r"is not the last one seen.*reset without the end"):
        session.observe(move(7))


def test_a_transition_after_the_end_waits_for_the_announcement() -> None:
    session = session_of()
    session.observe(move(0, status=1))
    for call in (lambda: session.observe(move(5)), lambda: session.act(line(5))):
        with pytest.raises(InputError, match=r"call on_episode\(stream=0\) first"):
            call()
    session.on_episode()
    session.observe(move(5))


def test_totals_that_contradict_the_transitions_are_refused() -> None:
    session = session_of()
    session.observe(move(0, reward=0.5))
    session.observe(move(1, reward=0.5, status=1))
    with pytest.raises(InputError, match=r"total_reward 2\.0 was given, 1\.0 was counted; steps 3 was given"):
        session.on_episode(2.0, 3)
    record = session.on_episode(1.0, 2, EpisodeStatus.TERMINATED)
    assert (record.total_reward, record.length) == (1.0, 2)


def test_an_end_without_a_last_transition_is_refused() -> None:
    session = session_of()
    session.observe(move(0))
    with pytest.raises(InputError, match="no episode has ended there"):
        session.on_episode()


def test_an_action_other_than_the_one_handed_out_is_taken_as_executed() -> None:
    agent = Watching()
    session = session_of(agent)
    session.act(line(0))
    session.observe(move(0, action=7))
    assert int(agent.transitions[0][0].action) == 7


# Dropping


def test_a_dropped_transition_is_counted_and_links_nothing() -> None:
    agent = Watching()
    session = session_of(agent, bad_values="drop")
    stream = session.stream()
    stream.begin(line(0))
    stream.step(line(1), 1.0)
    stream.step(line(np.nan), 1.0)
    stream.step(line(3), 1.0)
    stream.step(line(4), 1.0, terminated=True)
    seen = [(float(item.observation[0]), float(item.next_observation[0])) for item, _ in agent.transitions]
    assert seen == [(0.0, 1.0), (3.0, 4.0)]
    assert (session.dropped, session.total_steps, session.episodes) == (2, 2, 1)
    assert agent.cuts == [[0]]


def test_both_forms_drop_the_same_transitions() -> None:
    two_calls, one_call = session_of(bad_values="drop"), session_of(bad_values="drop")
    stream = two_calls.stream()
    stream.begin(line(0))
    path = [0.0, 1.0, np.nan, np.nan, 4.0, 5.0, 6.0]
    for before, after in itertools.pairwise(path):
        stream.step(line(after), 1.0)
        one_call.observe(Experience(line(before), 0, 1.0, line(after)))
    assert (two_calls.dropped, two_calls.total_steps) == (one_call.dropped, one_call.total_steps) == (3, 3)


# Acting greedily


def test_exploiting_touches_nothing() -> None:
    agent, control = ToyAgent(), ToyAgent()
    session, quiet = session_of(agent), session_of(control)
    for watched, exploits in ((session, True), (quiet, False)):
        env = Corridor()
        stream = watched.stream()
        action = stream.begin(stream.reset(env))
        for _ in range(40):
            observation, reward, terminated, truncated, _ = env.step(action)
            action = stream.step(observation, reward, terminated, truncated)
            if exploits:
                watched.act(np.zeros(2, np.float32), ActMode.EXPLOIT)
                watched.act_many(np.zeros((1, 2), np.float32), ActMode.EXPLOIT)
            if action is None:
                action = stream.begin(stream.reset(env))
    np.testing.assert_array_equal(agent.state()["weights"]["all"], control.state()["weights"]["all"])
    assert repr(session._parts.state()) == repr(quiet._parts.state())


def test_exploiting_is_allowed_while_an_end_is_not_announced() -> None:
    session = session_of()
    session.observe(move(0, status=1))
    session.act(line(5), ActMode.EXPLOIT)
    session.on_episode()


def test_exploiting_makes_no_stream() -> None:
    session = session_of()
    session.act(line(0), ActMode.EXPLOIT, stream="evaluation")
    session.act_many(np.zeros((4, 1), np.float32), ActMode.EXPLOIT)
    assert session._parts.state()["streams"]["table"]["ids"] == []


# Seeds and resets


def test_every_episode_is_reset_with_a_seed_of_its_own() -> None:
    env, session = Corridor(limit=3), session_of(seed=5)
    drive(session, env, until=20)
    assert [seed for seed, _ in env.resets] == [episode_seed(5, 0, number) for number in range(len(env.resets))]
    assert len(env.resets) > 3


def test_the_seed_can_be_asked_for() -> None:
    stream = session_of(seed=5).stream("npc")
    assert stream.episode_seed == episode_seed(5, "npc", 0)
    stream.begin(line(0))
    stream.step(line(1), 0.0, terminated=True)
    assert stream.episode_seed == episode_seed(5, "npc", 1)


def test_reset_passes_options_on_and_keeps_the_info() -> None:
    env, stream = Corridor(), session_of().stream()
    stream.reset(env, options={"level": 3})
    assert env.resets == [(stream.episode_seed, {"level": 3})]
    assert stream.info == {"seed": stream.episode_seed}


def test_begin_must_be_given_what_reset_returned() -> None:
    stream = session_of().stream()
    observation = stream.reset(Corridor())
    with pytest.raises(InputError, match="begin needs the observation that reset returned"):
        stream.begin(observation + 1)
    stream.begin(observation)


def test_announcing_a_start_after_the_reset_keeps_the_episode() -> None:
    session = session_of()
    stream = session.stream()
    observation = stream.reset(Corridor())
    session.on_episode_start()
    assert stream.episode == 0
    stream.begin(observation)


# Resuming


def whole(root: Path, *, steps: int = 100) -> dict[str, str | None]:
    """The digests of a walk that nobody interrupts."""
    with opened(root / "whole", max_steps=steps) as session:
        drive(session)
    return verify(root / "whole" / "walk").digests


@pytest.mark.parametrize("stop", [1, 9, 31, 60])
def test_an_open_episode_is_lived_again_and_the_run_is_the_same(tmp_path: Path, stop: int) -> None:
    with opened(tmp_path, max_steps=100) as session:
        drive(session, until=stop)
        session.stop("enough for today")
    env = Corridor()
    with opened(tmp_path, max_steps=100) as session:
        drive(session, env)
        assert session.resumed is not None
        assert (session.resumed.step, session.resumed.grade, session.resumed.lost) == (stop, "exact", ())
    assert verify(tmp_path / "walk").digests == whole(tmp_path)


def test_the_options_of_the_reset_are_repeated(tmp_path: Path) -> None:
    env = Corridor()
    with opened(tmp_path) as session:
        stream = session.stream()
        stream.begin(stream.reset(env, options={"level": 3}))
        session.stop()
    with opened(tmp_path) as session:
        session.stream().reset(env)
    assert env.resets[0] == env.resets[1] == (episode_seed(0, 0, 0), {"level": 3})


def test_resetting_twice_after_a_resume_lives_the_episode_twice(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        drive(session, until=5)
        session.stop()
    with opened(tmp_path) as session:
        stream = session.stream()
        first, second = stream.reset(Corridor()), stream.reset(Corridor())
        np.testing.assert_array_equal(first, second)
        stream.begin(second)
        assert session.resumed is not None
        assert session.resumed.grade == "exact"


def test_a_world_that_goes_another_way_closes_the_episode_and_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        drive(session, until=5)
        session.stop()
        episodes, number = session.episodes, session.stream().episode
    env = Corridor(wind=0.1)
    with opened(tmp_path) as session:
        stream = session.stream()
        stream.begin(stream.reset(env))
        assert session.resumed is not None
        assert session.resumed.grade == "approximate"
        assert "the open episode of stream 0" in session.resumed.lost[-1]
        assert (session.episodes, stream.episode) == (episodes + 1, number + 1)
        assert session.run is not None
        assert session.run.reader.train_episodes()[-1]["status"] == "truncated"
    assert [seed for seed, _ in env.resets] == [episode_seed(0, 0, number), episode_seed(0, 0, number + 1)]
    metadata = session.run.reader.metadata
    assert ([resume.grade for resume in metadata.resumes], metadata.exact) == (["approximate"], False)


def test_begin_on_an_episode_that_was_open_closes_it_and_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        stream = session.stream()
        stream.begin(line(0))
        stream.step(line(1), 0.5)
        session.stop()
    with opened(tmp_path) as session:
        session.stream().begin(line(50))
        assert session.resumed is not None
        assert session.resumed.lost == ("the open episode of stream 0 (1 steps) was closed as truncated",)
        assert session.episodes == 1


def with_open_episodes(root: Path, streams: int) -> None:
    """Stop a session with so many open episodes of one step."""
    with opened(root) as session:
        before, after = (np.stack([line(at)] * streams) for at in (0, 1))
        actions = session.act_many(before)
        session.observe_many(
            Transitions(before, actions, np.zeros(streams), after, np.zeros(streams, np.uint8)),
        )
        session.stop()


def test_many_open_episodes_that_a_batch_closes_are_one_loss(tmp_path: Path) -> None:
    with_open_episodes(tmp_path, 30)
    with opened(tmp_path) as session:
        observations = np.stack([line(50)] * 30)
        actions = session.act_many(observations)
        session.observe_many(
            Transitions(observations, actions, np.zeros(30), observations, np.zeros(30, np.uint8)),
        )
        assert session.resumed is not None
        (lost,) = session.resumed.lost
        assert lost.startswith("the open episodes of 30 streams were closed as truncated: stream 0 (1 steps), ")
        assert lost.endswith("stream 4 (1 steps) and 25 more")
        assert session.episodes == 30


def test_the_losses_of_a_resume_that_are_listed_are_bounded(tmp_path: Path) -> None:
    with_open_episodes(tmp_path, 30)
    with opened(tmp_path) as session:
        for stream in range(30):
            session.stream(stream).begin(line(50))
        assert session.resumed is not None
        lost = session.resumed.lost
        assert len(lost) == 21
        assert lost[19:] == (
            "the open episode of stream 19 (1 steps) was closed as truncated",
            "further losses are not listed",
        )
        assert session.episodes == 30
    assert session.run is not None
    assert session.run.reader.metadata.resumes[-1].lost == lost


def test_a_host_that_brought_its_own_world_back_goes_on_exactly(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        stream = session.stream()
        stream.begin(line(0))
        action = stream.step(line(1), 0.5)
        session.stop()
    with opened(tmp_path) as session:
        stream = session.stream()
        assert stream.is_open
        assert stream.resume(line(1)) == action
        stream.step(line(2), 0.5, terminated=True)
        assert session.resumed is not None
        assert (session.resumed.grade, session.episodes) == ("exact", 1)


def test_going_on_from_another_observation_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.stream().begin(line(0))
        session.stop()
    with opened(tmp_path) as session:
        with pytest.raises(InputError, match=r"cannot continue from .*the last was .*0\."):
            session.stream().resume(line(1))
        with pytest.raises(InputError, match="no episode is open"):
            session.stream(1).resume(line(0))


def test_an_action_that_was_handed_out_is_handed_out_again(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.observe(move(0))
        actions = [int(session.act(line(1))) for _ in range(8)]
        session.stop()
    with opened(tmp_path) as session:
        assert int(session.act(line(1))) == actions[-1]


def test_an_action_is_handed_out_again_once(tmp_path: Path) -> None:
    straight = session_of()
    straight.observe(move(0))
    expected = [int(straight.act(line(1))) for _ in range(12)]
    with opened(tmp_path) as session:
        session.observe(move(0))
        first = [int(session.act(line(1))) for _ in range(4)]
        session.stop()
    with opened(tmp_path) as session:
        rest = [int(session.act(line(1))) for _ in range(9)]
    assert [*first[:-1], *rest] == expected


def test_an_action_drawn_after_a_resume_is_not_taken_for_one_drawn_before(tmp_path: Path) -> None:
    straight = session_of()
    straight.observe(move(0))
    expected = [int(straight.act(line(1))) for _ in range(12)]
    with opened(tmp_path) as session:
        session.observe(move(0))
        session.stop()
    with opened(tmp_path) as session:
        assert [int(session.act(line(1))) for _ in range(12)] == expected


def test_actions_of_a_batch_that_were_handed_out_are_handed_out_again(tmp_path: Path) -> None:
    observations = np.zeros((4, 1), np.float32)
    with opened(tmp_path) as session:
        actions = session.act_many(observations)
        session.stop()
    with opened(tmp_path) as session:
        np.testing.assert_array_equal(session.act_many(observations), actions)


def test_a_restored_episode_goes_on_with_act_and_observe_too(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.observe(move(0))
        session.stop()
    with opened(tmp_path) as session:
        session.observe(move(1, status=1))
        assert session.on_episode().length == 2
        assert session.resumed is not None
        assert session.resumed.grade == "exact"


def test_an_observation_from_elsewhere_closes_a_restored_episode_and_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.observe(move(0))
        session.stop()
    with opened(tmp_path) as session:
        session.act(line(50))
        session.observe(move(50))
        assert session.resumed is not None
        assert session.resumed.grade == "approximate"
        assert session.episodes == 1


def test_another_first_observation_than_before_is_said(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        session.act(line(0))
        session.stop()
    with opened(tmp_path) as session:
        session.act(line(50))
        assert session.resumed is not None
        assert session.resumed.grade == "approximate"


def test_an_episode_that_was_reset_and_not_begun_is_lived_again_exactly(tmp_path: Path) -> None:
    with opened(tmp_path, max_steps=100) as session:
        session.stream().reset(Corridor())
        session.stop()
    with opened(tmp_path, max_steps=100) as session:
        drive(session)
        assert session.resumed is not None
        assert (session.resumed.grade, session.resumed.lost) == ("exact", ())
    assert verify(tmp_path / "walk").digests == whole(tmp_path)


def test_streams_keep_their_names_over_a_resume(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        for name in ("left", 7, "right"):
            session.stream(name).begin(line(0))
        session.stop()
    with opened(tmp_path) as session:
        assert [session.stream(name).is_open for name in ("left", 7, "right", "7")] == [True, True, True, False]


def test_a_world_that_the_host_brought_back_goes_on_at_the_newest_observation(tmp_path: Path) -> None:
    with opened(tmp_path) as session:
        stream = session.stream("npc")
        stream.begin(line(0))
        stream.step(line(1), 0.5)
        with pytest.raises(InputError, match="stream 'npc': no episode was open there before a resume"):
            stream.bring_back()
        session.stop()
    with opened(tmp_path) as session:
        stream = session.stream("npc")
        observation = stream.bring_back()
        assert observation.tolist() == [1.0]
        assert stream.begin(observation) is not None
        stream.step(line(2), 0.25)
        assert (stream.length, stream.total_reward) == (2, 0.75)
        assert session.resumed is not None
        assert session.resumed.grade == "exact"
        session.stop()

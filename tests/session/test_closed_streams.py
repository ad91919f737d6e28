"""Streams that are closed are forgotten, so that a session may see any number of them; long episodes stay bounded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import Corridor, PolicyAgent, ToyAgent, drive, line

from rekindle import TrainingSession, traces, verify
from rekindle.errors import InputError


def test_closing_a_stream_ends_its_episode_as_truncated() -> None:
    agent = PolicyAgent()
    session = TrainingSession(agent)
    stream = session.stream("npc")
    stream.begin(line(0))
    stream.step(line(1), 1.0)
    stream.close()
    assert session.episodes == 1
    assert agent.cuts[-1] == [0]


def test_a_closed_stream_refuses_every_call() -> None:
    session = TrainingSession(ToyAgent())
    stream, twin = session.stream("npc"), session.stream("npc")
    stream.close()
    other = session.stream("another")
    other.begin(line(5))
    for handle in (stream, twin):
        assert handle.is_closed
        calls: list[Any] = [
            handle.abandon,
            handle.close,
            partial(handle.begin, line(0)),
            partial(handle.step, line(1), 1),
        ]
        for call in calls:
            with pytest.raises(InputError, match="stream 'npc' is closed"):
                call()
        with pytest.raises(InputError, match="stream 'npc' is closed"):
            _ = handle.length
    assert other.is_open


def test_a_new_stream_of_a_name_that_was_closed_starts_at_its_first_episode() -> None:
    session = TrainingSession(ToyAgent())
    stream = session.stream("npc")
    stream.begin(line(0))
    stream.step(line(1), 1.0, terminated=True)
    assert stream.episode == 1
    stream.close()
    again = session.stream("npc")
    assert (again.episode, again.is_open) == (0, False)
    again.begin(line(7))


def test_streams_named_by_the_same_array_are_found_after_one_of_them_was_closed() -> None:
    session = TrainingSession(ToyAgent())
    names, zeros = np.array([0, 1]), np.zeros((2, 1), np.float32)
    session.act_many(zeros, streams=names)
    session.stream(0).close()
    session.act(line(0), stream="another")  # it has the row that became free
    session.act_many(zeros, streams=names)
    assert [session.stream(name).is_open for name in (0, 1, "another")] == [True, True, True]


def test_a_million_short_lives_leave_a_small_checkpoint(tmp_path: Path) -> None:
    def size_after(lives: int) -> int:
        with TrainingSession.open(f"lives-{lives}", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
            for life in range(lives):
                stream = session.stream(f"npc-{life}")
                stream.begin(line(0))
                stream.step(line(1), 1.0, terminated=True)
                stream.close()
            assert len(session._parts.streams.table.ids) == 1
        assert session.run is not None
        return session.run.latest_checkpoint_path.stat().st_size

    assert abs(size_after(2_000) - size_after(20)) < 100


def test_rows_of_closed_streams_are_used_again_alike_after_a_resume(tmp_path: Path) -> None:
    def train(root: Path, *ends: int) -> None:
        for end in ends:
            with TrainingSession.open(
                "walk", PolicyAgent(), root=root, checkpoint_every=None, max_steps=end
            ) as session:
                for life in range(10):
                    last = (life + 1) * 7
                    if session.total_steps < min(last, end):
                        drive(session, Corridor(limit=5), until=last, stream=f"npc-{life}")
                        if session.total_steps == last:
                            session.stream(f"npc-{life}").close()

    train(tmp_path / "parts", 3, 10, 33, 66)
    train(tmp_path / "whole", 66)
    assert verify(tmp_path / "parts" / "walk").digests == verify(tmp_path / "whole" / "walk").digests


def test_free_rows_survive_a_resume(tmp_path: Path) -> None:
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
        for name in "abc":
            session.stream(name).begin(line(0))
            session.stream(name).step(line(1), 1.0, terminated=True)
        session.stream("a").close()
        session.stream("b").close()
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
        assert session._parts.streams.table.ids == [None, None, "c"]
        assert [session._parts.streams.table.slot(name) for name in ("x", "y", "z")] == [0, 1, 3]


# Names


@pytest.mark.parametrize("names", [np.array(["left", "right"]), ["left", "right"], np.array([3, 4]), [2**63 - 1, 0]])
def test_any_plain_name_of_a_stream_can_be_saved(names: Any, tmp_path: Path) -> None:
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
        session.act_many(np.zeros((2, 1), np.float32), streams=names)
        session.checkpoint(wait=True)
        assert {type(name) for name in session._parts.streams.table.ids} <= {int, str}
    assert session.checkpoint_failures == 0


@pytest.mark.parametrize("name", [2**63, 2**100, -1, True, 1.5, None, ("a", 1), ["a"], b"npc"])
def test_a_name_that_cannot_be_saved_is_refused_at_once(name: Any) -> None:
    session = TrainingSession(ToyAgent())
    with pytest.raises(InputError, match="cannot name a stream"):
        session.stream(name)
    with pytest.raises(InputError, match="cannot name a stream"):
        session.act(line(0), stream=name)


# Options of a reset


class Leveled(Corridor):
    """Starts where its options say."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        _, info = super().reset(seed=seed, options=options)
        assert options is not None
        self._position += float(options["level"][0])
        return self._observation(), info


def test_options_are_frozen_when_an_episode_starts(tmp_path: Path) -> None:
    """The same dict, changed by the host for the next episode, must not change the replay of this one."""

    def train(root: Path, *ends: int) -> None:
        for end in ends:
            with TrainingSession.open("walk", ToyAgent(), root=root, checkpoint_every=None, max_steps=end) as session:
                stream, env = session.stream(), Leveled(limit=20)
                options: dict[str, Any] = {"level": (0.1 * (1 + stream.episode), "easy"), "seeds": np.arange(3)}
                while not session.is_done:
                    action = stream.begin(stream.reset(env, options=options))
                    options["level"] = (0.1 * (1 + stream.episode), "hard")
                    options["seeds"][0] = stream.episode
                    while action is not None:
                        observation, reward, terminated, truncated, _ = env.step(action)
                        action = stream.step(observation, reward, terminated, truncated)
                        if action is None and not session.is_done:
                            options["level"] = (0.1 * (1 + stream.episode), "easy")
                assert session.resumed is None or session.resumed.grade == "exact"

    train(tmp_path / "parts", 7, 19, 40)
    train(tmp_path / "whole", 40)
    assert (
        verify(tmp_path / "parts" / "walk").digests["weights"] == verify(tmp_path / "whole" / "walk").digests["weights"]
    )


@pytest.mark.parametrize("options", [{"level": object()}, {3: 1}, {"level": {1, 2}}, {"big": 2**64}, {"raw": b"x"}])
def test_options_that_cannot_be_saved_are_refused_at_the_reset(options: Any) -> None:
    session = TrainingSession(ToyAgent())
    stream, env = session.stream(), Corridor()
    with pytest.raises(InputError, match="options"):
        stream.reset(env, options=options)
    assert env.resets == []
    stream.begin(stream.reset(env))


# Episodes without end


def test_an_episode_too_long_to_replay_is_said_so_and_its_checkpoint_stops_growing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "_MOST_ACTIONS", 20)
    sizes: list[int] = []
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
        assert session.run is not None
        stream, env = session.stream(), Corridor(limit=10_000)
        env.step = lambda action: (np.zeros(2, np.float32), 0.0, False, False, {})  # type: ignore[method-assign]
        action = stream.begin(stream.reset(env))
        for step in range(1, 61):
            observation, reward, *_ = env.step(action)
            action = stream.step(observation, reward)
            if step in (10, 40, 60):
                session.checkpoint(wait=True)
                sizes.append(session.run.latest_checkpoint_path.stat().st_size)
    assert session.run is not None
    assert sizes[1] < sizes[0]
    assert sizes[2] - sizes[1] < 20
    warnings = [row["message"] for row in session.run.reader.warnings()]
    assert [message for message in warnings if "20 steps, too many to replay" in message] == warnings
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_every=None) as session:
        session.stream().reset(Corridor())
        assert session.resumed is not None
        assert session.resumed.grade == "approximate"
        assert "closed as truncated" in session.resumed.lost[-1]

"""A session with an input journal stands after a resume where it stood, for every form of loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.session.journal_hosts import FORMS, Learning, World, copied, digest, opened, rows_of, tree_of
from tests.toys import ToyAgent

from rekindle import EpisodeStatus, Experience, TrainingRun, TrainingSession, verify
from rekindle.checkpoint import input_journal
from rekindle.checkpoint.input_segments import LENGTH
from rekindle.errors import AgentError, CheckpointError, ConfigError, InputError, StorageError
from rekindle.events import Event
from rekindle.experience import Array
from rekindle.session.background import BackgroundLearner
from rekindle.session.stream import Stream
from rekindle.stats import EpisodeRecord
from rekindle.training import replay_run

CALLS = 24


def abandoned(session: TrainingSession) -> None:
    """Release what a killed process would release, and save nothing."""
    session._parts.learner.fail(RuntimeError("killed"))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(RuntimeError), session:
        raise RuntimeError("killed")


def observation(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


@pytest.mark.parametrize("form", FORMS)
def test_a_resume_after_any_call_stands_where_the_session_stood(form: str, tmp_path: Path) -> None:
    learner, host = FORMS[form]
    stood: list[tuple[Path, str, dict[str, Any]]] = []
    session = opened(tmp_path / "whole", Learning(), learner=learner)
    assert session.run is not None
    for call, _ in enumerate(host(session, World(), CALLS)):
        session.flush()
        if learner == "background":
            time.sleep(0.001)  # let the learner make some updates
        copy = copied(tmp_path / "whole", tmp_path / f"after {call}")
        stood.append((copy, digest(tree_of(session)), rows_of(session.run)))
    abandoned(session)
    for root, expected, rows in stood:
        again = opened(root, Learning(), learner=learner)
        resumed = again.resumed
        assert resumed is not None
        assert resumed.grade == "exact"
        again.flush()
        assert digest(tree_of(again)) == expected
        assert again.run is not None
        assert rows_of(again.run) == rows
        abandoned(again)
    assert any(len(list((root / "world" / "v1").glob("*/checkpoints/step_*"))) for root, _, _ in stood)


@pytest.mark.parametrize("form", FORMS)
def test_a_session_killed_again_and_again_ends_like_its_whole_journal(form: str, tmp_path: Path) -> None:
    learner, host = FORMS[form]
    options: dict[str, Any] = {"learner": learner, "journal_keep": "all"}
    world, session = World(), opened(tmp_path, Learning(), **options)
    for kill in range(6):
        for call, _ in enumerate(host(session, world, CALLS)):
            if call == 5 + 4 * kill:
                break
        abandoned(session)
        session = opened(tmp_path, Learning(), **options)
        if kill % 2:  # killed again before its first call, after the replay
            assert session.total_steps
            abandoned(session)
            session = opened(tmp_path, Learning(), **options)
        streams = session._parts.streams  # pyright: ignore[reportPrivateUsage]
        assert session.resumed is not None
        for name in list(streams.table.slots):
            if streams.table.slots[name] in streams.ended_slots():
                session.on_episode(stream=name)
            session.stream(name).abandon()
    expected, run = tree_of(session), session.run
    assert run is not None
    assert session.resumed is not None
    abandoned(session)
    for checkpoint in run.path.glob("checkpoints/*"):
        checkpoint.unlink()
    from_the_beginning = opened(tmp_path, Learning(), **options)
    assert from_the_beginning.resumed is not None
    assert from_the_beginning.resumed.checkpoint is None
    assert digest(tree_of(from_the_beginning)) == digest(expected)
    abandoned(from_the_beginning)


@pytest.mark.parametrize("form", ["streams", "calls", "batches", "manual"])
def test_a_kill_before_any_record_is_whole_loses_at_most_the_call_that_was_being_made(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, host = FORMS[form]
    session = opened(tmp_path / "whole", Learning(), learner=learner)
    parts, due = session._parts, session._due  # pyright: ignore[reportPrivateUsage]
    states = [digest(tree_of(session))]
    killed: list[tuple[Path, int]] = []

    class BeforeLength:
        """Takes a copy of the run before the length of a record is there, without which there is no record."""

        size = LENGTH.size

        @staticmethod
        def pack_into(*place: Any) -> None:
            assert parts.inputs is not None
            is_inside = parts.outbox.is_emitting or due._is_running  # pyright: ignore[reportPrivateUsage]
            stands_at = len(states) if is_inside and parts.inputs.is_recorded else len(states) - 1
            killed.append((copied(tmp_path / "whole", tmp_path / f"record {len(killed)}"), stands_at))
            LENGTH.pack_into(*place)

    monkeypatch.setattr(input_journal, "LENGTH", BeforeLength)
    states.extend(digest(tree_of(session)) for _ in host(session, World(), 12))
    monkeypatch.undo()
    abandoned(session)
    assert len(killed) > len(states)
    for root, call in killed:
        for _ in range(2):  # and killed again after the replay
            again = opened(root, Learning(), learner=learner)
            assert again.total_steps >= 0
            assert digest(tree_of(again)) == states[call], root.name
            abandoned(again)


@pytest.mark.parametrize("form", FORMS)
def test_a_session_closed_and_opened_again_is_like_its_whole_journal(form: str, tmp_path: Path) -> None:
    learner, host = FORMS[form]
    options: dict[str, Any] = {"learner": learner, "journal_keep": "all"}
    world = World()
    for part in range(2):
        session = opened(tmp_path, Learning(), **options)
        for name in list(session._parts.streams.table.slots) if part else []:  # pyright: ignore[reportPrivateUsage]
            session.stream(name).abandon()
        for call, _ in enumerate(host(session, world, CALLS)):
            if call == 13:
                break
        session.close()
    closed = opened(tmp_path, Learning(), **options)
    assert closed.resumed is not None
    expected, run = tree_of(closed), closed.run
    assert run is not None
    abandoned(closed)
    for checkpoint in run.path.glob("checkpoints/*"):
        checkpoint.unlink()
    from_the_beginning = opened(tmp_path, Learning(), **options)
    assert from_the_beginning.resumed is not None
    assert digest(tree_of(from_the_beginning)) == digest(expected)
    abandoned(from_the_beginning)


def test_an_episode_that_closing_ended_is_ended_by_a_replay(tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal_keep": "all", "callbacks": ()}
    session = TrainingSession.open("world", Learning(), root=tmp_path, signals=False, journal=True, **options)
    session.act(observation(1, 2, 3))
    end = Experience(observation(1, 2, 3), 1, 1.0, observation(1, 1, 1), EpisodeStatus.TERMINATED)
    session.observe(end)
    session.close()
    assert session.run is not None
    for checkpoint in session.run.path.glob("checkpoints/*"):
        checkpoint.unlink()
    again = TrainingSession.open("world", Learning(), root=tmp_path, signals=False, journal=True, **options)
    assert again.episodes == 1
    again.act(observation(1, 2, 3))
    abandoned(again)


def test_a_kill_before_the_end_of_an_episode_is_announced_leaves_what_is_due_to_the_announcement(
    tmp_path: Path,
) -> None:
    session = TrainingSession.open("run", ToyAgent(), root=tmp_path, journal=True, metrics_every=2, signals=False)
    for number, status in enumerate((EpisodeStatus.CONTINUING, EpisodeStatus.TERMINATED)):
        action = session.act(observation(number))
        session.observe(Experience(observation(number), action, 1.0, observation(number + 1), status))
    abandoned(session)
    with TrainingSession.open("run", ToyAgent(), root=tmp_path, journal=True, metrics_every=2, signals=False) as again:
        assert again.on_episode().length == 2
        assert again.stop_reason is None
        again.act(observation(5))
        again.flush()
        assert again.run is not None
        assert [row["env_steps"] for row in rows_of(again.run)["metrics"]] == [2]
    assert again.resumed is not None
    assert again.resumed.grade == "exact"


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_a_callback_logs_at_the_ends_of_episodes_that_closing_ends(learner: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"learner": learner, "journal_keep": "all"}
    world, session = World(), opened(tmp_path, Learning(), **options)
    seen, after = world.look(), world.look()
    session.observe(Experience(seen, session.act(seen), 1.0, after, EpisodeStatus.TERMINATED))
    session.close()
    assert session.run is not None
    assert session.run.metadata.status == "stopped"
    trees: list[dict[str, Any]] = []
    for _ in range(2):  # from the checkpoint, then from the whole journal
        again = opened(tmp_path, Learning(), **options)
        assert again.total_steps == 1
        trees.append(tree_of(again))
        abandoned(again)
        for checkpoint in session.run.path.glob("checkpoints/*"):
            checkpoint.unlink()
    assert {"train/ends", "train/noted"} <= set(trees[0]["session"]["window"])
    assert digest(trees[0]) == digest(trees[1])


def test_a_background_learner_continues_after_a_kill_while_its_session_was_being_closed(tmp_path: Path) -> None:
    def again() -> TrainingSession:
        events: list[Event] = []
        options: dict[str, Any] = {"learner": "background", "journal_keep": "all", "callbacks": [events.append]}
        return TrainingSession.open("run", Learning(), root=tmp_path, journal=True, signals=False, **options)

    session = again()
    action = session.act(observation(1))
    session.observe(Experience(observation(1), action, 1.0, observation(2), EpisodeStatus.TERMINATED))
    session.close()
    assert session.run is not None
    for checkpoint in session.run.path.glob("checkpoints/*"):  # as if the last one had not been written
        checkpoint.unlink()
    for _ in range(2):  # the second time, the learner was restarted before
        session = again()
        assert (session.total_steps, session.episodes) == (1, 1)
        abandoned(session)
    with again() as session:
        stream = session.stream()
        stream.begin(observation(3))
        stream.step(observation(4), 1.0)
        assert session.resumed is not None
        assert session.resumed.grade == "exact"


def step_and_refuse_a_call(session: TrainingSession, stream: Stream, world: World) -> None:
    """Make a step, and a call that is refused when it has noticed the update of that step."""
    stream.step(world.look(), 1.0)
    learner = cast("BackgroundLearner", session._parts.learner)  # pyright: ignore[reportPrivateUsage]
    while learner._published.updates < session.total_steps:  # pyright: ignore[reportPrivateUsage]
        time.sleep(0.001)
    with pytest.raises(InputError):
        session.act("nothing")


@pytest.mark.parametrize("following", ["log", "stream"])
def test_updates_that_a_refused_call_has_noticed_are_replayed(following: str, tmp_path: Path) -> None:
    session = opened(tmp_path, Learning(), learner="background", checkpoint_every=None, journal_keep="all")
    stream, world = session.stream(), World()
    stream.begin(world.look())
    for _ in range(3):
        step_and_refuse_a_call(session, stream, world)
        if following == "log":
            session.log("number", 1.0)
        else:
            session.stream(f"{session.total_steps}")
    assert session.updates == 3
    expected = digest(tree_of(session))
    abandoned(session)
    again = opened(tmp_path, Learning(), learner="background", checkpoint_every=None, journal_keep="all")
    assert again.updates == 3
    assert digest(tree_of(again)) == expected
    abandoned(again)


def test_updates_that_a_refused_call_has_noticed_before_a_checkpoint_are_made_once(tmp_path: Path) -> None:
    options: dict[str, Any] = {"learner": "background", "checkpoint_every": None, "journal_keep": "all"}
    session = opened(tmp_path, Learning(), **options)
    stream, world = session.stream(), World()
    stream.begin(world.look())
    for _ in range(3):
        step_and_refuse_a_call(session, stream, world)
        session.checkpoint(wait=True)
        session.log("number", 1.0)
    expected = digest(tree_of(session)), digest(session.agent.state())
    assert session.run is not None
    path = session.run.path
    abandoned(session)
    again = opened(tmp_path, Learning(), **options)
    assert again.updates == 3
    assert (digest(tree_of(again)), digest(again.agent.state())) == expected
    abandoned(again)
    assert replay_run(path, agent=Learning()).ok


class Diverging(Learning):
    """Diverges at its third update, and says so in an array, as agents do whose losses stay on a device."""

    def update(self, n: int) -> dict[str, Any]:
        super().update(n)
        return {"loss": np.full(n, np.nan if self.updates == 3 else 1.0)}


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_a_journal_whose_calls_lead_to_a_failure_says_how_to_continue_without_them(
    learner: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def train(*, journal: bool) -> int:
        options: dict[str, Any] = {"learner": learner, "journal": journal, "metrics_every": 4}
        with TrainingSession.open("run", Diverging(), root=tmp_path, **options) as session:
            stream = session.stream()
            if not stream.is_open:
                stream.begin(observation(0))
            stream.resume()
            for number in range(2 if session.resumed is None else 8):
                stream.step(observation(number), 1.0)
                time.sleep(0.005)  # for a learner in the background
            return session.total_steps

    assert train(journal=True) == 2
    with pytest.raises(AgentError, match="diverged"):
        train(journal=True)
    for _ in range(2):
        with pytest.raises(AgentError, match=r"to continue from step 2 without them.* without journal=True"):
            train(journal=True)
    assert "while closing" not in caplog.text
    with TrainingSession.open("run", Learning(), root=tmp_path, learner=learner) as session:
        assert session.total_steps == 2


def test_a_run_killed_before_its_first_record_is_resumed(tmp_path: Path) -> None:
    abandoned(opened(tmp_path, Learning()))
    again = opened(tmp_path, Learning())
    assert again.total_steps == 0
    again.close()


def test_what_is_logged_at_the_end_is_not_logged_again(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning(), max_steps=1)
    final = EpisodeRecord(1.0, 1, EpisodeStatus.TERMINATED)
    session.at_end(lambda: session.on_eval_episode(final, final=True))
    session.stream().begin(observation(1, 2, 3))
    session.stream().step(observation(1, 2, 3), 1.0)
    session.close()
    assert session.run is not None
    assert len(session.run.reader.eval_episodes()) == 1
    run = TrainingRun.resume(session.run.path)
    longer = TrainingSession(Learning(), run=run, journal=True, metrics_every=7, signals=False)
    assert longer.total_steps == 1
    assert run.reader.eval_episodes() == []
    longer.close()


def test_a_stream_says_where_it_stands(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning())
    stream = session.stream("robot")
    assert (stream.observation, stream.action) == (None, None)
    stream.begin(observation(1, 2, 3))
    action = stream.step(observation(4, 5, 6), 1.0)
    abandoned(session)
    again = opened(tmp_path, Learning())
    robot = again.stream("robot")
    assert (robot.is_open, robot.length, robot.total_reward) == (True, 1, 1.0)
    assert robot.action == action
    assert robot.observation is not None
    assert robot.observation.tolist() == [4, 5, 6]
    robot.step(observation(7, 8, 9), 1.0)
    assert robot.length == 2
    assert again.resumed is not None
    assert again.resumed.grade == "exact"
    assert again.resumed.replayed == 3
    again.close()


def test_a_host_goes_on_without_knowing_where_it_was(tmp_path: Path) -> None:
    class Encoder:
        def encode(self, state: Any) -> Array:
            return observation(state, state, 0)

    class Mapper:
        def to_host(self, action: Any) -> str:
            return ("left", "right")[int(action)]

        def to_agent(self, action: Any) -> int:
            return ("left", "right").index(action)

    options: dict[str, Any] = {"observation_encoder": Encoder(), "action_mapper": Mapper(), "journal_keep": "all"}
    session = opened(tmp_path, Learning(), **options)
    session.stream().begin(3)
    action = session.stream().step(4, 0.5)
    abandoned(session)
    killed = opened(tmp_path, Learning(), **options)
    assert killed.stream().resume() == action
    assert killed.stream().resume() == action
    killed.stop()
    assert killed.stream().step(5, 0.5) is None
    killed.close()
    stopped = opened(tmp_path, Learning(), **options)
    assert stopped.stream().action is None
    action = stopped.stream().resume()
    assert action == stopped.stream().action
    assert stopped.stream().step(6, 0.5) in ("left", "right")
    assert stopped.stream().length == 3
    assert stopped.resumed is not None
    assert stopped.resumed.grade == "exact"
    stopped.stream().abandon()
    with pytest.raises(InputError, match="no episode is open"):
        stopped.stream().resume()
    before, run = tree_of(stopped), stopped.run
    assert run is not None
    abandoned(stopped)
    for checkpoint in run.path.glob("checkpoints/*"):
        checkpoint.unlink()
    again = opened(tmp_path, Learning(), **options)
    assert again.stream().length == 0
    assert digest(tree_of(again)) == digest(before)
    abandoned(again)


def test_the_action_that_a_host_never_got_is_returned_again(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning())
    action = session.act(observation(1, 2, 3))
    abandoned(session)
    again = opened(tmp_path, Learning())
    assert again.act(observation(1, 2, 3)) == action
    again.observe(Experience(observation(1, 2, 3), action, 1.0, observation(1, 1, 1), EpisodeStatus.CONTINUING))
    before = tree_of(again)
    abandoned(again)
    third = opened(tmp_path, Learning())
    assert third.total_steps == 1
    assert digest(tree_of(third)) == digest(before)
    third.close()


def test_an_encoder_and_a_mapper_are_not_asked_again(tmp_path: Path) -> None:
    class Encoder:
        calls = 0

        def encode(self, state: Any) -> Array:
            self.calls += 1
            return observation(state, self.calls, 0)

    class Mapper:
        def to_host(self, action: Any) -> str:
            return ("left", "right")[int(action)]

        def to_agent(self, action: Any) -> int:
            return ("left", "right").index(action)

    options: dict[str, Any] = {"observation_encoder": Encoder(), "action_mapper": Mapper()}
    session = opened(tmp_path, Learning(), **options)
    stream = session.stream()
    assert stream.begin(3) in ("left", "right")
    action = stream.step(4, 0.5)
    before, calls = tree_of(session), options["observation_encoder"].calls
    abandoned(session)
    again = opened(tmp_path, Learning(), **options)
    assert again.stream().action == action
    assert digest(tree_of(again)) == digest(before)
    assert options["observation_encoder"].calls == calls
    again.close()


def test_without_a_journal_nothing_of_it_is_written(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning(), journal=False)
    session.stream().begin(observation(1, 2, 3))
    session.close()
    assert session.run is not None
    assert not (session.run.path / "inputs").exists()


class TestMisuse:
    def test_a_journal_needs_a_run(self) -> None:
        with pytest.raises(ConfigError, match="journal=True needs a run"):
            TrainingSession(ToyAgent(), journal=True)

    def test_a_world_that_can_be_brought_back_is_refused(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        with pytest.raises(ConfigError, match="attach"):
            session.attach("world", Learning())
        with pytest.raises(ConfigError, match=r"stream\.reset"):
            session.stream().reset(World())  # pyright: ignore[reportArgumentType]
        session.close()

    def test_another_agent_is_refused(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        session.stream().begin(observation(1, 2, 3))
        abandoned(session)

        class Another(Learning):
            pass

        for agent in (Another(), Learning(seed=5)):
            again = opened(tmp_path, agent)
            with pytest.raises(CheckpointError, match="cannot be replayed"):
                again.stream()
            abandoned(again)
        opened(tmp_path, Learning()).close()

    def test_other_settings_are_refused_until_the_calls_were_made_again(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        session.stream().begin(observation(1, 2, 3))
        abandoned(session)
        again = opened(tmp_path, Learning(), metrics_every=3)
        with pytest.raises(CheckpointError, match="metrics_every was 7 and is 3"):
            again.stream()
        abandoned(again)
        opened(tmp_path, Learning()).close()
        changed = opened(tmp_path, Learning(), metrics_every=3)
        assert changed.stream().is_open
        changed.close()

    def test_a_resume_without_the_journal_is_approximate(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        session.stream().begin(observation(1, 2, 3))
        abandoned(session)
        again = opened(tmp_path, Learning(), journal=False)
        assert again.resumed is not None
        assert again.resumed.grade == "approximate"
        assert "input journal" in again.resumed.lost[0]
        again.close()

    def test_a_run_resumed_without_its_journal_can_have_one_again(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        session.stream().begin(observation(1, 2, 3))
        session.close()
        opened(tmp_path, Learning(), journal=False).close()
        again = opened(tmp_path, Learning())
        assert again.stream().is_open
        again.close()

    def test_a_refused_resume_leaves_the_journal_where_it_is(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        session.checkpoint(wait=True)
        session.stream().begin(observation(1, 2, 3))
        abandoned(session)
        with pytest.raises(CheckpointError, match="input journal"):
            opened(tmp_path, Learning(), journal=False, strict=True)
        again = opened(tmp_path, Learning())
        assert again.stream().is_open
        assert again.resumed is not None
        assert again.resumed.grade == "exact"
        again.close()

    def test_a_checkpoint_in_the_middle_of_a_call_is_refused(self, tmp_path: Path) -> None:
        def save(_: object) -> None:
            session.checkpoint(wait=True)

        run = TrainingRun.create("a", "v1", root=tmp_path)
        session = TrainingSession(Learning(), run=run, journal=True)
        stream = session.stream()
        stream.begin(observation(1, 2, 3))
        session._parts.outbox._callbacks.append(save)  # pyright: ignore[reportPrivateUsage]
        session._parts.outbox._is_stateful.append(False)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(InputError, match="inside a callback"):
            stream.step(observation(1, 2, 3), 1.0, terminated=True)
        abandoned(session)

    def test_a_hook_that_draws_from_global_generators_is_not_exact(self, tmp_path: Path) -> None:
        session = opened(tmp_path, Learning())
        session.every(1, np.random.random)
        stream = session.stream()
        stream.begin(observation(1, 2, 3))
        stream.step(observation(1, 2, 3), 1.0)
        session.close()
        assert session.run is not None
        assert not session.run.metadata.exact


def test_a_journal_that_cannot_be_written_stops_the_session_with_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(tmp_path, Learning())
    stream = session.stream()
    stream.begin(observation(1, 2, 3))
    stream.step(observation(2, 2, 3), 1.0)

    def fail(*_: object) -> None:
        raise StorageError("cannot write: no space left on device")

    assert session._parts.inputs is not None  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(session._parts.inputs.journal, "append", fail)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(StorageError, match="no space left"):
        stream.step(observation(3, 2, 3), 1.0)
    assert session.is_done
    monkeypatch.undo()
    with pytest.raises(StorageError, match="no space left"):
        stream.step(observation(4, 2, 3), 1.0)
    abandoned(session)
    again = opened(tmp_path, Learning())
    assert again.stream().length == 2
    assert again.stream().action is not None
    assert again.resumed is not None
    assert (again.resumed.step, again.resumed.replayed) == (2, 0)
    again.close()


def test_a_journal_whose_sync_failed_on_its_thread_stops_the_session_with_a_checkpoint(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning())
    stream = session.stream()
    stream.begin(observation(1, 2, 3))
    stream.step(observation(2, 2, 3), 1.0)
    assert session._parts.inputs is not None  # pyright: ignore[reportPrivateUsage]
    journal = session._parts.inputs.journal  # pyright: ignore[reportPrivateUsage]
    assert journal is not None
    journal.failure = StorageError("cannot sync: input/output error")
    for _ in range(2):
        with pytest.raises(StorageError, match="input/output error"):
            stream.step(observation(3, 2, 3), 1.0)
    assert session.stop_reason == "the input journal cannot be written: cannot sync: input/output error"
    abandoned(session)
    again = opened(tmp_path, Learning())
    assert again.resumed is not None
    assert (again.resumed.step, again.resumed.grade, again.resumed.replayed) == (1, "exact", 0)
    again.close()


def test_a_layout_that_a_refused_call_took_back_is_replaced_in_a_replay(tmp_path: Path) -> None:
    def begun(root: Path) -> TrainingSession:
        return TrainingSession.open("world/v1", Learning(), root=root, journal=True, signals=False)

    session = begun(tmp_path / "first")
    stream = session.stream(0)
    stream.begin(np.zeros(9))
    stream.abandon()
    with pytest.raises(InputError):
        stream.begin(np.zeros(8))
    for number in range(3):
        session.observe(
            Experience(observation(number, 1, 2), 1, 0.5, observation(number + 1, 1, 2), EpisodeStatus.CONTINUING)
        )
    session.flush()
    root, expected = copied(tmp_path / "first", tmp_path / "again"), digest(tree_of(session))
    abandoned(session)
    again = begun(root)
    assert again.total_steps == 3
    assert digest(tree_of(again)) == expected
    abandoned(again)


@pytest.mark.parametrize("after", ["nothing", "a log", "an error"])
def test_a_resume_from_a_checkpoint_that_a_function_of_every_took(after: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def opened_with_hooks(root: Path) -> TrainingSession:
        session = TrainingSession.open(
            "world/v1", Learning(), root=root, journal=True, checkpoint_every=None, signals=False
        )

        def save() -> None:
            calls.append(session.total_steps)
            session.checkpoint(wait=True)
            if after == "a log":
                session.log("saved", session.total_steps)
            if after == "an error" and len(calls) == 1:
                raise OSError("no room for the plot")

        session.every(4, save)
        session.every(2, lambda: session.log("second", session.total_steps))
        return session

    session = opened_with_hooks(tmp_path / "first")
    stream = session.stream(0)
    stream.begin(observation(0, 0, 0))
    for step in range(4):
        if after == "an error" and step == 3:
            with pytest.raises(OSError, match="no room"):
                stream.step(observation(step, 1, 1), 1.0)
        else:
            stream.step(observation(step, 1, 1), 1.0)
    killed_here = copied(tmp_path / "first", tmp_path / "killed at the hook")
    for step in range(3):
        stream.step(observation(step, 2, 2), 1.0)
    session.flush()
    killed_later = copied(tmp_path / "first", tmp_path / "killed later")
    expected = digest(tree_of(session))
    abandoned(session)

    calls.append(0)
    again = opened_with_hooks(killed_here)
    stream = again.stream(0)
    for step in range(3):
        stream.step(observation(step, 2, 2), 1.0)
    assert digest(tree_of(again)) == expected
    assert (calls[-1] == 4) == (after == "an error")  # it is called again only if it raised
    abandoned(again)

    later = opened_with_hooks(killed_later)
    assert later.resumed is not None
    assert later.resumed.grade == "exact"
    assert digest(tree_of(later)) == expected
    abandoned(later)


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_calls_after_a_kill_inside_a_function_of_every_that_took_a_checkpoint(learner: Any, tmp_path: Path) -> None:
    def opened_with_hook(root: Path) -> TrainingSession:
        options: dict[str, Any] = {"learner": learner, "journal_keep": "all", "checkpoint_every": None}
        session = TrainingSession.open("world/v1", Learning(), root=root, journal=True, signals=False, **options)

        def save() -> None:
            session.log("before", 1.0)
            session.checkpoint(wait=True)
            session.log("after", 2.0)
            if root == tmp_path / "first":
                copied(root, tmp_path / f"killed at {session.total_steps}")

        session.every(4, save)
        return session

    session = opened_with_hook(tmp_path / "first")
    stream = session.stream(0)
    stream.begin(observation(0, 0, 0))
    for step in range(4):
        stream.step(observation(step, 1, 1), 1.0)
    abandoned(session)

    killed = tmp_path / "killed at 4"
    continued = opened_with_hook(killed)
    assert continued.run is not None
    path = continued.run.path
    stream = continued.stream(0)
    for step in range(5):
        stream.step(observation(step, 2, 2), 1.0)
    continued.flush()
    expected = digest(tree_of(continued))
    abandoned(continued)
    again = replay_run(path, agent=Learning())
    assert (again.ok, [one.step for one in again.checkpoints]) == (True, [4, 8])
    for checkpoint in path.glob("checkpoints/*"):
        checkpoint.unlink()
    from_the_beginning = opened_with_hook(killed)
    assert from_the_beginning.total_steps == 9
    assert digest(tree_of(from_the_beginning)) == expected
    abandoned(from_the_beginning)


def test_a_limit_of_bytes_brings_the_next_checkpoint_forward(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning(), checkpoint_every=10_000, journal_limit=500)
    stream = session.stream()
    stream.begin(observation(1, 2, 3))
    for _ in range(30):
        stream.step(observation(1, 2, 3), 1.0)
    session.flush()
    assert session.run is not None
    assert len(list(session.run.path.glob("checkpoints/step_*"))) > 1
    session.close()


def test_kills_before_a_checkpoint_do_not_fill_the_disk(tmp_path: Path) -> None:
    for kills in range(4):
        session = opened(tmp_path / str(kills), Learning(), checkpoint_every=10_000)
        session.stream().begin(observation(1, 2, 3))
        copied(tmp_path / str(kills), tmp_path / str(kills + 1))
        session.close()
    sizes = sorted(path.stat().st_size for path in (tmp_path / "4").rglob("*.journal"))
    assert len(sizes) == 4
    assert max(sizes[:-1]) < 10_000


def test_kills_after_a_checkpoint_do_not_fill_the_disk(tmp_path: Path) -> None:
    options: dict[str, Any] = {"journal_keep": "all", "journal_sync": 1000.0}  # no segment is shortened before the kill
    for kills in range(3):
        session = opened(tmp_path / str(kills), Learning(), **options)
        session.stream().begin(observation(1, 2, 3))
        session.checkpoint(wait=True)
        session.stream().step(observation(4, 5, 6), 1.0)
        copied(tmp_path / str(kills), tmp_path / str(kills + 1))
        abandoned(session)
    assert sum(path.stat().st_size > 1 << 20 for path in (tmp_path / "3").rglob("*.journal")) == 2
    with opened(tmp_path / "3", Learning(), **options) as again:
        assert again.total_steps == 3
        assert again.run is not None
        assert max(path.stat().st_size for path in again.run.path.rglob("*.journal")) < 10_000
    found = verify(again.run.path)
    assert (found.ok, found.problems) == (True, [])


def test_segments_are_kept_back_to_the_second_newest_checkpoint(tmp_path: Path) -> None:
    session = opened(tmp_path, Learning(), checkpoint_every=5)
    stream = session.stream()
    stream.begin(observation(1, 2, 3))
    for _ in range(40):
        stream.step(observation(1, 2, 3), 1.0)
        session.flush()
    assert session.run is not None
    assert len(list(session.run.path.glob("inputs/*.journal"))) <= 2
    newest = session.run.path / "checkpoints" / "step_40.mpk"
    before = tree_of(session)
    abandoned(session)
    newest.write_bytes(b"damaged")
    again = opened(tmp_path, Learning(), checkpoint_every=5)
    assert again.total_steps == 40
    assert again.resumed is not None
    assert again.resumed.step == 35
    assert digest(tree_of(again)) == digest(before)
    again.close()

"""Following a log: every row reaches the service once, whatever fails, and training never waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import MARKS, expected, timeless, train
from toys import ToyAgent

from rekindle import RunReader, TrainingSession
from rekindle.errors import ConfigError, InputError
from rekindle.events import (
    Histogram,
    Media,
    MemoryRecorder,
    MetricsFlushed,
    Recorder,
    RunRecorder,
    Stamp,
    Text,
    Video,
    Warned,
)
from rekindle.recorders.following import Follower, Mark, Place, Row


class Remote:
    """A service in memory that outlives the processes which write to it."""

    def __init__(self, *, takes_back: bool = False, fails: Callable[[str, int], bool] = lambda call, count: False):
        self.takes_back, self.fails = takes_back, fails
        self.rows: list[Row] = []
        self.configs: list[Mapping[str, Any]] = []
        self.notes: dict[str, str] = {}
        self.texts: list[tuple[int, str, str]] = []
        self.statuses: list[str] = []
        self.calls: list[str] = []
        self.ids: list[str] = []

    name = "remote"

    def open(self, path: Path, report: Callable[[str], None], **delays: float) -> Follower:
        """As a recorder's `open`, with short delays."""
        return Follower(self.name, Client(self), path, report, **{"patience": 5.0, "first_delay": 0.01, **delays})

    def shown(self) -> list[tuple[int, dict[str, float]]]:
        return [(row.env_steps, timeless(row.values)) for row in self.rows]

    def called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails(name, self.calls.count(name)):
            raise ConnectionError("no network")


class Client:
    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def start(self, run: RunReader, place: Place) -> None:
        self.remote.called("start")
        place.external_id = place.external_id or f"outside-{place.token}"
        self.remote.ids.append(place.external_id)

    def describe(self, config: Mapping[str, Any]) -> None:
        self.remote.called("describe")
        self.remote.configs.append(config)

    def send(self, rows: Sequence[Row], place: Place, doubtful: Mapping[Mark, float]) -> None:
        known = {(row.mark, row.wall_time) for row in self.remote.rows}
        self.remote.rows += [row for row in rows if (row.mark, doubtful.get(row.mark)) not in known]
        self.remote.called("send")  # a failure that comes after the rows have arrived

    def show(self, name: str, media: Media, stamp: Stamp, place: Place) -> bool:
        self.remote.called("show")
        if isinstance(media, Text):
            self.remote.texts.append((stamp.env_steps, name, media.text))
        return isinstance(media, Text)

    def take_back(self, env_steps: int) -> bool:
        self.remote.called("take_back")
        if self.remote.takes_back:
            self.remote.rows = [row for row in self.remote.rows if row.env_steps < env_steps]
        return self.remote.takes_back

    def note(self, name: str, text: str) -> None:
        self.remote.called("note")
        self.remote.notes[name] = text

    def finish(self, status: str, place: Place) -> None:
        self.remote.called("finish")
        self.remote.statuses.append(status)


def test_a_follower_is_what_a_session_expects() -> None:
    assert isinstance(Remote(), RunRecorder)
    assert not isinstance(Remote(), Recorder)


def test_every_row_and_the_config_arrive_once(tmp_path: Path) -> None:
    remote = Remote()
    run = train(tmp_path, [remote])
    assert remote.shown() == expected(run)
    assert [row.env_steps for row in remote.rows] == MARKS
    assert remote.configs == [RunReader(run).read_config()]
    assert remote.statuses == ["finished"]


def test_several_recorders_keep_out_of_each_others_way(tmp_path: Path) -> None:
    remotes = [Remote() for _ in range(4)]
    for number, remote in enumerate(remotes):
        remote.name = f"remote{number}"
    warnings: list[str] = []
    run = train(tmp_path, remotes, callbacks=[lambda event: gather(event, warnings)])
    assert [remote.shown() for remote in remotes] == [expected(run)] * 4
    assert warnings == []


@pytest.mark.parametrize(("options", "status"), [({"stop_at": 20}, "stopped"), ({"fail_at": 25}, "failed")])
def test_the_outside_run_ends_as_the_run_does(tmp_path: Path, options: dict[str, Any], status: str) -> None:
    remote = Remote()
    train(tmp_path, [remote], **options)
    assert remote.statuses == [status]


def test_a_session_without_a_run_says_that_it_needs_one() -> None:
    with pytest.raises(ConfigError, match="Remote records a run: pass run="):
        TrainingSession(ToyAgent(), recorders=[Remote()])


# Resumes


@pytest.mark.parametrize("options", [{"stop_at": 20}, {"fail_at": 25}])
def test_after_an_exact_resume_the_same_outside_run_goes_on_where_it_was(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    remote = Remote()
    train(tmp_path, [remote], **options)
    run = train(tmp_path, [remote])
    assert remote.shown() == expected(run)
    assert len(set(remote.ids)) == 1
    assert len(remote.configs) == 1


def test_what_a_session_logs_when_it_stops_stays_and_the_whole_window_follows(tmp_path: Path) -> None:
    remote = Remote()
    train(tmp_path, [remote], stop_at=18)
    run = train(tmp_path, [remote])
    assert [row for row in remote.shown() if row[0] != 18] == expected(run)
    assert [row.env_steps for row in remote.rows] == sorted([*MARKS, 18])


def test_after_an_approximate_resume_what_came_later_is_taken_back(tmp_path: Path) -> None:
    remote = Remote(takes_back=True)
    train(tmp_path, [remote], fail_at=25)
    run = train(tmp_path, [remote], loss="the wind has changed")
    assert remote.shown() == expected(run)
    assert remote.notes == {}


def test_where_nothing_can_be_taken_back_it_stays_and_the_rewind_is_noted(tmp_path: Path) -> None:
    remote = Remote()
    train(tmp_path, [remote], fail_at=25)
    before = remote.shown()
    run = train(tmp_path, [remote], loss="the wind has changed")
    assert remote.shown() == before + [row for row in expected(run) if row[0] > 25]
    assert remote.notes == {
        "rekindle.resume_1": "went back to step 20 and is approximate: rows up to step 25 are from before the resume"
    }


# What is no number


def test_texts_arrive_once_also_after_an_exact_resume(tmp_path: Path) -> None:
    remote, media = Remote(), {"remark": Text("hello")}
    train(tmp_path, [remote], fail_at=25, media=media)
    train(tmp_path, [remote], media=media)
    assert remote.texts == [(step, "train/remark", "hello") for step in MARKS]


def test_what_a_service_cannot_show_is_told_once(tmp_path: Path) -> None:
    remote, warnings = Remote(), list[str]()
    media = {"agent/weights": Histogram(np.arange(3.0))}
    train(tmp_path, [remote], media=media, callbacks=[lambda event: gather(event, warnings)])
    assert warnings == ["remote cannot show a histogram: 'agent/weights' is dropped"]


def test_a_recorder_of_numbers_is_told_of_once(tmp_path: Path) -> None:
    recorder, warnings = MemoryRecorder(), list[str]()
    media = {"remark": Text("hello"), "weights": Histogram(np.arange(3.0))}
    train(tmp_path, [recorder], media=media, callbacks=[lambda event: gather(event, warnings)])
    assert warnings == ["the recorder MemoryRecorder supports only numbers: text 'train/remark' is not shown"]
    assert len(recorder.rows) == len(MARKS)


@pytest.mark.parametrize(
    ("media", "message"),
    [
        (Histogram(np.array([])), "a histogram needs values"),
        (Histogram(np.array([1.0, np.nan])), "all of them finite"),
        (Video(np.zeros((2, 8, 8), np.uint8)), r"frames, height, width and 3 colours of uint8, not \(2, 8, 8\)"),
        (Video(np.zeros((2, 8, 8, 3), np.float32)), "of float32"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_cannot_be_shown_anywhere_is_refused(media: Media, message: str) -> None:
    with TrainingSession(ToyAgent()) as session, pytest.raises(InputError, match=message):
        session.show("it", media)


# Failures


@pytest.mark.parametrize("call", ["start", "describe", "send", "show", "finish"])
@pytest.mark.parametrize("times", [1, 3])
def test_what_fails_is_reported_and_tried_again(tmp_path: Path, call: str, times: int) -> None:
    remote = Remote(fails=lambda name, count: name == call and count <= times)
    warnings: list[str] = []
    media = {"remark": Text("hello")}
    run = train(tmp_path, [remote], media=media, callbacks=[lambda event: gather(event, warnings)])
    assert remote.shown() == expected(run)
    assert [step for step, _, _ in remote.texts] == MARKS
    assert remote.statuses == ["finished"]
    told = "remote failed: ConnectionError: no network; it is retried, and training continues"
    assert warnings == [told]


def gather(event: Any, warnings: list[str]) -> None:
    if isinstance(event, Warned):
        warnings.append(event.message)


def test_a_service_that_stays_away_ends_no_training_and_gets_everything_at_the_next_resume(tmp_path: Path) -> None:
    remote = Remote(fails=lambda name, count: name == "start")
    warnings: list[str] = []
    opening = Impatient(remote)
    run = train(tmp_path, [opening], stop_at=20, callbacks=[lambda event: gather(event, warnings)])
    assert RunReader(run).status == "stopped"
    assert "are sent when the run is resumed" in warnings[-1]
    remote.fails = lambda name, count: False
    run = train(tmp_path, [remote])
    assert remote.shown() == expected(run)


class Impatient:
    """Gives up at the end after the first attempt."""

    def __init__(self, remote: Remote) -> None:
        self.remote = remote

    def open(self, path: Path, report: Callable[[str], None]) -> Follower:
        return self.remote.open(path, report, patience=0.05, first_delay=0.1)


class Silent(Remote):
    """Answers nothing until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def called(self, name: str) -> None:
        assert self.gate.wait(60)
        super().called(name)


def test_training_does_not_wait_for_a_service(tmp_path: Path) -> None:
    remote = Silent()

    def open_gate_at_the_end(event: Any) -> None:
        if isinstance(event, MetricsFlushed) and event.stamp.env_steps == MARKS[-1]:
            assert remote.rows == []
            remote.gate.set()

    run = train(tmp_path, [remote], callbacks=[open_gate_at_the_end])
    assert remote.shown() == expected(run)


def test_a_damaged_place_is_reported_and_nothing_is_sent_twice(tmp_path: Path) -> None:
    remote = Remote()
    run = train(tmp_path, [remote], stop_at=20)
    sent = len(remote.rows)
    (run / "recorders" / "remote.json").write_text("{")
    warnings: list[str] = []
    train(tmp_path, [Impatient(remote)], callbacks=[lambda event: gather(event, warnings)])
    assert len(remote.rows) == sent
    assert "remote.json is damaged" in warnings[0]
    assert "remove it to start a new run there" in warnings[0]

"""A recorder gets everything it is given, in order, however slow it is, and holds nobody for ever."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rekindle.errors import StorageError
from rekindle.events import Histogram, Media, MediaLogged, MemoryRecorder, Recorder, Stamp, Text, Video
from rekindle.run import recording
from rekindle.run.recording import RecorderThread, Window
from rekindle.storage.spool import Spool


def stamp(env_steps: int = 10) -> Stamp:
    return Stamp(env_steps=env_steps, updates=5, episodes=2, wall_time=0.5)


def window(env_steps: int, **means: float) -> Window:
    return Window(stamp(env_steps), means)


def refuse_reports(message: str) -> None:
    raise AssertionError(message)


def started(recorder: Recorder, report: Any = refuse_reports, **options: Any) -> RecorderThread:
    return RecorderThread(recorder, **{"report": report, "directory": None, "patience": 60.0, **options})


def close(thread: RecorderThread, status: str = "finished") -> None:
    thread.ask_to_close(status)
    thread.close()


class Gallery(MemoryRecorder):
    """Takes nothing before it is allowed to, and keeps media too."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.gate = threading.Event(), threading.Event()
        self.media: list[tuple[str, Media, Stamp]] = []

    def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
        self.entered.set()
        self.gate.wait()
        super().record(values, stamp)

    def show(self, name: str, media: Media, stamp: Stamp) -> None:
        self.media.append((name, media, stamp))


@pytest.mark.parametrize("most_memory", [2**20, 1_000, 0])
def test_what_waits_in_memory_or_in_a_file_arrives_whole_and_in_order(
    most_memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "_MOST_MEMORY", most_memory)
    recorder = Gallery()
    thread = started(recorder, directory=tmp_path)
    values = [1.0, -0.0, math.inf, -math.inf, 1e-320, 0.1]
    for step, value in enumerate(values * 3):
        thread.put(window(step, loss=value))
        thread.put(MediaLogged(stamp(step), f"text {step}", Text("words")))
    thread.put(window(100, loss=math.nan))
    recorder.gate.set()
    close(thread)
    assert [(when.env_steps, row["loss"]) for when, row in recorder.rows[:-1]] == list(enumerate(values * 3))
    assert math.isnan(recorder.rows[-1][1]["loss"])
    assert recorder.media == [(f"text {step}", Text("words"), stamp(step)) for step in range(18)]
    assert recorder.status == "finished"
    assert list(tmp_path.iterdir()) == []


def test_media_in_a_file_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST_MEMORY", 0)
    recorder = Gallery()
    thread = started(recorder)
    frames = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)
    thread.put(MediaLogged(stamp(1), "film", Video(frames, fps=12)))
    thread.put(MediaLogged(stamp(2), "spread", Histogram(np.array([1.5, 2.5]))))
    close(thread)
    (name, film, when), (_, spread, _) = recorder.media
    assert isinstance(film, Video)
    assert isinstance(spread, Histogram)
    assert (name, film.fps, when) == ("film", 12, stamp(1))
    np.testing.assert_array_equal(film.frames, frames)
    assert spread.values.tolist() == [1.5, 2.5]


def test_without_room_for_a_file_it_all_waits_in_memory_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Spool, record: bytes) -> None:
        raise StorageError("No space left on device")

    monkeypatch.setattr(recording, "_MOST_MEMORY", 0)
    monkeypatch.setattr(Spool, "put", full)
    recorder, reports = Gallery(), []
    thread = started(recorder, reports.append)
    for step in range(20):
        thread.put(window(step, loss=1.0))
    recorder.gate.set()
    close(thread)
    assert [when.env_steps for when, _ in recorder.rows] == list(range(20))
    assert reports == ["the recorder Gallery is behind, and its events wait in memory: No space left on device"]


def test_what_cannot_be_read_back_is_reported_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_MOST_MEMORY", 300)
    taken: list[int] = []
    get = Spool.get

    def get_or_fail(self: Spool) -> bytes:
        record = get(self)
        taken.append(len(record))
        if len(taken) == 1:
            raise StorageError("Input/output error")
        return record

    monkeypatch.setattr(Spool, "get", get_or_fail)
    recorder, reports = Gallery(), []
    thread = started(recorder, reports.append)
    thread.put(window(0, loss=1.0))
    recorder.entered.wait()
    for step in range(1, 5):
        thread.put(window(step, loss=1.0))
    recorder.gate.set()
    close(thread)
    assert reports == ["the recorder Gallery missed a window or media: Input/output error"]
    assert [when.env_steps for when, _ in recorder.rows] == [0, 1, 3, 4]


def test_a_recorder_that_hangs_is_given_up_with_a_word() -> None:
    recorder, reports = Gallery(), []
    thread = started(recorder, reports.append, patience=0.0)
    for step in range(3):
        thread.put(window(step, loss=1.0))
    recorder.entered.wait()
    thread.flush()
    close(thread)
    assert len(reports) == 2
    assert "the recorder Gallery has been in one call for 0 s and is no longer waited for" in reports[0]
    recorder.gate.set()


def test_waiting_for_a_slow_recorder_says_how_much_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_FIRST_WORD", 0.0)
    recorder, reports = Gallery(), []

    def report(message: str) -> None:
        reports.append(message)
        recorder.gate.set()

    thread = started(recorder, report)
    for step in range(3):
        thread.put(window(step, loss=1.0))
    recorder.entered.wait()
    close(thread)
    # Two windows, and the request to close.
    assert reports[0] == "waiting for the recorder Gallery, which has 3 events left"
    assert recorder.status == "finished"


def test_a_recorder_may_keep_and_change_what_it_is_given() -> None:
    class Greedy(MemoryRecorder):
        def record(self, values: Mapping[str, float], stamp: Stamp) -> None:
            super().record(values, stamp)
            values.clear()  # pyright: ignore[reportAttributeAccessIssue]

    given = window(1, loss=1.0)
    thread = started(Greedy())
    thread.put(given)
    close(thread)
    assert given.means == {"loss": 1.0}


def test_media_for_a_recorder_of_numbers_are_said_once_to_be_left_out() -> None:
    reports: list[str] = []
    thread = started(MemoryRecorder(), reports.append)
    for step in range(2):
        thread.put(MediaLogged(stamp(step), "notes", Text("words")))
    close(thread)
    assert reports == ["the recorder MemoryRecorder supports only numbers: text 'notes' is not shown"]

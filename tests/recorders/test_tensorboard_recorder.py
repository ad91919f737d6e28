"""TensorBoard shows every row of the log once, also after kills, resumes and lost files."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

pytest.importorskip("tensorboardX")

from event_files import events, scalars, texts
from PIL import Image
from recorded_runs import MARKS, MEDIA, expected, killed_at_save, train

from rekindle import RunReader
from rekindle.recorders import TensorBoard

RECORDER = "rekindle.recorders:TensorBoard"


def assert_shown(directory: Path, run: Path) -> None:
    shown, wanted = scalars(directory), expected(run)
    assert [step for step, _ in shown] == [step for step, _ in wanted]
    for (_, values), (_, right) in zip(shown, wanted, strict=True):
        assert values == pytest.approx(right, rel=1e-6)


def test_every_row_is_shown_with_config_and_status(tmp_path: Path) -> None:
    run = train(tmp_path, [TensorBoard()])
    assert_shown(run / "tensorboard", run)
    assert [step for step, _ in scalars(run / "tensorboard")] == MARKS
    assert '"learning_rate": 0.1' in texts(run / "tensorboard")["config"]
    assert texts(run / "tensorboard")["status"] == "finished"


def test_events_carry_the_wall_time_of_their_row(tmp_path: Path) -> None:
    run = train(tmp_path, [TensorBoard()])
    times = [event.wall_time for event in events(run / "tensorboard") if "agent/loss" in str(event.summary)]
    assert times == [row["wall_time"] for row in RunReader(run).metric_windows()]


def test_a_directory_of_ones_own_has_a_place_for_each_run(tmp_path: Path) -> None:
    run = train(tmp_path / "runs", [TensorBoard(tmp_path / "boards")])
    assert_shown((tmp_path / "boards").joinpath(*run.parts[-3:]), run)


def test_a_stopped_run_goes_on_in_the_same_place(tmp_path: Path) -> None:
    train(tmp_path, [TensorBoard()], stop_at=20)
    run = train(tmp_path, [TensorBoard()])
    assert_shown(run / "tensorboard", run)


@pytest.mark.slow
@pytest.mark.parametrize("save", [1, 4, 9, 10])
def test_after_a_kill_no_row_is_shown_twice_and_none_is_missing(tmp_path: Path, save: int) -> None:
    assert killed_at_save(RECORDER, tmp_path, save)
    run = train(tmp_path, [TensorBoard()])
    assert RunReader(run).metadata.resumes[-1].grade == "exact"
    assert_shown(run / "tensorboard", run)


def test_what_was_lost_from_the_files_is_written_again(tmp_path: Path) -> None:
    run = train(tmp_path, [TensorBoard()], stop_at=20)
    (file,) = (run / "tensorboard").iterdir()
    os.truncate(file, 0)
    run = train(tmp_path, [TensorBoard()])
    assert_shown(run / "tensorboard", run)


def test_a_recorder_that_comes_late_shows_the_run_from_its_beginning(tmp_path: Path) -> None:
    train(tmp_path, [], stop_at=20)
    run = train(tmp_path, [TensorBoard()])
    assert_shown(run / "tensorboard", run)


def test_histograms_texts_and_videos_are_shown(tmp_path: Path) -> None:
    run = train(tmp_path, [TensorBoard()], media=MEDIA)
    values = [(event.step, value) for event in events(run / "tensorboard") for value in event.summary.value]
    histograms = [(step, value.histo.num) for step, value in values if value.tag == "agent/weights"]
    assert histograms == [(step, 10) for step in MARKS]
    assert texts(run / "tensorboard")["train/remark"] == "all is well"
    images = [value.image for _, value in values if value.tag == "eval/episode"]
    assert [(image.height, image.width) for image in images] == [(8, 10)] * len(MARKS)
    shown = Image.open(io.BytesIO(images[0].encoded_image_string))
    assert (shown.format, getattr(shown, "n_frames", 1), shown.info["duration"]) == ("GIF", 3, 100)


def test_an_exact_resume_writes_nothing_twice(tmp_path: Path) -> None:
    train(tmp_path, [TensorBoard()], fail_at=25)
    run = train(tmp_path, [TensorBoard()])
    assert_shown(run / "tensorboard", run)
    assert not any(event.HasField("session_log") for event in events(run / "tensorboard"))


def test_an_approximate_resume_hides_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    train(tmp_path, [TensorBoard()], fail_at=25)
    run = train(tmp_path, [TensorBoard()], loss="the wind has changed")
    assert_shown(run / "tensorboard", run)
    assert [event.step for event in events(run / "tensorboard") if event.HasField("session_log")] == [21]

"""Logs that were torn, cut or edited: a torn end is repaired, anything else is an error that names the line."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from crashes import contents, crash
from harness import ForkServer, Training, assert_exact

import rekindle

LOGS = ("train_episodes.jsonl", "eval_episodes.jsonl", "metrics.jsonl")


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Training:
    """Not to be changed: copy it."""
    return crash(Training(tmp_path_factory.mktemp("crashed") / "training", server))


@pytest.fixture
def broken(crashed: Training, tmp_path: Path) -> Training:
    return crashed.copy_to(tmp_path / "broken")


def assert_refuses(training: Training, *parts: str) -> None:
    """It says so on one line, changes nothing, and says the same the next time."""
    run = training.run
    before = contents(run)
    for _ in range(2):
        ended = training.fork()
        assert ended.code == 1
        (line,) = ended.errors.splitlines()
        for part in ("LogCorrupt", *parts):
            assert part in line
        assert contents(run) == before


class TestTornTail:
    @pytest.mark.parametrize("log", LOGS)
    def test_rows_after_the_checkpoint_move_to_rewound_whole_or_torn(
        self, broken: Training, log: str, reference: Mapping[str, str | None]
    ) -> None:
        path = broken.run / log
        before = path.read_bytes()
        number = before.count(b"\n")
        surplus = b'{"row":%d,"wall_time":1.0}\n{"row":%d,"wa' % (number, number + 1)
        path.write_bytes(before + surplus)
        broken.finish()
        moved = (broken.run / "rewound" / "resume_1" / log).read_bytes()
        assert moved.endswith(surplus)
        assert_exact(broken, reference)

    @pytest.mark.parametrize("log", LOGS)
    def test_garbage_after_the_checkpoint_is_no_obstacle(
        self, broken: Training, log: str, reference: Mapping[str, str | None]
    ) -> None:
        with (broken.run / log).open("ab") as file:
            file.write(b"\0" * 4096)
        broken.finish()
        assert_exact(broken, reference)

    def test_before_the_first_checkpoint_a_torn_last_line_is_dropped(
        self, training: Training, reference: Mapping[str, str | None]
    ) -> None:
        early_crash(training)
        rows = (training.run / "train_episodes.jsonl").read_bytes()
        assert rows.count(b"\n") >= 1
        (training.run / "train_episodes.jsonl").write_bytes(rows + b'{"row":')
        training.finish()
        (resume,) = rekindle.RunReader(training.run).metadata.resumes
        assert (resume.step, resume.grade) == (0, "exact")
        assert "there was no checkpoint yet" in resume.lost[0]
        moved = training.run / "rewound" / "resume_1" / "train_episodes.jsonl"
        assert moved.read_bytes() == rows + b'{"row":'
        assert_exact(training, reference)

    def test_a_reader_leaves_out_a_row_that_is_still_being_written(self, broken: Training) -> None:
        reader = rekindle.RunReader(broken.run)
        rows = reader.train_episodes()
        with (broken.run / "train_episodes.jsonl").open("ab") as file:
            file.write(b'{"row":')
        assert reader.train_episodes() == rows


class TestDamagedRows:
    @pytest.mark.parametrize("log", LOGS)
    def test_a_bad_line_in_the_middle_is_an_error_with_its_number(self, broken: Training, log: str) -> None:
        path = broken.run / log
        lines = path.read_bytes().splitlines(keepends=True)
        lines[1] = b"#" + lines[1][1:]
        path.write_bytes(b"".join(lines))
        assert_refuses(broken, str(path), "line 2 is not JSON")

    @pytest.mark.parametrize("log", LOGS)
    def test_a_log_shorter_than_the_checkpoint_says_is_an_error_with_the_line(self, broken: Training, log: str) -> None:
        path = broken.run / log
        data = path.read_bytes()
        lines = data.splitlines(keepends=True)
        kept = b"".join(lines[:2])
        path.write_bytes(kept)
        assert_refuses(broken, str(path), f"has {len(kept)} bytes", "rows are missing from line 3 on")

    @pytest.mark.parametrize("log", LOGS)
    def test_a_log_that_is_gone_is_an_error_too(self, broken: Training, log: str) -> None:
        (broken.run / log).unlink()
        assert_refuses(broken, log, "has 0 bytes", "from line 1 on")

    def test_a_row_that_was_edited_is_an_error(self, broken: Training) -> None:
        path = broken.run / "train_episodes.jsonl"
        data = path.read_bytes()
        edited = data.replace(b'"length":', b'"Length":', 1)
        assert len(edited) == len(data) != 0
        assert edited != data
        path.write_bytes(edited)
        assert_refuses(broken, str(path), "are not the ones that were written")

    def test_a_row_that_is_missing_is_an_error_with_its_line(self, broken: Training) -> None:
        path = broken.run / "train_episodes.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:2], *lines[3:], lines[2]]))
        assert_refuses(broken, str(path), "line 3 is not row 2")

    def test_before_the_first_checkpoint_a_bad_line_in_the_middle_is_an_error(self, training: Training) -> None:
        early_crash(training)
        path = training.run / "train_episodes.jsonl"
        path.write_bytes(b"?\n" + path.read_bytes())
        assert_refuses(training, str(path), "line 1 is not JSON")

    @pytest.mark.parametrize("change", [lambda data: data[:-20], lambda data: b"[" + data[1:], lambda data: b""])
    def test_it_goes_on_when_the_log_is_put_back(
        self, broken: Training, change: Callable[[bytes], bytes], reference: Mapping[str, str | None]
    ) -> None:
        path = broken.run / "metrics.jsonl"
        data = path.read_bytes()
        checkpoint_size = len(data[: data.rstrip(b"\n").rfind(b"\n") + 1])
        path.write_bytes(change(data[:checkpoint_size]))
        assert broken.fork().code == 1
        path.write_bytes(data)
        broken.finish()
        assert_exact(broken, reference)

    def test_no_log_is_cut_unless_all_of_them_can_be(self, broken: Training) -> None:
        with (broken.run / LOGS[0]).open("ab") as file:
            file.write(b"surplus\n")
        (broken.run / LOGS[-1]).write_bytes(b"")
        assert_refuses(broken, LOGS[-1], "has 0 bytes")

    def test_verify_names_the_line(self, broken: Training) -> None:
        path = broken.run / "metrics.jsonl"
        path.write_bytes(path.read_bytes().replace(b'{"row":3', b'{"row":4'))
        found = rekindle.verify(broken.run)
        assert not found.ok
        assert found.digests["logs"] is None
        assert found.problems[0].startswith(f"{path}: line 4 is not row 3")


def test_logs_are_strict_json_with_rows_numbered_from_0(undisturbed: Training) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for log in LOGS:
        lines = (undisturbed.run / log).read_text().splitlines()
        rows = [json.loads(line, parse_constant=refuse) for line in lines]
        assert [row["row"] for row in rows] == list(range(len(rows)))


def early_crash(training: Training) -> None:
    """Die when one episode is logged, before the first checkpoint."""
    rehearsal = training.copy_to(training.directory.with_name("rehearsal"))
    rehearsal.fork("record")
    row, *_ = [
        number
        for number, call in enumerate(rehearsal.reported, 1)
        if call.startswith("write") and call.endswith("train_episodes.jsonl")
    ]
    assert training.fork(f"kill {row + 1}").killed
    assert (training.run / "train_episodes.jsonl").read_bytes().count(b"\n") == 1
    assert training.steps_on_disk == []

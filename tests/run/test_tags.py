"""Tags: words that people give to runs."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from rekindle import TrainingRun, verify
from rekindle.errors import ConfigError, StorageError
from rekindle.run.creation import new_run
from rekindle.run.overview import glimpse, summarise
from rekindle.run.reader import RunReader
from rekindle.run.tags import MOST_TAGS, add_tags, checked_tag, read_tags, remove_tags, tagged_runs, tags_text


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run without tags, which no process writes."""
    made = TrainingRun.create("lake", root=tmp_path)
    made.close()
    return made.path


def test_a_run_is_created_with_its_tags(tmp_path: Path) -> None:
    with_tags = TrainingRun.create("lake", root=tmp_path, tags=["baseline", "new reward", "baseline"])
    assert with_tags.reader.tags == ("baseline", "new reward")
    with_tags.close()


def test_tags_of_a_live_run_change_without_its_lock(tmp_path: Path) -> None:
    live = TrainingRun.create("lake", root=tmp_path, tags=["old"])
    other = RunReader(live.path)
    assert other.is_live
    assert other.change_tags(add=["good"], remove=["old"]) == ("good",)
    live.update_metadata(stop_reason="done")
    live.close()
    resumed = TrainingRun.resume(live.path)
    assert resumed.reader.tags == ("good",)
    resumed.close()


def test_tags_change_no_digest(run: Path) -> None:
    before = verify(run)
    add_tags(run, ["baseline"])
    after = verify(run)
    assert after.ok
    assert after.digests == before.digests


def test_tags_are_sorted_as_people_expect(run: Path) -> None:
    add_tags(run, ["lr10", "lr9", "Beta", "alpha"])
    assert read_tags(run) == ("alpha", "Beta", "lr9", "lr10")
    assert summarise(glimpse(run)).tags == read_tags(run)


def test_what_looks_the_same_is_the_same_tag(run: Path) -> None:
    add_tags(run, ["cafe\u0301"])
    add_tags(run, ["caf\u00e9"])
    assert read_tags(run) == ("caf\u00e9",)
    remove_tags(run, ["cafe\u0301"])
    assert read_tags(run) == ()


HOSTILE = [
    *("", " ", " a", "a ", ".", "..", ".hidden", "-x", "+x", "a/b", "/etc/passwd", "a,b", "a\nb", "a\0b", "a\x1b[2J"),
    *("\u202ereversed", "\udcff", "x" * 65, "\U0001f600" * 64),
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_what_cannot_be_a_tag_is_refused_before_anything_is_written(run: Path, tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="printable characters"):
        add_tags(run, ["good", text])
    with pytest.raises(ConfigError):
        RunReader(run).change_tags(remove=[text])
    with pytest.raises(ConfigError):
        new_run(tmp_path / "other", "lake", "v1", tags=[text])
    assert not (run / "tags").exists()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("text", ["x" * 64, "\u00e9" * 64, "lr=3e-4", "a b", "team:vision", "\u4e2d\u6587"], ids=ascii)
def test_other_words_are_tags(run: Path, text: str) -> None:
    assert checked_tag(text) == text
    add_tags(run, [text])
    assert read_tags(run) == (text,)


def test_the_number_of_tags_is_limited(run: Path) -> None:
    add_tags(run, [f"t{number}" for number in range(MOST_TAGS)])
    with pytest.raises(ConfigError, match="at most 50: remove some"):
        add_tags(run, ["more"])
    add_tags(run, ["t3"])  # it has that one
    assert RunReader(run).change_tags(add=["more"], remove=["t3"]).count("more") == 1
    with pytest.raises(ConfigError, match="51 tags"):
        add_tags(run, [f"n{number}" for number in range(MOST_TAGS + 1)])


def test_a_text_is_not_taken_for_a_list_of_letters(run: Path) -> None:
    with pytest.raises(ConfigError, match="use a list"):
        add_tags(run, "baseline")


def test_files_that_are_no_tags_are_ignored(run: Path) -> None:
    add_tags(run, ["good"])
    (run / "tags" / ".hidden").touch()
    (run / "tags" / "a,b").touch()
    (run / "tags" / "directory").mkdir()
    (run / "tags" / "link").symlink_to("/etc/passwd")
    os.mkfifo(run / "tags" / "pipe")
    (run / "tags" / os.fsdecode(b"\xff")).touch()
    assert read_tags(run) == ("good",)


def test_a_directory_full_of_files_is_read_in_part(run: Path) -> None:
    (run / "tags").mkdir()
    for number in range(1200):
        (run / "tags" / f"t{number}").touch()
    assert len(read_tags(run)) == MOST_TAGS


@pytest.mark.parametrize("kind", ["link", "file"])
def test_tags_never_lead_out_of_the_run(run: Path, tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").touch()
    if kind == "link":
        (run / "tags").symlink_to(outside)
    else:
        (run / "tags").touch()
    for change in (add_tags, remove_tags):
        with pytest.raises(StorageError):
            change(run, ["victim"])
    assert [path.name for path in outside.iterdir()] == ["victim"]
    seen = summarise(glimpse(run))
    assert (seen.tags, len(seen.problems)) == ((), 1)
    assert tagged_runs([run], ["victim"]) == []


def test_a_link_with_the_name_of_a_tag_is_neither_followed_nor_removed(run: Path, tmp_path: Path) -> None:
    (run / "tags").mkdir()
    target = tmp_path / "target"
    (run / "tags" / "good").symlink_to(target)
    add_tags(run, ["good"])
    remove_tags(run, ["good"])
    assert not target.exists()
    assert (run / "tags" / "good").is_symlink()


def test_edits_at_the_same_time_lose_nothing(run: Path) -> None:
    add_tags(run, [f"old{number}" for number in range(8)])
    start = threading.Barrier(8)
    failures: list[BaseException] = []

    def edit(number: int) -> None:
        try:
            start.wait()
            for _ in range(5):
                RunReader(run).change_tags(add=["shared", f"new{number}"], remove=[f"old{number}"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=edit, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert read_tags(run) == (*(f"new{number}" for number in range(8)), "shared")


def test_runs_are_found_by_all_of_their_tags(tmp_path: Path) -> None:
    both = TrainingRun.create("lake", root=tmp_path, tags=["a", "b"])
    one = TrainingRun.create("lake", root=tmp_path, tags=["a"])
    for run in (both, one):
        run.close()
    assert tagged_runs([both.path, one.path], ["a"]) == [both.path, one.path]
    assert tagged_runs([both.path, one.path], ["a", "b"]) == [both.path]
    assert (tags_text({"a"}), tags_text({"b", "a"})) == ("the tag 'a'", "the tags 'a' and 'b'")

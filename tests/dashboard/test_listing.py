"""The list says what the command line says, and looks only at what changed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from logged_runs import evaluation, write_run

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

from rekindle import TrainingRun
from rekindle.run.overview import glimpse, summarise
from rekindle.run.tags import add_tags, remove_tags
from rekindle.storage.logs import LogPosition
from rekindle.ui.dashboard import listing as listing_module
from rekindle.ui.dashboard.listing import Listing, RunRow


def rows_of(listing: Listing) -> dict[str, RunRow]:
    look_again(listing)
    return {row.id: row for row in listing.changed_since(0)[0]}


def look_again(listing: Listing) -> None:
    """Do not wait until it is time to look."""
    listing._next_search = listing._next_look = 0.0  # pyright: ignore[reportPrivateUsage]
    while listing.refresh():
        pass


def test_algorithm_and_environment_are_known_however_many_settings_there_are(tmp_path: Path) -> None:
    config = {"algorithm": "dqn", "agent": {f"setting{number}": number for number in range(100)}, "env": {"id": "A"}}
    write_run(tmp_path, config=config)
    (row,) = rows_of(Listing(tmp_path)).values()
    assert (row.algorithm, row.environment, len(row.settings)) == ("dqn", "A", 40)


def test_a_seed_beyond_the_integers_of_javascript_keeps_all_digits(tmp_path: Path) -> None:
    write_run(tmp_path, seed=2**64 - 1)
    (row,) = rows_of(Listing(tmp_path)).values()
    assert row.seed == "18446744073709551615"


@pytest.mark.parametrize("episodes", [0, 1, 9, 10, 95, 400])
def test_a_run_is_summed_up_as_on_the_command_line(tmp_path: Path, episodes: int) -> None:
    path = write_run(tmp_path, episodes=episodes, reward=lambda number: float(number % 37), config={"env": {"id": "A"}})
    row = rows_of(Listing(tmp_path))[path.relative_to(tmp_path).as_posix()]
    expected = summarise(glimpse(path))
    assert (row.name, row.version, row.run_id, row.status) == ("lake", "v1", path.name, "finished")
    assert (row.steps, row.episodes, row.updates) == (expected.steps, expected.episodes, expected.updates)
    assert row.mean_return == pytest.approx(expected.mean_return)
    assert row.settings == {"env.id": "A"}
    assert row.problem is None
    if row.best_return is None or not row.best_return.at_least:
        assert row.best_return == expected.best_return
    else:
        assert expected.best_return is not None
        assert row.best_return.value <= expected.best_return.value


def test_a_spark_has_the_means_from_the_start_to_the_end(tmp_path: Path) -> None:
    short, long = write_run(tmp_path, "short", episodes=3), write_run(tmp_path, "long", episodes=2000)
    rows = rows_of(Listing(tmp_path))
    assert rows[f"short/v1/{short.name}"].spark == [0.0, 1.0, 2.0]
    spark = rows[f"long/v1/{long.name}"].spark
    assert 20 <= len(spark) <= 30
    assert spark == sorted(spark, key=lambda value: value or 0.0)
    assert spark[0] is not None
    assert spark[0] < 20
    assert spark[-1] is not None
    assert spark[-1] > 1900


def test_only_runs_that_changed_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write_run(tmp_path, f"run{number}") for number in range(5)]
    listing = Listing(tmp_path)
    assert len(rows_of(listing)) == 5
    version = listing.version
    read: list[str] = []
    real = listing_module._read  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(listing_module, "_read", lambda id_, path: (read.append(id_), real(id_, path))[1])
    look_again(listing)
    assert (read, listing.changed_since(version)) == ([], ([], [], version))
    run = TrainingRun.resume(paths[3])
    run.open_logs({}, LogPosition())
    run.update_metadata(status="running")
    look_again(listing)
    changed, gone, _ = listing.changed_since(version)
    assert [(row.name, row.status) for row in changed] == [("run3", "running")]
    assert (gone, set(read)) == ([], {changed[0].id})
    run.log("eval_episodes").append(evaluation(50, 1.0)[0])
    look_again(listing)
    assert rows_of(listing)[changed[0].id].steps == 510
    run.close()
    look_again(listing)
    assert rows_of(listing)[changed[0].id].status == "crashed"


def test_runs_come_and_go(tmp_path: Path) -> None:
    first = write_run(tmp_path, "first")
    listing = Listing(tmp_path)
    assert [row.name for row in rows_of(listing).values()] == ["first"]
    version = listing.version
    second = write_run(tmp_path, "second")
    shutil.rmtree(first)
    look_again(listing)
    rows, gone, _ = listing.changed_since(version)
    assert ([row.name for row in rows], gone) == (["second"], [first.relative_to(tmp_path).as_posix()])
    assert listing.find(second.relative_to(tmp_path).as_posix()) == second


def test_many_runs_are_read_in_portions_the_newest_first(tmp_path: Path) -> None:
    for number in range(7):
        write_run(tmp_path, "lake", f"v{number}", episodes=1)
    listing = Listing(tmp_path)
    assert listing.refresh(most=3)
    assert sorted(row.version for row in listing.changed_since(0)[0]) == ["v4", "v5", "v6"]
    assert listing.count == 7


@pytest.mark.parametrize(
    "id_",
    ["..", "../other/v1/x", "/etc", "lake/v1/../../..", "", ".", "lake", "lake/v1", "lake/v1/2020\0", "%2e%2e"],
)
def test_an_id_that_is_no_run_leads_nowhere(tmp_path: Path, id_: str) -> None:
    write_run(tmp_path / "runs")
    write_run(tmp_path / "other", "other")
    assert Listing(tmp_path / "runs").find(id_) is None


def test_a_single_run_is_a_list_of_one(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    rows = rows_of(Listing(path))
    assert list(rows) == [path.name]


HOSTILE: dict[str, bytes] = {
    "metadata.json": b"<script>alert(1)</script>",
    "config.json": b'{"a": ' * 100_000,
    "train_episodes.jsonl": b'{"row": 0, "env_steps": "<script>"}\nnonsense\n' * 3000,
    "eval_episodes.jsonl": b"\xff" * 100_000,
    "metrics.jsonl": b"x" * 100_000 + b"\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_run_is_listed_with_what_is_wrong(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, "good")
    bad = write_run(tmp_path, "bad")
    (bad / name).write_bytes(HOSTILE[name])
    rows: dict[str, Any] = {row.name.split("/")[0]: row for row in rows_of(Listing(tmp_path)).values()}
    assert rows["good"].problem is None
    assert rows["bad"].problem or name == "eval_episodes.jsonl"
    assert len(rows["bad"].problem or "") < 400


def test_a_name_that_no_one_would_choose_is_listed(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    hostile = tmp_path / "<img src=x onerror=alert(1)>" / "v1 %2e?#" / os.fsdecode(b"20260101_\xff\n")
    hostile.parent.mkdir(parents=True)
    shutil.copytree(path, hostile)
    metadata = json.loads((hostile / "metadata.json").read_text())
    (hostile / "metadata.json").write_text(json.dumps({**metadata, "name": "<b>bold</b>"}))
    listing = Listing(tmp_path)
    rows = rows_of(listing)
    (id_,) = [id_ for id_, row in rows.items() if row.name == "<b>bold</b>"]
    assert listing.find(id_) == hostile


def test_tags_of_a_run_that_has_ended_are_noticed(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    listing = Listing(tmp_path)
    (id_,) = rows_of(listing)
    assert rows_of(listing)[id_].tags == ()
    add_tags(path, ["good", "baseline"])
    assert rows_of(listing)[id_].tags == ("baseline", "good")
    remove_tags(path, ["good"])
    assert rows_of(listing)[id_].tags == ("baseline",)


def test_tags_that_lead_out_of_the_run_are_a_problem_of_that_run(tmp_path: Path) -> None:
    (write_run(tmp_path) / "tags").symlink_to(tmp_path)
    write_run(tmp_path, "other")
    rows = rows_of(Listing(tmp_path))
    assert sorted((row.name, row.tags, row.problem is None) for row in rows.values()) == [
        ("lake", (), False),
        ("other", (), True),
    ]

"""What is kept of runs at which nobody looks any more, and what a browser that comes later is told."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from logged_runs import write_run

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

from rekindle.run.metadata import LOGS
from rekindle.ui.dashboard.listing import Listing
from rekindle.ui.dashboard.watching import IndexCache, RunWatch


def memory_of(cache: IndexCache, paths: list[Path]) -> int:
    held = cache._indexes  # pyright: ignore[reportPrivateUsage]
    return sum(index.nbytes for path in paths if path in held for index in held[path].values())


def test_indexes_are_kept_as_far_as_memory_allows_the_last_ones_used_first(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(5)]
    least = sum(index.nbytes for index in IndexCache().acquire(paths[0]).values())
    cache = IndexCache(memory=2 * least)
    first = cache.acquire(paths[0])
    for path in paths[1:]:
        cache.acquire(path)
        cache.release(path)
    assert memory_of(cache, paths) == 2 * least
    assert cache.acquire(paths[0]) is first  # somebody still looks at it
    assert list(first) == list(LOGS)
    last = cache.acquire(paths[4])
    cache.release(paths[4])
    assert cache.acquire(paths[4]) is last


def test_a_second_browser_gets_everything_without_reading_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_run(tmp_path, episodes=100)
    id_ = path.relative_to(tmp_path).as_posix()
    listing, cache = Listing(tmp_path), IndexCache()
    assert listing.find(id_) == path
    tables: list[list[bytes]] = []
    for _ in range(2):
        with RunWatch(id_, path, listing, cache, points=1000, band=True) as watch:
            messages, more = watch.look()
            assert not more
            assert watch.look() == ([], False)
        tables.append(messages[1:])
        offsets = {log: index.offset for log, index in cache.acquire(path).items()}
        assert offsets == {log: (path / f"{log}.jsonl").stat().st_size for log in LOGS}
        monkeypatch.setattr("rekindle.ui.dashboard.log_index.decode", None)  # nothing is to be decoded again
    assert tables[0] == tables[1]
    assert len(msgspec.json.decode(tables[0][0])["rows"]) == 100


def test_numbers_are_sent_to_six_digits_and_what_is_no_number_as_null(tmp_path: Path) -> None:
    values = [1 / 3, -2e-9 / 3, 123456789.0, 0.0, 1e299]
    path = write_run(tmp_path, episodes=len(values), reward=lambda number: values[number])
    with (path / "train_episodes.jsonl").open("a") as log:
        log.write('{"row": 5, "env_steps": 60, "wall_time": 1, "total_reward": null}\n')
    id_ = path.relative_to(tmp_path).as_posix()
    listing = Listing(tmp_path)
    listing.find(id_)
    with RunWatch(id_, path, listing, IndexCache(), points=1000, band=False) as watch:
        message = msgspec.json.decode(watch.look()[0][1])
    assert message["mean"]["return"] == [0.333333, -6.66667e-10, 123457000.0, 0.0, 1e299, None]
    assert (message["least"], message["most"]) == ({}, {})

"""The actors of a run, in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from processes import Client
from watched_runs import written

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")
pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import Page, expect

Serve = Callable[[Path], Client]
Open = Callable[..., Page]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed"),
]


def write(root: Path, actors: int, *, ends: bool = True) -> str:
    """A run whose actor 1 is slow, and was started again; its address."""
    writer = written(root)
    for share in (0.5, 0.25):
        writer.episodes_of([1.0])
        means = {"time__learner_waiting": share, "time__updates_per_sec": 12.5, "time__samples_per_sec": 4000.0}
        for actor in range(actors):
            means[f"time__actor_{actor}_samples_per_sec"] = 500.0 if actor == 1 else 1500.0
            means[f"time__actor_{actor}_playing"] = 1.0 if actor == 1 else share
        writer.metrics_of(**means, **({"time__actor_1_restarts": 2.0} if actors else {}))
    if ends:
        writer.end()
    return f"#/run/{quote('/'.join(writer.path.parts[-3:]), safe='')}"


@pytest.mark.parametrize("width", [1280, 360])
def test_every_actor_has_its_state(tmp_path: Path, serve: Serve, open_page: Open, width: int) -> None:
    place = write(tmp_path, 32)
    page = open_page(serve(tmp_path), place, viewport={"width": width, "height": 800})
    page.get_by_role("tab", name="Actors").click()
    actors = page.get_by_role("list", name="Actors").get_by_role("listitem")
    expect(actors).to_have_count(32)
    expect(actors.nth(0)).to_have_text("Actor 01.5k/s25 % playing")
    expect(actors.nth(1)).to_have_text("Actor 1500/s100 % playingslow2 restarts")
    panel = page.locator("#panel-actors")
    expect(panel).to_contain_text("This run is not live: these are the states of its last metric window.")
    expect(panel).to_contain_text("32 · 1 slow · 1 started again")
    expect(panel.locator("dl")).to_have_text("Busy75 %Updates/s12.5Samples/s4k")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = "boxes => boxes.filter(box => box.scrollWidth > box.clientWidth).length"
    assert actors.evaluate_all(outside) == 0


def test_actors_share_charts(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(tmp_path), write(tmp_path, 3))
    chart = page.locator("[data-metric='time/actors/samples_per_sec']")
    chart.scroll_into_view_if_needed()
    expect(chart.locator(".readout")).to_contain_text("actor 1")
    expect(page.locator("[data-metric='time/actor_1_samples_per_sec']")).to_have_count(0)


def test_a_live_run_and_one_without_actors(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    live, plain = write(tmp_path / "a", 2, ends=False), write(tmp_path / "b", 0)
    page = open_page(serve(tmp_path / "a"), live)
    page.get_by_role("tab", name="Actors").click()
    expect(page.locator("#panel-actors")).to_contain_text("States of the last metric window.")
    page = open_page(serve(tmp_path / "b"), plain)
    expect(page.get_by_role("tab", name="Charts")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("Steps")
    expect(page.locator("#tab-actors")).to_be_hidden()

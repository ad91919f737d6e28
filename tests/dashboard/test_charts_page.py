"""What charts say and save: names, axis titles, room at the edges, CSV and PNG; and videos, and the list on a phone."""

from __future__ import annotations

import csv
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from logged_runs import write_run
from processes import Client

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")
pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import Page, expect

Serve = Callable[[Path], Client]
Open = Callable[..., Page]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
        reason="needs chromium, which is not installed",
    ),
]
GIF = bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")


@pytest.fixture(scope="module")
def twelve_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three trainings of four seeds."""
    root = tmp_path_factory.mktemp("runs")
    for rate in (0.1, 0.2, 0.3):
        for seed in range(4):
            config = {"agent": {"rate": rate}, "seed": seed}
            write_run(root, "lake", f"v{rate}-{seed}", reward=lambda _, value=rate + seed: value, config=config)
    return root


def place(root: Path) -> str:
    ids = sorted("/".join(path.parts[-4:-1]) for path in root.glob("*/*/*/metadata.json"))
    return f"#/{'run' if len(ids) == 1 else 'compare'}/{','.join(quote(id_, safe='') for id_ in ids)}"


def test_groups_and_runs_are_named_at_each_chart(twelve_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(twelve_runs), place(twelve_runs))
    chart = page.locator("[data-metric='episode/return']")
    expect(chart.locator(".readout .label")).to_have_text(["rate 0.1", "rate 0.2", "rate 0.3"])
    boxes = chart.locator(".readout .value").evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.right, box.top, box.bottom])"
    )
    for (_, right, _, bottom), (left, _, top, _) in itertools.pairwise(boxes):
        assert left >= right or top >= bottom
    page.get_by_role("radio", name="Each run").click()
    expect(page.locator(".legend .item")).to_have_count(12)
    lines = page.locator(".legend .swatch line").evaluate_all(
        "lines => lines.map(line => line.getAttribute('stroke') + line.getAttribute('stroke-dasharray'))"
    )
    assert len(set(lines)) == 12
    chart.locator(".u-over").hover()
    expect(page.locator(".tip:visible")).to_have_count(1)
    expect(chart.locator(".tip .value")).to_have_count(12)
    expect(chart.locator(".tip .value").first).to_contain_text("v0.3-3")


def test_axes_have_a_title_and_room_around_the_lines(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    write_run(tmp_path, reward=lambda _: 0.0)
    page = open_page(serve(tmp_path), place(tmp_path))
    chart = page.locator("[data-metric='episode/length']")
    expect(chart.locator(".readout b")).to_have_count(2)
    plots = "name => { const { plot } = document.querySelector(`[data-metric='${name}']`).chart; return "
    assert page.evaluate(plots + "plot.axes[0].label; }", "episode/length") == "env steps"
    for name, low, high in (("episode/length", 10, 10), ("episode/epsilon", 0.5, 0.5)):
        least, most = page.evaluate(plots + "[plot.scales.y.min, plot.scales.y.max]; }", name)
        assert least < low <= high < most < 4 * high  # a constant line is in the middle, not on an edge
    assert page.evaluate(plots + "plot.width - plot.bbox.left - plot.bbox.width; }", "episode/length") >= 20


def test_a_chart_is_saved_as_csv_and_as_png(twelve_runs: Path, tmp_path: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(twelve_runs), place(twelve_runs))
    chart = page.locator("[data-metric='episode/return']")
    expect(chart.locator(".readout b")).to_have_text(["1.60", "1.70", "1.80"])  # of all four seeds
    for kind in ("CSV", "PNG"):
        with page.expect_download() as saved:
            chart.get_by_role("button", name=f"Save return as {kind}").click()
        assert saved.value.suggested_filename == f"return.{kind.lower()}"
        saved.value.save_as(tmp_path / f"chart.{kind}")
    heads, *rows = csv.reader((tmp_path / "chart.CSV").read_text().splitlines())
    assert heads[:4] == ["env steps", "lake, rate 0.1", "lake, rate 0.1, min", "lake, rate 0.1, max"]
    assert len(heads) == 10
    assert [round(float(value), 3) for value in rows[-1]] == [200, 1.6, 0.1, 3.1, 1.7, 0.2, 3.2, 1.8, 0.3, 3.3]
    assert (tmp_path / "chart.PNG").read_bytes().startswith(b"\x89PNG")


def test_videos_of_a_run_are_shown(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    path = write_run(tmp_path)
    client = serve(tmp_path)
    page = open_page(client, place(tmp_path))
    expect(page.get_by_role("tab", name="Charts")).to_be_visible()
    expect(page.get_by_role("tab", name="Videos")).to_be_hidden()
    (path / "videos").mkdir()
    (path / "videos" / "step_20-episode_0.gif").write_bytes(GIF)
    (path / "videos" / "linked.gif").symlink_to(path / "metadata.json")
    page.get_by_role("tab", name="Videos").click()
    expect(page.locator(".video img")).to_have_count(1)
    page.wait_for_function("() => document.querySelector('.video img').naturalWidth === 1")
    id_ = "/".join(path.parts[-3:])
    status, headers, body = client.request("GET", "/api/video", id=id_, name="step_20-episode_0.gif")
    assert (status, headers["content-type"], body) == (200, "image/gif", GIF)
    for name in ("linked.gif", "../metadata.json", "metadata.json", ""):
        assert client.request("GET", "/api/video", id=id_, name=name)[0] == 404


def test_on_a_phone_runs_can_be_selected_and_their_steps_are_visible(
    twelve_runs: Path, serve: Serve, open_page: Open
) -> None:
    page = open_page(serve(twelve_runs), viewport={"width": 390, "height": 844})
    expect(page.locator(".runs tbody tr")).to_have_count(12)
    box = page.locator(".runs thead th", has_text="Steps").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390
    page.locator(".runs tbody input").first.check()
    expect(page.locator("#compare")).to_have_text("Compare 1")

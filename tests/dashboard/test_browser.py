"""The pages in a real browser: live, after crashes and resumes, for one run, many runs and long ones."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from logged_runs import START, episode, window, write_run
from processes import Client, Process, Training, wait_until

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")
pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import Page, Route, expect

from rekindle import RunReader, TrainingRun
from rekindle.run.tags import add_tags, read_tags
from rekindle.storage.logs import JsonLines

Serve = Callable[[Path], Client]
Train = Callable[..., Training]
Open = Callable[..., Page]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed"),
]

expect.set_options(timeout=30_000)

DATA = "metric => document.querySelector(`[data-metric='${metric}']`)?.chart.data?.map(column => [...column])"


def place(*ids: str) -> str:
    return f"#/{'run' if len(ids) == 1 else 'compare'}/{','.join(quote(id_, safe='') for id_ in ids)}"


def id_of(path: Path) -> str:
    return "/".join(path.parts[-3:])


def column(page: Page, number: int, metric: str = "episode/return") -> list[Any]:
    """A column of a chart: 0 is the axis; each line has four, its least, its greatest, its mean, and that smoothed."""
    data = page.evaluate(DATA, metric)
    return [value for value in data[number] if value is not None] if data and len(data) > number else []


def returns(page: Page) -> list[float]:
    return column(page, 3)


def logged_returns(path: Path) -> list[float]:
    return [row["total_reward"] for row in RunReader(path).train_episodes()]


@pytest.fixture(scope="module")
def few_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of two versions; each gives the same return in every episode."""
    root = tmp_path_factory.mktemp("runs")
    for seed, (version, reward) in enumerate([("v1", 1.0), ("v1", 3.0), ("v2", 10.0)]):
        config = {"algorithm": "walker", "env": {"id": "Walk-v0"}, "rate": 0.1 * (seed // 2)}
        write_run(root, "lake", version, reward=lambda _, reward=reward: reward, seed=seed, config=config)
    return root


def ids_in(root: Path) -> list[str]:
    return sorted(id_of(path.parent) for path in root.glob("*/*/*/metadata.json"))


def test_the_list_shows_every_run_and_finds_and_sorts_them(few_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(few_runs))
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("finished")
    expect(rows.first).to_contain_text("walker · Walk-v0")
    expect(rows.locator(".sparkline polyline")).to_have_count(6)
    page.get_by_role("button", name="Best").click()
    expect(rows.first).to_contain_text("v2")
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Best")
    page.get_by_role("button", name="Best").click()
    expect(rows.last).to_contain_text("v2")
    page.locator("#search").fill("rate 0.1")
    expect(rows).to_have_count(1)
    page.locator("#search").fill("no such run")
    expect(page.get_by_text("No run matches.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    expect(rows).to_have_count(3)


def test_tags_are_edited_and_filter_the_list(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    first, second = (write_run(tmp_path, name) for name in ("lake", "cliff"))
    add_tags(second, ["baseline"])
    client = serve(tmp_path)
    page = open_page(client, place(id_of(first)), tolerant=True)  # a refused tag is an error in the console
    field = page.get_by_label("Add a tag")
    field.fill("baseline")
    field.press("Enter")
    field.fill("new reward, <i>&amp;")
    field.press("Enter")
    tags = page.locator(".tag-editor .tag")
    expect(tags).to_have_count(3)
    expect(field).to_have_value("")
    assert read_tags(first) == ("<i>&amp;", "baseline", "new reward")
    expect(tags.first).to_have_text("<i>&amp;")
    field.fill("..")
    field.press("Enter")
    expect(page.locator(".tag-editor .problem")).to_contain_text("printable characters")
    expect(field).to_have_value("..")
    field.fill("")
    page.get_by_label("Remove the tag new reward").click()
    expect(tags).to_have_count(2)
    add_tags(first, ["from outside"])
    expect(tags).to_have_count(3)
    page.goto(client.address)
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(2)
    chips = page.get_by_role("group", name="Tags")
    chips.get_by_role("button", name="from outside 1").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("from outside")
    chips.get_by_role("button", name="from outside 1").click()
    chips.get_by_role("button", name="baseline 2").click()
    expect(rows).to_have_count(2)
    page.locator("#search").fill("from outside")
    expect(rows).to_have_count(1)


def test_a_tag_that_is_typed_while_another_is_saved_stays(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = write_run(tmp_path, "lake")
    page = open_page(serve(tmp_path), place(id_of(run)))
    held: list[Route] = []
    page.route("**/api/tags*", lambda route: held.append(route))  # noqa: PLW0108 - a wrapped method is refused
    field, tags = page.get_by_label("Add a tag"), page.locator(".tag-editor .tag")
    field.fill("first")
    with page.expect_request("**/api/tags*"):
        field.press("Enter")
    field.fill("second")
    page.wait_for_timeout(1)  # in which Playwright delivers the request
    held.pop().continue_()
    page.unroute("**/api/tags*")
    expect(tags).to_have_text(["first"])
    expect(field).to_have_value("second")
    field.press("Enter")
    expect(tags).to_have_count(2)
    assert read_tags(run) == ("first", "second")


def test_an_empty_directory_says_what_to_do(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(tmp_path))
    expect(page.get_by_text("No runs here yet")).to_be_visible()
    write_run(tmp_path)
    expect(page.locator(".runs tbody tr")).to_have_count(1)


def test_everything_can_be_reached_with_the_keyboard(few_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(few_runs))
    expect(page.locator(".runs tbody tr")).to_have_count(3)
    for key in ("j", "x", "j", "x", "c"):
        page.keyboard.press(key)
    expect(page.get_by_role("heading", name="Comparison of 2 runs")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#compare")).to_have_text("Compare 2")
    page.keyboard.press("Escape")
    expect(page.locator("#compare")).to_have_text("Compare")
    page.keyboard.press("/")
    page.keyboard.type("v2")
    expect(page.locator(".runs tbody tr")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="lake")).to_be_visible()
    for number, name in enumerate(["Charts", "Episodes", "Config", "Checkpoints", "About"], 1):
        page.keyboard.press(str(number))
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        expect(page.get_by_role("tabpanel")).to_have_count(1)
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Checkpoints")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keys")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator(".runs tbody tr")).to_have_count(1)


def test_a_run_shows_its_charts_config_episodes_and_lineage(few_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(few_runs), place(ids_in(few_runs)[0]))
    charts = page.locator(".chart")
    expect(charts).to_have_count(4)
    assert [chart.get_attribute("data-metric") for chart in charts.all()] == [
        "episode/return",
        "episode/length",
        "episode/epsilon",
        "agent/loss",
    ]
    wait_until(lambda: len(returns(page)) == 20)
    assert column(page, 7) == [2.0, 2.0]  # the evaluations, in the same chart
    assert (column(page, 5), column(page, 6)) == ([1.0, 1.0], [3.0, 3.0])
    page.keyboard.press("2")
    expect(page.locator("#panel-episodes tbody tr")).to_have_count(20)
    page.get_by_label("Which episodes").select_option("eval_episodes")
    expect(page.locator("#panel-episodes tbody tr")).to_have_count(4)
    page.keyboard.press("3")
    page.get_by_role("tab", name="Config").click()
    expect(page.locator("#panel-config")).to_contain_text("env.idWalk-v0")
    page.get_by_role("tab", name="About").click()
    expect(page.locator("#panel-about")).to_contain_text("Other runs of lake v1")


def test_charts_change_axis_scale_and_smoothing(few_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(few_runs), place(ids_in(few_runs)[0]))
    wait_until(lambda: column(page, 0) and column(page, 0)[0] == 10.0)
    losses = column(page, 3, "agent/loss")
    page.get_by_label("Smoothing").fill("0.99")
    wait_until(lambda: column(page, 4, "agent/loss")[-1] > 1.2 * losses[-1])
    page.get_by_label("Smoothing").fill("0")
    wait_until(lambda: column(page, 4, "agent/loss") == losses)
    page.get_by_role("button", name="Log").click()
    scale = "() => document.querySelector(`[data-metric='agent/loss']`).chart.plot.scales.y.distr"
    wait_until(lambda: page.evaluate(scale) == 3)
    page.get_by_role("radio", name="Time").click()
    started = RunReader(few_runs / ids_in(few_runs)[0]).metadata.started_at
    wait_until(lambda: column(page, 0)[1] - column(page, 0)[0] == pytest.approx(1.0, abs=0.01))
    assert started
    page.reload()  # the browser remembers
    expect(page.get_by_role("radio", name="Time")).to_have_attribute("aria-checked", "true")
    page.get_by_label("Filter metrics").fill("loss")
    expect(page.locator(".chart:visible")).to_have_count(1)


def test_dragging_zooms_all_charts_and_a_double_click_shows_everything(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    path = write_run(tmp_path, episodes=5000)
    page = open_page(serve(tmp_path), place(id_of(path)))
    wait_until(lambda: 500 < len(returns(page)) < 2000)
    box = page.locator("[data-metric='episode/return'] .u-over").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.50 * box["width"], middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.55 * box["width"], middle, steps=5)
    page.mouse.up()
    seen = wait_until(lambda: len(values := returns(page)) < 300 and values)
    assert seen == list(range(round(seen[0]), round(seen[-1]) + 1))  # every single episode
    assert 2300 < seen[0] < seen[-1] < 2900
    bounds = "() => document.querySelector(`[data-metric='agent/loss']`).chart.plot.scales.x"
    assert page.evaluate(bounds)["min"] > 24_000
    page.mouse.dblclick(box["x"] + 0.5 * box["width"], middle)
    wait_until(lambda: returns(page)[0] < 5)


def test_a_chart_grows_while_a_training_writes(tmp_path: Path, serve: Serve, train: Train, open_page: Open) -> None:
    training = train(tmp_path)
    server = serve(tmp_path)
    listed = open_page(server)
    expect(listed.locator("tr.is-live .status.running")).to_have_count(1)
    page = open_page(server, place(training.id))
    expect(page.locator(".heading .status")).to_have_text("running")
    count = wait_until(lambda: len(returns(page)))
    messages = "() => performance.getEntriesByType('resource').filter(e => e.name.includes('/api/')).length"
    asked = page.evaluate(messages)
    wait_until(lambda: len(returns(page)) > count + 50)
    assert page.evaluate(messages) == asked  # it was told, and did not ask
    steps = listed.locator("tr.is-live td").nth(7)
    before = steps.text_content()
    wait_until(lambda: steps.text_content() != before)


def test_a_run_that_was_killed_is_shown_as_crashed_and_goes_on_when_it_is_resumed(
    tmp_path: Path, serve: Serve, train: Train, open_page: Open
) -> None:
    training = train(tmp_path, checkpoint_every=10_000)
    wait_until(lambda: len(logged_returns(training.path)) > 30)
    training.kill()
    page = open_page(serve(tmp_path), place(training.id))
    expect(page.locator(".heading .status")).to_have_text("crashed")
    expect(page.get_by_role("alert")).to_contain_text("This run crashed")
    lost = wait_until(lambda: len(returns(page)) == len(logged_returns(training.path)) and returns(page))
    again = train(tmp_path, pause=0.2)  # there was no checkpoint: it begins again, and the rows go
    assert again.path == training.path
    expect(page.locator(".heading .status")).to_have_text("running")
    wait_until(lambda: 0 < len(returns(page)) < len(lost))
    RunReader(again.path).request_stop()
    assert again.process.wait(30) == 0
    expect(page.locator(".heading .status")).to_have_text("stopped")
    wait_until(lambda: returns(page) == logged_returns(again.path))
    page.get_by_role("tab", name="About").click()
    expect(page.locator(".lineage")).to_contain_text("Resume 1 from step 0")


def test_rows_that_a_resume_takes_back_leave_the_chart(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = TrainingRun.create("lake", root=tmp_path)
    log = run.log("train_episodes")
    for number in range(20):
        log.append(episode(number))
    position = log.position
    for number in range(20, 40):
        log.append(episode(number))
    page = open_page(serve(tmp_path), place(id_of(run.path)))
    wait_until(lambda: returns(page) == list(range(40)))
    os.truncate(log.path, position.size)
    again = JsonLines(log.path, position)
    for number in range(20, 23):
        again.append(episode(number, reward=-7.0, wall_time=START + 1000 + number))
    wait_until(lambda: returns(page) == [*range(20), -7.0, -7.0, -7.0])
    again.close()
    run.close()


def test_a_comparison_has_the_mean_and_the_band_over_seeds(few_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(few_runs), place(*ids_in(few_runs)))
    single = f"lake / v2 / {ids_in(few_runs)[2].split('/')[-1]}"
    expect(page.locator(".legend .item")).to_have_text(["lake, rate 0.0 · 2 seeds", single])
    wait_until(lambda: len(page.evaluate(DATA, "episode/return") or []) == 9)
    least, most, mean = (column(page, number) for number in (1, 2, 3))
    for values, expected in ((least, 1.0), (most, 3.0), (mean, 2.0)):
        assert values == pytest.approx([expected] * len(least))
    page.get_by_role("radio", name="± std").click()
    wait_until(lambda: column(page, 2)[0] == pytest.approx(2 + 2**0.5))
    page.get_by_role("radio", name="Each run").click()
    expect(page.locator(".legend .item")).to_have_count(3)
    wait_until(lambda: len(page.evaluate(DATA, "episode/return")) == 13)
    table = page.locator(".sides")
    expect(table).to_contain_text("Settings that differ")
    expect(table.locator("tr", has_text="rate")).to_contain_text("0.1")
    expect(table.locator("tr", has_text="env.id")).to_have_count(0)
    page.get_by_label("Remove").first.click()
    expect(page.locator(".legend .item")).to_have_count(2)


def test_a_comparison_says_whether_groups_differ(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    for name, reward in (("low", 1.0), ("high", 9.0)):
        for seed in range(4):
            write_run(tmp_path, name, f"v1-seed{seed}", reward=lambda _, value=reward + 0.1 * seed: value, seed=seed)
    page = open_page(serve(tmp_path), place(*ids_in(tmp_path)))
    expect(page.locator(".scores tbody tr")).to_have_count(2)
    expect(page.locator(".difference.differs")).to_contain_text("high is better than low by 8.00")


def test_runs_of_one_training_in_several_versions_are_one_line(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    for seed in range(3):
        write_run(tmp_path, version=f"v1-seed{seed}", seed=seed)
    page = open_page(serve(tmp_path), place(*ids_in(tmp_path)))
    expect(page.locator(".legend .item")).to_have_text(["lake · 3 seeds"])


def test_runs_that_repeat_a_seed_are_not_counted_as_seeds(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    for seed in (0, 1, 1):
        write_run(tmp_path, seed=seed)
    page = open_page(serve(tmp_path), place(*ids_in(tmp_path)))
    expect(page.locator(".legend .item")).to_have_text(["lake · 3 runs"])


def test_more_runs_than_a_comparison_has_are_told(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    path = write_run(tmp_path, episodes=1)
    for number in range(120):
        shutil.copytree(path, path.with_name(f"{path.name}_{number + 2}"))
    page = open_page(serve(tmp_path), place(*ids_in(tmp_path)))
    expect(page.get_by_text("These are the first 100 of 121 runs")).to_be_visible()
    expect(page.locator(".legend .item")).to_have_text(["lake · 100 runs"])
    page.get_by_role("radio", name="Each run").click()
    expect(page.locator(".legend .item")).to_have_count(100)
    chart = page.locator("[data-metric='episode/return']").bounding_box()
    assert chart is not None
    assert chart["y"] < 500  # not below a page of names


@pytest.mark.parametrize(("reward", "mean"), [(-7.0, "\u22126.00"), (-1.0, "0")])
def test_the_best_of_a_run_is_an_evaluation_also_if_none_is_above_zero(
    tmp_path: Path, serve: Serve, open_page: Open, reward: float, mean: str
) -> None:
    # An evaluation has two episodes, of this reward and of 2 more.
    path = write_run(tmp_path, reward=lambda number: 50.0 if number == 3 else reward)
    page = open_page(serve(tmp_path), place(id_of(path)))
    expect(page.locator(".facts div", has_text="Best")).to_have_text(f"Best{mean}evaluation")


def test_a_live_run_shows_how_far_it_has_come(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    run = TrainingRun.create("lake", root=tmp_path)
    run.describe("Tabular", 1000)
    run.update_metadata(total_steps=250, parent="runs/other@500")
    page = open_page(serve(tmp_path), place(*ids_in(tmp_path)))
    expect(page.locator(".facts")).to_contain_text("250of 1k")
    expect(page.locator(".progress")).to_have_attribute("title", "25 % of the steps")
    page.keyboard.press("5")
    expect(page.locator(".lineage")).to_contain_text("Began with runs/other@500")
    run.close()


def test_a_served_run_shows_its_clients_and_latencies(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    numbers = {
        "clients": 3.0,
        "streams": 48.0,
        "requests_per_second": 1234.0,
        "latency_p50_ms": 0.5,
        "latency_p99_ms": 2.5,
    }
    run = TrainingRun.create("served", root=tmp_path)
    run.log("metrics").append(window(0, **{f"time__server_{name}": value for name, value in numbers.items()}))
    page = open_page(serve(tmp_path), place(*ids_in(tmp_path)))
    expect(page.locator(".served")).to_contain_text(
        "Clients3Streams48Requests/s1.23kLatency p500.5000 msLatency p992.50 ms"
    )
    run.close()


def test_the_stop_button_stops_a_live_run(tmp_path: Path, serve: Serve, train: Train, open_page: Open) -> None:
    training = train(tmp_path)
    page = open_page(serve(tmp_path), place(training.id))
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert training.process.poll() is None
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the run").click()
    assert training.process.wait(30) == 0
    expect(page.locator(".heading .status")).to_have_text("stopped")
    expect(page.locator("#stop")).to_have_count(0)
    assert RunReader(training.path).metadata.stop_reason == "asked to stop in the dashboard"


def test_runs_are_shown_only_to_those_who_open_the_printed_link(
    tmp_path: Path, train: Train, serve_process: Callable[..., Process], open_page: Open
) -> None:
    training = train(tmp_path)
    server = serve_process(tmp_path)
    link, server.address = server.address, f"http://127.0.0.1:{server.port}/"
    page = open_page(server, place(training.id), tolerant=True)
    expect(page.locator("#lock")).to_contain_text("Open the link that rekindle dashboard printed")
    expect(page.locator(".lamp")).to_have_text("no token")
    assert str(tmp_path) not in page.content()
    # The link opened in another tab of the browser lets this one go on too, and leaves no token in the address.
    other = page.context.new_page()
    other.goto(link + place(training.id))
    expect(other.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    assert other.url == server.address + place(training.id)
    assert server.token not in other.evaluate("() => document.cookie")
    page.bring_to_front()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the run").click()
    assert training.process.wait(30) == 0


HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def test_hostile_names_and_values_are_shown_as_the_text_they_are(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    path = write_run(tmp_path, config={HOSTILE: HOSTILE, "env": HOSTILE})
    metadata = json.loads((path / "metadata.json").read_text())
    hostile = {"name": HOSTILE, "stop_reason": HOSTILE, "environment": {HOSTILE: HOSTILE}}
    (path / "metadata.json").write_text(json.dumps(metadata | hostile))
    with (path / "train_episodes.jsonl").open("a") as log:
        row = {"row": 20, **episode(20), "status": HOSTILE, "stream": HOSTILE, "extras": {HOSTILE: 1.0}}
        log.write(json.dumps(row) + "\n" + HOSTILE + "\n" + json.dumps({"row": 22, "status": [HOSTILE] * 99}) + "\n")
    moved = tmp_path / "lake <b>?#%2f" / "v1'\"" / path.name
    moved.parent.mkdir(parents=True)
    shutil.move(path, moved)
    page = open_page(serve(tmp_path))
    expect(page.locator(".runs tbody tr")).to_contain_text(HOSTILE)
    page.locator(".runs tbody tr").click()
    expect(page.get_by_role("heading", name=HOSTILE)).to_be_visible()
    expect(page.locator(".banners .error")).to_contain_text("1 line cannot be read (22)")
    expect(page.locator(f'.chart [title="{HOSTILE}"]')).to_be_visible()
    for number in range(1, 6):
        page.keyboard.press(str(number))
    page.keyboard.press("2")
    expect(page.locator("#panel-episodes")).to_contain_text(HOSTILE)
    page.get_by_role("tab", name="Config").click()
    expect(page.locator("#panel-config")).to_contain_text(HOSTILE)
    assert page.locator("img:not([src='/static/icon.svg']), script:not([src])").count() == 0


def test_colours_follow_the_system_and_the_switch(few_runs: Path, serve: Serve, open_page: Open) -> None:
    server = serve(few_runs)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(server, color_scheme=scheme) for scheme in ("light", "dark"))
    expect(dark.locator("html")).to_have_attribute("data-theme", "dark")
    assert light.evaluate(ground) != dark.evaluate(ground)
    for theme in ("light", "dark"):
        light.locator("#theme").click()
        expect(light.locator("html")).to_have_attribute("data-theme", theme)
    assert light.evaluate(ground) == dark.evaluate(ground)
    light.reload()
    expect(light.locator("html")).to_have_attribute("data-theme", "dark")


def test_a_narrow_window_needs_no_sideways_scrolling(few_runs: Path, serve: Serve, open_page: Open) -> None:
    server = serve(few_runs)
    for where in ("", place(ids_in(few_runs)[0]), place(*ids_in(few_runs))):
        page = open_page(server, where, viewport={"width": 380, "height": 800})
        page.wait_for_selector(".runs tbody tr, .uplot")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [1100, 1280])
def test_a_list_of_long_names_needs_no_sideways_scrolling(
    tmp_path: Path, serve: Serve, open_page: Open, width: int
) -> None:
    config = {"algorithm": "tabular", "env": {"id": "FrozenLake-v1"}}
    path = write_run(tmp_path, "a-quite-long-name-of-a-training", config=config)
    shutil.copytree(path, path.with_name(f"{path.name}_2"))
    page = open_page(serve(tmp_path), viewport={"width": width, "height": 800})
    expect(page.locator(".runs tbody tr")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    cut = "names => names.filter(name => name.scrollWidth > name.clientWidth).length"
    assert page.locator(".runs .name").evaluate_all(cut) == 0  # the ends of both names differ


def test_the_tabs_of_a_run_do_not_scroll_up_and_down(few_runs: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(few_runs), place(ids_in(few_runs)[0]))
    tabs = page.locator(".tabs").first
    expect(tabs).to_be_visible()
    assert tabs.evaluate("tabs => tabs.scrollHeight - tabs.clientHeight") == 0


def test_a_run_that_is_not_there_is_told(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    page = open_page(serve(tmp_path), place("no/such/run"), tolerant=True)
    expect(page.get_by_role("alert")).to_contain_text("This run does not exist")


def test_the_page_comes_back_when_the_server_does_and_its_new_link_is_opened(
    tmp_path: Path, train: Train, serve_process: Callable[..., Process], open_page: Open
) -> None:
    training = train(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    first = serve_process(tmp_path, "--port", port)
    page = open_page(first, place(training.id), tolerant=True)
    wait_until(lambda: returns(page))
    first.kill()
    expect(page.locator(".lamp")).to_have_text("no answer; trying again")
    count = len(returns(page))
    second = serve_process(tmp_path, "--port", port)
    assert second.port == first.port
    expect(page.locator(".lamp")).to_have_text("no token")
    page.context.new_page().goto(second.address)
    page.bring_to_front()
    expect(page.locator(".lamp")).to_have_text("connected")
    wait_until(lambda: len(returns(page)) > count)
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop the run").click()
    assert training.process.wait(30) == 0


def test_a_thousand_runs_are_listed(tmp_path: Path, serve: Serve, open_page: Open) -> None:
    many_runs(tmp_path, 1000)
    page = open_page(serve(tmp_path))
    rows = page.locator(".runs tbody tr")
    expect(rows).to_have_count(1000)
    page.locator("#search").fill("v7 many")
    expect(rows).to_have_count(100)
    page.locator("#search").fill("")
    page.get_by_role("checkbox", name="Select all").check()
    expect(page.locator("#compare")).to_have_text("Compare 1,000")


def many_runs(root: Path, count: int) -> None:
    path = write_run(root / "template", episodes=50)
    metadata = json.loads((path / "metadata.json").read_text())
    for number in range(count):
        run = root / "many" / f"v{number // 100}" / f"20260101_{number:06}"
        shutil.copytree(path, run)
        changes = {"name": "many", "version": f"v{number // 100}", "run_id": run.name, "seed": number % 10}
        (run / "metadata.json").write_text(json.dumps(metadata | changes))
        (run / "config.json").write_text(json.dumps({"seed": number % 10}))
    shutil.rmtree(root / "template")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rows", [300_000, pytest.param(10_000_000, marks=pytest.mark.exhaustive)])
def test_a_long_run_is_drawn_with_every_extreme_and_looked_into_to_the_row(
    tmp_path: Path, rows: int, serve_process: Callable[..., Process], open_page: Open
) -> None:
    path = write_run(tmp_path, episodes=0)
    spike = rows // 3
    write_long_log(path / "train_episodes.jsonl", rows, spike=spike)
    server = serve_process(tmp_path)
    page = open_page(server, place(id_of(path)))
    total = "() => document.getElementById('tab-episodes').dataset.count"
    wait_until(lambda: page.evaluate(total) in ("300k", "10M"), seconds=300)
    expect(page.locator(".progress.reading")).to_be_hidden()
    least, most, mean = (column(page, number) for number in (1, 2, 3))
    assert 500 < len(mean) <= 2000
    assert (min(least), max(most)) == (0.0, 999_999.0)
    detail = server.json("/api/detail", id=id_of(path), by="step", **{"from": spike - 20, "to": spike + 20})
    assert 999_999.0 in next(part for part in detail if part["log"] == "train_episodes")["mean"]["return"]
    page.keyboard.press("2")
    page.get_by_role("button", name="First").click()
    expect(page.locator("#panel-episodes tbody tr")).to_have_count(50)
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    most_memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert most_memory < 400_000  # kB


def write_long_log(path: Path, rows: int, *, spike: int) -> None:
    """Rows of equal length, written as bytes: numbers are padded with blanks, which JSON allows."""
    with path.open("wb") as file:
        for first in range(0, rows, 1_000_000):
            numbers = np.arange(first, min(first + 1_000_000, rows))
            values = numbers % 1000
            values[numbers == spike] = 999_999
            template = b'{"row":          ,"env_steps":          ,"wall_time":          ,"total_reward":          }\n'
            lines = np.tile(np.frombuffer(template, np.uint8), (len(numbers), 1))
            starts = [index + 1 for index in range(len(template)) if template[index : index + 2] == b": "]
            for start, column_ in zip(starts, (numbers, numbers, numbers, values), strict=True):
                digits = column_[:, None] // 10 ** np.arange(9, -1, -1) % 10
                blank = np.cumsum(digits, axis=1) == 0
                blank[:, -1] = False
                lines[:, start : start + 10] = np.where(blank, 32, digits + 48)
            file.write(lines.tobytes())


@pytest.fixture
def tables(tmp_path: Path, serve: Serve, open_page: Open) -> Callable[[str], Any]:
    """Run an expression with the module of tables as `t`."""
    page = open_page(serve(tmp_path))
    begin, end = "async () => { const t = await import('/static/tables.js'); return ", "; }"
    return lambda expression: page.evaluate(begin + expression + end)


def test_the_arithmetic_of_charts(tables: Callable[[str], Any]) -> None:
    assert tables("t.smooth([0, 1, 2], [4, 4, 4], 0.9)") == [4, 4, 4]
    assert tables("t.smooth([0, 500, 1000], [1, 5, 3], 0.9)") == pytest.approx([1, 5, 3], abs=1e-4)
    dense = tables("t.smooth([...Array(1001).keys()], [...Array(1001).keys()].map(i => i % 2), 0.99)")
    assert dense[-1] == pytest.approx(0.5, abs=0.01)
    assert tables("t.smooth([0, 1], [null, 2], 0.5)") == [None, 2]
    assert tables("t.join([{x: [1, 3], columns: [[10, 30]]}, {x: [2, 3, 3], columns: [[5, 6, 7]]}])") == [
        [1, 2, 3, 3],
        [10, None, 30, None],
        [None, 5, 6, 7],
    ]
    assert tables("t.aggregate([{x: [0, 10], y: [0, 10]}, {x: [0, 10], y: [2, 2]}], {points: 3})") == {
        "x": [0, 5, 10],
        "mean": [1, 3.5, 6],
        "least": [0, 2, 2],
        "most": [2, 5, 10],
    }
    assert tables("t.aggregate([], {}).x") == []
    assert tables("t.aggregate([{x: [5, 6], y: [1, null]}], {}).mean") == [1]
    curves = "[{x: [0, 4], y: [0, 4]}, {x: [0, 2], y: [2, 2]}, {x: [0, 2], y: [4, 4]}]"
    shorter = tables(f"t.aggregate({curves}, {{points: 5}})")
    assert shorter["x"] == [0, 1, 2]  # where fewer than half of them have values, there is no mean


def test_a_run_shows_the_family_of_its_forks_and_the_command_that_forks_it(
    tmp_path: Path, serve: Serve, open_page: Open
) -> None:
    first, second = (write_run(tmp_path, name) for name in ("first", "low-rate"))
    (first / "checkpoints").mkdir(exist_ok=True)
    (first / "checkpoints" / "step_100.mpk").write_bytes(b"a checkpoint")
    metadata = json.loads((second / "metadata.json").read_text())
    fork = {"run": id_of(first), "path": str(first), "step": 100, "changes": {"agent.learning_rate": [1e-3, 1e-4]}}
    (second / "metadata.json").write_text(json.dumps({**metadata, "parent": f"{first}@100", "fork": fork}))
    client = serve(tmp_path)
    page = open_page(client, place(id_of(second)))
    page.get_by_role("tab", name="About").click()
    family = page.locator(".family")
    expect(family.locator("li")).to_have_count(2)
    expect(family.locator("[aria-current=true]")).to_contain_text("fork at step 100")
    expect(family).to_contain_text("agent.learning_rate: 0.001 → 0.0001")
    family.get_by_role("link").click()
    page.get_by_role("tab", name="Checkpoints").click()
    page.get_by_role("button", name="Fork from step 100").click()
    expect(page.locator("dialog.fork .command")).to_have_text(f"rekindle fork {first}@100 -o first-fork")
    page.keyboard.press("Escape")
    expect(page.locator("dialog.fork")).to_be_hidden()

"""Studies in the dashboard: the list, the page, and the page in a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from logged_runs import write_run
from processes import Client, wait_until

pytest.importorskip("starlette", reason="needs rekindle[dashboard]")

from rekindle.envs import EnvSettings
from rekindle.sweep import StudySettings, Trial, parse_space
from rekindle.sweep.directory import StudyLog, write_settings
from rekindle.training import TrainerSettings
from rekindle.ui.dashboard.studies import Studies

Serve = Callable[[Path], Client]

SPACE = "agent.learning_rate = { low = 0.01, high = 1.0, log = true }\nagent.kind = { choice = ['a', 'b', '<b>c'] }"
KINDS = ("a", "b", "<b>c")
TRIALS = 12


def write_study(root: Path, name: str = "search") -> Path:
    """A study of twelve trials: the best is 9, 10 was pruned, 11 runs; the first five trials have runs."""
    path = root / name
    settings = StudySettings(
        algorithm="tabular",
        env=EnvSettings(id="FrozenLake-v1"),
        training=TrainerSettings(steps=200, eval_every=50),
        space=parse_space(SPACE),
        trials=TRIALS,
    )
    write_settings(path, settings)
    log = StudyLog(path)
    for number in range(TRIALS):
        trial = Trial(number, {"agent.learning_rate": 0.01 * (number + 1), "agent.kind": KINDS[number % 3]})
        log.ask(trial)
        if number < 10:
            value = float(number)
            log.end(Trial(number, trial.settings, "complete", value, (value - 1, value + 1), (value,)))
        elif number == 10:
            log.end(Trial(number, trial.settings, "pruned", None, (0.5, 0.5), (0.5,), "0.5 at step 50"))
    log.close()
    for number in (7, 8, 9):
        for seed in (0, 1):
            write_run(root, name, f"trial-{number:04}-seed{seed}", seed=seed)
    return path


def test_a_directory_has_a_row_for_each_study(tmp_path: Path, serve: Serve) -> None:
    write_study(tmp_path)
    write_run(tmp_path, "plain")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_text("{")
    rows = {row["id"]: row for row in serve(tmp_path).json("/api/studies")}
    assert rows["search"] == {
        "id": "search",
        "name": "search",
        "status": "stopped",
        "trials": 12,
        "ended": 11,
        "best": 9.0,
    }
    assert rows["broken"]["status"] == "unreadable"
    assert set(rows) == {"search", "broken"}


def test_the_page_of_a_study_has_its_trials_the_best_first(tmp_path: Path, serve: Serve) -> None:
    write_study(tmp_path)
    page = serve(tmp_path).json("/api/study", id="search")
    assert [trial["number"] for trial in page["trials"]] == [11, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 10]
    assert page["best"] == 9
    assert [axis["name"] for axis in page["axes"]] == ["agent.learning_rate", "agent.kind"]
    assert page["axes"][1]["choices"] == ["a", "b", "<b>c"]
    best = page["trials"][1]
    assert best["places"] == [pytest.approx(0.5, abs=0.01), 0.0]
    assert [run.rpartition("/")[0] for run in best["runs"]] == ["search/trial-0009-seed0", "search/trial-0009-seed1"]
    assert [curve["number"] for curve in page["curves"]] == [9, 8, 7]
    assert page["curves"][0]["x"] == [100, 200]
    assert page["curves"][0]["least"] == page["curves"][0]["most"]  # both seeds have the same scores
    assert page["importance"]["agent.learning_rate"] > 0.5


def test_a_study_can_be_the_directory_of_the_dashboard(tmp_path: Path, serve: Serve) -> None:
    path = write_study(tmp_path)
    server = serve(path)
    page = server.json("/api/study", id="search")
    ids = {row["id"] for row in next_list(server)["runs"]}
    assert set(page["trials"][1]["runs"]) <= ids


def next_list(server: Client) -> Any:
    with server.events("/api/list") as events:
        return next(events)


def test_a_page_follows_the_log(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    studies = Studies(tmp_path)
    first = studies.page("search")
    assert first is not None
    assert studies.page("search") is first
    log = StudyLog(path)
    log.end(Trial(11, {"agent.learning_rate": 0.2, "agent.kind": "a"}, "complete", 20.0, (20.0, 20.0)))
    log.close()
    second = studies.page("search")
    assert second is not None
    assert (second.best, second.row.ended, second.row.status) == (11, 12, "finished")


@pytest.mark.parametrize("id_", ["", "nowhere", "../search", "search/..", "/"])
def test_no_other_study_is_found(tmp_path: Path, serve: Serve, id_: str) -> None:
    write_study(tmp_path)
    (tmp_path / "runs").mkdir()
    assert serve(tmp_path / "runs").request("GET", f"/api/study?id={id_}")[0] == 404


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed")
def test_the_page_shows_table_lines_importance_and_curves(tmp_path: Path, serve: Serve) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    write_study(tmp_path)
    client = serve(tmp_path)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        wrong: list[str] = []
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(client.address)
        page.locator(".studies .card").click()
        playwright.expect(page.locator("tr[data-trial]")).to_have_count(TRIALS)
        assert page.locator("tr[data-trial]").first.get_attribute("data-trial") == "9"
        assert page.locator(".parallel polyline.trial").count() == TRIALS
        assert page.locator(".parallel polyline.best").get_attribute("data-trial") == "9"
        assert page.locator(".bar").count() == 2
        assert page.locator(".parallel text", has_text="<b>c").count() == 1  # as text, never as markup
        drawn = wait_until(lambda: page.evaluate("document.querySelector('.study .chart').chart.data?.[3]"))
        assert [value for value in drawn if value is not None]
        page.locator(".parallel polyline.hit").last.dispatch_event("pointerenter")
        playwright.expect(page.locator(".said")).to_contain_text("Trial 9: score 9")
        page.locator("th button", has_text="Trial").click()
        assert page.locator("tr[data-trial]").first.get_attribute("data-trial") == "0"
        page.locator("tr[data-trial='9']").click()
        playwright.expect(page.locator("h1")).to_have_text("Comparison of 2 runs")
        browser.close()
    assert wrong == []

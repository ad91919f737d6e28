"""The whole game: `rekindle game`, a real browser, a server that is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

pytest.importorskip("picows", reason="needs rekindle[server]")
pytest.importorskip("jax", reason="needs rekindle[agents]")
pytest.importorskip("playwright", reason="needs playwright")

from playwright.sync_api import Page, expect, sync_playwright

from rekindle.run.finding import find_run
from rekindle.run.reader import RunReader
from rekindle.verification import verify

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, which is not installed"),
]

WAIT = 120_000
SAME = "() => { const [made, run] = ['moves', 'recorded'].map((id) => document.getElementById(id).textContent);"
SAME += " return made !== '0' && made === run; }"


@pytest.fixture
def game(tmp_path: Path) -> Generator[tuple[str, Path]]:
    command = [sys.executable, "-m", "rekindle", "game", "--no-browser", "--port", "0", "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    address = process.stdout.readline().strip()
    assert address, process.communicate()[1]
    yield address, tmp_path
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors


@pytest.fixture
def page() -> Generator[Page]:
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        opened = browser.new_page()
        failures: list[str] = []
        opened.on("pageerror", lambda error: failures.append(str(error)))
        yield opened
        browser.close()
        assert failures == []


def wait_for_a_checkpoint(page: Page, runs: Path) -> None:
    for _ in range(WAIT // 100):
        if any(runs.glob("game/v1/*/checkpoints/latest.mpk")):
            return
        page.wait_for_timeout(100)  # time.sleep would stop the page
    raise AssertionError("the server saved no checkpoint")


def test_creatures_go_on_where_they_were_after_the_server_is_killed_and_play_on_without_it(
    game: tuple[str, Path], page: Page
) -> None:
    address, runs = game
    page.goto(address)
    page.locator("#time").fill("5")
    wait_for_a_checkpoint(page, runs)  # without one, there is no policy to play with

    page.get_by_role("button", name="Kill the server").click()
    expect(page.locator("#notice")).to_contain_text("Every creature waits where it is", timeout=WAIT)
    still = page.evaluate("() => game.world.creatures.map(({ x, y }) => [x, y])")
    page.wait_for_timeout(300)
    assert page.evaluate("() => game.world.creatures.map(({ x, y }) => [x, y])") == still
    expect(page.locator("#notice")).to_contain_text("16 of 16 creatures go on", timeout=WAIT)
    page.locator("#time").fill("0")
    page.wait_for_function(SAME, timeout=WAIT)
    expect(page.locator("#ledger")).to_contain_text("no move is missing", timeout=WAIT)

    page.locator("#alone").click()
    expect(page.locator("#lamp")).to_have_text("this page plays alone", timeout=WAIT)
    page.get_by_role("button", name="Kill the server").click()
    moves = page.evaluate("() => game.pilot.moves")
    page.wait_for_function(f"() => game.pilot.moves > {moves} + 64", timeout=WAIT)

    page.locator("#alone").click()
    expect(page.locator("#lamp")).to_contain_text("connected", timeout=WAIT)
    page.wait_for_function(SAME, timeout=WAIT)
    run = find_run(runs / "game" / "v1")
    assert RunReader(run).metadata.name == "game"
    assert verify(run).ok


def test_a_second_page_is_not_taken_for_moves_that_count_twice(game: tuple[str, Path], page: Page) -> None:
    address, _ = game
    page.goto(address)
    page.wait_for_function(SAME, timeout=WAIT)
    assert page.context.browser is not None
    second = page.context.browser.new_page()
    second.goto(address)
    for one in (page, second):
        expect(one.locator("#ledger")).to_have_text(
            "2 pages play in this run, which has the moves of all of them.", timeout=WAIT
        )
        expect(one.locator("#ledger")).to_have_class("ledger")
    second.close()
    page.bring_to_front()
    expect(page.locator("#ledger")).to_have_text("", timeout=WAIT)
    page.wait_for_function(SAME, timeout=WAIT)

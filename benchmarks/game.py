"""What the browser game costs and learns: the work of a frame, food found after two minutes, and a killed server.

`rekindle game` runs as users start it, with a headless Chromium. The work of a frame is all that the main thread of
the page does from one frame to the next: simulation, drawing, messages, layout. Its CPU time, from Chromium's trace,
hardly depends on other work on the machine; the time on the clock does.

    python benchmarks/game.py [--seconds 120] [--film film.gif]
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.table import Table

BUDGET = 4.0
"""Milliseconds of work in a frame, for 99 of 100 frames."""
TRACED = 15
"""Seconds of frames that are measured at each speed of time."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WINDOW, FILM_SIZE, FILM_RATE, FILM_COLOURS = (1040, 760), (832, 608), 8, 128


@contextmanager
def running(runs: Path) -> Generator[str]:
    """The address of a game."""
    command = [sys.executable, "-m", "rekindle", "game", "--no-browser", "--port", "0", "--runs", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def frame_work(browser: Browser, page: Page, seconds: float) -> dict[str, np.ndarray[Any, Any]]:
    """Milliseconds of work in each frame, of CPU time and on the clock."""
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    page.wait_for_timeout(1000 * seconds)
    events: list[dict[str, Any]] = json.loads(browser.stop_tracing())["traceEvents"]
    (thread,) = {(event["pid"], event["tid"]) for event in events if event["name"] == "FireAnimationFrame"}
    done = [event for event in events if (event["pid"], event["tid"]) == thread and event["ph"] == "X"]
    done.sort(key=lambda event: (event["ts"], -event["dur"]))
    frames: list[tuple[float, float]] = []
    end = 0.0
    for event in done:
        if event["name"] == "FireAnimationFrame":
            frames.append((0.0, 0.0))
        if event["ts"] >= end and frames:  # not inside of another one
            cpu, wall = frames[-1]
            frames[-1] = (cpu + event.get("tdur", 0) / 1000, wall + event["dur"] / 1000)
            end = event["ts"] + event["dur"]
    columns = np.array(frames[1:-1]).T
    return {"CPU": columns[0], "clock": columns[1]}


def shown(page: Page, name: str) -> str:
    return page.locator(f"#{name}").inner_text()


class Film:
    """Pictures of the page, which become an animated GIF."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._browser: Any = page.context.new_cdp_session(page)
        self._browser.on("Page.screencastFrame", self._take)
        self._pictures: list[Image.Image] = []
        self._due = 0.0

    def record(self, seconds: float) -> None:
        """Take pictures for some seconds."""
        self._due = 0.0
        self._browser.send("Page.startScreencast", {"format": "png"})
        self._page.wait_for_timeout(1000 * seconds)
        self._browser.send("Page.stopScreencast")

    def _take(self, frame: dict[str, Any]) -> None:
        self._browser.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})
        shown = float(frame["metadata"]["timestamp"])
        if shown < self._due:
            return
        self._due = max(self._due, shown - 1 / FILM_RATE) + 1 / FILM_RATE
        taken = Image.open(io.BytesIO(base64.b64decode(frame["data"]))).convert("RGB")
        self._pictures.append(taken.resize(FILM_SIZE, Image.Resampling.LANCZOS))

    def save(self, file: Path) -> None:
        """Write the GIF, with one palette for all pictures."""
        palette = self._palette()
        first, *rest = [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in self._pictures]
        first.save(file, save_all=True, append_images=rest, duration=1000 // FILM_RATE, loop=0, optimize=True)

    def _palette(self) -> Image.Image:
        """A palette in which rare colours count too, because creatures are small; the most common ones stay exact."""
        found = np.concatenate([np.asarray(picture)[::2, ::2].reshape(-1, 3) for picture in self._pictures[::7]])
        _, rare = np.unique(found >> 4, axis=0, return_index=True)
        colours, counts = np.unique(found, axis=0, return_counts=True)
        common = colours[np.argsort(counts)[-FILM_COLOURS // 8 :]]
        weighted = np.concatenate([found[rare], np.repeat(common, len(rare) // 8, axis=0)])
        return Image.fromarray(weighted[None]).quantize(FILM_COLOURS, dither=Image.Dither.NONE)


def kill(page: Page, film: Film | None) -> float:
    """Kill the server; returns the seconds until the creatures move again."""
    moves = page.evaluate("() => game.pilot.moves")
    begun = time.monotonic()
    page.locator("#kill").click()
    if film is not None:
        film.record(1.5)
    page.wait_for_function(
        f"() => game.client.reconnections > 0 && game.pilot.moves > {moves} + 64", timeout=120_000, polling=50
    )
    return time.monotonic() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="how long the creatures learn")
    parser.add_argument("--film", type=Path, default=None, help="record an animated GIF")
    given = parser.parse_args()
    out = Console()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as address, sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        page = browser.new_page(viewport={"width": WINDOW[0], "height": WINDOW[1]}, color_scheme="dark")
        page.goto(address)
        film = None if given.film is None else Film(page)
        begun = time.monotonic()
        if film is not None:
            film.record(4)
        work: dict[str, dict[str, np.ndarray[Any, Any]]] = {}
        for place, speed in ((2, "3"), (5, "16")):
            page.locator("#time").fill(str(place))
            page.locator("#time").blur()
            page.wait_for_timeout(3000)
            work[speed] = frame_work(browser, page, TRACED)
            if film is not None and speed == "3":
                film.record(3)
        page.locator("#time").fill("2")
        page.locator("#time").blur()
        page.wait_for_timeout(1000 * max(0.0, given.seconds - (time.monotonic() - begun)))
        points: list[tuple[float, float]] = page.evaluate("() => game.curve.points")
        if film is not None:
            film.record(5)
        away = kill(page, film)
        if film is not None:
            film.record(4)
            film.save(cast("Path", given.film))
        table = Table(title="Work of a frame, milliseconds")
        for name in ("speed of time", "of", "p50", "p99", "frames per second"):
            table.add_column(name, justify="right")
        for speed, kinds in work.items():
            for kind, numbers in kinds.items():
                p50, p99 = np.percentile(numbers, [50, 99])
                table.add_row(f"{speed} x", kind, f"{p50:.2f}", f"{p99:.2f}", f"{len(numbers) / TRACED:.0f}")
        out.print(table)
        out.print(f"budget: p99 below {BUDGET:g} ms")
        rates = ", ".join(f"{moves / 1000:.0f}k: {rate:.1f}" for moves, rate in points[:: max(1, len(points) // 8)])
        out.print(f"food in 100 moves, by moves made (random moves: 0.8): {rates}")
        last = float(np.mean([rate for _, rate in points[-5:]]))
        out.print(f"after {given.seconds:.0f} s: {last:.1f} in 100 moves, {points[-1][0]:,.0f} moves")
        page.wait_for_function("() => document.getElementById('ledger').textContent.includes('no move is missing')")
        out.print(f"killed with SIGKILL: the creatures move again after {away:.1f} s; {shown(page, 'ledger')}")
        browser.close()


if __name__ == "__main__":
    main()

"""Pictures of the terminal UI, as SVG and as PNG."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from browser import SCHEMES, Scheme, opened, photograph, started_browser
from trainings import find

from rekindle.ui.app import WatchApp
from rekindle.ui.feed import RunFeed

__all__ = ["picture_terminal"]

SIZES = ((80, 24), (112, 36), (160, 50))


def picture_terminal(runs: Path, output: Path) -> None:
    """A run in terminals of two sizes, dark and light."""
    (run,) = find(runs, "cartpole-best")
    made = [
        asyncio.run(_screen(run, output / f"terminal-{width}x{height}-{scheme}.svg", scheme, (width, height)))
        for width, height in SIZES
        for scheme in SCHEMES
    ]
    with started_browser() as browser:
        for svg in made:
            with opened(browser, svg.absolute().as_uri(), "dark", width=1500, height=1000) as page:
                photograph(page, svg.with_suffix(".png"))


_FONTS = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono'"


async def _screen(run: Path, file: Path, scheme: Scheme, size: tuple[int, int]) -> Path:
    app = WatchApp(RunFeed(run), theme=scheme, stay=True)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        if size[0] < 100:
            await pilot.press("n", "n", "e")
        await pilot.pause()
        drawn = app.export_screenshot()
    # Without the fonts of another server, which images on a web page may not load.
    local = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    file.write_text(local.replace("font-family: Fira Code", f"font-family: {_FONTS}"), encoding="utf-8")
    return file

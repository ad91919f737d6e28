"""Pictures of web pages, dark and light, with a headless Chromium."""

from __future__ import annotations

import io
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

__all__ = ["SCHEMES", "Scheme", "opened", "photograph", "started_browser"]

Scheme = Literal["dark", "light"]
SCHEMES: tuple[Scheme, ...] = ("dark", "light")
_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_COLOURS = 240
"""Enough for text and lines: a picture of all colours has three times the size."""


@contextmanager
def started_browser() -> Generator[Browser]:
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, address: str, scheme: Scheme, *, width: int, height: int) -> Generator[Page]:
    """A page; whatever it complains about is an error."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, device_scale_factor=1.5
    )
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.goto(address)
    yield page
    context.close()
    if wrong:
        raise RuntimeError(f"{address}: {wrong}")


def photograph(page: Page, file: Path) -> None:
    """Write a PNG of what is visible."""
    taken = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    taken.quantize(palette=_palette(taken), dither=Image.Dither.NONE).save(file, optimize=True)


def _palette(picture: Image.Image) -> Image.Image:
    """A palette in which rare colours count too, because dots and lines are small; common ones stay exact."""
    found = np.asarray(picture).reshape(-1, 3).astype(np.uint32)
    colours, counts = np.unique(found @ np.array([65536, 256, 1], np.uint32), return_counts=True)
    _, rare = np.unique(colours & 0xF0F0F0, return_index=True)
    common = colours[np.argsort(counts)[-_COLOURS // 2 :]]
    weighted = np.concatenate([colours[rare], np.repeat(common, 2 + len(rare) // len(common))])
    parts = np.stack([weighted >> 16, weighted >> 8 & 255, weighted & 255], 1).astype(np.uint8)
    return Image.fromarray(parts[None]).quantize(_COLOURS, dither=Image.Dither.NONE)

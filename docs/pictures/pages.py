"""Pictures of the dashboard, with a real server and real runs."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from browser import SCHEMES, Scheme, opened, photograph, started_browser
from playwright.sync_api import Browser, Page
from trainings import find, serving, training

__all__ = ["picture_dashboard"]

_READY = "() => document.querySelectorAll('.chart canvas').length > 1"


@contextmanager
def _dashboard(runs: Path) -> Generator[str]:
    """The link of a dashboard that runs."""
    command = [sys.executable, "-m", "rekindle", "dashboard", str(runs), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()
        process.stdout.close()


class _Pictures:
    def __init__(self, browser: Browser, link: str, runs: Path, output: Path) -> None:
        self._browser, self._link, self._runs, self._output = browser, link, runs, output

    def take(
        self,
        name: str,
        place: str,
        prepare: Callable[[Page], object] = lambda _: None,
        *,
        size: tuple[int, int] = (1280, 800),
    ) -> None:
        """A picture of a page in each scheme, once it is prepared."""
        for scheme in SCHEMES:
            self._take(name, place, prepare, scheme, size)

    def _take(
        self, name: str, place: str, prepare: Callable[[Page], object], scheme: Scheme, size: tuple[int, int]
    ) -> None:
        width, height = size
        with opened(self._browser, self._link + place, scheme, width=width, height=height) as page:
            prepare(page)
            page.wait_for_timeout(600)
            photograph(page, self._output / f"{name}-{scheme}.png")

    def place(self, paths: Sequence[Path]) -> str:
        """The address of a run, or of a comparison of several."""
        ids = ",".join(quote(path.relative_to(self._runs).as_posix(), safe="") for path in paths)
        return f"#/{'run' if len(paths) == 1 else 'compare'}/{ids}"


def _wait_for_charts(page: Page) -> None:
    page.wait_for_function(_READY)


def _wait_for_groups(page: Page) -> None:
    page.wait_for_function("() => document.querySelectorAll('.legend .item').length === 3")
    page.wait_for_function("() => document.querySelector('.scores tbody tr') !== null")
    _wait_for_charts(page)


def _point_at_chart(page: Page) -> None:
    _wait_for_groups(page)
    page.get_by_role("radio", name="Each run").click()
    page.locator(".chart .u-over").first.hover()


def _wait_for_list(page: Page) -> None:
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length > 10")


def _show_family(page: Page) -> None:
    page.locator("#tab-about").click()
    page.locator(".family").wait_for()


def _show_videos(page: Page) -> None:
    page.locator("#tab-videos").click()


def _show_fork_dialog(page: Page) -> None:
    page.locator("#tab-checkpoints").click()
    page.get_by_role("button", name="Fork from step 4000").click()


def picture_dashboard(runs: Path, output: Path) -> None:
    """Every page of the dashboard, each dark and light."""
    groups = find(runs, "cartpole")
    one, parent = find(runs, "cartpole-ppo"), find(runs, "cartpole-best")
    live = ["dqn", "CartPole-v1", "--steps", "1000000", "--eval-every", "1000", "--metrics-every", "250"]
    with started_browser() as browser, _dashboard(runs) as link:
        pictures = _Pictures(browser, link, runs, output)
        with training(runs, "cartpole-live", *live, until=3000) as run:
            pictures.take("list", "#/", _wait_for_list)
            pictures.take("phone-list", "#/", _wait_for_list, size=(390, 844))
            pictures.take("run-live", pictures.place([run]), _wait_for_charts)
        pictures.take("run", pictures.place(parent), _wait_for_charts)
        pictures.take("run-ppo", pictures.place(one), _wait_for_charts, size=(1280, 1500))
        pictures.take("phone-run", pictures.place(parent), _wait_for_charts, size=(390, 844))
        pictures.take("compare", pictures.place(groups), _wait_for_groups, size=(1280, 900))
        pictures.take("compare-whole", pictures.place(groups), _wait_for_groups, size=(1280, 2600))
        pictures.take("compare-each", pictures.place(groups), _point_at_chart, size=(1280, 900))
        pictures.take("phone-compare", pictures.place(groups), _wait_for_groups, size=(390, 844))
        pictures.take("study", f"#/study/{quote('lake-study', safe='')}", _wait_for_study, size=(1280, 900))
        pictures.take("phone-study", f"#/study/{quote('lake-study', safe='')}", _wait_for_study, size=(390, 844))
        pictures.take("family", pictures.place(parent), _show_family)
        pictures.take("videos", pictures.place(parent), _show_videos)
        pictures.take("fork", pictures.place(parent), _show_fork_dialog)
        with serving(runs, "arena", until=3000) as run:
            pictures.take("served", pictures.place([run]), _wait_for_charts)


def _wait_for_study(page: Page) -> None:
    page.wait_for_function("() => document.querySelectorAll('.trials tbody tr').length > 5")

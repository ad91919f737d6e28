"""Pictures of what `rekindle plot` and `rekindle report` write about one run and about many."""

from __future__ import annotations

from pathlib import Path

from browser import SCHEMES, opened, photograph, started_browser
from trainings import find

from rekindle.cli import main as rekindle

__all__ = ["picture_plots", "picture_reports"]


def picture_plots(runs: Path, output: Path) -> None:
    """Twelve runs in three groups, one run, every run, and a profile."""
    (one,) = find(runs, "cartpole-best")
    for name, *arguments in (
        ["plot-groups", str(runs / "cartpole")],
        ["plot-groups-dark", str(runs / "cartpole"), "--theme", "dark"],
        ["plot-one", str(one)],
        ["plot-all", str(runs)],
        ["plot-profile", str(runs / "cartpole"), "--metrics", "profile", "agent/loss", "eval/return"],
    ):
        if code := rekindle(["plot", *arguments, "-o", str(output / f"{name}.png")]):
            raise SystemExit(code)


def picture_reports(runs: Path, output: Path) -> None:
    """A report on one run, and one on twelve in three groups."""
    (one,) = find(runs, "cartpole-best")
    with started_browser() as browser:
        for name, paths in (("report-one", [one]), ("report-groups", find(runs, "cartpole"))):
            file = output / f"{name}.html"
            if code := rekindle(["report", *map(str, paths), "-o", str(file)]):
                raise SystemExit(code)
            for scheme in SCHEMES:
                with opened(browser, file.absolute().as_uri(), scheme, width=1240, height=1500) as page:
                    photograph(page, output / f"{name}-{scheme}.png")

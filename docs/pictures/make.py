"""Make every picture of the README and the documentation from scratch, from real runs.

Short trainings go into a temporary directory, or into --runs, which a second start uses again. Pictures that the
documentation shows are written into docs/images, the others into --output, to look at.

    python docs/pictures/make.py [--runs DIR] [--output DIR] [--only dashboard terminal plot report recording]
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pages import picture_dashboard
from recording import record_kill_and_resume
from terminal import picture_terminal
from trainings import make_runs
from written import picture_plots, picture_reports

IMAGES = Path(__file__).parents[1] / "images"
SHOWN = {
    "list-light.png": "dashboard-list.png",
    "run-dark.png": "dashboard-run.png",
    "compare-light.png": "dashboard-compare.png",
    "study-light.png": "dashboard-study.png",
    "family-light.png": "dashboard-family.png",
    "terminal-112x36-dark.svg": "watch-dark.svg",
    "terminal-80x24-light.svg": "watch-light.svg",
    "kill-and-resume.svg": "kill-and-resume.svg",
}
"""Pictures that the documentation shows, and their names in docs/images."""


def _record(_: Path, output: Path) -> None:
    with tempfile.TemporaryDirectory() as directory:
        record_kill_and_resume(Path(directory), output / "kill-and-resume.svg")


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "dashboard": picture_dashboard,
    "terminal": picture_terminal,
    "plot": picture_plots,
    "report": picture_reports,
    "recording": _record,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=None, help="keep the trainings here (default: a temporary place)")
    parser.add_argument("--output", type=Path, default=Path("build/pictures"), help="where all pictures go")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS), help="which pictures to make")
    given = parser.parse_args()
    output: Path = given.output
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="rekindle-") as directory:
        runs: Path = (given.runs or Path(directory) / "runs").absolute()
        runs.mkdir(parents=True, exist_ok=True)
        make_runs(runs)
        for kind in given.only:
            KINDS[kind](runs, output)
    for made, shown in SHOWN.items():
        if (output / made).exists():
            shutil.copy(output / made, IMAGES / shown)


if __name__ == "__main__":
    main()

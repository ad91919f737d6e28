"""How a notebook shows runs and evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rekindle.ui.feed import RunFeed
from rekindle.ui.markup import Drawn, chart, escaped, facts, table
from rekindle.ui.report import run_facts, smoothing_of
from rekindle.ui.text import path_text

__all__ = ["evaluation_html", "run_html"]

_STYLE = """<style>
.rekindle { display: flex; flex-wrap: wrap; gap: 8px 24px; align-items: flex-start; }
.rekindle figure { margin: 0; flex: 1 1 380px; max-width: 560px; }
.rekindle figcaption { display: flex; gap: 14px; font-size: .9em; }
.rekindle figcaption i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
.rekindle svg { display: block; width: 100%; height: auto; }
.rekindle th { text-align: left; font-weight: normal; opacity: .7; } .rekindle td { text-align: left; }
.rekindle .number { text-align: right; }
</style>"""


def run_html(path: Path) -> str:
    """A run at a glance: what it is, how far it has come, and its return."""
    feed = RunFeed(path)
    feed.poll()
    name = "return" if "return" in feed.names else next(iter(feed.names), None)
    lines = [] if name is None else [(split, curve.points()) for split, curve in feed.splits(name)]
    curves = chart(name, [Drawn(split, points, smoothing_of(split)) for split, points in lines]) if name else ""
    problems = "".join(f"<p>{escaped(problem)}</p>" for problem in feed.problems)
    title = f'<p><b>{escaped(feed.name)}</b><br><span style="opacity:.7">{escaped(path_text(path))}</span></p>'
    return f'{_STYLE}{title}{problems}<div class="rekindle">{facts(run_facts(feed))}{curves}</div>'


def evaluation_html(total_steps: int, n_episodes: int, stats: Mapping[str, float]) -> str:
    """An evaluation as a table."""
    title = f"<p><b>evaluation</b> at step {total_steps:,}, episodes: {n_episodes:,}</p>"
    rows = [(name, f"{value:.6g}") for name, value in stats.items()]
    return f'{_STYLE}{title}<div class="rekindle">{table(("stat", "value"), rows)}</div>'

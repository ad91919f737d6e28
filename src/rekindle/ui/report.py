"""A report: one self-contained HTML page about runs."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rekindle.markup import escaped, facts, table
from rekindle.run.chart import Drawn, chart, legend, smoothing_of
from rekindle.run.curve import Extreme
from rekindle.run.overview import glimpse, run_facts
from rekindle.run.settings import flat_settings, setting_text
from rekindle.run.tags import runs_below
from rekindle.storage import files
from rekindle.text import NOTHING, bytes_text, decimal, path_text, whole
from rekindle.ui.feed import RunFeed
from rekindle.ui.report_groups import compare_feeds, group_parts, step_unit
from rekindle.ui.videos import MEDIA_TYPES, MOST_BYTES, list_videos
from rekindle.version import __version__

__all__ = ["report_page"]

_MOST_ROWS = 200
_MOST_OPEN = 2
"""With more runs than that, the part about each of them is folded up."""
_MOST_SIDES = 8
"""With more runs than that, side by side means one row for each run."""

_STYLE = """
:root { color-scheme: light dark; --back: #fdfcfa; --text: #1f2328; --soft: #57534c; --rule: #dcd7cd; --box: #f5f3ef;
  --line-0: #b3400a; --line-1: #0a62a0; --line-2: #7d3bb8; --line-3: #1a6b33; --line-4: #835400; --line-5: #b3231d; }
@media (prefers-color-scheme: dark) { :root { --back: #14161a; --text: #e8e6e3; --soft: #a5abb6; --rule: #343a45;
  --box: #1a1d23; --line-0: #ff9d4d; --line-1: #58c4f5; --line-2: #d6a3ff; --line-3: #7fd88f; --line-4: #f2cc60;
  --line-5: #ff7b72; } }
body { margin: 0 auto; max-width: 1180px; padding: 24px; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6em; margin: 0; } h2 { font-size: 1.25em; margin: 2em 0 .4em; overflow-wrap: anywhere; }
h3 { font-size: 1em; margin: 1.6em 0 .4em; } header p, .note { color: var(--soft); margin: .2em 0; }
section { border-top: 1px solid var(--rule); margin-top: 2em; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 14px; }
figure { margin: 0; padding: 10px 12px; background: var(--box); border: 1px solid var(--rule); border-radius: 8px;
  min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; gap: 2px 14px; font-size: .88em; overflow-wrap: anywhere; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; font-size: .9em; margin: .4em 0 .8em; }
figcaption span, .legend span { white-space: nowrap; max-width: 100%; overflow: hidden; text-overflow: ellipsis; }
summary h2 { display: inline-block; margin: .5em 0; } summary { cursor: pointer; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; font-size: .9em; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 3px 14px 3px 0; vertical-align: top; border-bottom: 1px solid var(--rule);
  overflow-wrap: break-word; } .number { text-align: right; white-space: nowrap; }
thead th, .facts th { color: var(--soft); font-weight: 500; } .wide { overflow-x: auto; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); gap: 0 32px; }
.columns > div { min-width: 0; overflow-x: auto; }
.config { columns: 340px; } .config table { width: 100%; }
video, img { max-width: 100%; border-radius: 8px; }
.finished { color: var(--line-3); } .stopped, .running { color: var(--line-4); }
.failed, .crashed, .unreadable, .problem { color: var(--line-5); }
"""


def report_page(paths: Sequence[Path], tags: Sequence[str] = ()) -> str:
    """A self-contained page about runs that have these tags; a directory stands for every run below it."""
    feeds = [RunFeed(path) for path in runs_below(paths, tags)]
    for feed in feeds:
        feed.poll()
    now = datetime.now(UTC).astimezone().strftime("%Y-%m-%d %H:%M")
    names = ", ".join(feed.name for feed in feeds)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        'img-src data:; media-src data:">',
        f"<title>{escaped(names, most=120)}</title><style>{_STYLE}</style></head><body>",
        f"<header><h1>{'Report on a run' if len(feeds) == 1 else f'Report on {len(feeds)} runs'}</h1>",
        f"<p>made with rekindle {escaped(__version__)} on {escaped(now)}</p></header>",
        *(_several(feeds) if len(feeds) > 1 else ()),
        *(part for feed in feeds for part in _run(feed, is_folded=len(feeds) > _MOST_OPEN)),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _facts(feed: RunFeed) -> list[tuple[str, str]]:
    return run_facts(glimpse(feed.reader.path))


def _several(feeds: Sequence[RunFeed]) -> Iterator[str]:
    trainings = compare_feeds(feeds)
    if trainings is None:
        yield from _comparison(feeds)
    else:
        yield from group_parts(feeds, trainings)


def _comparison(feeds: Sequence[RunFeed]) -> Iterator[str]:
    yield "<section><h2>Side by side</h2>"
    columns = [dict(_facts(feed)) for feed in feeds]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, NOTHING) for column in columns)] for name in names]
    heads = ["", *(feed.name for feed in feeds)]
    if len(feeds) > _MOST_SIDES:
        heads, rows = (
            ["run", *(row[0] for row in rows)],
            [list(row) for row in zip(heads[1:], *(row[1:] for row in rows), strict=True)],
        )
    yield f'<div class="wide">{table(heads, rows, words=len(heads))}</div>'
    labels = [(feed.name, place) for place, feed in enumerate(feeds)]
    yield f'<h3>Curves</h3><p class="legend">{legend(labels)}</p><div class="charts">'
    metrics = {metric: None for feed in feeds for name in feed.names for metric in feed.curves if metric.name == name}
    for metric in metrics:
        lines: list[Drawn] = []
        for place, feed in enumerate(feeds):
            if metric in feed.curves:
                points = feed.curves[metric].points()
                # Without bands, because those of several runs would hide each other.
                bare = points._replace(least=points.means, greatest=points.means)
                lines.append(Drawn(feed.name, bare, smoothing_of(metric.split), place))
        if len(lines) > 1:
            yield chart(f"{metric.name}, {metric.split}", lines, unit=step_unit(feeds), has_legend=False)
    yield "</div></section>"


def _run(feed: RunFeed, *, is_folded: bool) -> Iterator[str]:
    heading = f"{escaped(feed.name)} <span class={escaped(feed.status)}>{escaped(feed.status)}</span>"
    if is_folded:
        yield f"<section><details><summary><h2>{heading}</h2></summary>"
    else:
        yield f"<section><h2>{heading}</h2>"
    yield f'<p class="note">{escaped(path_text(feed.reader.path))}</p>'
    yield from (f'<p class="problem">{escaped(problem)}</p>' for problem in feed.problems)
    yield facts(_facts(feed))
    yield _video(feed.reader.path)
    yield '<h3>Curves</h3><div class="charts">'
    unit = step_unit([feed])
    for name in feed.names:
        yield chart(
            name, [Drawn(split, curve.points(), smoothing_of(split)) for split, curve in feed.splits(name)], unit=unit
        )
    yield '</div><h3>Metrics</h3><div class="wide">'
    heads = ("metric", "", "last", "mean of 100", "least", "at step", "greatest", "at step")
    yield table(heads, _metric_rows(feed), words=2) + "</div>"
    yield from _history(feed)
    settings = [(name, setting_text(value)) for name, value in flat_settings(feed.config).items()][:_MOST_ROWS]
    if settings:
        yield f'<h3>Config</h3><div class="config">{facts(settings)}</div>'
    yield "</details></section>" if is_folded else "</section>"


def _metric_rows(feed: RunFeed) -> Iterator[list[object]]:
    for name in feed.names[:_MOST_ROWS]:
        for split, curve in feed.splits(name):
            extremes = [*_extreme(curve.least), *_extreme(curve.greatest)]
            yield [name, split, decimal(curve.last), decimal(curve.recent_mean), *extremes]


def _extreme(extreme: Extreme | None) -> list[str]:
    return [NOTHING, NOTHING] if extreme is None else [decimal(extreme.value), whole(extreme.step)]


def _history(feed: RunFeed) -> Iterator[str]:
    yield '<div class="columns"><div><h3>Checkpoints</h3>'
    marked = [
        (
            checkpoint.file,
            ", ".join(["latest"] * checkpoint.latest + ["best"] * checkpoint.best),
            whole(checkpoint.step),
            bytes_text(checkpoint.size),
        )
        for checkpoint in feed.checkpoints[-_MOST_ROWS:]
    ]
    yield table(("file", "", "step", "size"), marked, words=2) if marked else '<p class="note">none</p>'
    if feed.metadata is not None:
        yield f"<h3>Made with</h3>{facts(feed.metadata.environment.items())}"
    yield "</div><div><h3>Events</h3>"
    happenings = [
        (
            _date(happening.time),
            happening.level if happening.level in ("warning", "error") else "",
            happening.text,
            "" if happening.step is None else whole(happening.step),
        )
        for happening in feed.happenings[-_MOST_ROWS:]
    ]
    yield table(("when", "", "", "step"), happenings, words=3) + "</div></div>"


def _video(run_path: Path) -> str:
    """The video of the best policy, or else the newest; empty if there is none that can be embedded."""
    videos = list_videos(run_path)
    if not videos:
        return ""
    path = videos[-1].path
    source = (
        f"data:{MEDIA_TYPES[path.suffix]};base64,{base64.b64encode(files.read_bytes(path, most=MOST_BYTES)).decode()}"
    )
    shown = (
        f'<img src="{source}" alt="the policy at work">'
        if path.suffix == ".gif"
        else f'<video controls loop muted src="{source}"></video>'
    )
    return f'<h3>Video</h3>{shown}<p class="note">{escaped(path.name)}</p>'


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")

"""`rekindle plot`: curves as a picture."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_runs import evaluate, make_run, open_session, play_episode

from rekindle import RunReader, TrainingRun
from rekindle.cli import plot
from rekindle.run.finding import find_runs

Rekindle = Callable[..., Any]
pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(svg: Path) -> str:
    """What matplotlib draws as paths, it also writes as comments."""
    return " | ".join(re.findall(r"<!-- (.*?) -->", svg.read_text()))


def test_runs_of_one_name_are_a_mean_and_a_band(rekindle: Rekindle) -> None:
    for reward in (1.0, 3.0):
        make_run(Path("runs"), "several", reward=reward)
    make_run(Path("runs"), "one")
    outcome = rekindle("plot", "runs/several", "runs/one", "-o", "a.svg")
    assert outcome.code == 0
    assert outcome.out.startswith("a.svg (")
    shown = texts(Path("a.svg"))
    assert "| several (2 runs) | one" in shown
    assert "means over runs, with bands of one standard deviation" in shown
    assert "episode/return" in shown
    assert "eval/return" not in shown


def test_runs_of_one_name_with_other_settings_are_lines_of_their_own(rekindle: Rekindle) -> None:
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            make_run(Path("runs"), "several", seed=seed, agent={"rate": rate})
    assert rekindle("plot", "runs", "-o", "a.svg").code == 0
    shown = texts(Path("a.svg"))
    assert "several, rate 0.1 (2 runs)" in shown
    assert "several, rate 0.2 (2 runs)" in shown


def test_panels_share_a_legend_in_which_no_two_lines_look_the_same(rekindle: Rekindle) -> None:
    for number in range(12):
        make_run(Path("runs"), f"lake{number}")
    assert rekindle("plot", "runs", "--metrics", "episode/return", "agent/loss", "-o", "a.svg").code == 0
    shown = texts(Path("a.svg"))
    assert [shown.count(f"| lake{number} |") for number in range(2, 11)] == [1] * 9
    styles = re.findall(r'id="legend_1".*', Path("a.svg").read_text(), re.DOTALL)[0]
    lines = re.findall(r'<path d="M [^"]*" style="fill: none; ([^"]*)"', styles)
    assert len(lines) == len(set(lines)) == 12


def test_a_plot_for_dark_pages_has_a_dark_ground(rekindle: Rekindle) -> None:
    path = make_run(Path("runs"))
    assert rekindle("plot", path, "-o", "a.svg", "--theme", "dark").code == 0
    assert "fill: #14161a" in Path("a.svg").read_text()


def test_a_mean_is_the_mean_and_stands_where_half_of_the_runs_have_values() -> None:
    ends = {1.0: (0.0, 20.0), 3.0: (5.0, 40.0), 5.0: (0.0, 60.0), 7.0: (0.0, 20.0)}
    runs = [plot._Curve(np.array(steps), np.full(2, value)) for value, steps in ends.items()]
    steps, mean, deviation = plot._mean(runs, 0.0)
    assert steps[0] == 0
    assert steps[-1] == pytest.approx(40, abs=0.2)
    assert mean[(steps > 5) & (steps < 20)] == pytest.approx(4)
    assert deviation[(steps > 5) & (steps < 20)] == pytest.approx(np.std([1, 3, 5, 7]))
    assert mean[steps > 20] == pytest.approx(4)
    assert mean[0] == pytest.approx(13 / 3)


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        ([(600.0, 1.0)], [[600.0]]),
        ([(600.0, 1.0), (600.0, 3.0)], [[600.0]]),
        ([(600.0, 1.0), (700.0, 2.0), (800.0, 4.0)], [[600.0], [700.0], [800.0]]),
    ],
)
def test_curves_of_one_point_are_visible(runs: list[tuple[float, float]], shown: list[list[float]]) -> None:
    from matplotlib.figure import Figure

    axes: Any = Figure().subplots()
    curves = [plot._Curve(np.array([step]), np.array([value])) for step, value in runs]
    plot._draw(axes, curves, 0.6, plot._Look("lake", len(runs), "#000000", "-"))
    dots = [line.get_xdata().tolist() for line in axes.get_lines() if line.get_marker() == "o"]
    assert dots == shown


def test_evaluations_are_means_of_their_episodes(rekindle: Rekindle) -> None:
    run = TrainingRun.create("evaluated")
    with open_session(run) as session:
        for value in (1.0, 5.0):
            play_episode(session)
            evaluate(session, value, value + 2)
    assert plot._curve(run.reader, "eval/return") == (pytest.approx([5, 10]), pytest.approx([2, 6]))
    assert rekindle("plot", run.path, "-o", "b.png", "--smoothing", 0).code == 0
    assert Path("b.png").read_bytes().startswith(b"\x89PNG")


def test_any_metric_can_be_plotted(rekindle: Rekindle) -> None:
    path = make_run(Path("runs"))
    assert rekindle("plot", path, "--metrics", "agent/loss", "episode/speed", "-o", "c.svg").code == 0
    assert "agent/loss" in texts(Path("c.svg"))


def test_a_profile_is_the_share_of_runs_above_each_score(rekindle: Rekindle) -> None:
    for seed, reward in enumerate((1.0, 2.0, 3.0, 4.0)):
        make_run(Path("runs"), "lake", reward=reward, seed=seed)
    readers = {"lake": [RunReader(run) for run in find_runs(Path("runs"))]}
    (share, low, high) = plot._profiles(readers)["lake"]  # the scores are 5, 10, 15 and 20
    assert share.values[0] == 1
    assert share.values[-1] == 0
    assert share.values[np.searchsorted(share.steps, 12.0)] == 0.5
    assert np.all((low.values <= share.values) & (share.values <= high.values))
    assert rekindle("plot", "runs", "--metrics", "profile", "-o", "d.svg").code == 0
    assert "share of runs above a score" in texts(Path("d.svg"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "plot needs at least one PATH"),
        (("nowhere",), 1, "there is no run at nowhere"),
        (("runs", "-o", "plot.bmp"), 2, "a plot is a .png or .svg file"),
        (("runs", "--smoothing", "2"), 2, "use a share of the curve from 0 to 1"),
        (("runs", "--metrics", "agent/los"), 2, "there is no agent/los in these runs; there are agent/loss, "),
        (
            ("runs", "--metrics", "eval/return"),
            2,
            "eval/return has no finite values in these runs; there are",
        ),
        (("runs", "-o", "no/where.png"), 1, "cannot write no/where.png"),
    ],
)
def test_wrong_usage_is_told(rekindle: Rekindle, arguments: tuple[str, ...], code: int, message: str) -> None:
    make_run(Path("runs"))
    outcome = rekindle("plot", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert message in outcome.err
    assert not list(Path().glob("*.png"))


def test_without_matplotlib_the_extra_is_named(rekindle: Rekindle, monkeypatch: pytest.MonkeyPatch) -> None:
    path, plain = make_run(Path("runs")), builtins.__import__

    def fails(name: str, *arguments: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError("no", name="matplotlib")
        return plain(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", fails)
    outcome = rekindle("plot", path)
    assert (outcome.code, outcome.err) == (1, 'rekindle: plot needs matplotlib: pip install "rekindle-rl[plot]"\n')

"""Every key of the terminal UI, the mouse, and the question how to leave."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from watched_runs import Writer, written

pytest.importorskip("textual")

from rich.text import Text
from textual.color import Color
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from textual.widgets import DataTable, OptionList, Static, Tabs

from rekindle import TrainingRun
from rekindle.ui import screen as screen_module
from rekindle.ui.app import WatchApp
from rekindle.ui.dialogs import HelpScreen, LeaveScreen, SummaryScreen
from rekindle.ui.feed import RunFeed
from rekindle.ui.lines import Lines
from rekindle.ui.plot import Plot
from rekindle.ui.screen import WatchScreen
from rekindle.ui.themes import DARK, LIGHT, LINES, chart_colours

Play = Callable[[Pilot[Any]], Awaitable[None]]
Piloted = Callable[..., WatchApp]


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the run so often that a test need not wait."""
    monkeypatch.setattr(screen_module, "_POLL", 0.15)
    monkeypatch.setattr(screen_module, "_DRAW", 0.0)


def piloted(path: Path, play: Play, *, size: tuple[int, int] = (120, 40), **options: Any) -> WatchApp:
    app = WatchApp(RunFeed(path), **{"theme": "dark", **options})
    app.animation_level = "none"

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: isinstance(app.screen, WatchScreen) and bool(app.watched.query_one(Tabs).active))
            await play(pilot)

    asyncio.run(run())
    return app


async def until(pilot: Pilot[Any], holds: Callable[[], bool], what: str = "it") -> None:
    for _ in range(1000):
        if holds():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"{what} did not come to pass")


def text_of(app: WatchApp, selector: str) -> str:
    shown = app.watched.query_one(selector, Static).visual
    return str(shown).strip()


def screen_text(app: WatchApp) -> str:
    lines = app.screen._compositor.render_strips()
    return "\n".join(line.text.rstrip() for line in lines)


@pytest.fixture
def live(tmp_path: Path) -> Writer:
    return written(tmp_path)


@pytest.fixture
def finished(live: Writer) -> Path:
    live.end()
    return live.path


# What is shown


def test_a_live_run_shows_everything_at_a_glance(live: Writer) -> None:
    (live.path / "checkpoints" / "step_600.mpk").write_bytes(b"x" * 2000)

    async def play(pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "q leave" in " ".join(screen_text(pilot.app).split()), "the footer")  # type: ignore[arg-type]
        shown = " ".join(screen_text(pilot.app).split())  # type: ignore[arg-type]
        for part in (
            "● running lake/v1/",
            "q-learning FrozenLake-v1",
            "up ",
            "50% 600/1,200",
            "env steps 600 updates 300 episodes 60",
            "● train 0.98 ● eval 0.75 by env step, full, smoothing 2%",
            "return train 0.98",
            "evaluated 2 episodes: return 0.75",
            "step_600.mpk",
            "latest",
            "q leave",
        ):
            assert part in shown

    piloted(live.path, play)


def test_what_is_appended_appears(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        live.episodes_of([7.5])
        live.metrics_of(agent__new=1.0)
        await until(pilot, lambda: "train 7.50" in text_of(app, "#legend"))
        await until(pilot, lambda: "episodes 61" in text_of(app, "#counters"))
        assert app.watched.query_one(Tabs).tab_count == 7

    piloted(live.path, play)


def test_a_resume_that_cuts_the_logs_back_is_followed(live: Writer) -> None:
    positions = {log: live.run.log(log).position for log in ("train_episodes", "eval_episodes", "metrics")}
    live.episodes_of([99.0])

    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await until(pilot, lambda: "train 99.00" in text_of(app, "#legend"))
        live.crash()
        await until(pilot, lambda: isinstance(app.screen, SummaryScreen))
        await pilot.press("escape")
        run = TrainingRun.resume(live.path)
        run.rewind(positions)
        await until(pilot, lambda: "running" in text_of(app, "#head"))
        await until(pilot, lambda: "train 0.98" in text_of(app, "#legend"))
        assert "episodes 60" in text_of(app, "#counters")
        run.close()

    piloted(live.path, play, stay=True)


def test_a_live_run_is_not_drawn_at_every_look(live: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen_module, "_DRAW", 3600.0)

    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        before = text_of(app, "#counters")
        live.episodes_of([7.5])
        await until(pilot, lambda: app.watched.feed.episodes == 61)
        await pilot.pause()
        assert text_of(app, "#counters") == before
        live.end()
        await until(pilot, lambda: "episodes 61" in text_of(app, "#counters"))

    piloted(live.path, play, stay=True)


def test_only_what_changed_is_drawn(live: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []

    def noted(kind: type, method: str) -> None:
        original = getattr(kind, method)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            words = str(arguments[1]).split() if method == "update_cell_at" else []
            drawn.append(" ".join([self.id, *words[:1]]))
            return original(self, *arguments, **options)

        monkeypatch.setattr(kind, method, call)

    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await pilot.pause()
        for kind, method in ((Static, "update"), (DataTable, "update_cell_at"), (Lines, "show")):
            noted(kind, method)
        live.metrics_of(agent__loss=0.25)
        await until(pilot, lambda: "metrics 0.13" in drawn)  # the mean of both rows of this step
        assert not {"events", "checkpoints"} & {*drawn}
        assert "metrics loss" not in drawn
        drawn.clear()
        app.watched.show()
        assert {"head", "progress", "counters", "metrics loss", "events", "checkpoints"} <= {*drawn}

    piloted(live.path, play)


def test_a_long_event_is_wrapped_beside_its_time(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        panel = app.watched.query_one("#events", Lines)
        panel.show([(Text("12:00:00 "), Text("word " * 30)), (Text("12:00:01 "), Text("short"))])
        await pilot.pause()
        lines = [panel.render_line(y).text.rstrip() for y in range(3)]
        assert lines[0].startswith("12:00:00 word")
        assert lines[1].startswith("         word")
        assert panel.virtual_size.height > 2
        await pilot.pause()
        assert "12:00:00 word word" in screen_text(app)

    piloted(live.path, play)


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_size_works(finished: Path, theme: str) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        for size in [(80, 24), (60, 18), (40, 12), (20, 6), (8, 3), (200, 60)]:
            await pilot.resize_terminal(*size)
            await pilot.pause(0.05)
            shown = screen_text(app)
            assert "○" in shown
            assert size[1] < 12 or any(0x2800 < ord(character) < 0x2900 for character in shown)
            assert app.watched.query_one("#panels").display == (size[1] >= 20)

    piloted(finished, play, theme=theme)


def test_on_a_small_terminal_one_panel_is_shown_at_a_time(finished: Path) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        for key, name in (("e", "events"), ("c", "checkpoints"), ("m", "metrics")):
            await pilot.press(key)
            await pilot.pause()
            assert [panel.id for panel in app.watched.query("#panels > *") if panel.display] == [name]

    piloted(finished, play, size=(80, 24))


def test_hostile_names_are_shown_as_they_are(tmp_path: Path) -> None:
    writer = Writer(tmp_path, algorithm="[red]no[/]", env="[link=x]\x1b[31menv")
    writer.metrics_of(**{"agent__[bold]x[/bold]": 1.0, "agent__\x1b]0;t\x07\n": 2.0, "agent__[": 3.0})

    async def play(pilot: Pilot[Any]) -> None:
        shown = screen_text(pilot.app)  # type: ignore[arg-type]
        assert "[red]no[/]" in shown
        assert "[bold]x[/bold]" in shown
        assert "\\x1b]0;t" in shown
        assert not {"\x1b", "\x07"} & set(shown)

    piloted(writer.path, play)


@pytest.mark.parametrize("keys", [[], ["o"], ["question_mark"]], ids=["the screen", "the summary", "the keys"])
def test_another_theme_leaves_no_colour_of_the_first(finished: Path, keys: list[str]) -> None:
    def colours(theme: str, *pressed: str) -> set[str]:
        found: set[str] = set()

        async def play(pilot: Pilot[Any]) -> None:
            await pilot.press(*pressed)
            await pilot.pause()
            found.update(re.findall(r"#[0-9a-f]{6}", pilot.app.export_screenshot()))

        piloted(finished, play, theme=theme, size=(160, 50))
        return found

    assert colours("dark", *keys, "t") == colours("light", *keys)


def test_a_damaged_log_is_told(live: Writer) -> None:
    with (live.path / "metrics.jsonl").open("ab") as file:
        file.write(b"nonsense\n")

    async def play(pilot: Pilot[Any]) -> None:
        assert "metrics.jsonl: line 3 is not JSON" in screen_text(pilot.app).replace("\n", "")  # type: ignore[arg-type]

    piloted(live.path, play, size=(200, 40))


def test_a_run_without_rows_says_so(tmp_path: Path) -> None:
    app = WatchApp(RunFeed(Writer(tmp_path, max_steps=None).path), theme="dark")

    async def run() -> None:
        async with app.run_test(size=(100, 30)) as pilot:
            await until(pilot, lambda: "nothing logged yet" in text_of(app, "#legend"))
            assert "no end set" in text_of(app, "#progress")
            await pilot.press("n", "1", "plus", "right", "s", "enter")

    asyncio.run(run())


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_text_and_curves_stand_out_from_what_is_behind_them(theme: Any) -> None:
    def luminance(colour: str) -> float:
        parts = [part / 255 for part in Color.parse(colour).rgb]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def contrast(colour: str, behind: str) -> float:
        first, second = sorted((luminance(colour), luminance(behind)), reverse=True)
        return (first + 0.05) / (second + 0.05)

    texts = [theme.foreground, theme.variables["text-muted"], *(getattr(theme, name) for name in LINES)]
    assert min(contrast(text, behind) for text in texts for behind in (theme.background, theme.surface)) >= 4.5
    assert min(contrast(text, theme.panel) for text in texts) >= 4.5
    colours = chart_colours(theme)
    assert min(contrast(colours[f"band {index}"], theme.background) for index in range(len(LINES))) >= 1.5


def test_arrows_stand_where_there_are_more_tabs(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.metrics_of(**{f"agent__metric_with_a_name_{number}": 1.0 for number in range(6)})

    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await until(pilot, lambda: (text_of(app, "#earlier"), text_of(app, "#later")) == ("", "→"))
        await pilot.press("left")  # from the first to the last
        await until(pilot, lambda: (text_of(app, "#earlier"), text_of(app, "#later")) == ("←", ""))
        await pilot.resize_terminal(240, 40)
        await until(pilot, lambda: (text_of(app, "#earlier"), text_of(app, "#later")) == ("", ""))

    piloted(writer.path, play, size=(80, 24))


# Keys

NAMES = ["return", "length", "depth", "epsilon", "loss", "steps_per_sec"]

KEYS: list[tuple[str, Callable[[Plot, WatchApp], bool]]] = [
    ("n", lambda plot, app: active_tab(app) == "length"),
    ("right_square_bracket", lambda plot, app: active_tab(app) == "depth"),
    ("p", lambda plot, app: active_tab(app) == "length"),
    ("left_square_bracket", lambda plot, app: active_tab(app) == "return"),
    ("p", lambda plot, app: active_tab(app) == "steps_per_sec"),
    ("n", lambda plot, app: active_tab(app) == "return"),
    ("right", lambda plot, app: active_tab(app) == "length"),
    ("left", lambda plot, app: active_tab(app) == "return"),
    *((str(place), lambda plot, app, name=name: active_tab(app) == name) for place, name in enumerate(NAMES, 1)),
    *((str(place), lambda plot, app: active_tab(app) == NAMES[-1]) for place in range(len(NAMES) + 1, 10)),
    ("r", lambda plot, app: (plot.view, plot.range) == ("recent", (480.0, 600.0))),
    ("f", lambda plot, app: (plot.view, plot.range) == ("full", (0.0, 600.0))),
    ("plus", lambda plot, app: (plot.view, plot.range) == ("zoom", (150.0, 450.0))),
    ("shift+left", lambda plot, app: plot.range == (75.0, 375.0)),
    ("shift+right", lambda plot, app: plot.range == (150.0, 450.0)),
    ("less_than_sign", lambda plot, app: plot.range == (75.0, 375.0)),
    ("greater_than_sign", lambda plot, app: plot.range == (150.0, 450.0)),
    ("minus", lambda plot, app: (plot.view, plot.range) == ("full", (0.0, 600.0))),
    ("equals_sign", lambda plot, app: plot.range == (150.0, 450.0)),
    ("f", lambda plot, app: plot.view == "full"),
    ("s", lambda plot, app: plot.smoothing == 0.05),
    ("s", lambda plot, app: plot.smoothing == 0.0),
    ("s", lambda plot, app: plot.smoothing == 0.01),
    ("e", lambda plot, app: getattr(app.focused, "id", None) == "events"),
    ("c", lambda plot, app: getattr(app.focused, "id", None) == "checkpoints"),
    ("m", lambda plot, app: getattr(app.focused, "id", None) == "metrics"),
    ("t", lambda plot, app: app.theme == "rekindle-light"),
    ("t", lambda plot, app: app.theme == "rekindle-dark"),
    ("o", lambda plot, app: isinstance(app.screen, SummaryScreen)),
    ("o", lambda plot, app: isinstance(app.screen, WatchScreen)),
    ("a", lambda plot, app: any("no actors" in told.message for told in app._notifications)),
    ("question_mark", lambda plot, app: isinstance(app.screen, HelpScreen)),
    ("question_mark", lambda plot, app: isinstance(app.screen, WatchScreen)),
    ("question_mark", lambda plot, app: isinstance(app.screen, HelpScreen)),
    ("q", lambda plot, app: isinstance(app.screen, WatchScreen)),
    ("ctrl+c", lambda plot, app: isinstance(app.screen, LeaveScreen)),
    ("q", lambda plot, app: isinstance(app.screen, WatchScreen)),
    ("q", lambda plot, app: isinstance(app.screen, LeaveScreen)),
]


def active_tab(app: WatchApp) -> str:
    active = app.watched.query_one(Tabs).active_tab
    return "" if active is None else active.label_text


@pytest.mark.slow
def test_every_key_does_what_it_says(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        plot = app.watched.query_one(Plot)
        for key, has_done_it in KEYS:
            await pilot.press(key)
            await until(pilot, lambda holds=has_done_it: holds(plot, app), f"the key {key}")

    piloted(live.path, play)


def test_every_key_is_tried_and_explained() -> None:
    bound = {key for binding in WatchScreen.BINDINGS for key in binding.key.split(",")}  # type: ignore[union-attr]
    assert bound == {key for key, _ in KEYS}
    names = {"question_mark": "?", "plus": "+", "minus": "-", "less_than_sign": "<", "greater_than_sign": ">"}
    synonyms = {"ctrl+c", "equals_sign", "n", "p", "right_square_bracket", "left_square_bracket"}
    synonyms |= {"shift+left", "shift+right"}
    explained = " ".join(key for key, _ in WatchScreen.KEYS).split()
    assert {names.get(key, key) for key in bound - synonyms} - set("2345678") <= set(explained)


def test_detaching_leaves_at_once(live: Writer) -> None:
    app = piloted(live.path, lambda pilot: pilot.press("ctrl+q"))
    assert app.return_value == "detached"
    assert not live.run.stop_file.exists()


def test_a_run_that_is_not_live_is_left_without_a_question(finished: Path) -> None:
    assert piloted(finished, lambda pilot: pilot.press("q")).return_value == "ended"


# The question


def test_stopping_leaves_a_request_and_the_view_ends_with_the_run(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await pilot.press("q", "s")
        await until(pilot, lambda: "stopping" in text_of(app, "#head"))
        assert live.run.stop_file.read_text() == "rekindle watch"
        assert app.return_value is None
        live.end("stopped", "rekindle watch")
        await until(pilot, lambda: app.return_value is not None)

    assert piloted(live.path, play).return_value == "ended"


@pytest.mark.parametrize(("key", "result"), [("k", "kill"), ("d", "detached")])
def test_killing_and_detaching_close_the_view(live: Writer, key: str, result: str) -> None:
    app = piloted(live.path, lambda pilot: pilot.press("q", key))
    assert app.return_value == result
    assert not live.run.stop_file.exists()


@pytest.mark.parametrize("key", ["c", "escape", "q", "enter"])
def test_cancelling_goes_back_as_does_enter_alone(live: Writer, key: str) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("q", key)
        await until(pilot, lambda: isinstance(pilot.app.screen, WatchScreen))
        assert pilot.app.return_value is None

    piloted(live.path, play)
    assert not live.run.stop_file.exists()


def test_an_answer_can_be_chosen_with_arrows_or_clicked(live: Writer) -> None:
    assert piloted(live.path, lambda pilot: pilot.press("q", "up", "enter")).return_value == "detached"

    async def click(pilot: Pilot[Any]) -> None:
        await pilot.press("q")
        await pilot.pause()
        assert await pilot.click(OptionList, offset=(4, 1))
        await until(pilot, lambda: pilot.app.return_value is not None)

    assert piloted(live.path, click).return_value == "kill"


def test_ctrl_c_stops_the_training_that_was_started_here_and_asks_the_second_time(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await pilot.press("ctrl+c")
        await until(pilot, lambda: app.watched.feed.is_stop_requested)
        assert live.run.stop_file.read_text() == "asked to stop in the terminal UI"
        await pilot.press("ctrl+c")
        assert isinstance(app.screen, LeaveScreen)

    piloted(live.path, play, is_companion=True)


def test_a_companion_of_a_training_that_was_over_at_once_closes(finished: Path) -> None:
    app = WatchApp(RunFeed(finished), is_companion=True)
    asyncio.run(app.run_async(headless=True))
    assert app.return_value == "ended"


@pytest.mark.parametrize("is_companion", [True, False])
def test_only_the_companion_of_a_training_that_died_does_not_stay(live: Writer, *, is_companion: bool) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        live.crash()
        await until(pilot, lambda: isinstance(pilot.app.screen, SummaryScreen) or pilot.app.return_value is not None)

    app = piloted(live.path, play, stay=True, is_companion=is_companion)
    assert (app.return_value == "ended") is is_companion


def test_a_request_that_cannot_be_left_is_told(live: Writer) -> None:
    (live.path / "control").rmdir()
    (live.path / "control").write_text("")

    async def play(pilot: Pilot[Any]) -> None:
        await pilot.press("q", "s")
        told = [notification.message for notification in pilot.app._notifications]
        assert len(told) == 1
        assert "it is not a directory" in told[0]

    piloted(live.path, play)


# The end


def test_the_view_closes_with_the_run(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        live.end()
        await until(pilot, lambda: pilot.app.return_value is not None)

    assert piloted(live.path, play).return_value == "ended"


def test_the_view_stays_with_the_summary_if_asked_to(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        live.end()
        await until(pilot, lambda: isinstance(pilot.app.screen, SummaryScreen))
        await pilot.pause()
        shown = screen_text(pilot.app)  # type: ignore[arg-type]
        assert "finished, max_steps" in shown
        assert "600 steps, 300 updates, 60 episodes" in shown
        await pilot.press("escape", "q")

    assert piloted(live.path, play, stay=True).return_value == "ended"


# The mouse


def test_the_wheel_zooms_around_the_pointer_and_dragging_moves(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        plot = pilot.app.screen.query_one(Plot)
        await pilot._post_mouse_events([MouseScrollUp], plot, offset=(60, 5), times=1)
        first, last = plot.range
        assert plot.view == "zoom"
        assert last - first == pytest.approx(420)
        assert 0 < first < 300 < last < 600
        await pilot.mouse_down(plot, offset=(40, 5))
        await pilot.hover(plot, offset=(60, 5))
        await pilot.mouse_up(plot, offset=(60, 5))
        assert plot.range[0] < first
        await pilot.click(plot, offset=(40, 5), times=2)
        assert plot.view == "full"

    piloted(live.path, play)


def test_the_values_under_the_pointer_are_shown(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await pilot.hover(Plot, offset=(60, 5))
        await until(pilot, lambda: "at step" in text_of(app, "#legend"))
        await pilot.hover("#head")
        await until(pilot, lambda: "at step" not in text_of(app, "#legend"))

    piloted(live.path, play)


def test_a_click_on_a_tab_or_a_row_plots_it(live: Writer) -> None:
    async def play(pilot: Pilot[Any]) -> None:
        app: Any = pilot.app
        await pilot.click("#metric-1")
        await until(pilot, lambda: active_tab(app) == "length")
        table = app.watched.query_one(DataTable)
        row = [str(cell) if isinstance(cell, Text) else cell for cell in table.get_row_at(6)]
        assert row[0].split() == ["loss", "agent"]
        await pilot.click(DataTable, offset=(4, 8))
        await pilot.click(DataTable, offset=(4, 8))
        await until(pilot, lambda: active_tab(app) == "loss")

    piloted(live.path, play)

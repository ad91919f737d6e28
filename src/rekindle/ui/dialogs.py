"""What comes up over the watched run: how to leave, the keys, the summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from rekindle.ui.feed import RunFeed
from rekindle.ui.summary import summary_table

__all__ = ["HelpScreen", "LeaveChoice", "LeaveScreen", "SummaryScreen"]

LeaveChoice = Literal["stop", "kill", "detach", "cancel"]

_CSS = """
{name} {{ align: center middle; background: $background 60%; }}
{name} > Vertical {{
    width: 66; max-width: 96%; height: auto; max-height: 96%;
    border: round $primary; border-title-color: $primary; border-title-style: bold;
    background: $surface; padding: 1 2;
}}
{name} Static {{ height: auto; }}
{name} VerticalScroll {{ height: auto; max-height: 100%; scrollbar-size-vertical: 1; }}
"""


class LeaveScreen(ModalScreen[LeaveChoice]):
    """Asks what is to become of a run that is still training."""

    DEFAULT_CSS = (
        _CSS.format(name="LeaveScreen")
        + """
LeaveScreen OptionList, LeaveScreen OptionList:focus {
    height: auto; border: none; background: $surface; background-tint: $surface 0%; padding: 0; margin-top: 1;
}
LeaveScreen OptionList:focus > .option-list--option-highlighted { background: $panel; color: $foreground; }
"""
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "choose('stop')"),
        Binding("k", "choose('kill')"),
        Binding("d", "choose('detach')"),
        Binding("c,escape,q", "choose('cancel')"),
    ]

    def __init__(self, *, is_companion: bool) -> None:
        super().__init__()
        self._choices: dict[LeaveChoice, str] = {
            "stop": "after a checkpoint; it can be resumed exactly",
            "kill": "at once; a resume goes back to the last checkpoint",
            "detach": "close this view, training goes on" + (" and prints lines" if is_companion else ""),
            "cancel": "go back",
        }

    def compose(self) -> ComposeResult:
        """A question and four answers."""
        with Vertical() as box:
            box.border_title = "Leave"
            yield Static("The run is still training.")
            yield OptionList(*(Option(_choice(name, text), id=name) for name, text in self._choices.items()))

    def on_mount(self) -> None:
        """Enter alone does no harm."""
        self.query_one(OptionList).highlighted = list(self._choices).index("cancel")
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the line that was clicked or entered."""
        self.action_choose(event.option.id or "cancel")

    def action_choose(self, choice: str) -> None:
        """Answer."""
        self.dismiss(next(name for name in self._choices if name == choice))


def _choice(name: str, text: str) -> Text:
    return Text.assemble((name[0], "bold underline"), (f"{name[1:]:<8}", "bold"), text)


class _Reading(ModalScreen[None]):
    """Something to read, closed with any of the keys that close things."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter,question_mark,o", "dismiss")]

    async def action_dismiss(self, result: None = None) -> None:
        """Close it."""
        self.dismiss(result)


class HelpScreen(_Reading):
    """Every key, and what it does."""

    DEFAULT_CSS = _CSS.format(name="HelpScreen")

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Keys, then the mouse."""
        text = Text()
        for key, meaning in self._keys:
            text.append(f"{key:>14}  ", "bold")
            text.append(f"{meaning}\n")
        text.append("\nOn the plot the mouse wheel zooms, dragging moves, a double click shows everything, and the ")
        text.append("values under the pointer are shown. A click on a metric plots it.")
        with Vertical() as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            with VerticalScroll():
                yield Static(text)


class SummaryScreen(_Reading):
    """How the run ended, and the extremes of every metric."""

    DEFAULT_CSS = _CSS.format(name="SummaryScreen") + (
        "SummaryScreen > Vertical { width: 96; max-width: 100%; padding: 0 0 0 1; }"
    )

    def __init__(self, feed: RunFeed) -> None:
        super().__init__()
        self._feed = feed

    def compose(self) -> ComposeResult:
        """The table that is also printed at the end."""
        with Vertical() as box:
            box.border_title = "Summary"
            box.border_subtitle = "esc closes"
            with VerticalScroll():
                yield Static(summary_table(self._feed))

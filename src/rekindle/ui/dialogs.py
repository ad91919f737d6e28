"""Dialogs of the terminal UI: leaving, keys, summary."""

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

__all__ = ["DIALOG_CSS", "HelpScreen", "LeaveChoice", "LeaveScreen", "Reading", "SummaryScreen"]

LeaveChoice = Literal["stop", "kill", "detach", "cancel"]

DIALOG_CSS = """
{name} {{ align: center middle; background: $background 60%; }}
{name} > Vertical {{
    width: 66; max-width: 96%; height: auto; max-height: 96%;
    border: round $primary; border-title-color: $primary; border-title-style: bold;
    background: $surface; padding: 1 2;
}}
{name} Static {{ height: auto; }}
{name} VerticalScroll {{ height: auto; max-height: 100%; scrollbar-size-vertical: 1; }}
"""
"""The style of a dialog with this name."""


class LeaveScreen(ModalScreen[LeaveChoice]):
    """Asks what to do with a run that is still training."""

    DEFAULT_CSS = (
        DIALOG_CSS.format(name="LeaveScreen")
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
            "detach": "close this view, training continues" + (" and prints lines" if is_companion else ""),
            "cancel": "go back",
        }

    def compose(self) -> ComposeResult:
        """A question and four choices."""
        with Vertical() as box:
            box.border_title = "Leave"
            yield Static("The run is still training.")
            yield OptionList(*(Option(_choice(name, text), id=name) for name, text in self._choices.items()))

    def on_mount(self) -> None:
        """Preselect the choice that changes nothing."""
        self.query_one(OptionList).highlighted = list(self._choices).index("cancel")
        self.query_one(OptionList).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Choose the option that was clicked or entered."""
        self.action_choose(event.option.id or "cancel")

    def action_choose(self, choice: str) -> None:
        """Choose an option."""
        self.dismiss(next(name for name in self._choices if name == choice))


def _choice(name: str, text: str) -> Text:
    return Text.assemble((name[0], "bold underline"), (f"{name[1:]:<8}", "bold"), text)


class Reading(ModalScreen[None]):
    """A text that several keys close."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,o,a", "dismiss"),
        Binding("t", "app.toggle_theme"),
    ]

    async def action_dismiss(self, result: None = None) -> None:
        """Close it."""
        self.dismiss(result)


class HelpScreen(Reading):
    """The list of keys."""

    DEFAULT_CSS = DIALOG_CSS.format(name="HelpScreen")

    def __init__(self, keys: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Keys, then the mouse."""
        text = Text()
        for key, meaning in self._keys:
            text.append(f"{key:>14}  ", "bold")
            text.append(f"{meaning}\n")
        text.append(
            "\nIn the plot, the mouse wheel zooms, dragging pans, a double click shows the whole run. The legend "
        )
        text.append("shows the values under the pointer. Click a metric to plot it.")
        with Vertical() as box:
            box.border_title = "Keys"
            box.border_subtitle = "esc closes"
            with VerticalScroll():
                yield Static(text)


class SummaryScreen(Reading):
    """How the run ended, and the minimum and maximum of every metric."""

    DEFAULT_CSS = DIALOG_CSS.format(name="SummaryScreen") + (
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

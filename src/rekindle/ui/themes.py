"""A dark and a light theme, with colours for curves; all text has a contrast of at least 4.5 to its background."""

from __future__ import annotations

import os

from textual.color import Color
from textual.theme import Theme

__all__ = ["DARK", "LIGHT", "LINES", "THEMES", "chart_colours", "terminal_theme"]

DARK = Theme(
    name="rekindle-dark",
    primary="#ff9d4d",
    secondary="#58c4f5",
    accent="#d6a3ff",
    success="#7fd88f",
    warning="#f2cc60",
    error="#ff7b72",
    foreground="#e8e6e3",
    background="#14161a",
    surface="#1a1d23",
    panel="#262a33",
    dark=True,
    variables={"border": "#454c59", "footer-key-foreground": "#ff9d4d", "text-muted": "#a5abb6"},
)

LIGHT = Theme(
    name="rekindle-light",
    primary="#b3400a",
    secondary="#0a62a0",
    accent="#7d3bb8",
    success="#1a6b33",
    warning="#835400",
    error="#b3231d",
    foreground="#1f2328",
    background="#fdfcfa",
    surface="#f5f3ef",
    panel="#ebe8e1",
    dark=False,
    variables={"border": "#b5afa4", "footer-key-foreground": "#b3400a", "text-muted": "#57534c"},
)

THEMES = {"dark": DARK, "light": LIGHT}

LINES = ("primary", "secondary", "accent", "success", "warning", "error")
"""The colours of curves, in order; with more curves they repeat."""

_BAND = 0.45
"""The opacity of the band behind a curve."""


def chart_colours(theme: Theme) -> dict[str, str]:
    """The colour of each style of a chart."""
    background = Color.parse(theme.background or "black")
    colours = {"axis": theme.variables["text-muted"], "cursor": theme.variables["text-muted"], "": theme.background}
    colours["grid"] = background.blend(Color.parse(theme.foreground or "white"), 0.16).hex
    for index, name in enumerate(LINES):
        colour = Color.parse(getattr(theme, name))
        colours[f"line {index}"] = colour.hex
        colours[f"band {index}"] = background.blend(colour, _BAND).hex
    return {style: colour or "" for style, colour in colours.items()}


def terminal_theme() -> str:
    """Light if the terminal reports a light background, which most do not report; otherwise dark."""
    background = os.environ.get("COLORFGBG", "").rpartition(";")[2]
    return "light" if background in {"7", "15"} else "dark"

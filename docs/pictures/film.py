"""Screens of a terminal as one animated SVG, which needs no script and loads nothing."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

__all__ = ["Film"]

_WIDTH, _HEIGHT, _MARGIN = 8.0, 18, 14
"""Pixels of a character, and around all of them."""
_LONGEST, _SHORTEST, _END = 0.9, 0.07, 6.0
"""Seconds that a screen is shown at most and at least, and the last one."""
_COLOURS = ("#14161a", "#ff7b72", "#7fd88f", "#f2cc60", "#58c4f5", "#d6a3ff", "#6fd2f5", "#e8e6e3")


class _Look(Protocol):
    @property
    def bold(self) -> bool: ...
    @property
    def dim(self) -> bool: ...
    @property
    def colour(self) -> int | None: ...


Row = Sequence[tuple[str, _Look]]


class Film:
    """Takes screens as they come, and writes those that differ."""

    def __init__(self, columns: int, rows: int) -> None:
        self._columns, self._rows = columns, rows
        self._lines: dict[str, int] = {}
        self._frames: list[tuple[float, tuple[int, ...]]] = []
        self.second = ""
        """What stands in the second terminal."""

    def take(self, seconds: float, rows: Sequence[Row], second: str = "") -> None:
        """A screen, and when it was shown."""
        texts = [_line(row) for row in rows]
        texts += [""] * (self._rows - len(texts))
        below = second or self.second
        frame = tuple(self._number(text) for text in (*texts, _plain(below)))
        if not self._frames or self._frames[-1][1] != frame:
            self._frames.append((seconds, frame))

    def _number(self, text: str) -> int:
        return self._lines.setdefault(text, len(self._lines))

    def _shown(self) -> list[tuple[float, tuple[int, ...]]]:
        """How long each frame is shown; frames that follow too soon replace the one before."""
        shown: list[tuple[float, tuple[int, ...]]] = []
        for index, (at, frame) in enumerate(self._frames):
            is_last = index == len(self._frames) - 1
            length = _END if is_last else min(_LONGEST, self._frames[index + 1][0] - at)
            if shown and shown[-1][0] < _SHORTEST:
                length += shown.pop()[0]
            shown.append((length, frame))
        return shown

    def save(self, file: Path) -> None:
        """Write the SVG."""
        frames = self._shown()
        total = sum(length for length, _ in frames)
        width = round(self._columns * _WIDTH + 2 * _MARGIN)
        first = self._rows * _HEIGHT + 2 * _MARGIN
        height = first + 2 * _HEIGHT + 2 * _MARGIN - 4
        used = sorted({number for _, frame in frames for number in frame})
        texts = {number: text for text, number in self._lines.items()}
        symbols = "".join(f'<g id="l{number}">{texts[number]}</g>' for number in used if texts[number])
        groups: list[str] = []
        steps: list[str] = []
        at = 0.0
        for place, (length, frame) in enumerate(frames):
            top = place * height
            steps.append(f"{100 * at / total:.3f}%{{transform:translateY(-{top}px)}}")
            at += length
            parts = [
                f'<use href="#l{number}" y="{top + _MARGIN + row * _HEIGHT}"/>'
                for row, number in enumerate(frame[:-1])
                if texts[number]
            ]
            if texts[frame[-1]]:
                parts.append(f'<use href="#l{frame[-1]}" y="{top + first + _MARGIN + _HEIGHT - 4}"/>')
            groups.append("".join(parts))
        last = (len(frames) - 1) * height
        style = (
            f"@keyframes film{{{''.join(steps)}}}#film{{animation:film {total:.1f}s step-end infinite}}"
            f"@media(prefers-reduced-motion:reduce){{#film{{animation:none;transform:translateY(-{last}px)}}}}"
            "text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#e8e6e3;white-space:pre}"
            ".b{font-weight:bold}.d{fill:#a5abb6}.p{fill:#ff9d4d}"
            + "".join(f".c{number}{{fill:{colour}}}" for number, colour in enumerate(_COLOURS))
        )
        file.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
            "<title>A training is killed with kill -9, resumed, and ends equal to the bit</title>"
            f"<style>{style}</style>"
            f'<defs>{symbols}</defs><rect width="{width}" height="{height}" rx="8" fill="#14161a"/>'
            f'<path d="M0 {first}H{width}" stroke="#454c59"/>'
            f'<text class="d" x="{_MARGIN}" y="{first + _MARGIN + 9}">another terminal</text>'
            f'<svg width="{width}" height="{height}"><g id="film">{"".join(groups)}</g></svg></svg>\n',
            encoding="utf-8",
        )


def _plain(text: str) -> str:
    return _text(0, text, "b c1") if text else ""


def _line(row: Row) -> str:
    parts: list[str] = []
    column = 0
    for look, cells in groupby(row, key=lambda cell: _class(cell[1])):
        text = "".join(character for character, _ in cells)
        if text.strip():
            parts.append(_text(column, text, look))
        column += len(text)
    return "".join(parts)


def _class(look: _Look) -> str:
    names = ["b"] * look.bold + ["d"] * look.dim
    return " ".join(names if look.colour is None else [*names, f"c{look.colour}"])


def _text(column: int, text: str, look: str) -> str:
    """A piece of a line; its length is fixed, because fonts differ."""
    named = f' class="{look}"' if look else ""
    bare = text.rstrip()
    return (
        f'<text x="{_MARGIN + column * _WIDTH:g}" y="13"{named} textLength="{len(bare) * _WIDTH:g}"'
        f' lengthAdjust="spacingAndGlyphs">{html.escape(bare, quote=False)}</text>'
    )

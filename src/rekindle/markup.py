"""HTML from untrusted text: everything is escaped, and pages load nothing and need no script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from rekindle.text import printable

__all__ = ["escaped", "facts", "notebook_page", "table"]

_NOTEBOOK_STYLE = """<style>
.rekindle { display: flex; flex-wrap: wrap; gap: 8px 24px; align-items: flex-start; }
.rekindle figure { margin: 0; flex: 1 1 380px; max-width: 560px; }
.rekindle figcaption { display: flex; gap: 14px; font-size: .9em; }
.rekindle figcaption i { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
.rekindle svg { display: block; width: 100%; height: auto; }
.rekindle th { text-align: left; font-weight: normal; opacity: .7; } .rekindle td { text-align: left; }
.rekindle th, .rekindle td { padding: 1px 14px 1px 0; }
.rekindle .number { text-align: right; }
</style>"""


def escaped(value: object, *, most: int = 300) -> str:
    """A value as escaped text for a page."""
    return html.escape(printable(value, most=most))


def facts(items: Iterable[tuple[str, object]]) -> str:
    """A table with names on the left and values on the right."""
    rows = "".join(f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in items)
    return f'<table class="facts">{rows}</table>'


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, words: int = 1) -> str:
    """A table; all columns after the first `words` contain numbers."""

    def cells(tag: str, values: Sequence[object]) -> str:
        return "".join(
            f"<{tag}{'' if index < words else ' class=number'}>{escaped(value)}</{tag}>"
            for index, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', heads)}</tr></thead><tbody>{body}</tbody></table>"


def notebook_page(title: str, body: str) -> str:
    """The HTML for a notebook: a title, and tables and figures side by side. Both arguments are HTML already."""
    return f'{_NOTEBOOK_STYLE}<p>{title}</p><div class="rekindle">{body}</div>'

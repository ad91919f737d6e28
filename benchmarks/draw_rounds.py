"""Draw the picture of rounds in docs/how-to/scale.md.

python benchmarks/draw_rounds.py
"""

from __future__ import annotations

from pathlib import Path

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "rounds.svg"
WIDTH, LEFT, BOX = 860, 120, 118
"""The width of the picture, where the first round begins, and the width of a round."""
ACTORS, LEARNER, FRAME, INK, LINE = "#e3f1e5", "#e4ecfa", "#c5ccd6", "#1b222c", "#5b6472"


def text(x: float, y: float, words: str, *, anchor: str = "middle", size: float = 13, weight: int = 400) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size:g}" font-weight="{weight}" '
        f'fill="{INK}">{words}</text>'
    )


def box(x: float, y: float, width: float, fill: str, first: str, second: str) -> list[str]:
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="44" rx="5" fill="{fill}" stroke="{LINE}"/>',
        text(x + width / 2, y + 19, first),
        text(x + width / 2, y + 35, second, size=12),
    ]


def arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return (
        f'<path d="M{x:g} {y:g}L{to_x:g} {to_y:g}" fill="none" stroke="{LINE}" stroke-width="1.5" '
        'marker-end="url(#a)"/>'
    )


def turns(top: float) -> list[str]:
    """Pipeline 0: actors and learner take turns."""
    parts = [text(16, top, "pipeline 0: they take turns", anchor="start", weight=600)]
    parts += [
        text(16, top + 42, "actors", anchor="start"),
        text(16, top + 104, "learner", anchor="start"),
    ]
    for number in range(3):
        x = LEFT + 2 * number * BOX
        parts += box(x, top + 16, BOX - 8, ACTORS, f"play round {number}", f"with P({number - 1})")
        parts += box(x + BOX, top + 78, BOX - 8, LEARNER, f"learn round {number}", f"makes P({number})")
        parts.append(arrow(x + BOX - 8, top + 60, x + BOX + 6, top + 76))
        if number < 2:
            parts.append(arrow(x + 2 * BOX - 8, top + 78, x + 2 * BOX + 6, top + 62))
    return parts


def ahead(top: float) -> list[str]:
    """Pipeline 1: actors are a round ahead."""
    parts = [text(16, top, "pipeline 1: actors play the next round meanwhile", anchor="start", weight=600)]
    parts += [
        text(16, top + 42, "actors", anchor="start"),
        text(16, top + 104, "learner", anchor="start"),
    ]
    for number in range(6):
        x = LEFT + number * BOX
        parts += box(x, top + 16, BOX - 8, ACTORS, f"play round {number}", f"with P({max(-1, number - 2)})")
        if number < 5:
            parts += box(x + BOX, top + 78, BOX - 8, LEARNER, f"learn round {number}", f"makes P({number})")
            parts.append(arrow(x + BOX - 8, top + 60, x + BOX + 6, top + 76))
        if number < 4:
            parts.append(arrow(x + 2 * BOX - 8, top + 78, x + 2 * BOX + 6, top + 62))
    for number in range(1, 6):
        x = LEFT + (number + 1) * BOX - 4
        parts.append(f'<path d="M{x:g} {top + 8:g}V{top + 128:g}" stroke="{FRAME}" stroke-dasharray="4 3"/>')
    parts.append(
        text(
            LEFT, top + 148, "Between two rounds: metric rows, evaluations, checkpoints, stops", anchor="start", size=12
        )
    )
    return parts


def main() -> None:
    """Write the picture."""
    marker = (
        '<defs><marker id="a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker></defs>'
    )
    title = "Rounds with pipeline 0 and 1: which policy plays which round, and when it is learned from"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} 350" role="img" aria-labelledby="title" '
        'font-family="system-ui, sans-serif">',
        f'<title id="title">{title}</title>',
        marker,
        f'<rect width="{WIDTH}" height="350" rx="8" fill="#ffffff"/>',
        *turns(28),
        *ahead(190),
        "</svg>",
    ]
    PICTURE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""Videos as GIF, which needs no more than Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rekindle.experience import Array
from rekindle.recorders.extras import load

__all__ = ["gif"]


def gif(frames: Iterable[Array], fps: float, *, colours: int = 256) -> bytes:
    """Pictures as an animated GIF that repeats for ever."""
    images: Any = load("PIL.Image")
    first, *others = [images.fromarray(frame).quantize(colours) for frame in frames]
    target = io.BytesIO()
    first.save(target, "GIF", save_all=True, append_images=others, duration=round(1000 / fps), loop=0)
    return target.getvalue()

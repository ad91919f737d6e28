"""Videos as GIF, which needs no more than Pillow."""

from __future__ import annotations

import io
from typing import Any

from rekindle.events import Video
from rekindle.recorders.extras import load

__all__ = ["gif"]


def gif(video: Video) -> bytes:
    """The video as an animated GIF that repeats for ever."""
    images: Any = load("PIL.Image")
    first, *others = [images.fromarray(frame) for frame in video.frames]
    target = io.BytesIO()
    first.save(target, "GIF", save_all=True, append_images=others, duration=round(1000 / video.fps), loop=0)
    return target.getvalue()

"""Videos as GIF; needs only Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from rekindle.errors import Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.recorders.extras import load

__all__ = ["Film", "gif"]


class Film:
    """Frames of a video, each reduced to a palette when it is added, which takes a third of the memory."""

    def __init__(self, *, colours: int = 256) -> None:
        self._images: Any = load("PIL.Image")
        self._colours = colours
        self._frames: list[Any] = []

    def __len__(self) -> int:
        """The number of frames."""
        return len(self._frames)

    def add(self, frame: Array) -> None:
        """Add a frame: height, width and 3 colours of uint8."""
        self._frames.append(self._images.fromarray(frame).quantize(self._colours))

    def gif(self, fps: float, *, should_stop: ShouldStop = never) -> bytes:
        """The frames as an animated GIF that loops forever; raises `Interrupted` once `should_stop()` is true."""

        def rest() -> Iterator[Any]:
            for frame in self._frames[1:]:
                if should_stop():
                    raise Interrupted("stopped while a video was encoded")
                yield frame

        target = io.BytesIO()
        self._frames[0].save(target, "GIF", save_all=True, append_images=rest(), duration=round(1000 / fps), loop=0)
        return target.getvalue()


def gif(frames: Iterable[Array], fps: float, *, colours: int = 256) -> bytes:
    """Encode frames as an animated GIF that loops forever."""
    film = Film(colours=colours)
    for frame in frames:
        film.add(frame)
    return film.gif(fps)

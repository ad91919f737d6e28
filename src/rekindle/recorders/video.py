"""Videos as GIF; needs only Pillow."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rekindle.errors import Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.recorders.extras import load

__all__ = ["Film", "gif"]

_MOST_COLOURS = 256
"""The most colours of a palette."""
_FEW = 0.05
"""The share of pixels that may get another colour, which are nearly equal to it on smooth edges."""


class Film:
    """Frames of a video, each with a palette from when it is added, which takes a third of the memory.

    All frames share the first 256 colours. If few pixels of a frame have others, they get the nearest of these;
    otherwise the frame gets a palette of its own, of `colours`.
    """

    def __init__(self, *, colours: int = _MOST_COLOURS) -> None:
        self._images: Any = load("PIL.Image")
        self._colours = colours
        self._frames: list[Any] = []
        self._places = np.zeros(1 << 24, np.uint16)  # uses memory only for colours that occur
        """For each colour its place in the palette, from 1; 0 if it is new."""
        self._palette = np.zeros((_MOST_COLOURS, 3), np.uint8)
        self._known = 0

    def __len__(self) -> int:
        """The number of frames."""
        return len(self._frames)

    def add(self, frame: Array) -> None:
        """Add a frame: height, width and 3 colours of uint8."""
        self._frames.append(self._exact(frame) or self._images.fromarray(frame).quantize(self._colours))

    def _exact(self, frame: Array) -> Any:
        """The frame in the colours of the film; None if too much of it has others."""
        padded = np.zeros((*frame.shape[:2], 4), np.uint8)
        padded[..., :3] = frame
        packed = padded.view("<u4")[..., 0]
        places = self._places.take(packed)
        if not places.all():
            others = packed[places == 0]
            new = np.unique(others)
            is_full = self._known + len(new) > _MOST_COLOURS
            if is_full and others.size > _FEW * packed.size:
                return None
            colours = np.stack([new & 255, new >> 8 & 255, new >> 16], 1)
            self._places[new] = 1 + (self._nearest(colours) if is_full else self._added(colours))
            places = self._places.take(packed)
        image = self._images.frombytes("P", places.shape[::-1], (places - 1).astype(np.uint8).tobytes())
        image.putpalette(self._palette.tobytes())
        return image

    def _added(self, colours: Array) -> Array:
        """Add colours to the palette; returns their places."""
        first, self._known = self._known, self._known + len(colours)
        self._palette[first : self._known] = colours
        return np.arange(first, self._known)

    def _nearest(self, colours: Array) -> Array:
        """The place of the nearest known colour of each."""
        known = self._palette[: self._known].astype(np.float32)
        return (np.square(known).sum(1)[:, None] - 2 * known @ colours.T.astype(np.float32)).argmin(0)

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


def gif(frames: Iterable[Array], fps: float, *, colours: int = _MOST_COLOURS) -> bytes:
    """Encode frames as an animated GIF that loops forever."""
    film = Film(colours=colours)
    for frame in frames:
        film.add(frame)
    return film.gif(fps)

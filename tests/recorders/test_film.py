"""Videos as GIF: frames with few colours keep them."""

from __future__ import annotations

import io

import numpy as np
import pytest

from rekindle.recorders.video import Film, gif

images = pytest.importorskip("PIL.Image")


def frames_of(encoded: bytes) -> list[np.ndarray]:
    image = images.open(io.BytesIO(encoded))
    found = []
    for number in range(image.n_frames):
        image.seek(number)
        found.append(np.asarray(image.convert("RGB")))
    return found


def coloured(count: int, *, seed: int) -> np.ndarray:
    """A frame with this many colours."""
    rng = np.random.default_rng(seed)
    palette = rng.integers(256, size=(count, 3), dtype=np.uint8)
    places = np.concatenate([np.arange(count), rng.integers(count, size=40 * 50 - count)])
    return palette[rng.permutation(places)].reshape(40, 50, 3)


def test_frames_of_few_colours_keep_them() -> None:
    frames = [coloured(30, seed=seed) for seed in range(8)]
    for kept, frame in zip(frames_of(gif(frames, 30, colours=16)), frames, strict=True):
        np.testing.assert_array_equal(kept, frame)


def test_a_frame_of_too_many_colours_is_reduced_and_the_others_are_not() -> None:
    few, many = coloured(200, seed=1), coloured(1000, seed=2)
    first, second, third = frames_of(gif([few, many, few[::-1]], 30, colours=64))
    np.testing.assert_array_equal(first, few)
    np.testing.assert_array_equal(third, few[::-1])
    assert len(np.unique(second.reshape(-1, 3), axis=0)) <= 64


def test_few_pixels_of_other_colours_get_the_nearest_ones() -> None:
    full = coloured(256, seed=1)
    edge = full.copy()
    edge[:2, :2] = [[(1, 2, 3)]]
    distances = np.square(full.reshape(-1, 3).astype(int) - (1, 2, 3)).sum(1)
    _, frame = frames_of(gif([full, edge], 30, colours=16))
    np.testing.assert_array_equal(frame[2:], full[2:])
    np.testing.assert_array_equal(frame[0, 0], full.reshape(-1, 3)[distances.argmin()])


def test_a_grey_frame_is_a_frame() -> None:
    film = Film(colours=64)
    film.add(np.full((4, 6, 3), 255, np.uint8))
    (frame,) = frames_of(film.gif(30))
    assert frame.min() == 255

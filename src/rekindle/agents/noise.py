"""Exploration noise that is correlated over time: Ornstein-Uhlenbeck noise and pink noise.

White noise changes direction at every step, so its effect averages out before a heavy system moves. Correlated noise
pushes in one direction for a while. Each number is standard Gaussian, as with white noise; only the correlation between
steps differs. The noise restarts with each episode.

Papers: Lillicrap 2015 (Ornstein-Uhlenbeck noise), Eberhard 2023 (pink noise).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any, cast

import msgspec
import numpy as np

from rekindle.agent import State, StreamSlots
from rekindle.agents.configs import ActorCriticConfig, OffPolicyConfig
from rekindle.checks import refuses_misfits
from rekindle.errors import StateError
from rekindle.experience import Array

__all__ = ["StreamNoise", "stream_noise"]

_MOST_KEY = 2**62
_LENGTH = 1_000
"""Steps in a block. Blocks of pink noise are independent of each other; 1 000 is the most common time limit."""

_Block = Callable[[np.random.Generator, Array | None], Array]
"""Makes the noise of the next steps, (steps, dimensions), from a generator and the last row of the previous block (None
for the first block of an episode)."""


def stream_noise(config: OffPolicyConfig, action_space: Any, rng: np.random.Generator) -> StreamNoise | None:
    """The correlated noise of a config, with a key drawn from the generator.

    None, without drawing, for white noise or an agent without the setting.
    """
    if not isinstance(config, ActorCriticConfig) or config.noise == "white":
        return None
    dimensions = math.prod(action_space.shape)
    block = _ou_block(dimensions, config.noise_timescale) if config.noise == "ou" else _pink_block(dimensions)
    return StreamNoise(config.noise, block, dimensions, key=int(rng.integers(_MOST_KEY)))


class StreamNoise:
    """Standard Gaussian noise for each stream, correlated within an episode and independent between episodes.

    The noise of a stream depends only on the key, the stream and its episode, so other streams do not change it. It is
    made in blocks. A saved state has the position in the block; the block itself is computed again from its seed.
    """

    def __init__(self, kind: str, block: _Block, dimensions: int, *, key: int) -> None:
        self.kind = kind
        self._block, self._dimensions, self._key = block, dimensions, key
        self._streams: dict[int, _Place] = {}

    def draw(self, streams: StreamSlots) -> Array:
        """The noise of the next step of each stream: (streams, dimensions), float32."""
        if len(streams) == 1:
            return self._next(streams.item())
        return np.concatenate([self._next(stream) for stream in streams.tolist()])

    def restart(self, stream: int) -> None:
        """Restart the noise of a stream when its episode ends; does nothing if nothing was drawn in the episode."""
        place = self._streams.get(stream)
        if place is not None and place.step:
            self._streams[stream] = _Place(place.episode + 1)

    def _next(self, stream: int) -> Array:
        place = self._streams.get(stream)
        if place is None:
            place = self._streams[stream] = _Place()
        block = place.block
        if block is None:
            block = place.block = self._made(stream, place)
        row = block[place.step % _LENGTH]
        place.step += 1
        if place.step % _LENGTH == 0:
            place.last, place.block = row[0].copy(), None
        return row

    def _made(self, stream: int, place: _Place) -> Array:
        """The current block of a stream: a row of shape (1, dimensions) for each step."""
        rng = np.random.default_rng([self._key, stream, place.episode, place.step // _LENGTH])
        return self._block(rng, place.last).astype(np.float32)[:, None]

    def state(self) -> State:
        """The key, and the position of each stream."""
        return {
            "key": self._key,
            "streams": [
                [stream, place.episode, place.step, None if place.last is None else place.last.copy()]
                for stream, place in sorted(self._streams.items())
            ],
        }

    @refuses_misfits
    def loaded(self, state: Any) -> StreamNoise:
        """The noise that continues from a saved state; raises `StateError`."""
        try:
            saved = msgspec.convert(state, _Saved)
        except msgspec.ValidationError as error:
            raise StateError(f"not the state of exploration noise: {error}") from None
        loaded = StreamNoise(self.kind, self._block, self._dimensions, key=saved.key)
        for stream, episode, step, last in saved.streams:
            if stream in loaded._streams:
                raise StateError(f"the exploration noise has stream {stream} twice")
            loaded._streams[stream] = _Place(episode, step, self._checked(last, step))
        return loaded

    def _checked(self, last: Any, step: int) -> Array | None:
        if step < _LENGTH:
            if last is not None:
                raise StateError("the exploration noise has the last row of a block that is not complete")
            return None
        row = cast("Array", last)
        if not isinstance(last, np.ndarray) or row.shape != (self._dimensions,) or row.dtype != np.float32:
            raise StateError(f"the exploration noise of a stream is not {self._dimensions} numbers")
        if not np.isfinite(row).all():
            raise StateError("the exploration noise contains NaN or infinity")
        return row.copy()


class _Place:
    """The position of a stream in its noise."""

    __slots__ = ("block", "episode", "last", "step")

    def __init__(self, episode: int = 0, step: int = 0, last: Array | None = None) -> None:
        self.episode, self.step = episode, step
        self.last = last
        """The last row of the block before the current one."""
        self.block: Array | None = None


_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: _Count
    streams: list[tuple[_Count, _Count, _Count, Any]]


# Kinds of noise


def _ou_block(dimensions: int, timescale: float) -> _Block:
    """Ornstein-Uhlenbeck noise, sampled exactly: the autocorrelation after k steps is exp(-k / timescale)."""
    kept = math.exp(-1 / timescale)
    new = math.sqrt(-math.expm1(-2 / timescale))  # so that the variance stays 1

    def block(rng: np.random.Generator, last: Array | None) -> Array:
        rows = rng.standard_normal((_LENGTH, dimensions))
        rows[1:] *= new
        if last is not None:  # otherwise the first row already has the stationary distribution
            rows[0] = kept * last + new * rows[0]
        # row += kept * previous row, for all rows in log2(steps) passes: each pass doubles how far back the sum goes.
        distance = 1
        while distance < _LENGTH:
            rows[distance:] += kept**distance * rows[:-distance]
            distance *= 2
        return rows

    return block


def _pink_block(dimensions: int) -> _Block:
    """Noise with a power of 1 / f at frequency f; the mean has the power of the lowest frequency (Eberhard 2023)."""
    frequencies = np.fft.rfftfreq(_LENGTH)
    frequencies[0] = frequencies[1]
    scale = frequencies**-0.5
    # The variance of a step is the sum over positive and negative frequencies; 0 and the highest occur only once.
    shares = np.full(len(scale), 2.0)
    shares[[0, -1]] = 1
    scale *= _LENGTH / math.sqrt(float((shares * scale**2).sum()))

    def block(rng: np.random.Generator, last: Array | None) -> Array:  # noqa: ARG001
        waves = rng.standard_normal((2, dimensions, len(scale)))
        waves[:, :, 1:-1] *= math.sqrt(0.5)
        waves[1, :, [0, -1]] = 0  # these two frequencies have real coefficients
        return np.fft.irfft((waves[0] + 1j * waves[1]) * scale, _LENGTH).T

    return block

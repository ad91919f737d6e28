"""How batches are padded to the sizes that are compiled."""

from collections.abc import Callable

import numpy as np
import pytest

from rekindle.agents import dispatch
from rekindle.experience import Array


def test_padding_64_bit_observations_warns_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """HalfCheetah's are of 64 bits, and what memory holds can be larger than any number of 32."""
    new: Callable[..., Array] = np.empty

    def leftovers(shape: tuple[int, ...], dtype: np.dtype) -> Array:
        array = new(shape, dtype)
        array[...] = np.finfo(dtype).max
        return array

    with monkeypatch.context() as patched:
        patched.setattr(dispatch.np, "empty", leftovers)
        array = dispatch.padded(np.full((1, 3), 0.1), 2)
    np.testing.assert_array_equal(array.astype(np.float32)[0], np.full(3, 0.1, np.float32))
    assert array.dtype == np.float32

"""How updates are put into dispatches, and batches padded to the sizes that are compiled."""

# JAX's types are partial.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
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


def summed(state: Any, batch: Any, _: Any) -> tuple[Any, dict[str, jax.Array], jax.Array]:
    """An update whose metric is what there was before it."""
    return state + batch["numbers"].sum(), {"before": state}, batch["numbers"]


@pytest.mark.parametrize("most", [1, 2, 5])
def test_updates_are_the_same_in_dispatches_of_any_size(most: int) -> None:
    example = {"numbers": np.zeros(2, np.float32)}
    run = dispatch.Dispatch(summed, ["before"], example=example, rows=2, most=most)
    state = run.warm_up(jnp.float32(1), {})
    numbers, outcomes = np.arange(10, dtype=np.float32), list[dispatch.Outcome]()
    for count in run.split(5):
        made = sum(outcome.count for outcome in outcomes)
        state, outcome = run(state, {"numbers": numbers[2 * made : 2 * (made + count)]}, count, {})
        outcomes.append(outcome)
    assert max(outcome.count for outcome in outcomes) == most
    assert float(state) == 46
    assert run.metrics(outcomes)["before"].numbers() == [1, 2, 7, 16, 29]
    np.testing.assert_array_equal(np.concatenate([outcome.rows() for outcome in outcomes]).ravel(), numbers)


def test_a_dispatch_of_one_update_has_no_loop() -> None:
    for most in (1, 2):
        run = dispatch.Dispatch(summed, ["before"], example={"numbers": np.zeros(2, np.float32)}, rows=2, most=most)
        compiled: Any = run._run
        program = compiled.lower(jnp.float32(1), [np.zeros((most, 2), np.float32)], np.int32(1), {}).as_text()
        assert ("while" in program) == (most > 1)

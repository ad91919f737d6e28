"""Where a value stopped being finite: the operation, the layer and the row."""

from typing import Any

import pytest

pytest.importorskip("jax")

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.tracing import Origin, traced
from rekindle.experience import Array


class Scaled(eqx.Module):
    weight: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.weight


class Power(eqx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.exp(x)


class Chain(eqx.Module):
    modules: list[Any]

    def __call__(self, x: jax.Array) -> jax.Array:
        for module in self.modules:
            x = module(x)
        return x


def origin(function: Any, batch: Any, **others: Any) -> Origin | None:
    return traced(function, {"batch": batch, **others}, batch="batch", rows=len(batch)).first_not_finite()


def numbers(rows: int, columns: int, **at: float) -> Array:
    """Small numbers, but for some rows."""
    values = np.full((rows, columns), 0.5, np.float32)
    for row, value in at.items():
        values[int(row.removeprefix("row_"))] = value
    return values


def network(batch: Any) -> jax.Array:
    return jax.vmap(Chain([Scaled(jnp.full(3, 2.0)), Power()]))(batch)


def test_an_overflow_is_found_in_its_layer_and_row() -> None:
    found = origin(network, numbers(5, 3, row_3=80.0))
    assert found is not None
    assert (found.layer, found.operation, found.row) == ("Chain.modules[1]", "exp", 3)
    assert (found.is_inside, found.is_backward, found.value, found.largest_input) == (True, False, np.inf, 160.0)
    assert origin(network, numbers(5, 3)) is None


def test_the_gradient_of_a_layer_is_told_from_its_forward_pass() -> None:
    def gradient(batch: Any, weight: Any) -> Any:
        chain = Chain([Scaled(weight), Scaled(weight)])
        return jax.grad(lambda given: jax.vmap(chain)(given).sum())(batch)

    # The values of the layers are 1e-5 and 1e25, and their slopes 1e30 and 1e60.
    found = origin(gradient, np.full((4, 3), 1e-35, np.float32), weight=np.full(3, 1e30, np.float32))
    assert found is not None
    assert (found.is_backward, found.layer, found.row) == (True, "Chain.modules[0]", 0)


def test_a_value_that_is_not_chosen_is_not_to_blame() -> None:
    def chosen(batch: Any) -> Any:
        return jnp.where(batch > 1, jnp.log(batch - 1), jnp.exp(batch * 500))

    found = origin(chosen, numbers(4, 2, row_1=3.0, row_2=0.001))
    assert found is not None
    assert (found.operation, found.row) == ("exp", 0)  # not the logarithms of negative numbers
    assert origin(lambda batch: jnp.where(batch > 1, jnp.log(batch - 1), 0.0), numbers(4, 2, row_1=3.0)) is None


def test_only_the_branch_that_is_taken_counts() -> None:
    def branched(batch: Any, which: Any) -> Any:
        return jax.lax.cond(which > 0, lambda: jnp.exp(batch * 500), lambda: batch)

    assert origin(branched, numbers(3, 2), which=np.int32(0)) is None
    found = origin(branched, numbers(3, 2), which=np.int32(1))
    assert found is not None
    assert found.operation == "exp"


def test_rows_are_not_mistaken_for_another_axis_of_the_same_length() -> None:
    def product(batch: Any, weight: Any) -> Any:
        # (4, 4) in between, whose rows are features.
        return jnp.exp((batch.T @ batch) * weight).sum()

    found = origin(product, numbers(4, 4, row_2=20.0), weight=np.float32(1))
    assert found is not None
    assert (found.operation, found.row) == ("exp", 2)  # followed back to the largest row of the batch


def test_a_value_without_rows_is_named_by_its_part_of_the_weights_and_affects_every_row() -> None:
    def scaled(batch: Any, weights: Any) -> Any:
        _, log_scale = jnp.split(weights, [3])
        return batch * jnp.exp(log_scale)

    found = origin(scaled, numbers(4, 2), weights=np.array([1, 2, 3, 999, 0], np.float32))
    assert found is not None
    assert (found.layer, found.part, found.row, found.is_every_row) == ("", (1, 2), 0, True)


def test_an_argument_that_was_not_finite_is_named() -> None:
    found = origin(lambda batch: {"a": batch["rewards"] * 2}["a"].sum(), Batch(rewards=np.array([1, np.nan, 2])))
    assert found is not None
    assert (found.operation, found.argument, found.row) == ("", "batch['rewards']", 1)


class Batch(dict[str, Any]):
    """A batch whose length is its number of rows."""

    def __len__(self) -> int:
        return len(self["rewards"])


jax.tree_util.register_pytree_with_keys(
    Batch,
    lambda batch: ([(jax.tree_util.DictKey(key), batch[key]) for key in sorted(batch)], tuple(sorted(batch))),
    lambda keys, values: Batch(zip(keys, values, strict=True)),
)

"""User-defined networks: create them, and convert those that numpy can run and export."""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.agents.networks import Module
from rekindle.errors import ConfigError
from rekindle.experience import Array
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, forward

__all__ = ["equinox_layers", "user_network"]


def user_network(network: Any, encoding: Encoding, *, rng: np.random.Generator) -> Module:
    """Make a user-defined network from an equinox module, a factory of one, or `package.module:Name` of either.

    A factory is called with the shape of an encoded observation and `key=`.
    """
    found = _imported(network) if isinstance(network, str) else network
    if isinstance(found, eqx.Module):
        module = found
    else:
        key = jax.random.key(int(rng.integers(1 << 32)))
        with _explained(network, f"could not be called with {encoding.shape} and key=..."):
            module = found(encoding.shape, key=key)
    if not (isinstance(module, eqx.Module) and callable(module)):
        raise ConfigError(f"network is {network!r}: use a callable equinox module, or 'package.module:Name' of one")
    _check_call(network, module, encoding)
    return cast("Module", _Keyless(module, _are_layers_known(module, encoding)))


def _check_call(network: Any, module: Any, encoding: Encoding) -> None:
    """Raise `ConfigError` if the network does not return an array for one observation."""
    inputs = tuple(jax.ShapeDtypeStruct(given.shape, given.dtype) for given in encoding.inputs)
    with _explained(network, f"cannot be called with one observation of the shape {encoding.shape}"):
        found = eqx.filter_eval_shape(module, inputs[0] if len(inputs) == 1 else inputs)
    if not isinstance(found, jax.ShapeDtypeStruct):
        raise ConfigError(f"network is {_shown(network)}: it returns {found!r:.80}, and must return one array")


@contextmanager
def _explained(network: Any, what: str) -> Generator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # code of the user's own may raise anything
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
        where = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
        reason = str(error).partition("\n")[0]
        text = f"network is {_shown(network)}, which {what}: {type(error).__name__}: {reason}{where}"
        raise ConfigError(text) from error


_LIBRARIES = tuple(
    os.path.join(directory, "")
    for directory in (Path(__file__).parents[1], *(os.path.dirname(str(module.__file__)) for module in (jax, eqx)))
)


def _shown(network: Any) -> str:
    return network if isinstance(network, str) else getattr(network, "__name__", type(network).__name__)


class _Keyless(eqx.Module):
    """Wraps a user-defined module, which is called with an observation only."""

    module: Any
    are_layers_known: bool = eqx.field(static=True)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:  # noqa: ARG002
        return self.module(x)

    def layers(self) -> list[Layer]:
        if not self.are_layers_known:
            raise _not_layers(self.module)
        return _layers(self.module)


def _imported(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"network is {path!r}: {error}; use 'package.module:Name'") from None


def _not_layers(module: Any) -> ConfigError:
    return ConfigError(f"{type(module).__name__} cannot be run by numpy: give it layers() -> list[policy.Layer]")


def _are_layers_known(module: Any, encoding: Encoding) -> bool:
    """Whether numpy can run a module; raises `ConfigError` if its `layers()` compute something else than it does."""
    is_own = callable(getattr(module, "layers", None))
    try:
        layers = _layers(module)
    except ConfigError:
        return False
    rng = np.random.default_rng(0)
    inputs = tuple(_random(rng, given.shape, given.dtype) for given in encoding.inputs)
    wanted = np.asarray(module(jnp.asarray(inputs[0]) if len(inputs) == 1 else tuple(map(jnp.asarray, inputs))))
    rows = tuple(array[None] for array in inputs)
    try:
        found = forward(layers)(rows[0] if len(rows) == 1 else rows, None)[0]
        is_same = found.shape == wanted.shape and np.allclose(found, wanted, rtol=1e-3, atol=1e-4)
    except (ValueError, TypeError, IndexError, AttributeError) as error:
        if is_own:
            raise ConfigError(f"layers() of {type(module).__name__} cannot be run: {error}") from error
        return False
    if is_own and not is_same:
        raise ConfigError(f"layers() of {type(module).__name__} give another output than the network itself")
    return is_same


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    if np.dtype(dtype) == np.uint8:
        return rng.integers(256, size=shape, dtype=np.uint8)
    return rng.standard_normal(shape).astype(np.float32)


def _layers(module: Any) -> list[Layer]:
    own = getattr(module, "layers", None)
    return cast("list[Layer]", own()) if callable(own) else equinox_layers(module)


def equinox_layers(module: Any) -> list[Layer]:
    """Convert an equinox module to `Layer` data, for use in `layers()` of your own network.

    It supports `Linear`, `MLP`, `Sequential`, `LayerNorm`, `Identity`, and a `Lambda` of relu or tanh, and raises
    `ConfigError` for other modules.
    """
    match module:
        case eqx.nn.Sequential():
            return [layer for part in module.layers for layer in equinox_layers(part)]
        case eqx.nn.MLP():
            between, last = _activation(module.activation), _activation(module.final_activation)
            parts = [[*equinox_layers(part), *between] for part in module.layers[:-1]]
            return [layer for part in parts for layer in part] + [*equinox_layers(module.layers[-1]), *last]
        case eqx.nn.Linear() if "scalar" not in (module.in_features, module.out_features):
            weight = np.asarray(module.weight).T
            bias = np.zeros(weight.shape[1], np.float32) if module.bias is None else np.asarray(module.bias)
            return [Layer("dense", {"weight": weight, "bias": bias})]
        case eqx.nn.LayerNorm() if len(module.shape) == 1 and module.eps == _EPSILON:
            ones = np.ones(module.shape, np.float32)
            weight = ones if module.weight is None else np.asarray(module.weight)
            bias = 0 * ones if module.bias is None else np.asarray(module.bias)
            return [Layer("layer_norm", {"weight": weight, "bias": bias})]
        case eqx.nn.Lambda():
            return _activation(module.fn)
        case eqx.nn.Identity():
            return []
        case _:
            raise _not_layers(module)


_EPSILON = 1e-5
"""The epsilon of layer normalisation in policies."""
_PROBE = np.array([-100, -3, -0.5, 0, 0.25, 3, 100], np.float32)
"""Inputs that distinguish activations which are equal in part, such as relu and relu6."""
_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


def _activation(function: Any) -> list[Layer]:
    try:
        found = np.asarray(function(jnp.asarray(_PROBE)))
    except Exception as error:  # a user-defined function may raise anything
        raise ConfigError(f"the activation {function!r:.80} cannot be run by numpy: {error}") from error
    for name, known in _ACTIVATIONS.items():
        if found.shape == _PROBE.shape and np.allclose(found, known(_PROBE), atol=1e-6):
            return [Layer("activation", name=name)] if name else []
    raise ConfigError(f"the activation {function!r:.80} cannot be run by numpy: use relu or tanh")

"""Check a policy that was read from a file: every shape must follow from the one before it.

Broadcasting could turn a few numbers in a file into billions when the policy acts, so unintended broadcasting is
refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rekindle.errors import StateError
from rekindle.experience import Array
from rekindle.nesting import Nesting
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import ACTION_MASK, Encoding, Part
from rekindle.policy.network import ARRAYS, Layer, Normaliser, noise_size

__all__ = ["check_policy"]

Shape = tuple[Any, ...]
"""The shape of an array without its axis of rows; for several inputs, a tuple with the shape of each."""

_MOST = 2**31
"""The largest number of values of a discrete action or observation, and of elements in a shape."""
_MOST_SAMPLES = 10_001
"""The largest number of quantiles of a policy."""


def check_policy(encoding: Encoding, layers: Sequence[Layer], head: ActionHead, normaliser: Normaliser | None) -> None:
    """Raise `ValueError` if the parts of a policy do not fit together."""
    _check_encoding(encoding)
    for name, array in _arrays(layers):
        _require(array.dtype.kind == "f" and array.size > 0, f"{name} is {array.shape} of {array.dtype}")
    held = sum(array.size for _, array in _arrays(layers))
    size = encoding.vector_size
    _require(size <= held, f"{size} inputs are more than the {held} numbers of the network")
    if normaliser is not None:
        for name, array in (("mean", normaliser.mean), ("variance", normaliser.variance)):
            is_vector = array.dtype.kind == "f" and array.shape == (size,) and size > 0
            _require(is_vector, f"the {name} is {array.shape}")
    check = _check_product if head.kind == "product" else _check_head
    check(head, _output(layers, encoding.shape), encoding.mask_size)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _arrays(layers: Sequence[Layer]) -> Iterator[tuple[str, Array]]:
    for layer in layers:
        for name, array in layer.arrays.items():
            yield f"{name} of a layer {layer.kind}", array
        for inner in (*layer.branches, layer.value, layer.advantage):
            yield from _arrays(inner)


def _are_counts(numbers: Sequence[int]) -> bool:
    return all(0 < number < _MOST for number in numbers)


def _are_starts(starts: Sequence[int], counts: Sequence[int]) -> bool:
    return len(starts) == len(counts) and all(abs(start) < 2**62 for start in starts)


def _check_encoding(encoding: Encoding) -> None:
    _require(any(part.size for part in encoding.parts), "there is no observation")
    for part in [*encoding.parts, *encoding.masks]:
        elements = math.prod(part.shape)
        # A part that is a vector may have no numbers, if another one has.
        lengths = part.shape if part.kind != "box" else [length for length in part.shape if length]
        _require(_are_counts(lengths) and elements < _MOST, f"an observation of the shape {part.shape}")
        if part.kind == "discrete":
            is_sound = len(part.counts) == elements and _are_counts(part.counts)
            _require(
                is_sound and _are_starts(part.starts, part.counts),
                f"{part.name!r} has different numbers of counts and elements",
            )
        _require(part.kind != "image" or _has_axes_of_image(part), f"{part.name!r} is not an image: {part.shape}")
    _require(encoding.is_dict or len(encoding.parts) == 1, "it has several observations without names")
    if encoding.nesting is not None:
        nested = sorted(_nesting(encoding.nesting).names)
        masks = [part.name for part in encoding.masks] or ([ACTION_MASK] if encoding.mask_size else [])
        named = sorted([*(part.name for part in encoding.parts), *masks])
        _require(encoding.is_dict and nested == named, f"its nesting has the parts {nested}, not {named}")
    if encoding.masks:
        size = sum(math.prod(part.shape) for part in encoding.masks)
        _require(encoding.is_dict and encoding.mask_size == size, f"masks of {size} for {encoding.mask_size} actions")


def _has_axes_of_image(part: Part) -> bool:
    return len(part.shape) == 2 if part.channels == "none" else len(part.shape) in (3, 4)


def _nesting(state: Any) -> Nesting:
    try:
        return Nesting.of_state(state)
    except StateError as error:
        raise ValueError(error) from None


def _output(layers: Sequence[Layer], shape: Shape) -> Shape:
    for layer in layers:
        fitting = _layer_output(layer, shape)
        if fitting is None:
            sizes = ", ".join(f"{name} {array.shape}" for name, array in layer.arrays.items())
            raise ValueError(f"a layer {layer.kind} ({sizes}) does not fit inputs of the shape {shape}")
        shape = fitting
    return shape


def _layer_output(layer: Layer, shape: Shape) -> Shape | None:  # noqa: PLR0911 - one for each kind
    """The output shape of a layer for an input shape, or None if it does not fit."""
    arrays = layer.arrays
    if set(arrays) != set(ARRAYS.get(layer.kind, ())) or _has_several(shape) != (layer.kind == "branches"):
        return None
    match layer.kind:
        case "dense" | "noisy_dense":
            weight = arrays["weight"].shape
            noise = {name.removesuffix("_noise"): array.shape for name, array in arrays.items() if "_noise" in name}
            own = {"weight": weight, "bias": weight[1:]}
            fits = len(weight) == 2 and shape == weight[:1] and arrays["bias"].shape == weight[1:]
            return weight[1:] if fits and (not noise or noise == own) else None
        case "conv":
            return _conv_output(arrays["weight"].shape, arrays["bias"].shape, layer.stride, shape)
        case "layer_norm":
            fits = arrays["weight"].shape == shape[-1:] == arrays["bias"].shape
            return shape if fits else None
        case "activation" | "scale":
            return shape
        case "pad":
            return _padded_output(layer, shape)
        case "flatten":
            return (math.prod(shape),)
        case "branches":
            return _branches_output(layer.branches, shape)
        case "dueling":
            value, advantage = _output(layer.value, shape), _output(layer.advantage, shape)
            fits = layer.atoms > 0 and value == (layer.atoms,) and len(advantage) == 1
            return advantage if fits and advantage[0] % layer.atoms == 0 else None
        case "expectation":
            fits = layer.atoms > 0 and len(shape) == 1 and shape[0] % layer.atoms == 0
            return (shape[0] // layer.atoms,) if fits and arrays["support"].shape == (layer.atoms,) else None
        case "mean":
            fits = layer.atoms > 0 and len(shape) == 1 and shape[0] % layer.atoms == 0
            return (shape[0] // layer.atoms,) if fits else None
        case "implicit_quantiles":
            weight = arrays["weight"].shape
            fits = len(weight) == 2 and shape == weight[1:] == arrays["bias"].shape and 0 < layer.atoms <= _MOST_SAMPLES
            output = _output(layer.advantage, shape) if fits else ()
            return output if len(output) == 1 and not noise_size(layer.advantage) else None
        case "deviations":
            added = arrays["raw"].shape
            fits = len(shape) == 1 == len(added) and arrays["least"].shape == added == arrays["most"].shape
            return (shape[0] + added[0],) if fits else None


def _conv_output(weight: Shape, bias: Shape, stride: int, shape: Shape) -> Shape | None:
    if len(weight) != 4 or len(shape) != 3 or stride < 1:
        return None
    outputs, inputs, size, width = weight
    channels, *sides = shape
    if size != width or inputs != channels or bias != (outputs,) or min(sides) < size:
        return None
    return (outputs, *((side - size) // stride + 1 for side in sides))


def _padded_output(layer: Layer, shape: Shape) -> Shape | None:
    if len(shape) != 3:
        return None
    channels, rows, columns = shape
    fits = 0 <= layer.rows <= 2 * rows and 0 <= layer.columns <= 2 * columns
    return (channels, rows + layer.rows, columns + layer.columns) if fits else None


def _branches_output(branches: Sequence[Sequence[Layer]], shape: Shape) -> Shape | None:
    if len(branches) != len(shape) or not _has_several(shape):
        return None
    outputs = [_output(layers, given) for layers, given in zip(branches, shape, strict=True)]
    return (sum(output[0] for output in outputs),) if all(len(output) == 1 for output in outputs) else None


def _has_several(shape: Shape) -> bool:
    """Whether it is the shape of several inputs."""
    return bool(shape) and isinstance(shape[0], tuple)


def _check_product(head: ActionHead, output: Shape, mask_size: int) -> None:
    _require(head.dtype in _ROW_DTYPES, f"composite actions of {head.dtype}")
    _require(bool(head.parts) and not head.anywhere, "a composite action without parts, or with uniform exploration")
    _require(len(_nesting(head.nesting).names) == len(head.parts), "different numbers of parts and names of parts")
    for part in head.parts:
        _require(part.kind in ("categorical", "gaussian"), f"a part of the kind {part.kind} in a composite action")
        _check_head(part, (part.outputs,), 0)
    _require(head.shape == [sum(math.prod(part.shape) for part in head.parts)], f"rows of the shape {head.shape}")
    masked = sum(part.outputs for part in head.parts if part.kind == "categorical")
    _require(mask_size in (0, masked), f"a mask of {mask_size} for {masked} actions")
    _require(output == (head.outputs,), f"the output of the network is {output}, but actions need {(head.outputs,)}")


_ROW_DTYPES = tuple(np.dtype(kind).str for kind in (np.int64, np.float32, np.float64))


def _check_head(head: ActionHead, output: Shape, mask_size: int) -> None:
    _require(not head.parts, f"parts in an action of the kind {head.kind}")
    dtype = np.dtype(head.dtype)
    _require(dtype.kind in "iufb" and not dtype.hasobject, f"actions of {dtype}")
    elements = math.prod(head.shape)
    _require(_are_counts(head.shape) and elements < _MOST, f"an action of the shape {head.shape}")
    _require(math.isfinite(head.exploration), f"exploration of {head.exploration}")
    if head.kind in ("greedy", "softmax", "categorical"):
        is_sound = head.counts and _are_counts(head.counts) and _are_starts(head.starts, head.counts)
        _require(bool(is_sound) and len(head.counts) == elements, "different numbers of counts and elements")
        _require(head.kind == "categorical" or elements == 1, f"{elements} actions of the kind {head.kind}")
        expected = sum(head.counts)
        _require(mask_size in (0, expected), f"a mask of {mask_size} for {expected} actions")
        _require(not head.anywhere, "uniform exploration with discrete actions")
    else:
        bounds = {"low": head.low, "high": head.high, "scale": head.scale}
        if head.kind != "gaussian" and head.scale.shape == (0,):
            del bounds["scale"]  # only a gaussian head has one
        for name, bound in bounds.items():
            is_sound = bound.dtype.kind == "f" and bound.shape == (elements,)
            _require(is_sound, f"{name} is {bound.shape} of {bound.dtype} for {elements} actions")
        is_range = bool(np.isfinite(head.low).all() and np.isfinite(head.high).all() and (head.low <= head.high).all())
        _require(is_range or not head.anywhere, "uniform exploration without finite bounds")
        _require(mask_size == 0, "a mask for continuous actions")
        expected = 2 * elements if head.kind in ("squashed", "tanh_gaussian") else elements
    _require(output == (expected,), f"the output of the network is {output}, but actions need {(expected,)}")

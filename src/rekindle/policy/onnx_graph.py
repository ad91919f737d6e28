"""Write a policy as an ONNX graph, for engines and languages without Python. Needs `pip install "rekindle-rl[onnx]"`.

The graph takes raw observations and returns greedy actions: it contains the encoding, the normalisation, the network
and the action head. It uses operators of opset 15 only, so that old runtimes can run it.
"""

# The types of onnx are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rekindle.errors import MissingExtra
from rekindle.experience import Array
from rekindle.nesting import Nesting
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import ACTION_MASK, Encoding, Part
from rekindle.policy.images import image_shape
from rekindle.policy.network import Layer, Normaliser, embedded_quantiles, forward, quantile_midpoints
from rekindle.policy.policy import NetworkPolicy, exportable
from rekindle.storage import files
from rekindle.text import install_command
from rekindle.version import __version__

__all__ = ["ACTION", "OBSERVATION", "OUTPUT", "onnx_model", "save_onnx"]

OBSERVATION, ACTION, OUTPUT = "observation", "action", "output"
"""The names of inputs and outputs; the parts of Dict and Tuple spaces follow after a slash, as `observation/camera`."""
_OPSET, _IR_VERSION = 15, 8  # IR version 8 came with opset 15
_BATCH = "batch"


def save_onnx(policy: NetworkPolicy, path: str | Path) -> None:
    """Write a policy to an ONNX file.

    Inputs, each with a leading axis of any length: `observation`, or `observation/<key>` for each part of a Dict or
    Tuple space; uint8 for images of bytes, int64 for discrete parts, bool for masks, float32 for everything else.
    Outputs: `action`, or `action/<key>` for each part of a composite action: the greedy action, as `policy.act`
    returns it; and `output`, the output of the network, as `policy.output` returns it.

    Raises `MissingExtra` if onnx is not installed, and `ConfigError` for a policy that cannot be exported.
    """
    files.write_output(Path(path), onnx_model(exportable(policy)).SerializeToString())


def onnx_model(policy: NetworkPolicy) -> Any:
    """A policy as an `onnx.ModelProto`; see `save_onnx`."""
    graph = _Graph()
    encoded, masks = _encoded(graph, policy.encoding)
    if policy.normaliser is not None:
        encoded[-1] = _normalised(graph, policy.normaliser, encoded[-1])  # the vector comes last
    output = _network(graph, policy.layers, encoded[0] if len(encoded) == 1 else encoded)
    size = forward(policy.layers)(policy.encoding.zeros(1), None).shape[1]
    graph.give(OUTPUT, output, np.dtype(np.float32), [size])
    _give_actions(graph, policy.head, output, masks)
    return graph.model(policy.algorithm)


class _Graph:
    """Builds a graph node by node; values are identified by name."""

    def __init__(self) -> None:
        try:
            import onnx
        except ModuleNotFoundError as error:
            raise MissingExtra(f"ONNX needs {error.name}: {install_command('onnx')}", name=error.name) from None
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def take(self, name: str, dtype: Any, shape: Sequence[int]) -> str:
        """Add an input of the graph; `shape` is without the leading batch axis."""
        self._inputs.append(self._info(name, np.dtype(dtype), shape))
        return name

    def give(self, name: str, value: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        """Add an output of the graph; `shape` is without the leading batch axis."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value], [name]))
        self._outputs.append(self._info(name, dtype, shape))

    def add(self, operator: str, *inputs: str | Array, **attributes: Any) -> str:
        """Add an operator on values and constant arrays; returns the name of its output."""
        name = f"{operator}_{len(self._nodes)}"
        named = [given if isinstance(given, str) else self._constant(given) for given in inputs]
        self._nodes.append(self._onnx.helper.make_node(operator, named, [name], name=name, **attributes))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Cast a value to another dtype."""
        return self.add("Cast", value, to=self._kind(np.dtype(dtype)))

    def reshape(self, value: str, *shape: int) -> str:
        """Reshape a value; 0 keeps the length of an axis, and -1 infers it."""
        return self.add("Reshape", value, np.array(shape, np.int64))

    def columns(self, value: str, start: int, end: int) -> str:
        """The columns `start` to `end - 1` of a matrix."""
        return self.add("Slice", value, *(np.array([number], np.int64) for number in (start, end, 1)))

    def model(self, algorithm: str) -> Any:
        """The finished model."""
        helper = self._onnx.helper
        graph = helper.make_graph(self._nodes, "policy", self._inputs, self._outputs, self._constants)
        opset = helper.make_opsetid("", _OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=_IR_VERSION)
        model.producer_name, model.producer_version = "rekindle", __version__
        helper.set_model_props(model, {"algorithm": algorithm})
        return model

    def _constant(self, array: Array) -> str:
        name = f"constant_{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _info(self, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        return self._onnx.helper.make_tensor_value_info(name, self._kind(dtype), [_BATCH, *shape])

    def _kind(self, dtype: np.dtype[Any]) -> int:
        return self._onnx.helper.np_dtype_to_tensor_dtype(dtype)


# Observations


def _encoded(graph: _Graph, encoding: Encoding) -> tuple[list[str], str | None]:
    """The inputs of the network, the vector last, and the mask of allowed actions if there is one."""
    images: list[str] = []
    flat: list[str] = []
    for part in encoding.parts:
        name = f"{OBSERVATION}/{part.name}" if encoding.is_dict else OBSERVATION
        (images if part.kind == "image" else flat).append(_part(graph, part, name))
    vectors = [graph.add("Concat", *flat, axis=1)] if len(flat) > 1 else flat
    return images + vectors, _mask(graph, encoding)


def _part(graph: _Graph, part: Part, name: str) -> str:
    dtype = np.int64 if part.kind == "discrete" else np.uint8 if part.is_bytes else np.float32
    value = graph.take(name, dtype, part.shape)
    if part.is_bytes:
        value = graph.cast(value, np.float32)
    match part.kind:
        case "image":
            return _image(graph, part, value)
        case "box":
            # Reshape cannot infer the batch of an array without numbers.
            flat = graph.reshape(value, -1, part.size) if part.size else graph.add("Flatten", value, axis=1)
            return graph.add("Mul", flat, np.array([1 / 255], np.float32)) if part.is_bytes else flat
        case "discrete":
            flat = graph.reshape(value, -1, len(part.counts))
            repeated = graph.add("Gather", flat, np.repeat(np.arange(len(part.counts)), part.counts), axis=1)
            known = [
                np.arange(start, start + count, dtype=np.int64)
                for start, count in zip(part.starts, part.counts, strict=True)
            ]
            return graph.cast(graph.add("Equal", repeated, np.concatenate(known)), np.float32)


def _image(graph: _Graph, part: Part, value: str) -> str:
    if part.channels == "last":
        *axes, rows, columns, channels = range(len(part.shape) + 1)
        value = graph.add("Transpose", value, perm=[*axes, channels, rows, columns])
    return graph.reshape(value, -1, *image_shape(part.shape, part.channels))


def _mask(graph: _Graph, encoding: Encoding) -> str | None:
    if not encoding.mask_size:
        return None
    if not encoding.masks:
        return graph.take(f"{OBSERVATION}/{ACTION_MASK}", np.bool_, [encoding.mask_size])
    parts = [graph.take(f"{OBSERVATION}/{part.name}", np.bool_, part.shape) for part in encoding.masks]
    flat = [graph.add("Flatten", part, axis=1) for part in parts]
    return graph.add("Concat", *flat, axis=1)


def _normalised(graph: _Graph, normaliser: Normaliser, vector: str) -> str:
    centred = graph.add("Sub", vector, normaliser.mean)
    scaled = graph.add("Div", centred, np.sqrt(normaliser.variance + np.float32(1e-8)))
    return graph.add("Clip", scaled, *(np.array(limit, np.float32) for limit in (-normaliser.clip, normaliser.clip)))


# Networks


def _network(graph: _Graph, layers: Sequence[Layer], inputs: Any) -> str:
    """The output of layers for one input, or for a list of them if the first layer has branches."""
    for layer in layers:
        inputs = _layer(graph, layer, inputs)
    return inputs


def _layer(graph: _Graph, layer: Layer, inputs: Any) -> str:  # noqa: PLR0911 - one for each kind
    arrays, add = layer.arrays, graph.add
    match layer.kind:
        case "dense" | "noisy_dense":  # a greedy policy has no noise
            return add("Gemm", inputs, arrays["weight"], arrays["bias"])
        case "conv":
            return add("Conv", inputs, arrays["weight"], arrays["bias"], strides=[layer.stride] * 2)
        case "layer_norm":
            return _layer_norm(graph, inputs, **arrays)
        case "activation":
            return add({"relu": "Relu", "tanh": "Tanh"}[layer.name], inputs)
        case "scale":
            return add("Div", inputs, np.array([255], np.float32))
        case "pad":
            return add("Pad", inputs, np.array([0] * 6 + [layer.rows, layer.columns], np.int64))
        case "flatten":
            return add("Flatten", inputs, axis=1)
        case "branches":
            outputs = [_network(graph, branch, given) for branch, given in zip(layer.branches, inputs, strict=True)]
            return add("Concat", *outputs, axis=1)
        case "dueling":
            value = graph.reshape(_network(graph, layer.value, inputs), 0, 1, layer.atoms)
            advantages = graph.reshape(_network(graph, layer.advantage, inputs), 0, -1, layer.atoms)
            centred = add("Sub", advantages, add("ReduceMean", advantages, axes=[1]))
            return add("Flatten", add("Add", centred, value), axis=1)
        case "expectation":
            probabilities = add("Softmax", graph.reshape(inputs, 0, -1, layer.atoms), axis=-1)
            return graph.reshape(add("MatMul", probabilities, arrays["support"][:, None]), 0, -1)
        case "mean":
            return add("ReduceMean", graph.reshape(inputs, 0, -1, layer.atoms), axes=[2], keepdims=0)
        case "implicit_quantiles":
            return _implicit_quantiles(graph, layer, inputs)
        case "deviations":
            raw, least, most = (arrays[name] for name in ("raw", "least", "most"))
            deviations = least + (most - least) / (np.float32(1) + np.exp(-raw))
            shape = add("Concat", _rows(graph, inputs), np.array([raw.size], np.int64), axis=0)
            return add("Concat", inputs, add("Expand", deviations[None], shape), axis=1)


def _layer_norm(graph: _Graph, inputs: str, weight: Array, bias: Array) -> str:
    centred = graph.add("Sub", inputs, graph.add("ReduceMean", inputs, axes=[-1]))
    variance = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes=[-1])
    deviation = graph.add("Sqrt", graph.add("Add", variance, np.array([1e-5], np.float32)))
    return graph.add("Add", graph.add("Mul", graph.add("Div", centred, deviation), weight), bias)


def _implicit_quantiles(graph: _Graph, layer: Layer, inputs: str) -> str:
    embedded = embedded_quantiles(quantile_midpoints(layer.atoms), layer.arrays["weight"], layer.arrays["bias"])
    products = graph.add("Mul", graph.add("Unsqueeze", inputs, np.array([1], np.int64)), embedded)
    outputs = _network(graph, layer.advantage, graph.reshape(products, -1, embedded.shape[1]))
    shape = graph.add("Concat", _rows(graph, inputs), np.array([layer.atoms, -1], np.int64), axis=0)
    return graph.add("ReduceMean", graph.add("Reshape", outputs, shape), axes=[1], keepdims=0)


def _rows(graph: _Graph, value: str) -> str:
    """The number of rows, as an array of one number."""
    return graph.add("Shape", value, start=0, end=1)


# Actions


def _give_actions(graph: _Graph, head: ActionHead, output: str, mask: str | None) -> None:
    if head.kind != "product":
        _give_action(graph, head, output, mask, ACTION)
        return
    end = masked = 0
    for part, name in zip(head.parts, Nesting.of_state(head.nesting).names, strict=True):
        start, end = end, end + part.outputs
        part_mask = None
        if mask is not None and part.kind == "categorical":
            part_mask = graph.columns(mask, masked, masked + part.outputs)
            masked += part.outputs
        _give_action(graph, part, graph.columns(output, start, end), part_mask, f"{ACTION}/{name}")


def _give_action(graph: _Graph, head: ActionHead, output: str, mask: str | None, name: str) -> None:
    if mask is not None:
        output = graph.add("Where", mask, output, np.array([-np.inf], np.float32))
    action = (_discrete if head.counts else _continuous)(graph, head, output)
    dtype = np.dtype(head.dtype)
    graph.give(name, graph.cast(graph.reshape(action, -1, *head.shape), dtype), dtype, head.shape)


def _discrete(graph: _Graph, head: ActionHead, values: str) -> str:
    ends = np.cumsum(head.counts).tolist()
    starts = [0, *ends[:-1]]
    parts = [values]
    if len(ends) > 1:
        parts = [graph.columns(values, start, end) for start, end in zip(starts, ends, strict=True)]
    best = [graph.add("ArgMax", part, axis=1) for part in parts]
    chosen = graph.add("Concat", *best, axis=1) if len(best) > 1 else best[0]
    return graph.add("Add", chosen, np.array(head.starts, np.int64)) if any(head.starts) else chosen


def _continuous(graph: _Graph, head: ActionHead, output: str) -> str:
    # The bounds of a float64 Box are float64.
    dtype = np.result_type(head.low, np.float32)
    if head.kind == "gaussian":
        at_least = graph.add("Max", graph.cast(output, dtype), head.low.astype(dtype))
        return graph.add("Min", at_least, head.high.astype(dtype))
    if head.kind in ("squashed", "tanh_gaussian"):
        output = graph.columns(output, 0, head.low.size)
    unit = graph.cast(graph.add("Tanh", output), dtype)
    if head.is_unit:
        return unit
    return graph.add("Add", graph.add("Mul", unit, head.reach.astype(dtype)), head.centre.astype(dtype))

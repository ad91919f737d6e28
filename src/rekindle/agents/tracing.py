"""Run a JAX function and keep all intermediate values, to find where a value first became NaN or infinite.

A compiled update returns only its result. Here the inputs and outputs of each operation are kept, with the network
module that it belongs to. A NaN in the result can then be traced back to the operation, the layer and the row of the
batch where it appeared.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rekindle.experience import Array

__all__ = ["Origin", "Trace", "Value", "traced"]


@dataclass(eq=False)
class Operation:
    """One operation of a traced function."""

    name: str
    layer: str
    """The module that it belongs to, such as `QNetwork.advantage.modules[0]`; empty outside networks."""
    is_backward: bool
    """Whether it is part of the gradient."""
    inputs: list[Value]
    outputs: list[Value] = field(default_factory=list[Any])


@dataclass(eq=False)
class Value:
    """An array and the operation that computed it."""

    array: Any
    operation: Operation | None = None
    """None for an argument or a constant."""
    name: str = ""
    """The name of an argument, such as `batch['rewards']`; empty for other values."""
    axis: int | None = None
    """The axis along which the rows of the batch lie; None if the array has no rows."""

    @functools.cached_property
    def is_finite(self) -> bool:
        """Whether all numbers are finite."""
        return self.array.dtype.kind not in "fc" or bool(np.isfinite(self.array).all())

    @functools.cached_property
    def size(self) -> float:
        """The largest absolute value; infinite if it is not finite."""
        if self.array.dtype.kind not in "fc" or not self.array.size:
            return 0.0
        return float(np.abs(self.array).max()) if self.is_finite else np.inf

    @property
    def row(self) -> int | None:
        """The first row that is not finite, otherwise the row with the largest number; None if it has no rows."""
        if self.axis is None or self.array.dtype.kind not in "fc":
            return None
        others = tuple(axis for axis in range(self.array.ndim) if axis != self.axis)
        bad = ~np.isfinite(self.array).all(axis=others)
        return int(bad.argmax() if bad.any() else np.abs(self.array).max(axis=others, initial=0).argmax())


@dataclass(frozen=True)
class Origin:
    """Where a value first became NaN or infinite, or where a gradient is largest."""

    operation: str
    """The operation, such as `exp`; empty if an argument is not finite."""
    layer: str
    """The layer of the operation; if it is outside layers, the layer that its largest input comes from."""
    is_inside: bool
    """Whether the operation itself belongs to that layer."""
    is_backward: bool
    """Whether the operation is part of the gradient."""
    argument: str
    """The argument that is not finite; empty if an operation is the origin."""
    row: int | None
    """The row of the batch, or the first row that is affected; None if there is none."""
    is_every_row: bool
    """Whether the value depends on no row but affects every row."""
    part: tuple[int, int] | None
    """Outside layers: the index of the part of the weight vector that it comes from, and the number of parts."""
    value: float
    """The first number that is not finite, otherwise the largest."""
    largest_input: float
    """The largest absolute value among the inputs of the operation."""


class Trace:
    """All operations of a traced function, in order."""

    def __init__(self, operations: list[Operation], results: list[Value]) -> None:
        self.operations, self.results = operations, results

    def first_not_finite(self) -> Origin | None:
        """The operation or argument where the results first became NaN or infinite; None if they are finite."""
        origins: list[Value] = []
        seen: set[int] = set()
        waiting = [value for value in self.results if not value.is_finite]
        while waiting:
            value = waiting.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            before = [] if value.operation is None else _blamed(value)
            if before:
                waiting += before
            else:
                origins.append(value)
        if not origins:
            return None
        order = {id(operation): place for place, operation in enumerate(self.operations)}
        # An argument comes last: an earlier update with the same fault may have computed it.
        after = len(order)
        first = min(origins, key=lambda value: after if value.operation is None else order[id(value.operation)])
        return _origin(first, self._affected_by(first))

    def _affected_by(self, first: Value) -> Array | None:
        """Which rows are not finite, in the first later value that has rows and is not finite."""
        start = 0 if first.operation is None else self.operations.index(first.operation)
        for operation in self.operations[start:]:
            for value in operation.outputs:
                if value.axis is not None and not value.is_finite:
                    others = tuple(axis for axis in range(value.array.ndim) if axis != value.axis)
                    return ~np.isfinite(value.array).all(axis=others)
        return None

    def largest_gradient(self) -> Origin | None:
        """The operation in a layer with the largest gradient."""
        values = [
            value
            for operation in self.operations
            if operation.is_backward and operation.layer
            for value in operation.outputs
        ]
        return _origin(max(values, key=lambda value: value.size)) if values else None


def _blamed(value: Value) -> list[Value]:
    """The inputs that make the output of an operation NaN or infinite."""
    operation = value.operation
    inputs = [] if operation is None else operation.inputs
    if operation is not None and operation.name == _SELECT:
        which, *cases = inputs
        chosen = np.broadcast_to(which.array.astype(np.int64), value.array.shape)
        return [case for place, case in enumerate(cases) if (~np.isfinite(case.array) & (chosen == place)).any()]
    return [given for given in inputs if not given.is_finite]


def _origin(value: Value, affected: Array | None = None) -> Origin:
    """Describe a value; `affected` marks the rows that a value without rows affects."""
    operation, part = value.operation, None
    layer, row = "" if operation is None else operation.layer, value.row
    is_inside = bool(layer)
    for earlier in _largest_before(value):
        if layer and row is not None:
            break
        row = earlier.row if row is None else row
        layer = layer or ("" if earlier.operation is None else earlier.operation.layer)
        part = part or _part(earlier)
    is_every_row = row is None and affected is not None and bool(affected.all())
    if row is None and affected is not None:
        row = int(affected.argmax())
    numbers = value.array.ravel()
    bad = numbers[~np.isfinite(numbers)]
    return Origin(
        operation="" if operation is None else operation.name,
        layer=layer,
        is_inside=is_inside,
        is_backward=operation is not None and operation.is_backward,
        argument=value.name if operation is None else "",
        row=row,
        is_every_row=is_every_row,
        part=None if layer else part,
        value=float(bad[0]) if bad.size else value.size,
        largest_input=max((given.size for given in operation.inputs), default=0.0) if operation else value.size,
    )


def _part(value: Value) -> tuple[int, int] | None:
    """The index of the value among the outputs of a split, and their number; None if it is not from a split."""
    operation = value.operation
    if operation is None or operation.name != "split":
        return None
    return next(place for place, output in enumerate(operation.outputs) if output is value), len(operation.outputs)


def _largest_before(value: Value) -> Iterator[Value]:
    """Walk back through the operations, each time to the largest input."""
    while value.operation is not None and (inputs := [given for given in value.operation.inputs if given.size]):
        value = max(inputs, key=lambda given: given.size)
        yield value


# Computing


def traced(function: Callable[..., Any], arguments: Mapping[str, Any], *, batch: str, rows: int) -> Trace:
    """Run a function of named arguments (trees of arrays) and keep the output of each operation.

    The arrays of the argument named `batch` have `rows` rows.
    """

    def with_names(given: Mapping[str, Any]) -> Any:
        return function(**given)

    # Trace a second time with twice the rows: the axes whose length changes are the axes of the rows.
    twice = jax.tree_util.tree_map(functools.partial(_twice, rows), arguments[batch])
    with _scopes():
        closed = jax.make_jaxpr(with_names)(arguments)
        other = jax.make_jaxpr(with_names)({**arguments, batch: twice})
    leaves = jax.tree_util.tree_leaves_with_path(arguments)
    names = [_argument_name(path) for path, _ in leaves]
    values: list[Value] = []
    run = _Run(rows)

    def outputs(arrays: list[Any]) -> list[list[Any]]:
        values.extend(Value(array, name=name) for array, name in zip(arrays, names, strict=True))
        run.results = run.compute(closed, other, values, "", is_backward=False)
        return [[value.array for value in operation.outputs] for operation in run.operations]

    arrays = [np.asarray(leaf) for _, leaf in leaves]
    # It runs once, so fast compilation matters more than fast code.
    computed = jax.jit(outputs, compiler_options=_QUICK_TO_COMPILE)(arrays)
    for value, array in zip(values, arrays, strict=True):
        value.array = array
    for operation, found in zip(run.operations, computed, strict=True):
        for value, array in zip(operation.outputs, found, strict=True):
            value.array = np.asarray(array)
    return Trace(run.operations, run.results)


_QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def _twice(rows: int, leaf: Any) -> Any:
    shape = np.shape(leaf)
    return jax.ShapeDtypeStruct((2 * rows, *shape[1:]), leaf.dtype) if shape[:1] == (rows,) else leaf


def _argument_name(path: Sequence[Any]) -> str:
    first, *rest = path
    return f"{first.key}{jax.tree_util.keystr(tuple(rest))}"


class _Run:
    """Evaluates a function and collects its operations."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.operations: list[Operation] = []
        self.results: list[Value] = []

    def compute(self, closed: Any, other: Any, given: list[Value], layer: str, *, is_backward: bool) -> list[Value]:
        """The results of a function; `other` is the same function traced for twice as many rows."""
        jaxpr, longer = closed.jaxpr, other.jaxpr
        if len(jaxpr.eqns) != len(longer.eqns):
            longer = jaxpr  # the code depends on the number of rows, so the axes of the rows stay unknown
        known: dict[Any, Value] = {
            variable: Value(jnp.asarray(constant))
            for variable, constant in zip(jaxpr.constvars, closed.consts, strict=True)
        }
        for variable, same, value in zip(jaxpr.invars, longer.invars, given, strict=True):
            known[variable] = value
            value.axis = self._axis(variable, same) if value.operation is None else value.axis

        def value_of(atom: Any) -> Value:
            return Value(np.asarray(atom.val)) if hasattr(atom, "val") else known[atom]

        for equation, same in zip(jaxpr.eqns, longer.eqns, strict=True):
            inputs = [value_of(atom) for atom in equation.invars]
            stack = str(equation.source_info.name_stack)
            scopes = _SCOPE.findall(stack)
            inside, backward = scopes[-1] if scopes else layer, is_backward or "transpose(" in stack
            called, alike = _called(equation), _called(same)
            if called is None or alike is None:
                outputs = self._operation(equation, inputs, inside, is_backward=backward)
            elif equation.primitive.name == "cond":
                outputs = self._choice(called, alike, inputs, inside, is_backward=backward)
            else:
                outputs = self.compute(called[0], alike[0], inputs, inside, is_backward=backward)
            for variable, twin, value in zip(equation.outvars, same.outvars, outputs, strict=True):
                known[variable] = value
                value.axis = self._axis(variable, twin)
        return [value_of(atom) for atom in jaxpr.outvars]

    def _axis(self, variable: Any, same: Any) -> int | None:
        """The axis whose length changes with the number of rows."""
        shapes = zip(variable.aval.shape, same.aval.shape, strict=True)
        axes = [axis for axis, (length, other) in enumerate(shapes) if length == self._rows != other]
        return axes[0] if axes else None

    def _operation(self, equation: Any, inputs: list[Value], layer: str, *, is_backward: bool) -> list[Value]:
        found = equation.primitive.bind(*(value.array for value in inputs), **equation.params)
        arrays: list[Any] = list(found) if equation.primitive.multiple_results else [found]
        return self._keep(equation.primitive.name, layer, inputs, arrays, is_backward=is_backward)

    def _choice(
        self, branches: Sequence[Any], others: Sequence[Any], inputs: list[Value], layer: str, *, is_backward: bool
    ) -> list[Value]:
        """The outputs of the chosen branch of a `cond`; all branches are computed."""
        which, *rest = inputs
        cases = [
            self.compute(branch, other, rest, layer, is_backward=is_backward)
            for branch, other in zip(branches, others, strict=True)
        ]
        index = jnp.clip(which.array, 0, len(branches) - 1)
        outputs: list[Value] = []
        for values in zip(*cases, strict=True):
            array = jnp.stack([jnp.asarray(value.array) for value in values])[index]
            outputs += self._keep(_SELECT, layer, [which, *values], [array], is_backward=is_backward)
        return outputs

    def _keep(self, name: str, layer: str, inputs: list[Value], arrays: list[Any], *, is_backward: bool) -> list[Value]:
        operation = Operation(name, layer, is_backward, inputs)
        operation.outputs = [Value(array, operation) for array in arrays]
        self.operations.append(operation)
        return operation.outputs


def _called(equation: Any) -> Sequence[Any] | None:
    """The functions that an operation calls; None for a primitive operation or a loop."""
    name, parameters = equation.primitive.name, equation.params
    if name == "cond":
        return parameters["branches"]
    if name in ("while", "scan"):
        return None
    for kind in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        function = parameters.get(kind)
        if function is not None and hasattr(function, "consts") and len(function.jaxpr.invars) == len(equation.invars):
            return [function]
    return None


_SELECT = "select_n"
"""The operation whose first input selects which of the other inputs is the output."""


# Layers

_SCOPE = re.compile(r"<([^<>]+)>")


class _Scopes:
    """Names the module that is being traced by its attribute path."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._kept: list[Any] = []
        """References to the modules in `_paths`, so that their ids are not reused."""
        self._open: list[tuple[Any, str]] = []

    @contextlib.contextmanager
    def inside(self, module: Any) -> Generator[None]:
        """Mark the operations in the body as part of a module."""
        path = self._path(module)
        for name, child in _children(module):
            self._paths[id(child)] = f"{path}.{name}"
            self._kept.append(child)
        self._open.append((module, path))
        try:
            with jax.named_scope(f"<{path}>"):
                yield
        finally:
            self._open.pop()

    def _path(self, module: Any) -> str:
        if (known := self._paths.get(id(module))) is not None or not self._open:
            return known or type(module).__name__
        parent, path = self._open[-1]
        # JAX rebuilds some modules, such as one of several critics: recognise them by their structure.
        structure = jax.tree_util.tree_structure(module)
        alike = [name for name, child in _children(parent) if jax.tree_util.tree_structure(child) == structure]
        return f"{path}.{alike[0]}" if alike else f"{path}.{type(module).__name__}"


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    """The modules in the attributes of a module, with their attribute paths."""
    for name, value in vars(module).items():
        if isinstance(value, eqx.Module):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((f"{name}[{place}]", item) for place, item in enumerate(value) if isinstance(item, eqx.Module))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items() if isinstance(item, eqx.Module))


@contextlib.contextmanager
def _scopes() -> Generator[None]:
    """Mark the operations of each module, user-defined ones too, while functions are traced in the body."""
    scopes = _Scopes()
    changed: list[tuple[Any, Any]] = []
    try:
        for kind in _module_classes(eqx.Module):
            changed.append((kind, kind.__dict__["__call__"]))
            kind.__call__ = _marked(kind.__call__, scopes)
        yield
    finally:
        for kind, call in changed:
            kind.__call__ = call


def _marked(call: Any, scopes: _Scopes) -> Any:
    @functools.wraps(call)
    def marked(self: Any, *arguments: Any, **options: Any) -> Any:
        with scopes.inside(self):
            return call(self, *arguments, **options)

    return marked


def _module_classes(base: type[Any]) -> Iterator[Any]:
    """All callable module classes, except equinox's internal ones."""
    for kind in base.__subclasses__():
        place = kind.__module__
        if "__call__" in kind.__dict__ and (not place.startswith("equinox") or place.startswith("equinox.nn")):
            yield kind
        yield from _module_classes(kind)

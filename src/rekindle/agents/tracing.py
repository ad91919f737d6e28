"""Compute a function of JAX with everything in between, and find where a value first stopped being finite.

A compiled update gives no more than its result. Here the output of each operation is kept, with its inputs and the
module of the network that it belongs to, so that a NaN in the result can be followed back to the operation, the layer
and the row of the batch in which it arose.
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
    """One operation of a function that was computed."""

    name: str
    layer: str
    """The module that it belongs to, such as `QNetwork.advantage.modules[0]`; empty outside of networks."""
    is_backward: bool
    """Whether it is part of the gradient."""
    inputs: list[Value]
    outputs: list[Value] = field(default_factory=list[Any])


@dataclass(eq=False)
class Value:
    """An array, and the operation that it is the output of; None for an argument."""

    array: Any
    operation: Operation | None = None
    name: str = ""
    """For an argument: what it is, such as `batch['rewards']`."""
    axis: int | None = None
    """Along which axis the rows of the batch lie; None if it has none."""

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
        """The first row that is not finite, or else the one with the largest number; None if it has no rows."""
        if self.axis is None or self.array.dtype.kind not in "fc":
            return None
        others = tuple(axis for axis in range(self.array.ndim) if axis != self.axis)
        bad = ~np.isfinite(self.array).all(axis=others)
        return int(bad.argmax() if bad.any() else np.abs(self.array).max(axis=others, initial=0).argmax())


@dataclass(frozen=True)
class Origin:
    """Where a value stopped being finite, or a gradient became large."""

    operation: str
    """The operation, such as `exp`; empty if an argument was not finite."""
    layer: str
    """The layer that the operation belongs to, or that its largest input comes from."""
    is_inside: bool
    """Whether the operation belongs to that layer."""
    is_backward: bool
    argument: str
    """The argument that was not finite already, if it was one."""
    row: int | None
    """The row of the batch, or the first that is affected; None if there is none."""
    is_every_row: bool
    """Whether the value depends on no row, and every row on it."""
    part: tuple[int, int] | None
    """Outside of layers: which part of a vector of weights it comes from, and how many there are."""
    value: float
    """The first number that is not finite, or the largest."""
    largest_input: float


class Trace:
    """All operations of a function that was computed, in order."""

    def __init__(self, operations: list[Operation], results: list[Value]) -> None:
        self.operations, self.results = operations, results

    def first_not_finite(self) -> Origin | None:
        """Where the results stopped being finite; None if they are."""
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
        # An argument may have been computed with the same fault before, so it comes last.
        after = len(order)
        first = min(origins, key=lambda value: after if value.operation is None else order[id(value.operation)])
        return _origin(first, self._affected_by(first))

    def _affected_by(self, first: Value) -> Array | None:
        """Which rows are not finite in the first value after this one that has rows."""
        start = 0 if first.operation is None else self.operations.index(first.operation)
        for operation in self.operations[start:]:
            for value in operation.outputs:
                if value.axis is not None and not value.is_finite:
                    others = tuple(axis for axis in range(value.array.ndim) if axis != value.axis)
                    return ~np.isfinite(value.array).all(axis=others)
        return None

    def largest_gradient(self) -> Origin | None:
        """The layer with the largest gradient."""
        values = [
            value
            for operation in self.operations
            if operation.is_backward and operation.layer
            for value in operation.outputs
        ]
        return _origin(max(values, key=lambda value: value.size)) if values else None


def _blamed(value: Value) -> list[Value]:
    """The inputs because of which the output of an operation is not finite."""
    operation = value.operation
    inputs = [] if operation is None else operation.inputs
    if operation is not None and operation.name == _SELECT:
        which, *cases = inputs
        chosen = np.broadcast_to(which.array.astype(np.int64), value.array.shape)
        return [case for place, case in enumerate(cases) if (~np.isfinite(case.array) & (chosen == place)).any()]
    return [given for given in inputs if not given.is_finite]


def _origin(value: Value, affected: Array | None = None) -> Origin:
    """`affected` says which rows a value without rows has an effect on."""
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
    """Which output of a split it is, and of how many."""
    operation = value.operation
    if operation is None or operation.name != "split":
        return None
    return next(place for place, output in enumerate(operation.outputs) if output is value), len(operation.outputs)


def _largest_before(value: Value) -> Iterator[Value]:
    """The values that a value depends on most: always the largest input of an operation."""
    while value.operation is not None and (inputs := [given for given in value.operation.inputs if given.size]):
        value = max(inputs, key=lambda given: given.size)
        yield value


# Computing


def traced(function: Callable[..., Any], arguments: Mapping[str, Any], *, batch: str, rows: int) -> Trace:
    """Compute a function of named arguments, which are trees of arrays, and keep the output of each operation.

    The arrays of the argument `batch` have so many rows.
    """

    def with_names(given: Mapping[str, Any]) -> Any:
        return function(**given)

    # Where another number of rows changes a shape, there are the rows.
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
    # It runs once, so quick compilation counts and quick code does not.
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
    """The operations of a function, as they are computed."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.operations: list[Operation] = []
        self.results: list[Value] = []

    def compute(self, closed: Any, other: Any, given: list[Value], layer: str, *, is_backward: bool) -> list[Value]:
        """The results of a function, which is also given for twice as many rows."""
        jaxpr, longer = closed.jaxpr, other.jaxpr
        if len(jaxpr.eqns) != len(longer.eqns):
            longer = jaxpr  # its code depends on the number of rows, so that nothing can be said of them
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
        """The axis whose length is another with another number of rows."""
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
        """The outputs of one of several functions; all of them are computed."""
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
    """The functions that an operation calls; None for one that computes something itself, or is a loop."""
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
"""The operation whose first input says which of the others is its output."""


# Layers

_SCOPE = re.compile(r"<([^<>]+)>")


class _Scopes:
    """Names the module whose call is being traced, by the attributes that lead to it."""

    def __init__(self) -> None:
        self._paths: dict[int, str] = {}
        self._kept: list[Any] = []
        """Modules whose ids are in use."""
        self._open: list[tuple[Any, str]] = []

    @contextlib.contextmanager
    def inside(self, module: Any) -> Generator[None]:
        """Operations in the body belong to a module."""
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
        # A module that JAX has rebuilt, such as one of several critics, is found by its structure.
        structure = jax.tree_util.tree_structure(module)
        alike = [name for name, child in _children(parent) if jax.tree_util.tree_structure(child) == structure]
        return f"{path}.{alike[0]}" if alike else f"{path}.{type(module).__name__}"


def _children(module: Any) -> Iterator[tuple[str, Any]]:
    """The modules in the attributes of a module, with their places."""
    for name, value in vars(module).items():
        if isinstance(value, eqx.Module):
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((f"{name}[{place}]", item) for place, item in enumerate(value) if isinstance(item, eqx.Module))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in value.items() if isinstance(item, eqx.Module))


@contextlib.contextmanager
def _scopes() -> Generator[None]:
    """Mark the operations of each module, also of a user's own, while functions are traced in the body."""
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
    """All classes of modules that can be called, except those with which equinox itself is built."""
    for kind in base.__subclasses__():
        place = kind.__module__
        if "__call__" in kind.__dict__ and (not place.startswith("equinox") or place.startswith("equinox.nn")):
            yield kind
        yield from _module_classes(kind)

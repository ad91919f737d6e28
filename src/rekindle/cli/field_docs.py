"""The docstrings under the fields of a class of settings, for `--help` and `rekindle algos`."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Mapping
from itertools import pairwise

__all__ = ["field_docs"]


@functools.cache
def field_docs(kind: type) -> Mapping[str, str]:
    """The docstring of each field of a class, each in one line; those of bases are included."""
    return {name: text for base in reversed(kind.__mro__) for name, text in _own_field_docs(base).items()}


def _own_field_docs(kind: type) -> dict[str, str]:
    """The docstring of each field that a class declares itself; empty if its source cannot be read."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):
        return {}
    (node,) = ast.parse(textwrap.dedent(source)).body
    body = node.body if isinstance(node, ast.ClassDef) else []
    return {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }

"""JSON that may hold any text, also the name of a file whose bytes are not UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from rekindle.text import encodable

__all__ = ["encode"]


def encode(value: Any, encoder: Callable[[Any], bytes] = msgspec.json.encode) -> bytes:
    r"""A value as JSON. What is not UTF-8 in a text becomes a visible escape.

    >>> encode({"path": "runs\udcff"})
    b'{"path":"runs\\\\udcff"}'
    """
    try:
        return encoder(value)
    except UnicodeEncodeError:
        return encoder(_escaped(msgspec.to_builtins(value, str_keys=True)))


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {_escaped(name): _escaped(item) for name, item in items}
    if isinstance(value, Sequence):
        return [_escaped(item) for item in cast("Sequence[Any]", value)]
    return value

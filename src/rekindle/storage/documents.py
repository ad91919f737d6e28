"""Encode values as JSON: numpy, structs, and text that is not valid UTF-8."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.text import encodable

__all__ = ["encode", "encode_numpy", "plain"]


def encode_numpy(value: Any) -> Any:
    """For msgspec's `enc_hook`: convert numpy numbers and arrays to JSON values."""
    if isinstance(value, (np.generic, np.ndarray)):
        return cast("Any", value.tolist())
    raise TypeError(f"JSON cannot hold a {type(value).__name__}")


def encode(value: Any, encoder: Callable[[Any], bytes] = msgspec.json.encode) -> bytes:
    r"""Encode a value as JSON. Invalid UTF-8 in a text, such as a file name, becomes a visible escape.

    >>> encode({"path": "runs\udcff"})
    b'{"path":"runs\\\\udcff"}'
    """
    try:
        return encoder(value)
    except UnicodeEncodeError:
        return encoder(plain(msgspec.to_builtins(value, str_keys=True, enc_hook=encode_numpy)))


def plain(value: Any) -> Any:
    """Convert any value to one that JSON supports: unsupported values become text."""
    if isinstance(value, Mapping):
        return {encodable(str(key)): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("list[Any] | tuple[Any, ...]", value)]
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if value is None or isinstance(value, (bool, int, float, np.generic, np.ndarray)):
        return cast("Any", value)
    return encodable(value if isinstance(value, str) else repr(value))

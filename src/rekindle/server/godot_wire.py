"""The wire format of Godot RL Agents: JSON messages, each after its length in bytes."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import msgspec

from rekindle.errors import InputError

__all__ = ["CLOSE", "Frames", "HELLO", "RESET", "encode_frame", "read_message"]

_HEADER = 4
"""The size of the length field of a frame in bytes, least significant byte first."""


def encode_frame(message: dict[str, Any]) -> bytes:
    """Encode a message for a game."""
    text = msgspec.json.encode(message)
    if not text.isascii():  # the plugin reads a character from each byte
        text = json.dumps(message).encode()
    return len(text).to_bytes(_HEADER, "little") + text


# A game compares the version with its own and prints a warning if they differ.
HELLO = encode_frame({"type": "handshake", "major_version": "0", "minor_version": "7"}) + encode_frame(
    {"type": "env_info"}
)
"""The messages that a game expects first."""
RESET = encode_frame({"type": "reset"})
CLOSE = encode_frame({"type": "close"})


class Frames:
    """Splits the bytes from a socket into frames."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def __len__(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> bytes | None:
        """Add bytes; returns the frame if it is complete, otherwise None.

        A game sends one message for each message of the server. Raises `InputError` for bytes after a frame, and for a
        frame that is too long.
        """
        buffer = self._buffer
        buffer += data
        if len(buffer) < _HEADER:
            return None
        size = int.from_bytes(buffer[:_HEADER], "little")
        if size > self._max_bytes:
            hint = "; is this a browser?" if bytes(buffer[:_HEADER]) in _HTTP else ""
            raise InputError(f"a message of {size:,} bytes is longer than the limit of {self._max_bytes:,}{hint}")
        end = _HEADER + size
        if len(buffer) < end:
            return None
        if len(buffer) > end:
            raise InputError(f"{len(buffer) - end} bytes follow a message, before it was answered")
        frame = bytes(buffer[_HEADER:])
        buffer.clear()
        return frame


_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI")
_NOT_JSON = re.compile(rb"(?<=[\[:,\s])(-?)(nan|inf)(?=[\],}\s])")
"""NaN and infinity as older versions of Godot write them."""


def read_message(frame: bytes, kind: str) -> dict[str, Any]:
    """The message in a frame; raises `InputError` unless it is an object of this type.

    A number that is not finite becomes NaN, infinity or None, depending on the version of Godot.
    """
    try:
        message = msgspec.json.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = _decode_leniently(frame)
    if not isinstance(message, dict):
        raise InputError(f"expected a message of the type {kind!r}, got {message!r:.80}")
    fields = cast("dict[str, Any]", message)
    if fields.get("type") != kind:
        raise InputError(f"expected a message of the type {kind!r}, got one of the type {fields.get('type')!r:.40}")
    return fields


def _decode_leniently(frame: bytes) -> Any:
    text = _NOT_JSON.sub(lambda found: found[1] + (b"NaN" if found[2] == b"nan" else b"Infinity"), frame)
    try:
        message = json.loads(text.decode())
        if b"\\u" in text:  # half of a surrogate pair cannot be written to any file of the run
            json.dumps(message, ensure_ascii=False).encode()
        return message
    except (ValueError, RecursionError) as error:
        raise InputError(f"a message is not JSON: {str(error)[:120]}") from None

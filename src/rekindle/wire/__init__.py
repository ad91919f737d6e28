"""The messages between a session server and its clients; see `docs/protocol.md`.

Arrays are raw little-endian rows in msgpack, and nested lists in JSON. Their dtypes and shapes are agreed on in the
first message.
"""

from rekindle.wire.messages import VERSION
from rekindle.wire.rows import RowFormat, WireError

__all__ = ["RowFormat", "VERSION", "WireError"]

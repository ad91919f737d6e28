"""A WebSocket by hand, to send what no client library would."""

from __future__ import annotations

import base64
import os
import socket
import struct
import time
from typing import Any

import msgspec

BINARY, TEXT, CONTINUATION, CLOSE, PING, PONG = 2, 1, 0, 8, 9, 10


def opened(port: int, seconds: float = 10.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def upgrade(port: int, *, path: str = "/session", **headers: str) -> bytes:
    """A request for a WebSocket, with other headers if they are given."""
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode()


def frame(data: bytes, kind: int = BINARY, *, fin: bool = True, reserved: int = 0, masked: bool = True) -> bytes:
    head = bytes([(0x80 if fin else 0) | reserved << 4 | kind])
    size, bit = len(data), 0x80 if masked else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += bytes([bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", size)
    if not masked:
        return head + data
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))


class Raw:
    """A connection that sends anything."""

    def __init__(self, port: int, **headers: str) -> None:
        self.socket = opened(port)
        self.socket.sendall(upgrade(port, **headers))
        self._data = b""
        while b"\r\n\r\n" not in self._data:
            chunk = self.socket.recv(4096)
            assert chunk, "the connection was closed in the handshake"
            self._data += chunk
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        self.status = int(head.split()[1])

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, message: dict[str, Any], *, is_json: bool = False) -> None:
        if is_json:
            self.send(frame(msgspec.json.encode(message), TEXT))
        else:
            self.send(frame(msgspec.msgpack.encode(message)))

    def next(self) -> tuple[int, bytes]:
        """The kind and the payload of the next frame; (-1, b"") if the connection is closed."""
        while True:
            found = self._frame()
            if found is not None:
                return found
            try:
                chunk = self.socket.recv(65_536)
            except ConnectionResetError:
                return -1, b""
            if not chunk:
                return -1, b""
            self._data += chunk

    def _frame(self) -> tuple[int, bytes] | None:
        data = self._data
        if len(data) < 2:
            return None
        size, at = data[1] & 0x7F, 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
        elif size == 127:
            size, at = int.from_bytes(data[2:10], "big"), 10
        if len(data) < at + size:
            return None
        self._data = data[at + size :]
        return data[0] & 0x0F, data[at : at + size]

    def heard(self) -> Any:
        """The next message."""
        while True:
            kind, data = self.next()
            if kind == BINARY:
                return msgspec.msgpack.decode(data)
            if kind == TEXT:
                return msgspec.json.decode(data)
            assert kind in (PING, PONG), (kind, data)

    def ended(self) -> tuple[str | None, int | None]:
        """The error code and the close code with which the server ends the connection."""
        code = None
        while True:
            kind, data = self.next()
            if kind == -1:
                return code, None
            if kind == CLOSE:
                return code, int.from_bytes(data[:2], "big") if data else 1005
            if kind in (BINARY, TEXT):
                message = msgspec.msgpack.decode(data) if kind == BINARY else msgspec.json.decode(data)
                code = message.get("code", code)

    def hello(self, **fields: Any) -> Any:
        self.say({"type": "hello", "versions": [1, 1], **fields})
        return self.heard()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def seconds_until_closed(connection: socket.socket) -> float:
    started = time.monotonic()
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - started

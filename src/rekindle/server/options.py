"""The options of a server."""

from __future__ import annotations

import ipaddress
import math
import re

import msgspec

from rekindle.errors import ConfigError

__all__ = ["MOST_REWARD", "ServerOptions", "is_loopback"]

MOST_REWARD = 1e15
"""The largest reward: squares of larger ones can overflow in float32, and one of them would end the training."""
_MOST_TOKEN = 512
"""The longest token that fits into a `hello`, in characters."""

_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]*")


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server, who may connect, and the limits of clients."""

    host: str = "127.0.0.1"
    """The address to listen on; an address that is not loopback requires a token."""
    port: int = 7654
    """The port to listen on; 0 for any free port."""
    token: str | None = None
    """The token that clients must send; None accepts every client on this machine."""
    tls_cert: str | None = None
    """A file with the certificate chain, for wss."""
    tls_key: str | None = None
    """A file with the private key of the certificate."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may connect, such as `https://example.org`; pages from this address always may."""
    hosts: tuple[str, ...] = ()
    """Host names of the server other than localhost and IP addresses, for example behind a proxy."""
    idle: float = 600.0
    """Seconds after which the server forgets a disconnected client."""
    max_clients: int = 1024
    """The most clients that the server knows at the same time, connected or not."""
    max_streams: int = 65_536
    """The most streams of all clients together."""
    max_message: int = 1 << 20
    """The most bytes of a message."""
    rate: float = 1000.0
    """The most messages per second of a connection that are not processed requests: `act`, `stats`, errors, pings."""
    tick_rows: int = 1024
    """The most streams in a tick; further requests wait for the next tick."""
    hello_seconds: float = 5.0
    """Seconds for the handshake, and then for `hello`."""
    message_seconds: float = 10.0
    """Seconds for all fragments of a message."""
    ping_seconds: float = 10.0
    """Seconds without a message after which the server pings a connection."""

    def __post_init__(self) -> None:
        counts = ("max_clients", "max_streams", "tick_rows")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}: use at least 1")
        if self.max_message < 1024:
            raise ConfigError(f"max_message is {self.max_message}: use at least 1024 bytes")
        if not 0 <= self.port < 65_536:
            raise ConfigError(f"port is {self.port}: use 0 to 65535")
        for name in ("idle", "rate", "hello_seconds", "message_seconds", "ping_seconds"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value!r}: use a number above 0")
        if self.token is not None and len(self.token) > _MOST_TOKEN:
            raise ConfigError(f"the token has {len(self.token)} characters: use at most {_MOST_TOKEN}")
        if not is_loopback(self.host) and not self.token:
            raise ConfigError(
                f"to listen on {self.host}, where others can connect, set a token: --token-file FILE, "
                "or the environment variable REKINDLE_TOKEN"
            )
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"no web page has the origin {origin!r}: use its scheme, host and port in lower case, such as "
                    "https://example.org or http://localhost:8000"
                )
        for name in self.hosts:
            if "/" in name or name.count(":") == 1:
                raise ConfigError(f"{name!r} is not a host name: leave out the scheme and the port")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both a certificate and its key: --tls-cert FILE --tls-key FILE")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

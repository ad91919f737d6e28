"""A listening socket that reserves file descriptors for the training, and refuses connections beyond that.

If connections used up all descriptors, the server could not open the next segment of its journal, and the training
would end.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import Any

from rekindle.errors import ConfigError

__all__ = ["GuardedSocket", "check_address", "listening", "raise_descriptor_limit"]

_BACKLOG = 256
_MOST_KEPT_BACK = 64
"""The most descriptors reserved for the files of the run."""


def raise_descriptor_limit() -> None:
    """Raise the soft limit on file descriptors to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class GuardedSocket(socket.socket):
    """Accepts connections while enough descriptors are left, and closes others at once."""

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # The kernel always assigns the lowest free number, so a number shows how many are in use.
        self._first_kept_back = soft - min(_MOST_KEPT_BACK, soft // 2)
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection; raises `ConnectionAbortedError` if it must be refused."""
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._refuse_without_descriptors()
            raise ConnectionAbortedError("no descriptors are left") from None
        if connection.fileno() >= self._first_kept_back:
            connection.close()
            raise ConnectionAbortedError("too few descriptors are left")
        return connection, address

    def _refuse_without_descriptors(self) -> None:
        """Free a descriptor to accept and close the connection, so that its client does not wait."""
        os.close(self._spare)
        try:
            super().accept()[0].close()
        except OSError:
            return  # it is gone, or another thread was faster
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Stop listening."""
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1
        super().close()


def listening(host: str, port: int) -> GuardedSocket:
    """A socket that listens on an address; raises `ConfigError`."""
    opened = _bound(host, port)
    try:
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise _refusal(host, port, error) from None
    return opened


def check_address(host: str, port: int) -> None:
    """Raise `ConfigError` if a server could not listen on an address; no client notices the check."""
    _bound(host, port).close()


def _bound(host: str, port: int) -> GuardedSocket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        opened = GuardedSocket(family)
    except OSError as error:
        raise _refusal(host, port, error) from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise _refusal(host, port, error) from None
    return opened


def _refusal(host: str, port: int, error: OSError) -> ConfigError:
    advice = "; use another port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else ""
    return ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}{advice}")

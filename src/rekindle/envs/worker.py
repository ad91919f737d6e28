"""The worker process: drives some environments through a connection until it closes."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from rekindle.envs.factory import ENV_ERRORS
from rekindle.envs.vector import LocalEnvs, error_text, failed, numbers_in

__all__ = ["GRACE", "IGNORED", "ignore_signals", "serve"]

GRACE = 5.0
"""Seconds that a worker gets to close its environments."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals to the whole process group; the parent decides when the worker ends."""


def ignore_signals() -> None:
    """Ignore these signals, which were blocked when this process started."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    # A process that an environment starts would ignore it too, so the environment could not terminate it.
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    pass


def serve(descriptor: int) -> None:
    """Answer calls until the parent closes the connection or dies."""
    ignore_signals()
    threading.Thread(target=_end_after, args=(descriptor,), name="rekindle-parent", daemon=True).start()
    connection = Connection(descriptor)
    host = _Host()
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            # Only the parent has the other end, so nobody else can send a pickle.
            call, *arguments = pickle.loads(connection.recv_bytes())  # noqa: S301
            try:
                answer = (True, getattr(host, call)(*arguments))
            except ENV_ERRORS as error:
                answer = (False, (error_text(error), traceback.format_exc()))
            connection.send(answer)
    host.close()


def _end_after(descriptor: int) -> None:
    """End this process some time after the parent has closed the connection, even if an environment hangs."""
    hung_up = select.poll()
    hung_up.register(descriptor, 0)
    hung_up.poll()
    time.sleep(GRACE)
    os._exit(1)


class _Host:
    """The calls that a worker answers."""

    _envs: LocalEnvs

    def make(self, factory: Any, num_envs: int, options: dict[str, Any]) -> tuple[Any, Any]:
        self._envs = LocalEnvs(factory, num_envs, **options)
        return self._envs.observation_space, self._envs.action_space

    def close(self) -> None:
        if hasattr(self, "_envs"):  # it may not have come so far
            self._envs.close()

    def step(self, actions: Any) -> tuple[Any, ...]:
        return tuple(self._envs.step(actions))

    # Only the numbers of an info are sent back: it may contain anything, including values that cannot be pickled.

    def reset_one(self, row: int, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, float]]:
        with self._explained(row, "reset"):
            observation, info = self._envs.one(row).reset(seed=seed, options=options)
            return observation, numbers_in(info)

    def step_one(self, row: int, action: Any) -> tuple[Any, Any, bool, bool, dict[str, float]]:
        with self._explained(row, "step"):
            observation, reward, terminated, truncated, info = self._envs.one(row).step(action)
            return observation, reward, terminated, truncated, numbers_in(info)

    def has_state(self, row: int) -> bool:
        return self._envs.one(row).has_state

    def get_state(self, row: int) -> Any:
        return self._envs.one(row).get_state()

    def set_state(self, row: int, state: Any) -> None:
        self._envs.one(row).set_state(state)

    @contextlib.contextmanager
    def _explained(self, row: int, what: str) -> Any:
        try:
            yield
        except ENV_ERRORS as error:
            raise failed(self._envs.name, self._envs.first_row + row, what, error) from error

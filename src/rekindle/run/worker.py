"""A thread with a queue; if the thread dies, waiting and later calls raise instead of waiting forever."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar, cast

from rekindle.errors import InputError, RunError
from rekindle.owner import Owner
from rekindle.priority import lower_priority

__all__ = ["Worker"]

T = TypeVar("T")
Result = TypeVar("Result")

_WAIT = 0.01
"""Seconds between two checks of a full queue."""


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.future: Future[Any] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self._function())
        except BaseException as error:  # the future passes it to the caller
            self.future.set_exception(error)


class Worker(Generic[T]):
    """Handles items in order on its own thread, which starts with the first item unless it naps.

    An exception from `handle` ends the thread: pending results raise it, and so does every later call. A forked child
    does not have the thread: there `put` and `call` raise, and `close` does nothing.
    """

    def __init__(self, name: str, handle: Callable[[T], None], *, capacity: int = 0, nap: float | None = None) -> None:
        """With `nap`, the thread starts now and looks for items every `nap` seconds: `put` need not wake it."""
        self._name, self._handle, self._nap = name, handle, nap
        self._capacity = capacity or math.inf
        self._queue: queue.SimpleQueue[T | _Call | None] = queue.SimpleQueue()  # `Queue` takes twice as long to wake
        self._failure: BaseException | None = None
        self._is_closed = False
        self._owner = Owner()
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        if nap is not None:
            self._thread.start()

    @property
    def backlog(self) -> int:
        """Items and calls in the queue."""
        return self._queue.qsize()

    def put(self, item: T) -> None:
        """Queue an item; waits while the queue is full."""
        self._put(item)

    def call(self, function: Callable[[], Result]) -> Future[Result]:
        """Call a function on the thread after everything queued before; the future gets what it raises."""
        call = _Call(function)
        self._put(call)
        return call.future

    def close(self) -> None:
        """End the thread after everything queued before; raises if an error ended it."""
        if not self._is_closed and self._owner.is_here:
            self._is_closed = True
            if self._thread.ident is not None:
                self._send(None)
                self._thread.join()
            self._check_alive()

    def _put(self, message: T | _Call) -> None:
        self._owner.check(f"the thread {self._name}")
        if self._is_closed:
            raise InputError(f"{self._name} is closed")
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        self._send(message)

    def _send(self, message: T | _Call | None) -> None:
        self._check_alive()
        while self._queue.qsize() >= self._capacity:
            time.sleep(_WAIT)
            self._check_alive()
        self._queue.put(message)
        if self._failure is not None:  # it may have died after it checked the queue for the last time
            self._refuse_the_rest(self._failure)
            self._check_alive()

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._ended(self._failure) from self._failure

    def _ended(self, failure: BaseException) -> RunError:
        return RunError(f"the thread {self._name} ended: {type(failure).__name__}: {failure}")

    # On the thread

    def _work(self) -> None:
        lower_priority()
        try:
            while (message := self._next()) is not None:
                if isinstance(message, _Call):
                    message.run()
                else:
                    self._handle(cast("T", message))
        except BaseException as error:  # whatever it was, no caller may wait for this thread any more
            self._failure = error
            self._refuse_the_rest(error)

    def _next(self) -> T | _Call | None:
        while self._nap is not None:
            try:
                return self._queue.get_nowait()
            except queue.Empty:
                time.sleep(self._nap)
        return self._queue.get()

    def _refuse_the_rest(self, failure: BaseException) -> None:
        while True:
            try:
                message = self._queue.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Call) and message.future.set_running_or_notify_cancel():
                message.future.set_exception(self._ended(failure))

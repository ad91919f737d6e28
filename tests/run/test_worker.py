"""A thread with a queue: items in order, and nobody waits for a thread that died."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from rekindle.errors import InputError, RunError
from rekindle.run.worker import Worker


def names_of_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_items_are_handled_in_order() -> None:
    handled: list[int] = []
    worker = Worker("numbers", handled.append)
    for item in range(100):
        worker.put(item)
    worker.close()
    assert handled == list(range(100))


def test_a_call_comes_after_what_was_put_before() -> None:
    handled: list[int] = []
    worker = Worker("numbers", handled.append)
    counts = []
    for item in range(3):
        counts.append(worker.call(lambda: len(handled)))
        worker.put(item)
    assert [count.result() for count in counts] == [0, 1, 2]
    worker.close()


def test_a_thread_that_naps_handles_items_and_calls_in_order_and_ends_at_close() -> None:
    handled: list[int] = []
    worker = Worker("numbers", handled.append, nap=0.001)
    worker.put(1)
    assert worker.call(lambda: list(handled)).result(timeout=60) == [1]
    worker.put(2)
    worker.close()
    assert handled == [1, 2]


def test_the_thread_starts_with_the_first_item_and_ends_at_close() -> None:
    worker = Worker("numbers that start late", lambda item: None)
    assert "numbers that start late" not in names_of_threads()
    worker.put(1)
    assert "numbers that start late" in names_of_threads()
    worker.close()
    assert "numbers that start late" not in names_of_threads()


def test_one_that_was_never_used_closes_without_a_thread() -> None:
    Worker("numbers", lambda item: None).close()


def test_what_a_call_raises_goes_to_its_caller_and_the_thread_goes_on() -> None:
    worker = Worker("numbers", lambda item: None)
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0).result()
    assert worker.call(lambda: 1).result() == 1
    worker.close()


def test_a_call_that_was_cancelled_is_left_out() -> None:
    gate, made = threading.Event(), []
    worker = Worker[int]("numbers", made.append)
    worker.call(gate.wait)
    call = worker.call(lambda: made.append(1))
    call.cancel()
    gate.set()
    worker.close()
    assert made == []
    with pytest.raises(CancelledError):
        call.result()


class Refusing:
    """Fails at the first item, once it is allowed to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.gate = threading.Event()

    def __call__(self, item: int) -> None:
        self.gate.wait()
        raise self.error


@pytest.mark.parametrize("error", [ValueError("bad item"), SystemExit("bad item"), KeyboardInterrupt("bad item")])
def test_a_thread_that_died_fails_the_calls_that_wait_and_all_that_follow(error: BaseException) -> None:
    handle = Refusing(error)
    worker = Worker("numbers", handle)
    worker.put(1)
    waiting = worker.call(lambda: None)
    handle.gate.set()
    died = rf"the thread numbers ended: {type(error).__name__}: bad item"
    with pytest.raises(RunError, match=died):
        waiting.result(timeout=60)
    with pytest.raises(RunError, match=died):
        worker.put(2)
    with pytest.raises(RunError, match=died):
        worker.call(lambda: None)
    with pytest.raises(RunError, match=died):
        worker.close()


def test_a_full_queue_of_a_thread_that_died_holds_nobody() -> None:
    handle = Refusing(ValueError("bad item"))
    worker = Worker("numbers", handle, capacity=1)
    worker.put(1)
    raised: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                worker.put(2)
        except RunError as error:
            raised.append(error)

    filling = threading.Thread(target=fill, daemon=True)
    filling.start()
    while worker.backlog < 1:
        pass
    handle.gate.set()
    filling.join(60)
    assert len(raised) == 1


def test_nothing_is_taken_after_close() -> None:
    worker = Worker("numbers", lambda item: None)
    worker.close()
    worker.close()
    with pytest.raises(InputError, match="numbers is closed"):
        worker.put(1)
    with pytest.raises(InputError, match="numbers is closed"):
        worker.call(lambda: None)

"""How much memory the process uses."""

import sys

import numpy as np
import pytest

from rekindle.run.memory import ProcessMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not report it")


def test_memory_that_is_taken_is_reported() -> None:
    memory = ProcessMemory()
    before = memory.resident()
    taken = np.ones(2**26, np.uint8)
    after = memory.resident()
    memory.close()

    assert before is not None
    assert after is not None
    assert after - before > taken.nbytes // 2


def test_after_closing_nothing_is_reported() -> None:
    memory = ProcessMemory()
    memory.close()
    memory.close()

    assert memory.resident() is None

"""How much memory the process uses."""

import subprocess
import sys

import pytest

from rekindle.run.memory import ProcessMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system does not report it")


PROGRAM = """
from rekindle.run.memory import ProcessMemory

memory = ProcessMemory()
before = memory.resident()
taken = b"\\1" * 2**26
print(memory.resident() - before > len(taken) // 2)
"""


def test_memory_that_is_taken_is_reported() -> None:
    # In a process of its own: the system may take memory away from this one, which is large, at any time.
    answer = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True).stdout
    assert answer == "True\n"


def test_after_closing_nothing_is_reported() -> None:
    memory = ProcessMemory()
    memory.close()
    memory.close()

    assert memory.resident() is None

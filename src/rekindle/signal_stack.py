"""A stack of its own for signal handlers.

A signal interrupts a thread between any two instructions, and the kernel saves the registers on the thread's stack, 128
bytes below what is in use. The matrix products of XLA on a CPU (jaxlib 0.10) keep numbers below that limit: about one
Ctrl-C in twenty during an update changed them, which crashed the process or changed the weights. With an alternate
stack, which Python's handlers use if there is one, a signal writes nothing to the stack of the thread.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading

__all__ = ["has_signal_stack", "use_signal_stack"]

_SIZE = 1 << 17
"""Bytes; the registers take at most 12 KiB, and Python's own handler little more."""
_DISABLED = 2
"""SS_DISABLE of the system's headers."""


class _Stack(ctypes.Structure):
    """The system's `stack_t`, on Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def use_signal_stack() -> None:
    """Let signals that reach the main thread use a stack of their own, unless they do.

    Call it on the main thread, to which the kernel delivers the signals of a process; elsewhere it does nothing.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread() or has_signal_stack():
        return
    memory = mmap.mmap(-1, _SIZE)
    first = ctypes.c_char.from_buffer(memory)
    if _call(ctypes.byref(_Stack(ctypes.addressof(first), 0, _SIZE)), None) == 0:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(first))  # never freed: a signal may come until the very end


def has_signal_stack() -> bool:
    """Whether signals that reach the current thread use a stack of their own."""
    found = _Stack(None, _DISABLED, 0)
    return _call(None, ctypes.byref(found)) == 0 and not found.flags & _DISABLED


def _call(new: object, old: object) -> int:
    return ctypes.CDLL(None).sigaltstack(new, old)

"""One BLAS thread: how numpy adds up a product of matrices may depend on the number of threads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["ENVIRONMENT", "one_thread"]

ENVIRONMENT: Mapping[str, str] = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""The environment variables of a process with one BLAS thread; they count only when it starts."""

_PREFIXES, _SUFFIXES = ("", "scipy_"), ("", "64_", "_64", "64")


@contextlib.contextmanager
def one_thread() -> Generator[bool]:
    """Set numpy to one BLAS thread in this process; returns False if its BLAS does not support that."""
    found = _thread_counts()
    before = [get() for get, _ in found]
    for _, put in found:
        put(1)
    try:
        yield bool(found)
    finally:
        for count, (_, put) in zip(before, found, strict=True):
            put(count)


def _thread_counts() -> list[tuple[Any, Any]]:
    """The functions of each OpenBLAS in this process that get and set its number of threads."""
    found: list[tuple[Any, Any]] = []
    for path in _libraries():
        try:
            library = ctypes.CDLL(path)
        except OSError:  # the file was replaced since it was loaded
            continue
        for name in (f"{prefix}openblas_%s_num_threads{suffix}" for prefix in _PREFIXES for suffix in _SUFFIXES):
            get, put = (getattr(library, name % verb, None) for verb in ("get", "set"))
            if get is not None and put is not None:
                found.append((get, put))
                break
    return found


def _libraries() -> list[str]:
    """The files of OpenBLAS that this process has loaded."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[-1] for line in lines if "openblas" in line}
    return sorted(path for path in paths if path.startswith("/"))

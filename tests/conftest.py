"""Timing decides no test: a machine may be busy. What JAX compiles is kept, as many tests compile the same."""

import os
import tempfile

from hypothesis import settings

settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")

# A directory for each process of pytest, as JAX does not write to it atomically.
COMPILED = tempfile.TemporaryDirectory(prefix="rekindle-compiled-")
os.environ |= {
    "JAX_COMPILATION_CACHE_DIR": COMPILED.name,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
}

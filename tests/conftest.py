"""Timing decides no test: a machine may be busy. What JAX compiles is kept, as many tests compile the same."""

import os
import signal
import tempfile

from hypothesis import settings

settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")

# One directory for all processes of pytest, and for those that they start: the first one makes it.
if "REKINDLE_COMPILED" not in os.environ:
    COMPILED = tempfile.TemporaryDirectory(prefix="rekindle-compiled-")
    os.environ["REKINDLE_COMPILED"] = COMPILED.name

# `nohup make test` ignores SIGHUP, and so would the processes that tests send it to.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

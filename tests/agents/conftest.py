"""Tests compile many small functions and run each a few times, so quick compilation counts and quick code does not."""

import os

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

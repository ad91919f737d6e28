"""How agents are compiled in tests, and what was compiled."""

import os
from collections.abc import Iterator

import pytest

# Tests compile many small functions and run each a few times, so quick compilation counts and quick code does not.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """What was compiled since it was last cleared."""
    import jax

    seen: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)

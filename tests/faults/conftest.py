"""Fixtures of the fault tests: see `harness`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path

import pytest
from harness import ForkServer, Training

import rekindle


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    server = ForkServer()
    yield server
    server.close()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A place in memory where there is one: a killed process does not care, and hundreds of trainings are quicker."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as directory:
        yield Path(directory)


@pytest.fixture
def trainings(scratch: Path, server: ForkServer) -> Callable[[], Training]:
    """Makes trainings, each at a place of its own."""
    numbers = count()
    return lambda: Training(scratch / f"training_{next(numbers)}", server)


@pytest.fixture
def training(trainings: Callable[[], Training]) -> Training:
    return trainings()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, server: ForkServer) -> Training:
    """A training that nothing ever happened to; not to be changed."""
    training = Training(tmp_path_factory.mktemp("undisturbed"), server)
    ended = training.fork()
    assert ended.code == 0, ended.errors
    return training


@pytest.fixture(scope="session")
def reference(undisturbed: Training) -> Mapping[str, str | None]:
    """The digests that every training must end with."""
    found = rekindle.verify(undisturbed.run)
    assert found.ok
    return found.digests

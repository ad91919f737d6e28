"""Fixtures of the fault tests: see `harness`."""

from __future__ import annotations

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
def trainings(tmp_path: Path, server: ForkServer) -> Callable[[], Training]:
    """Makes trainings, each at a place of its own."""
    numbers = count()
    return lambda: Training(tmp_path / f"training_{next(numbers)}", server)


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

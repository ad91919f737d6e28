"""Environments for users, each built once for all processes of pytest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from users import User, built_wheel, install, only_one

MORE = ("onnxruntime", "nbclient", "ipykernel")


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """The directory of the environments, which all processes share."""
    own = tmp_path_factory.getbasetemp()
    shared = (own if worker_id == "master" else own.parent) / "environments"
    shared.mkdir(exist_ok=True)
    return shared


@pytest.fixture(scope="session")
def installed(environments: Path) -> Callable[..., Path]:
    """A function that returns an environment with the built wheel, with extras, and other packages."""

    def environment(name: str, extras: str, *packages: str) -> Path:
        path = environments / name
        with only_one(environments / f"{name}.lock"):
            if not (path / "home").exists():
                (wheels := environments / f"{name}-wheel").mkdir(exist_ok=True)
                install(path, f"{built_wheel(wheels)}[{extras}]", *packages)
        return path

    return environment


@pytest.fixture
def user(installed: Callable[..., Path], tmp_path: Path) -> User:
    """A user with `rekindle-rl[agents]`."""
    return User(installed("agents", "agents"), tmp_path)


@pytest.fixture
def equipped_user(installed: Callable[..., Path], tmp_path: Path) -> User:
    """A user with extras, onnxruntime and what runs notebooks."""
    return User(installed("equipped", "agents,onnx,plot", *MORE), tmp_path)

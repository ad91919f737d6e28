"""The examples in the docstrings are right."""

import doctest
import importlib
import linecache
import pkgutil

import pytest

import rekindle

MODULES = ["rekindle", *(module.name for module in pkgutil.walk_packages(rekindle.__path__, prefix="rekindle."))]


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("__main__")])
def test_the_examples_in_the_docstrings_are_right(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "rekindle":
            raise
        pytest.skip(f"{name} needs {error.name}")
    linecache.clearcache()  # classes that SQLAlchemy has generated leave it while doctest goes through it
    results = doctest.testmod(module)
    assert results.failed == 0


def test_the_examples_are_found() -> None:
    counts = [doctest.DocTestFinder().find(importlib.import_module(f"rekindle.{name}")) for name in ("rng", "stats")]
    assert all(any(found.examples for found in tests) for tests in counts)

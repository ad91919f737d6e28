"""How environments are sent to other processes."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

from rekindle.errors import ConfigError

__all__ = ["pickled_by_value", "unpickled"]


def pickled_by_value(value: Any, instead: str) -> bytes:
    """Pickle with the code of functions that another process cannot import, such as a lambda.

    `instead` is what to do if it cannot be pickled, for the `ConfigError`.
    """
    cloudpickle: Any = importlib.import_module("cloudpickle")
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # an object of the user may raise anything
        raise ConfigError(
            f"what creates the environment cannot be sent to another process: {error}. Create such objects inside of "
            f"it, or use {instead}"
        ) from error


def unpickled(data: bytes) -> Any:
    """What `pickled_by_value` has made, in another process; raises `ConfigError`.

    Only for bytes that come from the process of the learner.
    """
    try:
        return pickle.loads(data)  # noqa: S301
    except Exception as error:  # importing a module may raise anything
        raise ConfigError(
            f"what creates the environment cannot be loaded in a worker process: {type(error).__name__}: {error}"
        ) from error

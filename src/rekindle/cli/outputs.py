"""Files that a command writes for its user."""

from __future__ import annotations

import os
from pathlib import Path

from rekindle.errors import StorageError

__all__ = ["write_output"]


def write_output(output: Path, data: bytes) -> None:
    """Write a file whole or not at all; one that is there is replaced."""
    building = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        building.write_bytes(data)
        building.replace(output)
    except OSError as error:
        building.unlink(missing_ok=True)
        raise StorageError(f"cannot write {output}: {error.strerror}") from error

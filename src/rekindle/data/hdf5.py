"""HDF5 files from anywhere: only arrays of numbers in the file itself are read."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import numpy as np

from rekindle.errors import DataError, MissingExtra
from rekindle.experience import Array
from rekindle.text import install_command

__all__ = ["Hdf5", "load_h5py"]

_FILTERS = {1: "gzip", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
"""The filters that HDF5 and h5py contain; any other would load a library."""
_MOST_COMPRESSED = 1_100
"""The largest ratio of an array and its bytes in the file; gzip reaches about 1,000."""
_EMPTY = 2**26


def load_h5py() -> Any:
    """The library; raises `MissingExtra`."""
    try:
        return importlib.import_module("h5py")
    except ModuleNotFoundError as error:
        raise MissingExtra(f"HDF5 files need h5py: {install_command('data')}", name=error.name) from error


class Hdf5:
    """An HDF5 file that is open for reading.

    Links to other files, arrays that are stored in other files, and values that are not numbers are refused.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._h5py = load_h5py()
        with self.reading("the file"):
            self._file = self._h5py.File(path, "r")
        self._group: tuple[str, Any] = ("", self._file)
        """The group that was looked up last, and its name: several arrays of a group are read in a row."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @contextlib.contextmanager
    def reading(self, field: str) -> Generator[None]:
        """Convert the errors of the library; it raises various kinds of them for damaged files."""
        try:
            yield
        except (OSError, KeyError, RuntimeError, ValueError, TypeError, AttributeError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self.path}: {field} cannot be read, the file may be damaged: {reason}") from None

    def keys(self, group: str = "/") -> list[str]:
        """The names in a group, in the order of the file; empty if there is no such group."""
        with self.reading(group):
            found = self._item(group)
            # A name that is not UTF-8 comes as bytes; none of the names that are read is one.
            return [str(name) for name in found] if isinstance(found, self._h5py.Group) else []

    def is_group(self, name: str) -> bool:
        """Whether there is a group of this name."""
        with self.reading(name):
            return isinstance(self._item(name), self._h5py.Group)

    def attribute(self, name: str, key: str) -> Any:
        """An attribute of a group; None if there is none."""
        with self.reading(f"{name}: {key}"):
            item = self._item(name)
            value: Any = None if item is None else item.attrs.get(key)
            return cast("Any", value.item()) if isinstance(value, np.generic) else value

    def array(self, name: str) -> Any:
        """An array that is read by slicing; None if there is none. Raises `DataError` for anything but numbers."""
        with self.reading(name):
            item = self._item(name)
            if item is None:
                return None
            if not isinstance(item, self._h5py.Dataset):
                raise DataError(f"{self.path}: {name} is a group, not an array")
            self._check(item, name)
            return item

    def rows(self, array: Any, name: str, first: int = 0, end: int | None = None) -> Array:
        """Rows of an array that `array` returned."""
        with self.reading(name):
            return np.asarray(array[first:end])

    def _item(self, name: str) -> Any:
        """A group or array, reached through hard links only; None if there is none."""
        above, _, part = name.strip("/").rpartition("/")
        if not part:
            return self._file
        if above != self._group[0]:
            self._group = (above, self._item(above) if above else self._file)
        group = self._group[1]
        if not isinstance(group, self._h5py.Group):
            return None
        links, key = group.id.links, part.encode()
        if not links.exists(key):
            return None
        if links.get_info(key).type != self._h5py.h5l.TYPE_HARD:
            raise DataError(f"{self.path}: {name} is a link to another place, which is not followed")
        return group[part]

    def _check(self, item: Any, name: str) -> None:
        plan = item.id.get_create_plist()
        if item.dtype.kind not in "biuf":
            raise DataError(f"{self.path}: {name} has the dtype {item.dtype}, not numbers; objects are never loaded")
        if item.is_virtual or plan.get_external_count():
            raise DataError(f"{self.path}: {name} is stored in another file, which is not opened")
        unknown = [code for index in range(plan.get_nfilters()) if (code := plan.get_filter(index)[0]) not in _FILTERS]
        if unknown:
            known = ", ".join(_FILTERS.values())
            raise DataError(f"{self.path}: {name} is compressed by the filter {unknown[0]}; known are {known}")
        if item.shape is None:
            raise DataError(f"{self.path}: {name} has no rows")
        stored = item.id.get_storage_size()
        if item.nbytes > _EMPTY + _MOST_COMPRESSED * stored:
            raise DataError(f"{self.path}: {name} declares {item.nbytes} bytes, but {stored} are stored")

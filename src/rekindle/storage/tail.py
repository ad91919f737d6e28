"""Follow a log that another process appends to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from rekindle.errors import LogCorrupt
from rekindle.storage.files import opened, read_all
from rekindle.storage.logs import check_rows

__all__ = ["LogTail"]
_LONGEST_ROW = 2**26
"""The most bytes in a row, for a reader that reads a log in parts."""


class LogTail:
    """Follows a log that another process appends to, without disturbing it or reading anything twice.

    >>> import tempfile
    >>> from rekindle.storage.logs import JsonLines
    >>> path = Path(tempfile.mkdtemp()) / "log.jsonl"
    >>> log, tail = JsonLines(path), LogTail(path)
    >>> log.append({"loss": 1.0})
    >>> tail.poll()
    ([{'row': 0, 'loss': 1.0}], False)
    >>> tail.poll()
    ([], False)
    >>> log.close()
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._restart()

    def _restart(self) -> None:
        self._offset = self._rows = 0
        self._last = b""

    @property
    def position(self) -> int:
        """Bytes of the log that have been read."""
        return self._offset

    def poll(self, most_bytes: int = -1) -> tuple[list[dict[str, Any]], bool]:
        """Read new rows; also returns whether a resume truncated the log, in which case rows start again from row 0.

        With `most_bytes`, a long log is read in parts: call until there are no rows. A longer row is read completely.
        """
        with opened(self.path) as file:
            if file is None:
                return [], False
            data = self._read(file, most_bytes)
            # The last line read must still be there, byte for byte (every row has its own wall time).
            rewound = not data.startswith(self._last)
            if rewound:
                self._restart()
                data = self._read(file, most_bytes)
        new = data[len(self._last) :]
        rows = check_rows(self.path, new, first=self._rows)
        complete = new.rfind(b"\n") + 1
        if rows:
            self._last = new[new.rfind(b"\n", 0, complete - 1) + 1 : complete]
            self._offset += complete
            self._rows += len(rows)
        return rows, rewound

    def _read(self, file: BinaryIO, most_bytes: int) -> bytes:
        file.seek(self._offset - len(self._last))
        if most_bytes < 0:
            return read_all(self.path, file)
        data = file.read(len(self._last) + most_bytes)
        if data.count(b"\n") <= bool(self._last):
            data += file.readline(_LONGEST_ROW)
            if len(data) > _LONGEST_ROW:
                raise LogCorrupt(f"{self.path}: row {self._rows} takes more than {_LONGEST_ROW} bytes")
        return data

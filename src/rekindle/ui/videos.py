"""Videos in a run directory, as `rekindle eval RUN --video RUN/videos` writes them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from rekindle.storage import files

__all__ = ["MEDIA_TYPES", "MOST_BYTES", "Video", "list_videos"]

MEDIA_TYPES = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif"}
MOST_BYTES = 64 * 2**20
"""The largest video, in bytes, that is shown."""


class Video(msgspec.Struct, frozen=True):
    """One file."""

    path: Path
    modified: float
    """Seconds since 1970."""


def list_videos(run_path: Path) -> list[Video]:
    """The videos of a run that can be shown, newest last; those with `best` in their names come after the others."""
    found: list[Video] = []
    for directory in (run_path, run_path / "videos"):
        if not directory.is_dir() or directory.is_symlink():
            continue
        for path in files.entries(directory):
            status = os.stat(path, follow_symlinks=False)
            if path.suffix in MEDIA_TYPES and stat.S_ISREG(status.st_mode) and 0 < status.st_size <= MOST_BYTES:
                found.append(Video(path, status.st_mtime))
    return sorted(found, key=lambda video: ("best" in video.path.name, video.modified, video.path))

"""Files on disk: atomic files, logs, the lock and the `.mpk` format. All calls of `fsync` are in this package."""

__all__: list[str] = []

"""Files on disk: atomic files, logs, the lock and the `.mpk` format. Every `fsync` of rekindle stands here."""

__all__: list[str] = []

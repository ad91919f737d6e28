"""A cache of compiled XLA code on disk, so that the next start does not compile again.

JAX has a cache too, but does not write its files atomically: a killed process leaves half a file, and another process
may read one. Here every entry has a digest, and a damaged entry is compiled again. Code from the cache is identical to
newly compiled code, so results are bit-identical.
"""

# JAX's cache has no public interface, and its own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
import secrets
import stat
from pathlib import Path

import jax
from jaxlib.version import __version__ as jaxlib_version

from rekindle.storage.user_cache import user_cache

__all__ = ["CompiledCode", "keep_compiled_code"]

logger = logging.getLogger("rekindle")

_MOST_BYTES = 256 << 20
"""If the entries exceed this size, the oldest are removed until half of it is left."""
_DIGEST = 16


def keep_compiled_code() -> None:
    """Use the cache for everything that this process compiles.

    Set the environment variable `REKINDLE_COMPILED` to another directory, or to `off`. If you set a directory for JAX's
    own cache, JAX's cache is used instead.
    """
    chosen = os.environ.get("REKINDLE_COMPILED")
    if chosen == "off" or getattr(jax.config, "jax_compilation_cache_dir", None) is not None:
        return
    root = Path(chosen) if chosen else user_cache() / "compiled"
    cache = CompiledCode.opened(root / _machine())
    if cache is None:
        return
    try:
        from jax._src import compilation_cache as jax_cache

        if jax_cache._cache_initialized:
            return
        jax_cache._cache, jax_cache._cache_initialized = cache, True
    except (ImportError, AttributeError):  # a version of JAX with other internals: compile without the cache
        logger.debug("compiled code is not cached: this version of JAX has another cache interface", exc_info=True)
        return
    jax.config.update("jax_compilation_cache_dir", str(cache.path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


class CompiledCode:
    """A directory of compiled code, as JAX's `CacheInterface`."""

    def __init__(self, path: Path) -> None:
        self.path = self._path = path

    @classmethod
    def opened(cls, path: Path) -> CompiledCode | None:
        """Open the cache, and create its directory if necessary; None if it cannot be used.

        Its contents are executed, so no other user may be able to write to it.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = path.stat()
        except OSError as error:
            logger.debug("compiled code is not kept: %s", error)
            return None
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            logger.warning("%s belongs to or can be written by others: compiled code is not kept there", path)
            return None
        cache = cls(path)
        cache.remove_oldest(_MOST_BYTES)
        return cache

    def get(self, key: str) -> bytes | None:
        """An entry; None if it is missing or damaged."""
        file = self.path / key
        try:
            data = file.read_bytes()
        except OSError:
            return None
        digest, value = data[:_DIGEST], data[_DIGEST:]
        if hashlib.blake2b(value, digest_size=_DIGEST).digest() == digest:
            with contextlib.suppress(OSError):
                os.utime(file)  # mark it as recently used
            return value
        with contextlib.suppress(OSError):
            file.unlink()
        return None

    def put(self, key: str, value: bytes) -> None:
        """Add an entry; if it cannot be written, the code is compiled again next time."""
        temporary = self.path / f".{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(hashlib.blake2b(value, digest_size=_DIGEST).digest() + value)
            temporary.replace(self.path / key)
        except OSError as error:
            logger.debug("compiled code is not kept: %s", error)
            with contextlib.suppress(OSError):
                temporary.unlink()

    def remove_oldest(self, most: int) -> None:
        """If the entries exceed `most` bytes, remove the oldest until at most half of that is left."""
        try:
            with os.scandir(self.path) as entries:
                statuses = [(entry.stat(), entry.path) for entry in entries]
        except OSError:  # another process removes entries
            return
        found = sorted((status.st_mtime, status.st_size, file) for status, file in statuses)
        left = sum(size for _, size, _ in found)
        if left <= most:
            return
        for _, size, file in found:
            if left <= most // 2:
                break
            with contextlib.suppress(OSError):
                os.unlink(file)
            left -= size


def _machine() -> str:
    """A name for the kind of machine, because several machines may share the directory."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    text = "\n".join((platform.machine(), features, jax.__version__, jaxlib_version))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

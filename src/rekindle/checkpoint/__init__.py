"""Checkpoints: the store, which checkpoints to keep, and the replay journal."""

from rekindle.checkpoint.retention import (
    CheckpointInfo,
    KeepAny,
    KeepBest,
    KeepEvery,
    KeepLast,
    RetentionPolicy,
)
from rekindle.checkpoint.store import Checkpoint, CheckpointStore, read_agent_state
from rekindle.storage.codec import decode, encode, read_file, tree_digest

__all__ = [
    "Checkpoint",
    "CheckpointInfo",
    "CheckpointStore",
    "KeepAny",
    "KeepBest",
    "KeepEvery",
    "KeepLast",
    "RetentionPolicy",
    "decode",
    "encode",
    "read_agent_state",
    "read_file",
    "tree_digest",
]

"""Replay buffers and rollouts: how agents store past transitions."""

from rekindle.replay.batches import Batch, TransitionSource, mixed
from rekindle.replay.memory import Appended, Memory
from rekindle.replay.priorities import Priorities, PrioritizedMemory
from rekindle.replay.ring import Ring
from rekindle.replay.rollout import Advantages, Rollout, Steps

__all__ = [
    "Advantages",
    "Appended",
    "Batch",
    "Memory",
    "Priorities",
    "PrioritizedMemory",
    "Ring",
    "Rollout",
    "Steps",
    "TransitionSource",
    "mixed",
]

"""The session: coordinates an agent with whatever loop the host has, and owns none itself."""

from rekindle.session.session import TrainingSession
from rekindle.session.stream import Stream

__all__ = ["Stream", "TrainingSession"]

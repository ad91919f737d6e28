"""The session: connects an agent with a loop that the host owns."""

from rekindle.session.session import TrainingSession
from rekindle.session.stream import Stream

__all__ = ["Stream", "TrainingSession"]

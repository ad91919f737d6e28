"""Clients of a session server, for programs on any machine: numpy, msgspec and websockets are all they need."""

from rekindle.client.blocking import Client

__all__ = ["Client"]

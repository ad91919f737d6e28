"""Clients of a session server, for programs on any machine. They need only numpy, msgspec and websockets."""

from rekindle.client.asynchronous import AsyncClient
from rekindle.client.blocking import Client
from rekindle.client.conversation import OpenEpisode
from rekindle.client.gym import GymClient, Played

__all__ = ["AsyncClient", "Client", "GymClient", "OpenEpisode", "Played"]

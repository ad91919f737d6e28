"""Clients of a session server, for programs on any machine: numpy, msgspec and websockets are all they need."""

from rekindle.client.asynchronous import AsyncClient
from rekindle.client.blocking import Client
from rekindle.client.conversation import OpenEpisode
from rekindle.client.gym import GymClient, Played

__all__ = ["AsyncClient", "Client", "GymClient", "OpenEpisode", "Played"]

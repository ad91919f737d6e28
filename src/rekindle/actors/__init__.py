"""Actors: parallel environments whose transitions do not depend on where they run."""

from __future__ import annotations

from rekindle.actors.actor import LogicalActor
from rekindle.actors.casting import Cast, Crew
from rekindle.actors.here import ActorsHere
from rekindle.actors.processes import ActorProcesses
from rekindle.actors.rounds import ActorEnd, ActorStart, Order, Played, RoundArrays, RoundShape

__all__ = [
    "ActorEnd",
    "ActorProcesses",
    "ActorStart",
    "ActorsHere",
    "Cast",
    "Crew",
    "LogicalActor",
    "Order",
    "Played",
    "RoundArrays",
    "RoundShape",
]

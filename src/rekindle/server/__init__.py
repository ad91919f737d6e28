"""Training sessions over a socket, for game engines and other programs that own their loop.

`SessionServer` and `rekindle serve` use the protocol of `rekindle.client`; `GodotServer` uses that of Godot RL Agents.
"""

from rekindle.server.godot import GodotServer, serve_godot
from rekindle.server.options import ServerOptions
from rekindle.server.pages import Page
from rekindle.server.server import SessionServer, serve

__all__ = ["GodotServer", "Page", "ServerOptions", "SessionServer", "serve", "serve_godot"]

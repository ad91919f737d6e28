"""Training sessions over a socket, for game engines and other programs that own their loop."""

from rekindle.server.godot import GodotServer, serve_godot

__all__ = ["GodotServer", "serve_godot"]

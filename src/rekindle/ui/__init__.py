"""Show runs in a terminal, in a report or in a browser. All of them only read run directories."""

__all__: list[str] = []

"""Ways to look at runs; each reads only run directories, so that it works for any loop, live or not."""

__all__: list[str] = []

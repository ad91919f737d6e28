"""Looking at runs: in a terminal, in a report, in a browser. All of it reads run directories only."""

__all__: list[str] = []

"""`rekindle dashboard`: serve a web page with the runs below a directory."""

from __future__ import annotations

from pathlib import Path

from rekindle.errors import MissingExtra, RunError
from rekindle.text import install_command
from rekindle.ui.output import complain

__all__ = ["show_dashboard"]


def show_dashboard(directory: Path, *, port: int, host: str) -> int:
    """Serve the dashboard until Ctrl-C."""
    if not directory.is_dir():
        raise RunError(f"{directory} is not a directory; pass the directory of the runs: rekindle dashboard DIR")
    try:
        from rekindle.ui.dashboard import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "rekindle":
            raise
        message = f"the dashboard needs {error.name}: {install_command('dashboard')}"
        raise MissingExtra(message, name=error.name) from None

    serve(directory, host=host, port=port, announce=lambda address: _announce(address, directory))
    complain("the dashboard has ended; trainings continue")
    return 0


def _announce(address: str, directory: Path) -> None:
    complain(f"runs in {directory}; Ctrl-C ends it")
    print(address, flush=True)

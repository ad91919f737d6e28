from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from node import CLIENT


@pytest.fixture(scope="session")
def static(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the page, as they are served."""
    directory = tmp_path_factory.mktemp("static") / "static"
    shutil.copytree(CLIENT.parents[1] / "game/static", directory)
    shutil.copy(CLIENT, directory / "client.js")
    (directory / "package.json").write_text('{"type": "module"}')
    return directory

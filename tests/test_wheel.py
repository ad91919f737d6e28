"""What is built for users holds everything that the package needs."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "rekindle"


@pytest.mark.slow
def test_the_wheel_has_every_file_of_the_package(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="needs hatchling")
    copy = tmp_path / "copy"
    shutil.copytree(PACKAGE, copy / "src" / "rekindle", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("rekindle/")}
    files = [path for path in (copy / "src").rglob("*") if path.is_file()]
    assert packed == {path.relative_to(copy / "src").as_posix() for path in files}

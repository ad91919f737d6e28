"""What users install: its name, its extras, and the hints that name them."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from rekindle.text import install_command

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
NOT_FOR_USERS = {"all", "dev", "docs", "peers", "torch"}
BY_NAME_ONLY = {"minatar"}
"""Extras with a licence that users choose themselves."""
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "src").rglob("*.py"))]


def extras_in(requirements: list[str]) -> set[str]:
    """The extras of our own that requirements name."""
    named = [re.fullmatch(r"rekindle-rl\[(.*)\]", requirement) for requirement in requirements]
    return {extra for match in named if match for extra in match[1].split(",")}


def test_it_is_distributed_under_a_name_that_pypi_has_free() -> None:
    assert PROJECT["name"] == "rekindle-rl"


def test_no_hint_names_the_package_of_somebody_else() -> None:
    wrong = re.compile(r"pip install[^\n]{0,20}[ '\"]rekindle(?![-\w])|rekindle\[\w")
    assert [str(path.relative_to(ROOT)) for path in TEXTS if wrong.search(path.read_text("utf-8"))] == []


def test_every_extra_that_a_hint_names_exists() -> None:
    named = {
        extra
        for path in TEXTS
        for found in re.findall(r"rekindle-rl\[([\w,]+)\]", path.read_text("utf-8"))
        for extra in found.split(",")
    }
    assert named
    assert named <= EXTRAS.keys()
    assert install_command("ui") == 'pip install "rekindle-rl[ui]"'


def test_all_has_every_extra_for_users() -> None:
    assert extras_in(EXTRAS["all"]) == EXTRAS.keys() - NOT_FOR_USERS - BY_NAME_ONLY
    assert EXTRAS.keys() - {"all", "dev"} <= extras_in(EXTRAS["dev"])


def built(kind: str, target: Path) -> Path:
    pytest.importorskip("hatchling", reason="needs hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.mark.slow
def test_a_built_wheel_can_be_installed_and_runs(tmp_path: Path) -> None:
    wheel = built("wheel", tmp_path)
    assert wheel.name.startswith("rekindle_rl-")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (entry_points,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    assert "rekindle = rekindle.cli:main" in entry_points.read_text()
    program = (
        "import rekindle, sys; assert 'site' in rekindle.__file__; from rekindle.cli import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", program, "--version"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(tmp_path / "site")}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("rekindle ")


@pytest.mark.slow
def test_a_built_source_distribution_has_the_sources_and_the_tests(tmp_path: Path) -> None:
    with tarfile.open(built("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"src/rekindle/__init__.py", "pyproject.toml", "README.md", "tests/test_distribution.py"} <= names


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "constraints"), [("wheel", "constraints-oldest.txt"), ("sdist", "constraints.txt")])
def test_it_trains_with_the_oldest_and_the_newest_dependencies(tmp_path: Path, kind: str, constraints: str) -> None:
    archive = built(kind, tmp_path)
    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty/bin/python"
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / constraints, archive]
    subprocess.run(install, check=True, capture_output=True)
    train = ["train", "tabular", "FrozenLake-v1", "--steps", "2000", "--ui", "none"]
    for arguments in (train, ["verify", "runs/tabular-FrozenLake-v1"], ["show", "runs/tabular-FrozenLake-v1"]):
        command = [tmp_path / "empty/bin/rekindle", *arguments]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_oldest_versions_are_those_of_the_ranges() -> None:
    oldest = dict(
        line.split("==") for line in (ROOT / "constraints-oldest.txt").read_text().splitlines() if "==" in line
    )
    for requirement in PROJECT["dependencies"]:
        match = re.fullmatch(r"([\w-]+)>=([\d.]+),<[\d.]+", requirement)
        assert match is not None, requirement
        assert oldest[match[1]].startswith(match[2])

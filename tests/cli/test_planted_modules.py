"""Modules that lie in the working directory, as in a downloaded run, are imported only if the user names them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rekindle import RunReader
from rekindle.training import Trainer

LIBRARIES = (
    *("ale_py", "cloudpickle", "equinox", "gymnasium", "jax", "matplotlib", "msgspec", "numpy", "optax", "rich"),
    *("textual", "tyro", "yaml", "IPython", "libtpu", "tomli_w", "attr", "cv2", "pygame", "moviepy"),
)
SCRIPT = "import sys; from rekindle.cli import main; sys.exit(main())"
"""What the console script does."""
WITHOUT_ATARI = f"""
import sys
from importlib.machinery import PathFinder

class NotInstalled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "ale_py":
            found = PathFinder.find_spec(name, [entry for entry in sys.path if "site-packages" not in entry])
            if found is None:
                raise ModuleNotFoundError("No module named 'ale_py'", name="ale_py")
            return found

sys.meta_path.insert(0, NotInstalled)
{SCRIPT}
"""


def standard_modules() -> list[str]:
    """The standard library, but for what `python -m` itself imports before it runs a line of ours."""
    program = "import runpy, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    return sorted(sys.stdlib_module_names - set(loaded.stdout.split()))


def plant(directory: Path, *names: str) -> Path:
    """Put modules there that leave a mark when they are imported; returns where."""
    mark = directory / "imported"
    code = f"open({str(mark)!r}, 'a').write(__name__ + chr(10))\n"
    for name in names:
        (directory / f"{name}.py").write_text(code)
    plugin = directory / "jax_plugins" / "planted"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(code)
    return mark


def make_run(root: Path, *, steps: int = 60) -> Path:
    Trainer("FrozenLake-v1", "tabular", name="lake", root=root, steps=steps, eval_episodes=1).train()
    return RunReader(root / "lake").path


@pytest.fixture(scope="module")
def planted_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with hostile modules in it, and where they leave their marks."""
    path = make_run(tmp_path_factory.mktemp("downloaded"))
    # All of the standard library too: what a new interpreter has not imported yet is looked for as anything else is.
    return path, plant(path, *LIBRARIES, *standard_modules())


def run_in(directory: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command there; the package is found where this process finds it."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": _absolute_path(), "COLUMNS": "80", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def _absolute_path() -> str:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(os.path.abspath(entry) for entry in entries if entry)


COMMANDS = [
    ("show", "."),
    ("runs", "."),
    ("compare", "."),
    ("verify", "."),
    ("report", ".", "-o", "report.html"),
    ("plot", ".", "-o", "plot.svg"),
    ("stop", "."),
    ("watch", "."),
    ("eval", ".", "--episodes", "1"),
    ("export", ".", "-o", "policy.mpk"),
    ("fork", ".", "-o", "branch", "--steps", "80", "--ui", "plain"),
    ("resume", ".", "--steps", "80", "--ui", "plain"),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize("start", [("-m", "rekindle"), ("-P", "-c", SCRIPT)], ids=["module", "script"])
def test_no_command_imports_what_lies_in_a_run(
    planted_run: tuple[Path, Path], command: tuple[str, ...], start: tuple[str, ...]
) -> None:
    path, mark = planted_run
    done = run_in(path, *start, *command)
    imported = mark.read_text().split() if mark.exists() else []
    mark.unlink(missing_ok=True)
    assert imported == []
    assert "Traceback" not in done.stderr
    assert done.returncode == {"stop": 1, "export": 2}.get(command[0], 0), done.stderr


def rewritten(path: Path, **changes: Any) -> None:
    config = json.loads((path / "config.json").read_text())
    config["env"].update(changes)
    (path / "config.json").write_text(json.dumps(config))
    metadata = json.loads((path / "metadata.json").read_text())
    metadata["training"]["env"].update(changes)
    (path / "metadata.json").write_text(json.dumps(metadata))


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("eval", "."), ("export", ".", "-o", "policy.mpk"), ("resume", ".", "--steps", "80")]
)
@pytest.mark.parametrize("path_first", ["-P", "-E"], ids=["script", "with the working directory on the path"])
def test_an_atari_id_does_not_import_a_planted_library(
    tmp_path: Path, command: tuple[str, ...], path_first: str
) -> None:
    path = make_run(tmp_path)
    rewritten(path, id="ALE/Pong-v5")
    mark = plant(path, "ale_py")
    program = f"import sys; sys.path[:0] = {_absolute_path().split(os.pathsep)}\n{WITHOUT_ATARI}"
    done = run_in(path, path_first, "-c", program, *command)
    assert not mark.exists()
    assert done.returncode == 1
    assert "ALE/Pong-v5 needs a library that is not installed" in done.stderr
    assert "[atari]" in done.stderr


def test_a_module_that_the_user_names_is_not_taken_from_a_run(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    rewritten(path, modules=["env_library"])
    mark = plant(path, "env_library")
    done = run_in(path, "-P", "-c", SCRIPT, "eval", ".", "--env-module", "env_library")
    assert not mark.exists()
    assert done.returncode != 0
    assert "env_library" in done.stderr


def test_the_working_directory_is_searched_only_for_a_module_that_is_named_and_nowhere_else(tmp_path: Path) -> None:
    # `gymnasium` is installed, so that nothing is looked for here.
    make_run(tmp_path)
    path = RunReader(tmp_path / "lake").path
    rewritten(path, id="ALE/Pong-v5", modules=["gymnasium"])
    mark = plant(tmp_path, "ale_py", "gymnasium")
    done = run_in(tmp_path, "-P", "-c", WITHOUT_ATARI, "eval", "lake", "--env-module", "gymnasium")
    assert not mark.exists()
    assert "needs a library that is not installed" in done.stderr


@pytest.mark.slow
def test_runs_of_several_seeds_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    mark = plant(tmp_path, *LIBRARIES, *standard_modules())
    train = ("train", "tabular", "FrozenLake-v1", "--steps", "50", "--eval-episodes", "1", "--seeds", "0", "--json")
    done = run_in(tmp_path, "-P", "-c", SCRIPT, *train)
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["report"]["env_steps"] == 50


@pytest.mark.slow
def test_runs_of_several_seeds_import_what_the_user_named(tmp_path: Path) -> None:
    # The import inside the function comes late, and finds the directory too.
    (tmp_path / "own_lake.py").write_text("def make():\n    import own_map\n    return own_map.make()\n")
    (tmp_path / "own_map.py").write_text("import gymnasium\ndef make():\n    return gymnasium.make('FrozenLake-v1')\n")
    train = ("train", "tabular", "own_lake:make", "--steps", "50", "--eval-episodes", "1", "--num-envs", "2")
    workers = ("--vectorization", "async", "--seeds", "0", "--json")
    done = run_in(tmp_path, "-P", "-c", SCRIPT, *train, *workers)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["report"]["env_steps"] == 50


@pytest.mark.slow
def test_worker_processes_of_environments_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    mark = plant(tmp_path, *LIBRARIES, *standard_modules())
    train = ("train", "tabular", "FrozenLake-v1", "--steps", "50", "--eval-episodes", "1", "--num-envs", "2")
    done = run_in(tmp_path, "-P", "-c", SCRIPT, *train, "--vectorization", "async", "--ui", "none")
    assert not mark.exists(), mark.read_text()
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_terminal_ui_of_a_training_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    pytest.importorskip("textual")
    mark = plant(tmp_path, *LIBRARIES, *standard_modules())
    train = ("train", "tabular", "FrozenLake-v1", "--steps", "50", "--eval-episodes", "1", "--ui", "tui")
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-P", "-c", SCRIPT, *train],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": _absolute_path(), "TERM": "xterm-256color"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    written = bytearray()
    try:
        while chunk := os.read(screen, 2**16):
            written += chunk
    except OSError:  # how a terminal says that nobody uses it any more
        pass
    finally:
        os.close(screen)
        code = process.wait(100)
    assert not mark.exists(), mark.read_text()
    assert code == 0, written[-2000:]
    assert b"\x1b[?1049h" in written, "the terminal UI did not start"


def test_as_a_module_the_command_still_finds_what_pythonpath_names(tmp_path: Path) -> None:
    (tmp_path / "own_lake.py").write_text("import gymnasium\ndef make():\n    return gymnasium.make('FrozenLake-v1')\n")
    searched = os.pathsep.join(filter(None, [_absolute_path(), str(tmp_path)]))
    program = ("-m", "rekindle", "check", "own_lake:make", "--json")
    done = run_in(tmp_path, *program, PYTHONPATH=searched)
    assert done.returncode == 0, done.stderr

"""The public surface is what `__all__` says, and importing it is cheap."""

import importlib
import json
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import rekindle

# Each of these belongs to an extra or to a command; none is needed to hold a session.
NOT_ON_IMPORT = [
    "aiofastnet",
    "ale_py",
    "equinox",
    "flax",
    "gymnasium",
    "h5py",
    "jax",
    "jaxlib",
    "matplotlib",
    "minatar",
    "mlflow",
    "mujoco",
    "onnx",
    "onnxruntime",
    "optax",
    "pandas",
    "picows",
    "pygame",
    "ray",
    "rich",
    "scipy",
    "sqlalchemy",
    "starlette",
    "tensorboard",
    "tensorboardX",
    "tensorflow",
    "textual",
    "torch",
    "tyro",
    "uvicorn",
    "uvloop",
    "wandb",
    "websockets",
]

# Counted, not timed: the number does not depend on how busy the machine is.
MOST_MODULES_BEYOND_NUMPY = 100


FOUND = [module for module in pkgutil.walk_packages(rekindle.__path__, prefix="rekindle.") if "._" not in module.name]
PACKAGES = ["rekindle", *(module.name for module in FOUND if module.ispkg)]
PACKAGES_AND_MODULES = ["rekindle", *(module.name for module in FOUND)]


def load(name: str) -> ModuleType:
    """Import a public module, or skip the test when the extra that it needs is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "rekindle":
            raise
        pytest.skip(f"{name} needs {error.name}")


def modules_loaded_by(statement: str) -> set[str]:
    program = f"import json, sys\n{statement}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", PACKAGES_AND_MODULES)
def test_all_is_sorted_and_without_repeats(name: str) -> None:
    exported = load(name).__all__
    assert list(exported) == sorted(set(exported))


@pytest.mark.parametrize("name", PACKAGES_AND_MODULES)
def test_every_exported_name_exists(name: str) -> None:
    module = load(name)
    assert [export for export in module.__all__ if not hasattr(module, export)] == []


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_of_a_package_is_exported(name: str) -> None:
    module = load(name)
    public = {
        attribute
        for attribute, value in vars(module).items()
        if not attribute.startswith("_") and not isinstance(value, ModuleType) and attribute != "annotations"
    }
    assert sorted(public - set(module.__all__)) == []


def test_importing_rekindle_loads_no_ml_ui_or_web_library() -> None:
    loaded = {module.split(".")[0] for module in modules_loaded_by("import rekindle")}
    assert sorted(loaded & set(NOT_ON_IMPORT)) == []


def test_a_session_loads_neither_server_nor_client() -> None:
    loaded = modules_loaded_by("from rekindle import TrainingSession")
    assert [name for name in loaded if name.startswith(("rekindle.server", "rekindle.client", "rekindle.wire"))] == []
    assert sorted({module.split(".")[0] for module in loaded} & {"asyncio", "picows", "uvloop", "websockets"}) == []


def test_importing_rekindle_adds_few_modules_to_numpy() -> None:
    added = modules_loaded_by("import numpy, rekindle") - modules_loaded_by("import numpy")
    assert len(added) <= MOST_MODULES_BEYOND_NUMPY, sorted(added)

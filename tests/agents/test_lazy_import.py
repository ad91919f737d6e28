"""Agents that need JAX are imported when they are asked for, and not before."""

import subprocess
import sys

import pytest

import rekindle.agents
from rekindle.errors import MissingExtra


def test_importing_the_agents_does_not_import_jax() -> None:
    program = "import sys, rekindle.agents, rekindle.policy; print([n for n in ('jax', 'equinox') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("wanted", ["DQN", "DQNConfig"])
def test_a_missing_library_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    for name in [name for name in sys.modules if name.startswith("rekindle.agents.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "equinox", None)
    with pytest.raises(MissingExtra, match=r'DQN needs equinox: pip install "rekindle-rl\[agents\]"'):
        getattr(rekindle.agents, wanted)


def test_a_name_that_does_not_exist_is_no_missing_library() -> None:
    assert not hasattr(rekindle.agents, "QDN")

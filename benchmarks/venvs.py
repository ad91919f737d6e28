"""The peers that benchmarks and tests compare with, each in a virtual environment of its own below `.peers`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".peers"
PACKAGES = {
    "sb3": ["stable-baselines3", "gymnasium[atari,box2d,mujoco]", "minatar", "opencv-python-headless"],
    "d3rlpy": ["d3rlpy==2.8.1"],
    "sbx": ["stable-baselines3", "gymnasium[mujoco]", "sbx-rl==0.28.0"],
    "sample-factory": ["sample-factory==2.1.1"],
    "rejax": ["rejax==0.1.3", "gymnax==0.0.9", "jax==0.10.2", "jaxlib==0.10.2", "optax==0.2.8"],
}
"""What is installed; `constraints.txt` says which version, so that environments are the same."""
WITH_TORCH = {"sb3", "d3rlpy", "sbx", "sample-factory"}
"""Peers before which torch 2.13.0 is installed."""
UNCONSTRAINED = {"d3rlpy", "rejax", "sample-factory"}
"""Peers that need other versions."""


def python_of(name: str) -> Path:
    """The interpreter of a peer, which is installed first if it is not there yet."""
    home = CACHE / name
    python, ready = home / "bin" / "python", home / ".ready"
    if not ready.exists():
        print(f"installing {name} in {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        limits = [] if name in UNCONSTRAINED else ["-c", str(ROOT / "constraints.txt")]
        for packages in [["torch==2.13.0"]] * (name in WITH_TORCH) + [PACKAGES[name]]:
            subprocess.run([str(python), "-m", "pip", "install", "-qq", *limits, *packages], check=True)
        ready.touch()
    return python

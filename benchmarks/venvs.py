"""The peers that benchmarks compare with, each in a virtual environment of its own below `.peers`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".peers"
PACKAGES = {
    "sb3": ["stable-baselines3", "gymnasium[atari,mujoco]", "opencv-python-headless"],
    "sbx": ["stable-baselines3", "gymnasium[mujoco]", "sbx-rl==0.28.0"],
}
"""What is installed after torch 2.13.0; `constraints.txt` says which version, so that environments are the same."""


def python_of(name: str) -> Path:
    """The interpreter of a peer, which is installed first if it is not there yet."""
    home = CACHE / name
    python, ready = home / "bin" / "python", home / ".ready"
    if not ready.exists():
        print(f"installing {name} in {home}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(home)], check=True)
        for packages in (["torch==2.13.0"], PACKAGES[name]):
            install = [str(python), "-m", "pip", "install", "-qq", "-c", str(ROOT / "constraints.txt"), *packages]
            subprocess.run(install, check=True)
        ready.touch()
    return python

"""The creatures learn, with the settings of `rekindle game`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from node import run_node

pytest.importorskip("picows", reason="needs rekindle[server]")
pytest.importorskip("jax", reason="needs rekindle[agents]")

from rekindle.game.hosting import serve_command

RANDOM = 0.8
"""Food in 100 moves of creatures that move at random."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
def test_creatures_find_five_times_as_much_food_after_the_moves_of_two_minutes(
    static: Path, tmp_path: Path, seed: int
) -> None:
    command = serve_command(tmp_path, "v1", seed, 0, 1)
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        moves = 57_600  # at 3 times the normal speed
        script = Path(__file__).parent / "learn.mjs"
        rates = json.loads(run_node(script, static, address, moves, seed, timeout=400))
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert server.returncode == 0
    assert rates[0] < 3 * RANDOM
    assert sum(rates[-3:]) / 3 > 5 * RANDOM

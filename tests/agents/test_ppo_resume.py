"""A training cut in two and continued in a new process ends as the one that was not, to the bit."""

import os
import subprocess
import sys
from pathlib import Path

import ppo_resuming
import pytest

import rekindle


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_a_rollout_is_resumed_exactly_in_a_new_process(tmp_path: Path, network: str) -> None:
    # Convolutions that are not optimised take longer to run than to compile.
    environment = {**os.environ, **({"XLA_FLAGS": ""} if network == "cnn" else {})}
    for part in ("first", "rest"):
        command = [sys.executable, ppo_resuming.__file__, str(tmp_path), network, part]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
    for kind in ppo_resuming.CUTS:
        whole, cut = (rekindle.verify(tmp_path / name / kind) for name in ("whole", "cut"))
        assert whole.ok
        assert cut.ok
        assert cut.digests == whole.digests, kind

"""A training cut in two and continued in a new process ends as the one that was not, to the bit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import resuming

import rekindle


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", resuming.MEMORIES)
def test_a_resume_in_a_new_process_is_exact(tmp_path: Path, algorithm: str, kind: str) -> None:
    # Convolutions that are not optimised take longer to run than to compile.
    environment = {**os.environ, **({"XLA_FLAGS": ""} if kind == "cnn" else {})}
    for part in ("first", "rest"):
        command = [sys.executable, resuming.__file__, str(tmp_path), algorithm, kind, part]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stderr
    for memory in resuming.MEMORIES[algorithm]:
        whole, cut = (rekindle.verify(tmp_path / name / memory) for name in ("whole", "cut"))
        assert whole.ok
        assert cut.ok
        assert cut.digests == whole.digests, memory

"""A training cut in two and continued in a new process ends as the one that was not, to the bit."""

from pathlib import Path

import ppo_resuming
import pytest
import resuming

networks = pytest.mark.parametrize("network", ["mlp", "cnn"])


@pytest.mark.slow
@networks
@pytest.mark.parametrize("algorithm", resuming.MEMORIES)
def test_a_resume_in_a_new_process_is_exact(tmp_path: Path, algorithm: str, network: str) -> None:
    memories = resuming.MEMORIES[algorithm]
    resuming.check_exact(resuming.__file__, tmp_path, algorithm, network=network, names=memories)


@pytest.mark.slow
@networks
def test_a_rollout_is_resumed_exactly_in_a_new_process(tmp_path: Path, network: str) -> None:
    resuming.check_exact(ppo_resuming.__file__, tmp_path, network=network, names=ppo_resuming.kinds(network))

"""A training cut in two and continued in a new process ends as the one that was not, to the bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ppo_resuming
import pytest
import resuming


def cases() -> Iterator[Any]:
    for algorithm in resuming.MEMORIES:
        for network in ("mlp", "cnn", "dict"):
            # The networks on images are the same in all of them, and TD3 is made of SAC's parts.
            is_quick = network == "mlp" and algorithm != "td3"
            mark = pytest.mark.slow if is_quick else pytest.mark.exhaustive
            yield pytest.param(algorithm, network, marks=mark, id=f"{algorithm}-{network}")


@pytest.mark.parametrize(("algorithm", "network"), list(cases()))
def test_a_resume_in_a_new_process_is_exact(tmp_path: Path, algorithm: str, network: str) -> None:
    memories = resuming.memories(algorithm, network)
    resuming.check_exact(resuming.__file__, tmp_path, algorithm, network=network, names=memories)


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", ["mlp", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("cnn", "dict"))]
)
def test_a_rollout_is_resumed_exactly_in_a_new_process(tmp_path: Path, network: str) -> None:
    resuming.check_exact(ppo_resuming.__file__, tmp_path, network=network, names=ppo_resuming.kinds(network))

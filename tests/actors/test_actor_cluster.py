"""Actors on Ray: the same result as here, whatever happens to the processes of the cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from perilous import digests, trainer

from rekindle import EpisodeEnded, Warned
from rekindle.actors import cluster
from rekindle.errors import ConfigError, EnvError

ray: Any = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # of Ray
]


HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    """One cluster for all tests, as it takes long to start."""
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    root = tmp_path_factory.mktemp("here")
    trainer(root, root / "perils", actors_on="here").train()
    return digests(root)


def test_the_result_is_the_same_on_ray(tmp_path: Path, expected: dict[str, Any]) -> None:
    trainer(tmp_path, tmp_path / "perils", actors_on="ray", eval_workers=2).train()
    assert digests(tmp_path) == expected


def test_an_actor_whose_process_dies_is_started_again(tmp_path: Path, expected: dict[str, Any]) -> None:
    training = trainer(tmp_path, tmp_path / "perils", actors_on="ray")
    warnings: list[str] = []
    training.on(Warned, lambda event: warnings.append(event.message))
    training.on(
        EpisodeEnded,
        lambda event: (tmp_path / "perils" / "kill").touch() if event.stamp.episodes == 20 else None,
    )
    training.train()
    assert digests(tmp_path) == expected
    assert [text for text in warnings if "the Ray actor of actors" in text and "is started again" in text]


def test_a_run_moves_from_processes_to_ray_and_back(tmp_path: Path, expected: dict[str, Any]) -> None:
    for stop, place in ((400, "processes"), (800, "ray")):
        for step in trainer(tmp_path, tmp_path / "perils", actors_on=place).steps():
            if step.total_steps >= stop:
                break
    trainer(tmp_path, tmp_path / "perils", actors_on="here").train()
    assert digests(tmp_path) == expected


def test_too_few_processors_are_an_error_and_not_a_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_START", 3.0)
    training = trainer(tmp_path, tmp_path / "perils", actors_on="ray", workers=4, actor_patience=3, eval_episodes=0)
    with pytest.raises(EnvError, match="no processor of the Ray cluster was free for 3 s: use fewer --workers"):
        training.train()


def test_an_address_without_a_cluster_is_refused(tmp_path: Path) -> None:
    ray.shutdown()
    training = trainer(tmp_path, tmp_path / "perils", actors_on="ray", ray_address="127.0.0.1:1")
    with pytest.raises(ConfigError, match="there is no Ray cluster at 127"):
        training.train()


def test_an_address_without_a_port_is_refused(tmp_path: Path) -> None:
    ray.shutdown()
    training = trainer(tmp_path, tmp_path / "perils", actors_on="ray", ray_address="10.0.0.1")
    with pytest.raises(ConfigError, match=r"ray_address is '10.0.0.1': use HOST:PORT"):
        training.train()


def test_a_server_that_is_no_cluster_is_refused_after_a_while(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        program = (
            f"import sys; sys.path[:0] = {[str(HERE / 'actors'), str(HERE / 'envs'), str(HERE)]!r}\n"
            "from pathlib import Path; from perilous import trainer; from rekindle.actors import cluster\n"
            f"root = Path({str(tmp_path)!r}); cluster._CONNECT = 2.0\n"
            f"trainer(root, root / 'perils', actors_on='ray', ray_address={address!r}).train()"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert f"there is no Ray cluster at {address}: no answer in 2 s" in done.stderr


def test_sigterm_takes_a_checkpoint_and_the_run_goes_on_exactly(tmp_path: Path, expected: dict[str, Any]) -> None:
    ray.shutdown()
    training = trainer(tmp_path, tmp_path / "perils", actors_on="ray")
    training.on(
        EpisodeEnded,
        lambda event: os.kill(os.getpid(), signal.SIGTERM) if event.stamp.episodes == 40 else None,
    )
    report = training.train()
    assert (report.status, report.reason) == ("stopped", "SIGTERM")
    trainer(tmp_path, tmp_path / "perils", actors_on="here").train()
    assert digests(tmp_path) == expected

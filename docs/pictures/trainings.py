"""The runs that the pictures show: short trainings of the real commands."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium

from rekindle import RunReader
from rekindle.client import GymClient
from rekindle.errors import ServerError

__all__ = ["LEARNING_RATES", "find", "make_runs", "serving", "training"]

LEARNING_RATES = ("3e-3", "1e-3", "1e-4")
"""One group of four seeds for each."""
_PORT = "7659"
_REKINDLE = [sys.executable, "-m", "rekindle"]
_SHORT = ["--metrics-every", "250", "--checkpoint-every", "1000", "--eval-episodes", "3"]


def find(runs: Path, name: str) -> list[Path]:
    """The runs of a name, oldest first."""
    return sorted(path.parent for path in (runs / name).rglob("metadata.json"))


def make_runs(runs: Path) -> None:
    """Train every run that is not there yet."""
    cartpole = ["dqn", "CartPole-v1", "--steps", "6000", "--eval-every", "500", *_SHORT]
    for rate in LEARNING_RATES:
        options = ["--seeds", "0-3", "--version", f"lr{rate}", "--agent.learning-rate", rate]
        _train(runs, "cartpole", *cartpole, *options, version=f"lr{rate}")
    _train(runs, "lake", "tabular", "FrozenLake-v1", "--steps", "20000", "--metrics-every", "1000")
    _train(runs, "cartpole-ppo", "ppo", "CartPole-v1", "--steps", "16384", "--eval-every", "4096", *_SHORT)
    _train(runs, "cartpole-best", *cartpole, "--keep-checkpoints", "20")
    _interrupt(runs, "lake-killed", signal.SIGKILL)
    _interrupt(runs, "lake-stopped", signal.SIGTERM)
    (parent,) = find(runs, "cartpole-best")
    _fork(runs, parent, "2000", "cartpole-slow", "--agent.learning-rate", "1e-4")
    _fork(runs, parent, "4000", "cartpole-greedy", "--agent.gamma", "0.95")
    _fork(runs, find(runs, "cartpole-slow")[0], "4000", "cartpole-slow-fast", "--agent.learning-rate", "2e-3")
    if not (parent / "videos").exists():
        _run("eval", str(parent), "--episodes", "2", "--video", str(parent / "videos"))
    study = ["--trials", "12", "--seeds", "0-1", "--steps", "4000", "--eval-every", "1000", "--eval-episodes", "20"]
    if not (runs / "lake-study").exists():
        _run("sweep", "tabular", "FrozenLake-v1", *study, "--name", "lake-study", "--runs", str(runs))


def _train(runs: Path, name: str, *options: str, version: str = "v1") -> None:
    if not any((runs / name).glob(f"{version}*")):
        _run("train", *options, "--name", name, "--runs", str(runs))


def _fork(runs: Path, parent: Path, step: str, name: str, *changes: str) -> None:
    if not (runs / name).exists():
        _run("fork", f"{parent}@{step}", "-o", str(runs / name), *changes)


def _run(*command: str) -> None:
    print("$ rekindle", *command, flush=True)
    subprocess.run([*_REKINDLE, *command], check=True, stdout=subprocess.DEVNULL)


def _interrupt(runs: Path, name: str, number: signal.Signals) -> None:
    if (runs / name).exists():
        return
    options = ["tabular", "FrozenLake-v1", "--steps", "1000000", "--checkpoint-every", "2000"]
    with training(runs, name, *options, until=5000, end=number):
        pass


@contextmanager
def training(runs: Path, name: str, *options: str, until: int, end: signal.Signals = signal.SIGTERM) -> Generator[Path]:
    """A run that is being trained, from some step on; in the end its process gets a signal."""
    command = ["train", *options, "--name", name, "--runs", str(runs), "--ui", "none"]
    before = len(find(runs, name))
    with _process(command, end):
        _wait(lambda: len(find(runs, name)) > before and _steps(find(runs, name)[-1]) >= until)
        yield find(runs, name)[-1]


@contextmanager
def serving(runs: Path, name: str, *, until: int) -> Generator[Path]:
    """A run that two clients train over a socket, from some step on."""
    command = ["serve", "dqn", "--name", name, "--runs", str(runs), "--port", _PORT, "--metrics-every", "250"]
    command += ["--agent.warmup-steps", "500", "--agent.epsilon-steps", "3000"]
    with _process(command, signal.SIGTERM):
        _wait(_is_served)
        clients = [
            GymClient(
                f"ws://127.0.0.1:{_PORT}/session",
                [_Paced(gymnasium.make("CartPole-v1")) for _ in range(4)],
                seed=seed,
                client=f"arena-{seed}",
                patience=5,
            )
            for seed in range(2)
        ]
        threads = [threading.Thread(target=_play, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        _wait(lambda: bool(find(runs, name)) and _steps(find(runs, name)[-1]) >= until)
        yield find(runs, name)[-1]
    for thread in threads:
        thread.join()


def _is_served() -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(_PORT)), timeout=1).close()
    except OSError:
        return False
    return True


def _play(client: GymClient) -> None:
    with contextlib.suppress(ServerError):  # it ends with the server
        client.run()


class _Paced(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment in real time, as a game is, so that clients leave the processor to others."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        return super().step(action)


@contextmanager
def _process(command: Sequence[str], end: signal.Signals) -> Generator[None]:
    print("$ rekindle", *command, flush=True)
    process = subprocess.Popen([*_REKINDLE, *command], stdout=subprocess.DEVNULL, env={**os.environ, "NO_COLOR": "1"})
    try:
        yield
    finally:
        process.send_signal(end)
        process.wait(60)


def _steps(run: Path) -> int:
    return max((row["env_steps"] for row in RunReader(run).train_episodes()), default=0)


def _wait(is_true: Callable[[], bool], *, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)

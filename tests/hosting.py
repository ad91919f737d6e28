"""Servers for tests: on a thread of this process, or as processes that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rekindle import TrainingSession
from rekindle.agents import Tabular
from rekindle.experience import ActMode, Array, Transitions
from rekindle.server import ServerOptions, SessionServer
from rekindle.spaces import ActionStructure

STATES, ACTIONS = 10, 3


def session_of(root: Path, **options: Any) -> TrainingSession:
    """A journalled session of a small agent."""
    agent = Tabular(gym.spaces.Discrete(STATES), gym.spaces.Discrete(ACTIONS), seed=0)
    settings: dict[str, Any] = {"journal": True, "checkpoint_every": 500, "metrics_every": 100, "signals": False}
    return TrainingSession.open("served", agent, root=root, **(settings | options))


class RandomAgent:
    """Learns nothing, and draws its actions from any space."""

    def __init__(self, observation_space: Any, action_space: Any, seed: int = 0) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = self.updates = self._draws = 0
        self._seed = seed
        self._structure = ActionStructure.of(action_space)

    def act(self, observations: Any, mode: ActMode, streams: Array) -> Array:
        self.action_space.seed(self._seed + self._draws)
        self._draws += mode is ActMode.EXPLORE
        samples = [self.action_space.sample() for _ in streams]
        if self._structure is None:
            return np.stack(samples)
        return np.stack([self._structure.flat(sample, "action") for sample in samples])

    def observe(self, transitions: Transitions, streams: Array) -> None:
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        return 0

    def update(self, n: int) -> dict[str, float]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"env_steps": self.env_steps, "draws": self._draws}

    def load_state(self, state: dict[str, Any]) -> None:
        self.env_steps, self._draws = state["env_steps"], state["draws"]


class Hosted:
    """A server on a thread."""

    def __init__(self, make: Callable[[], Any], options: ServerOptions, **more: Any) -> None:
        self._make, self._options, self._more = make, options, more
        self._ready = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()
        self._ready.wait(30)
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self.server = SessionServer(self._make(), self._options, **self._more)
        await self.server.start()
        self._loop = asyncio.get_running_loop()
        self.address, self.port = self.server.address, self.server.port
        self._ready.set()
        try:
            await self.server.run()
        finally:
            if self.server.session is not None:
                self.server.session.close()

    @property
    def desk(self) -> Any:
        """What processes the requests."""
        return self.server._desk

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the server's thread, and return its result."""

        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self._loop).result(30)

    def stop(self) -> None:
        """Stop the server, and close its session."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.stop)
            self._thread.join(30)


@contextlib.contextmanager
def hosted(root: Path, *, session: dict[str, Any] | None = None, **options: Any) -> Generator[Hosted]:
    """A server on a thread, with a session in `root`."""
    server = Hosted(lambda: session_of(root, **(session or {})), ServerOptions(port=0, **options))
    try:
        yield server
    finally:
        server.stop()


class ServerProcess:
    """A server that can be killed and started again on the same port."""

    def __init__(self, *arguments: str | Path, script: str | Path | None = None) -> None:
        self._command = [sys.executable, *(["-m", "rekindle"] if script is None else [str(script)])]
        self._command += [str(word) for word in arguments]
        self.process: subprocess.Popen[str] | None = None
        self.address = ""

    def start(self) -> None:
        """Start it, and wait until its port is open."""
        self.process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            raise AssertionError(self.process.communicate()[1])

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Ask it to stop; returns its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is true."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not become true in time"
        time.sleep(0.01)

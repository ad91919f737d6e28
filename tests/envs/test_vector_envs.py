"""However environments are put together, each row is what it would be alone, and no last observation is lost."""

from __future__ import annotations

import functools
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import env_worlds
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rekindle.envs import AutoresetEnvs, Determinism, EnvFactory, Envs, LocalEnvs, WorkerEnvs, make_envs
from rekindle.errors import ConfigError, EnvError
from rekindle.experience import EpisodeStatus
from rekindle.spaces import Layout

STEPS = 60
FACTORIES: dict[str, EnvFactory] = {
    "array": EnvFactory(env_worlds.Path),
    "dict": EnvFactory("env_worlds:Path", arguments={"named": True}),
    "nested": EnvFactory("env_worlds:Nested"),
    "lambda": EnvFactory(lambda: env_worlds.Path(limit=4)),
    "chatty": EnvFactory(env_worlds.Chatty),
    "lake": EnvFactory("FrozenLake-v1"),
    "pendulum": EnvFactory("Pendulum-v1", max_episode_steps=7),
}
ROWS = 3


def rows_of(observations: Any) -> list[Any]:
    if isinstance(observations, dict):
        return [{name: part[row].tolist() for name, part in observations.items()} for row in range(ROWS)]
    return [observations[row].tolist() for row in range(ROWS)]


def plain(observation: Any) -> Any:
    """An observation, or a flat dict of its parts, by the names that lead to them."""
    if not isinstance(observation, dict | tuple):
        return np.asarray(observation).tolist()
    flat: dict[str, Any] = {}
    items: Any = observation.items() if isinstance(observation, dict) else enumerate(observation)
    for key, part in items:
        inner = plain(part)
        parts = {f"/{name}": value for name, value in inner.items()} if isinstance(inner, dict) else {"": inner}
        flat |= {f"{key}{path}": value for path, value in parts.items()}
    return flat


def actions_for(envs: Envs) -> Iterator[Any]:
    envs.action_space.seed(1)
    while True:
        yield np.stack([envs.action_space.sample() for _ in range(ROWS)])


KINDS: dict[str, Callable[[EnvFactory], Envs]] = {
    "local": lambda factory: LocalEnvs(factory, ROWS),
    "workers": lambda factory: WorkerEnvs(factory, ROWS, workers=2),
    "rebuilt": lambda factory: LocalEnvs(factory, ROWS, rebuilds=True),
}


@pytest.mark.parametrize(
    ("kind", "world"),
    [
        *((kind, world) for kind in ("local", "rebuilt") for world in FACTORIES),
        ("workers", "dict"),
        ("workers", "nested"),
        ("workers", "lambda"),
    ],
)
def test_each_row_is_what_it_would_be_alone(kind: str, world: str) -> None:
    factory = FACTORIES[world]
    envs, alone = KINDS[kind](factory), [factory() for _ in range(ROWS)]
    try:
        for row in range(ROWS):
            assert plain(envs.one(row).reset(seed=row)[0]) == plain(alone[row].reset(seed=row)[0])
        ends = 0
        for step, actions in zip(range(STEPS), actions_for(envs), strict=False):
            outcome = envs.step(actions)
            seen = rows_of(outcome.observations)
            for row, env in enumerate(alone):
                observation, reward, terminated, truncated, info = env.step(actions[row])
                assert seen[row] == plain(observation)
                assert outcome.rewards[row] == reward
                assert outcome.statuses[row] == EpisodeStatus.of(terminated, truncated)
                assert (row in outcome.extras) == (terminated or truncated)
                if terminated or truncated:
                    ends += 1
                    if "is_success" in info:
                        assert outcome.extras[row] == {"is_success": float(info["is_success"])}
                    again = envs.one(row).reset(seed=100 * step + row)
                    assert plain(again[0]) == plain(env.reset(seed=100 * step + row)[0])
        assert ends > ROWS
    finally:
        envs.close()


VECTORS: dict[str, Callable[..., Any]] = {
    "sync": SyncVectorEnv,
    "async": functools.partial(AsyncVectorEnv, context="forkserver"),
}


@pytest.mark.parametrize(
    ("kind", "world"), [("sync", "array"), ("sync", "dict"), ("sync", "nested"), ("async", "dict")]
)
@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_autoreset_mode_gives_true_last_observations(kind: str, mode: AutoresetMode, world: str) -> None:
    factory = FACTORIES[world]
    vector = VECTORS[kind]([factory] * ROWS, autoreset_mode=mode)
    envs, alone = AutoresetEnvs(vector, "vector"), [factory() for _ in range(ROWS)]
    try:
        current = envs.reset(np.ones(ROWS, np.bool_), [5, 6, 7])
        for row, env in enumerate(alone):
            assert rows_of(current)[row] == plain(env.reset(seed=5 + row)[0])
        ends = 0
        for _, actions in zip(range(STEPS), actions_for(envs), strict=False):
            resting = envs.resting.copy()
            outcome = envs.step(actions)
            seen = rows_of(outcome.observations)
            ended = outcome.statuses != 0
            following = None if outcome.following is None else rows_of(outcome.following)
            for row, env in enumerate(alone):
                if resting[row]:
                    assert mode is AutoresetMode.NEXT_STEP
                    assert seen[row] == plain(env.reset()[0])
                    assert not ended[row]
                    continue
                observation, reward, terminated, truncated, info = env.step(actions[row])
                assert seen[row] == plain(observation)
                assert outcome.rewards[row] == reward
                assert outcome.statuses[row] == EpisodeStatus.of(terminated, truncated)
                if terminated or truncated:
                    ends += 1
                    assert outcome.extras[row] == {"is_success": float(info["is_success"])}
                    if mode is AutoresetMode.SAME_STEP:
                        assert following is not None
                        assert following[row] == plain(env.reset()[0])
            if mode is AutoresetMode.DISABLED and ended.any():
                assert not envs.resets_itself
                current = rows_of(envs.reset(ended, [40, 41, 42]))
                for row in np.flatnonzero(ended).tolist():
                    assert current[row] == plain(alone[row].reset(seed=40 + row)[0])
        assert ends > ROWS
    finally:
        envs.close()


class TestNative:
    def test_cartpoles_own_vector_environment_rests_for_a_step_after_an_end(self) -> None:
        envs = make_envs(EnvFactory("CartPole-v1"), 4, vectorization="native")
        assert isinstance(envs, AutoresetEnvs)
        assert "cannot be restored" in str(envs.inexact)
        envs.reset(np.ones(4, np.bool_), [1, 2, 3, 4])
        rested = 0
        for _ in range(60):
            resting = envs.resting.copy()
            outcome = envs.step(np.ones(4, np.int64))
            observations: Any = outcome.observations
            assert (np.abs(observations[resting]) <= 0.05).all()
            ended = outcome.statuses == EpisodeStatus.TERMINATED
            assert (np.abs(observations[ended, 2]) > 0.2).all()
            rested += int(resting.sum())
        assert rested > 4

    @pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "SOMETIMES"}])
    def test_an_unknown_autoreset_mode_is_refused(self, metadata: dict[str, Any]) -> None:
        vector = SyncVectorEnv([env_worlds.Path])
        vector.metadata = metadata
        with pytest.raises(ConfigError, match="unknown which observations are final"):
            AutoresetEnvs(vector, "odd")

    def test_no_row_of_it_is_driven_alone(self) -> None:
        envs = AutoresetEnvs(SyncVectorEnv([env_worlds.Path]), "vector")
        with pytest.raises(ConfigError, match="cannot be stepped alone"):
            envs.one(0)


class TestFailures:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize(
        ("how", "message"),
        [("raises", "ZeroDivisionError: by nothing"), ("shape", r"has the shape \(1,\), expected \(2,\)")],
    )
    def test_an_environment_that_fails_is_named(self, kind: Any, how: str, message: str) -> None:
        factory = EnvFactory("env_worlds:Broken", arguments={"how": how})
        envs = make_envs(factory, 2, vectorization=kind)
        try:
            for row in range(2):
                envs.one(row).reset(seed=row)
            envs.one(1).step(0)  # so that it is ahead of the other
            envs.step(np.zeros(2, np.int64))
            envs.step(np.zeros(2, np.int64))
            with pytest.raises(EnvError, match=rf"env_worlds:Broken, env 1, failed in step: .*{message}"):
                envs.step(np.zeros(2, np.int64))
        finally:
            envs.close()

    def test_a_worker_that_dies_is_named(self) -> None:
        factory = EnvFactory("env_worlds:Broken", arguments={"how": "dies"})
        envs = WorkerEnvs(factory, 4, workers=2)
        try:
            for row in range(4):
                envs.one(row).reset(seed=row)
            for _ in range(3):
                envs.step(np.zeros(4, np.int64))
            with pytest.raises(EnvError, match="the worker process of envs 0 to 1 was killed by signal 9"):
                envs.step(np.zeros(4, np.int64))
        finally:
            envs.close()

    def test_signals_to_the_whole_group_do_not_reach_a_worker_even_as_it_starts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = subprocess.Popen

        def signalled(*arguments: Any, **options: Any) -> Any:
            process = start(*arguments, **options)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                process.send_signal(number)
            return process

        monkeypatch.setattr(subprocess, "Popen", signalled)
        envs = WorkerEnvs(EnvFactory("FrozenLake-v1"), 2, workers=2)
        envs.one(1).reset(seed=0)
        envs.close()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()

    def test_what_cannot_be_made_in_a_worker_is_a_config_error(self) -> None:
        with pytest.raises(ConfigError, match=r"CartPol-v1: .*Did you mean"):
            WorkerEnvs(EnvFactory("CartPol-v1"), 2)

    def test_other_spaces_in_each_environment_are_refused(self) -> None:
        sizes = iter([(2,), (3,)])

        class Shifty(env_worlds.Path):
            def __init__(self) -> None:
                super().__init__()
                self.observation_space = gymnasium.spaces.Box(0, 1, next(sizes))

        with pytest.raises(ConfigError, match="has different spaces each time it is created"):
            LocalEnvs(EnvFactory(Shifty), 2)

    @pytest.mark.parametrize(("num_envs", "workers"), [(0, None), (2, 3), (2, 0)])
    def test_odd_numbers_of_workers_are_refused(self, num_envs: int, workers: int | None) -> None:
        with pytest.raises(ConfigError, match="use at least 1"):
            WorkerEnvs(FACTORIES["array"], num_envs, workers=workers)


class TestWorkers:
    def test_workers_end_with_the_process_that_started_them(self) -> None:
        program = (
            "import os, sys, time; from rekindle.envs import EnvFactory, WorkerEnvs\n"
            "envs = WorkerEnvs(EnvFactory('CartPole-v1'), 2, workers=2)\n"
            "print(*(worker._process.pid for worker in envs._workers), flush=True); time.sleep(60)"
        )
        parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        workers = [int(number) for number in parent.stdout.readline().split()]
        assert len(workers) == 2
        watches = [os.pidfd_open(worker) for worker in workers]
        for worker in workers:
            os.kill(worker, signal.SIGINT)  # as a terminal sends it to all; only the parent decides
            os.kill(worker, signal.SIGTERM)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        for watch in watches:
            assert select.select([watch], [], [], 30)[0], "a worker outlived its parent"
            os.close(watch)

    def test_a_worker_whose_environment_hangs_ends_with_the_process_that_started_it(self) -> None:
        program = (
            f"import sys; sys.path.insert(0, {os.path.dirname(env_worlds.__file__)!r})\n"
            "import env_worlds; from rekindle.envs import EnvFactory, WorkerEnvs\n"
            "envs = WorkerEnvs(EnvFactory(env_worlds.Stuck), 1)\n"
            "envs.one(0).reset(seed=0)\n"
            "print(envs._workers[0]._process.pid, flush=True); envs.step([0])"
        )
        parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        watch = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        parent.stdout.close()
        assert select.select([watch], [], [], 30)[0], "a worker outlived its parent"
        os.close(watch)

    def test_environments_are_closed_and_can_terminate_processes_of_their_own(self, tmp_path: Any) -> None:
        envs = WorkerEnvs(EnvFactory(env_worlds.Simulated, arguments={"directory": str(tmp_path)}), 3, workers=2)
        assert len(os.listdir(tmp_path)) == 3
        envs.close()
        assert not os.listdir(tmp_path), "a simulator was left behind"

    def test_a_script_needs_no_guard_and_may_use_its_own_classes(self, tmp_path: Any) -> None:
        script = tmp_path / "script.py"
        script.write_text(
            "import gymnasium, numpy\nfrom rekindle.envs import EnvFactory, WorkerEnvs\n"
            "class Mine(gymnasium.Wrapper):\n"
            "    def step(self, action):\n        return (*self.env.step(action)[:1], 42.0, False, False, {})\n"
            "envs = WorkerEnvs(EnvFactory(lambda: Mine(gymnasium.make('CartPole-v1'))), 2)\n"
            "for row in range(2):\n    envs.one(row).reset(seed=row)\n"
            "print(envs.step(numpy.zeros(2, int)).rewards)\nenvs.close()\n"
        )
        done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == ("[42. 42.]\n", 0), done.stderr


def test_an_array_that_fits_is_copied_without_a_further_look(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = LocalEnvs(EnvFactory("CartPole-v1"), 3)
    for row in range(3):
        envs.one(row).reset(seed=row, options=None)
    looks: list[Any] = []
    monkeypatch.setattr(Layout, "conform", lambda *args, **_: looks.append(args))
    envs.step([0, 1, 0])
    envs.close()
    assert looks == []


def test_an_environment_that_does_not_repeat_itself_says_so() -> None:
    envs = make_envs(FACTORIES["array"], 2, determinism=Determinism.RANDOM)
    assert "does not repeat an episode" in str(envs.inexact)
    assert make_envs(FACTORIES["array"], 2).inexact is None

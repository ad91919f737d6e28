"""Actors in processes: the same result as here, whatever happens to them."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import env_worlds
import pytest
from perilous import Deadly, digests, trainer

import rekindle
from rekindle import EpisodeEnded, MetricsFlushed, RunReader, Warned
from rekindle.envs import EnvFactory
from rekindle.errors import ConfigError, EnvError
from rekindle.training import Trainer

pytestmark = pytest.mark.timeout(180)
HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The digests of the training here."""
    root = tmp_path_factory.mktemp("here")
    trainer(root, root / "perils", actors_on="here").train()
    return digests(root)


def workers_of(process: int) -> list[int]:
    """The worker processes of a learner, without those that other tests have left in this process."""
    children = Path(f"/proc/{process}/task/{process}/children")
    found = [int(child) for child in children.read_text().split()] if children.exists() else []
    return [child for child in found if b"rekindle.actors.worker" in _command(child)]


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_the_result_does_not_depend_on_the_number_of_processes(
    tmp_path: Path, expected: dict[str, Any], workers: int
) -> None:
    training = trainer(tmp_path, tmp_path / "perils", workers=workers, eval_workers=2)
    processes: set[int] = set()
    training.on(EpisodeEnded, lambda _: processes.add(len(workers_of(os.getpid()))))
    training.train()
    assert processes == {workers}
    assert digests(tmp_path) == expected
    assert not workers_of(os.getpid())
    libraries = {row["extras"]["libraries"] for row in RunReader(tmp_path / "t").train_episodes()}
    assert libraries == {0.0}, "a worker has imported an ML library"


def test_there_are_no_more_workers_than_processors_that_this_process_may_use(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        training = trainer(tmp_path, tmp_path / "perils", workers=None, steps=40, eval_episodes=0)
        counts: set[int] = set()
        training.on(EpisodeEnded, lambda _: counts.add(len(workers_of(os.getpid()))))
        training.train()
    finally:
        os.sched_setaffinity(0, before)
    assert counts == {1}


def endangered(training: Trainer, perils: Path, dangers: dict[int, str]) -> list[str]:
    """Put a file for the environments where they look when this many episodes have ended; returns warnings."""
    warnings: list[str] = []
    training.on(Warned, lambda event: warnings.append(event.message))

    def on_episode(event: EpisodeEnded) -> None:
        if (danger := dangers.get(event.stamp.episodes)) is not None:
            (perils / f"{danger}-{event.stamp.episodes}").touch()

    training.on(EpisodeEnded, on_episode)
    return warnings


def test_actors_that_are_killed_are_started_again_and_nothing_is_lost(tmp_path: Path, expected: dict[str, Any]) -> None:
    training = trainer(tmp_path, tmp_path / "perils")
    warnings = endangered(training, tmp_path / "perils", {10: "kill", 60: "exit"})
    training.train()
    assert digests(tmp_path) == expected
    died = [text for text in warnings if "is started again" in text]
    assert len(died) == 2
    assert "perilous:Perilous: the process of actors " in died[0]
    assert " was killed by signal 9 in round " in died[0]
    assert " exited with 3 in round " in died[1]
    windows = [row["metrics"] for row in RunReader(tmp_path / "t").metric_windows()]
    assert sum(window["time/actor_restarts"]["max"] for window in windows if "time/actor_restarts" in window) == 2
    last: dict[str, Any] = {name: summary["last"] for window in windows for name, summary in window.items()}
    times = [last.get(f"time/actor_{actor}_restarts", 0) for actor in range(4)]
    assert times[0] == times[1]
    assert times[2] == times[3]
    assert times[0] + times[2] == 2


@pytest.mark.parametrize("danger", ["stop", pytest.param("hang", marks=pytest.mark.exhaustive)])
def test_actors_that_make_no_step_are_started_again(tmp_path: Path, expected: dict[str, Any], danger: str) -> None:
    training = trainer(tmp_path, tmp_path / "perils", actor_patience=3)
    warnings = endangered(training, tmp_path / "perils", {20: danger})
    training.train()
    assert digests(tmp_path) == expected
    assert any("made no step for 3 s in round " in text for text in warnings)


@pytest.mark.exhaustive
@pytest.mark.timeout(600)  # 55 processes are started, one after the other
def test_actors_killed_at_fifty_moments_of_one_training_change_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"steps": 60 * 40, "eval_episodes": 0, "workers": 4}
    here, perils = tmp_path / "here", tmp_path / "perils"
    trainer(here, perils, **options, actors_on="here").train()
    training = trainer(tmp_path, perils, **options)
    warnings: list[str] = []
    training.on(Warned, lambda event: warnings.append(event.message))
    rounds: set[int] = set()

    def on_episode(event: EpisodeEnded) -> None:
        # One in a round, as it may be taken in the next one: no process may die three times in a round.
        number = event.stamp.env_steps // 40
        if number not in rounds and 2 <= number < 57:
            rounds.add(number)
            (perils / f"kill-{number}").touch()

    training.on(EpisodeEnded, on_episode)
    training.train()
    assert digests(tmp_path) == digests(here)
    assert sum("is started again" in text for text in warnings) >= 50


@pytest.mark.exhaustive
def test_an_actor_that_is_stopped_for_ten_seconds_goes_on(tmp_path: Path, expected: dict[str, Any]) -> None:
    training = trainer(tmp_path, tmp_path / "perils")
    warnings = endangered(training, tmp_path / "perils", {20: "stop"})
    helpers: list[subprocess.Popen[bytes]] = []

    def go_on(event: EpisodeEnded) -> None:
        if event.stamp.episodes == 21 and not helpers:
            stopped = " ".join(map(str, workers_of(os.getpid())))
            helpers.append(subprocess.Popen(["sh", "-c", f"sleep 10; kill -CONT {stopped}"]))

    training.on(EpisodeEnded, go_on)
    training.train()
    for helper in helpers:
        helper.wait()
    assert digests(tmp_path) == expected
    assert not [text for text in warnings if "is started again" in text]


def test_three_deaths_in_one_round_are_one_clear_error(tmp_path: Path) -> None:
    training = trainer(tmp_path, tmp_path / "perils", env=Deadly, actors=3, workers=1, eval_episodes=0)
    message = (
        r"perilous:Deadly: the process of actors 0 to 2 was killed by signal 9 in round 0, for the third time: "
        r"the training ends"
    )
    with pytest.raises(EnvError, match=message):
        training.train()
    assert not workers_of(os.getpid())


def test_an_environment_that_raises_is_reported_with_its_traceback(tmp_path: Path) -> None:
    training = trainer(tmp_path, tmp_path / "perils")
    endangered(training, tmp_path / "perils", {30: "raise"})
    with pytest.raises(
        EnvError, match=r"perilous:Perilous, env \d, failed in step: ZeroDivisionError: by noth"
    ) as caught:
        training.train()
    assert "in the worker process:\nTraceback" in caught.value.__notes__[0]


@pytest.mark.parametrize("place", ["processes", "here"])
def test_an_environment_that_calls_sys_exit_is_named_and_the_work_is_saved(tmp_path: Path, place: str) -> None:
    training = trainer(tmp_path, tmp_path / "perils", actors_on=place)
    warnings = endangered(training, tmp_path / "perils", {30: "leave"})
    message = r"perilous:Perilous, env \d, failed in step: it called sys.exit\(3\) \(perilous.py:"
    with pytest.raises(EnvError, match=message):
        training.train()
    assert not [text for text in warnings if "is started again" in text]
    assert RunReader(tmp_path / "t").status == "failed"
    assert RunReader(tmp_path / "t").metadata.total_steps > 0
    assert not workers_of(os.getpid())


@pytest.mark.parametrize("eval_workers", [None, 2])
def test_an_environment_that_calls_sys_exit_in_an_evaluation_is_named(tmp_path: Path, eval_workers: int | None) -> None:
    training = trainer(tmp_path, tmp_path / "perils", eval_workers=eval_workers)

    def at_evaluation(event: MetricsFlushed) -> None:
        if event.stamp.env_steps == 600:  # an evaluation follows
            (tmp_path / "perils" / "leave").touch()

    training.on(MetricsFlushed, at_evaluation)
    with pytest.raises(EnvError, match=r"failed in step: it called sys.exit\(3\) \(perilous.py:"):
        training.train()


def test_an_evaluation_goes_on_if_its_worker_dies(tmp_path: Path, expected: dict[str, Any]) -> None:
    training = trainer(tmp_path, tmp_path / "perils", eval_workers=2)
    warnings = endangered(training, tmp_path / "perils", {})

    def at_evaluation(event: MetricsFlushed) -> None:
        if event.stamp.env_steps == 600:  # an evaluation follows
            (tmp_path / "perils" / "kill").touch()

    training.on(MetricsFlushed, at_evaluation)
    training.train()
    assert digests(tmp_path) == expected
    assert [text for text in warnings if "was killed by signal 9 in an evaluation: it is started again" in text]


@pytest.mark.exhaustive
def test_an_evaluation_in_the_middle_of_a_round_disturbs_nothing(tmp_path: Path, expected: dict[str, Any]) -> None:
    training = trainer(tmp_path, tmp_path / "perils", eval_workers=2)
    for step in training.steps():
        if step.total_steps == 400 and step.stream == 3:
            training.eval(2)
    assert digests(tmp_path)["weights"] == expected["weights"]


def learner(root: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Another process that trains, or goes on."""
    program = (
        f"import sys; sys.path[:0] = {[str(HERE / 'actors'), str(HERE / 'envs'), str(HERE)]!r}\n"
        f"from pathlib import Path; from perilous import trainer\n"
        f"trainer(Path({str(root)!r}), Path({str(root / 'perils')!r}), **{options!r}).train()"
    )
    return subprocess.Popen([sys.executable, "-c", program])


def until(condition: Any, process: subprocess.Popen[bytes]) -> Iterator[None]:
    deadline = time.monotonic() + 60
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        yield
        time.sleep(0.01)


def test_a_learner_that_is_killed_takes_its_actors_along_and_goes_on_elsewhere(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    places: list[dict[str, Any]] = [{"workers": 2}, {"actors_on": "here"}]
    for number, place in enumerate(places):
        process = learner(tmp_path, **place)

        def far(number: int = number) -> bool:
            logs = list((tmp_path / "t").glob("*/*/train_episodes.jsonl"))
            return bool(logs) and len(logs[-1].read_bytes().splitlines()) > 40 * (number + 1)

        for _ in until(far, process):
            pass
        workers = workers_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 30
        while any(map(is_alive, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    trainer(tmp_path, tmp_path / "perils", workers=2).train()
    assert digests(tmp_path) == expected


def test_free_actors_learn_from_everything_and_are_approximate(tmp_path: Path) -> None:
    training = trainer(tmp_path, tmp_path / "perils", free=True, eval_episodes=0, steps=10**6)
    warnings = endangered(training, tmp_path / "perils", {15: "kill"})
    made = 0
    for made, _ in enumerate(training.steps(), 1):  # a death is noticed up to half a second late
        if made >= 400 and any("is started again" in text for text in warnings):
            break
    steps = made + 800
    report = trainer(tmp_path, tmp_path / "perils", free=True, eval_episodes=0, workers=1, steps=steps).train()
    assert report.status == "finished"
    assert report.env_steps >= steps
    found = rekindle.verify(tmp_path / "t")
    assert (found.ok, found.grade) == (True, "approximate")
    assert [text for text in warnings if "was killed by signal 9 in chunk" in text]
    rows = RunReader(tmp_path / "t").train_episodes()
    assert {row["stream"] for row in rows} == set(range(8))
    assert all(row["length"] <= 12 for row in rows)
    assert "time/staleness" in RunReader(tmp_path / "t").metric_windows()[-2]["metrics"]
    with pytest.raises(ConfigError, match="free actors do not wait for each other"):
        trainer(tmp_path, tmp_path / "perils", free=True, actors_on="here")


@pytest.mark.parametrize("options", [{"workers": 2}, {"actors": None, "num_envs": 2, "vectorization": "async"}])
def test_what_cannot_be_sent_to_a_process_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    lock = threading.Lock()

    def env() -> env_worlds.Path:
        with lock:
            return env_worlds.Path()

    if options.get("actors", 1) is None:
        options = {**options, "envs_each": 1, "round_steps": None}
    training = trainer(tmp_path, tmp_path / "perils", env=env, **options)
    with pytest.raises(ConfigError, match=r"cannot be sent to another process: cannot pickle '_thread.lock' object"):
        training.train()
    assert not workers_of(os.getpid())


def test_environments_of_actors_are_closed_and_can_terminate_processes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "pids").mkdir()
    env = EnvFactory(env_worlds.Simulated, arguments={"directory": str(tmp_path / "pids")})
    training = trainer(tmp_path, tmp_path / "perils", env=env, steps=40, eval_episodes=0)
    simulators: set[int] = set()
    training.on(EpisodeEnded, lambda _: simulators.add(len(os.listdir(tmp_path / "pids"))))
    training.train()
    assert simulators == {8}
    assert not os.listdir(tmp_path / "pids"), "a simulator was left behind"


def test_signals_to_the_whole_group_do_not_reach_actors(tmp_path: Path, expected: dict[str, Any]) -> None:
    training = trainer(tmp_path, tmp_path / "perils")
    warnings: list[str] = []
    training.on(Warned, lambda event: warnings.append(event.message))

    def signal_all(event: EpisodeEnded) -> None:
        if event.stamp.episodes == 20:
            numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            for pid, number in itertools.product(workers_of(os.getpid()), numbers):
                os.kill(pid, number)

    training.on(EpisodeEnded, signal_all)
    training.train()
    assert digests(tmp_path) == expected
    assert not warnings


def test_what_a_process_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_up")
    kind = type("Made", (env_worlds.Path,), {"__module__": "made_up"})
    monkeypatch.setattr(module, "Made", kind, raising=False)
    monkeypatch.setitem(sys.modules, "made_up", module)
    training = trainer(tmp_path, tmp_path / "perils", env=kind)
    with pytest.raises(ConfigError, match=r"cannot be loaded in a worker process: ModuleNotFoundError: .*made_up"):
        training.train()


def test_more_processes_than_the_limits_allow_are_one_clear_error(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    training = trainer(tmp_path, tmp_path / "perils", actors=64, workers=64, steps=640)
    highest = max(int(each) for each in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 100, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"the process of actor \d+ cannot be started: .*Use fewer --workers"):
            training.train()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not workers_of(os.getpid())

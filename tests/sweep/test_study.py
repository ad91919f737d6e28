"""A study ends with the same trials, values, best and runs, however often it is killed, and with any number of jobs."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from studies import cartpole_study, results, small_study

from rekindle.errors import ConfigError, Interrupted, RunError, RunLocked
from rekindle.interrupt import Interrupter
from rekindle.run.finding import find_runs, is_study
from rekindle.run.reader import RunReader
from rekindle.storage.lock import Lock
from rekindle.sweep import Study, Trial, parse_space, run_study
from rekindle.sweep.directory import find_trial
from rekindle.sweep.executing import Job, train_part
from rekindle.verification import verify

PROGRAM = Path(__file__).parent / "studies.py"
TRIALS = 7


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that was left alone, with two jobs."""
    path = tmp_path_factory.mktemp("studies") / "alone"
    run_study(path, small_study(TRIALS), jobs=2)
    return path


@pytest.fixture
def copy(alone: Path, tmp_path: Path) -> Path:
    """A copy of the finished study, which a test may damage."""
    return Path(shutil.copytree(alone, tmp_path / alone.name))


def kill_at_random(path: Path, trials: int, jobs: int, kills: int, seed: int, study: str = "small") -> None:
    """Run a study in a process of its own, kill it so many times, each time further on, and let it end."""
    draw = random.Random(seed)
    command = [sys.executable, PROGRAM, path, study, str(trials), str(jobs)]
    log = path / "trials.jsonl"
    last = 2 * trials
    rows = sorted(draw.sample(range(2, last), kills))
    for row in rows:
        process = subprocess.Popen(command)
        while process.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < row):
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.3))  # in the middle of a training; which one does not matter
        process.kill()
        process.wait()
    subprocess.run(command, check=True)


def assert_begins_like(path: Path, alone: Path, trials: int) -> None:
    """Check that a study of fewer trials has the same results, and the same runs."""
    assert Study(path).trials == Study(alone).trials[:trials]
    (_, digests), (_, expected) = results(path), results(alone)
    assert len(digests) == 2 * trials
    assert digests == {version: expected[version] for version in digests}


def test_a_study_prunes_and_has_a_best_trial(alone: Path) -> None:
    study = Study(alone)
    assert (study.status, study.is_live, is_study(alone)) == ("finished", False, True)
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(TRIALS))
    assert {trial.status for trial in trials} == {"complete", "pruned"}
    values = [trial.value for trial in trials if trial.value is not None]
    assert study.best is not None
    assert study.best.value == max(values)
    for trial in trials:
        assert len(trial.scores) == 2
        if trial.value is not None:
            assert trial.value == pytest.approx(sum(trial.scores) / 2)
            assert len(trial.rungs) == 2


@pytest.mark.exhaustive
def test_a_study_with_one_job_that_is_killed_equals_one_with_two_that_was_left_alone(
    alone: Path, tmp_path: Path
) -> None:
    path = tmp_path / "alone"
    kill_at_random(path, TRIALS, jobs=1, kills=2, seed=0)
    assert results(path) == results(alone)
    assert Study(path).best == Study(alone).best


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))])
def test_twenty_trials_of_two_seeds_killed_five_times_equal_one_that_was_left_alone(tmp_path: Path, seed: int) -> None:
    trials = 20
    run_study(tmp_path / "alone", small_study(trials), jobs=1)
    kill_at_random(tmp_path / "killed", trials, jobs=2, kills=5, seed=seed)
    assert results(tmp_path / "killed") == results(tmp_path / "alone")
    assert Study(tmp_path / "killed").best == Study(tmp_path / "alone").best


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
def test_twenty_trials_of_dqn_on_cartpole_killed_five_times_equal_one_that_was_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason="needs rekindle[agents]")
    kill_at_random(tmp_path / "killed", 20, jobs=2, kills=5, seed=0, study="cartpole")
    run_study(tmp_path / "alone", cartpole_study(20), jobs=2)
    assert results(tmp_path / "killed") == results(tmp_path / "alone")
    assert Study(tmp_path / "killed").best == Study(tmp_path / "alone").best


@pytest.mark.parametrize("damage", ["torn", "garbled", "gone"])
def test_a_damaged_log_is_made_again_from_the_runs(alone: Path, copy: Path, damage: str) -> None:
    log = copy / "trials.jsonl"
    data = log.read_bytes()
    runs = sorted(copy.glob("trial-*/*/metadata.json"))
    before = [(run, run.stat().st_mtime_ns) for run in runs]
    if damage == "gone":
        log.unlink()
    else:
        middle = len(data) // 2
        log.write_bytes(data[:middle] + (b"" if damage == "torn" else b"\x00\x00" + data[middle:]))
    run_study(copy, small_study(TRIALS))
    assert results(copy) == results(alone)
    assert [(run, run.stat().st_mtime_ns) for run in runs] == before  # nothing was trained again


def test_more_trials_can_be_added(alone: Path, tmp_path: Path) -> None:
    path = tmp_path / "alone"
    run_study(path, small_study(1))
    told: list[Trial] = []
    run_study(path, small_study(3), on_trial=told.append)
    assert [trial.number for trial in told] == [0, 1, 2]
    assert_begins_like(path, alone, trials=3)
    run_study(path, small_study(2))  # fewer change nothing
    assert Study(path).settings.trials == 3


def test_trials_that_fail_or_kill_their_process_are_recorded_and_do_not_stop_the_study(tmp_path: Path) -> None:
    space = parse_space("env.arguments.fault = { choice = ['none', 'raise', 'die'] }")
    study = run_study(tmp_path / "faulty", small_study(4, space=space, sampler="random", seed=8, seeds=(0,)), jobs=2)
    ends = {str(trial.settings["env.arguments.fault"]): trial for trial in study.trials}
    assert {fault: trial.status for fault, trial in ends.items()} == {
        "none": "complete",
        "raise": "failed",
        "die": "failed",
    }
    assert "the engine broke down" in (ends["raise"].reason or "")
    assert ends["die"].reason == "seed 0: its process ended with SIGKILL; see workers.log"
    assert study.best == next(trial for trial in study.trials if trial.status == "complete")


def test_a_worker_that_is_killed_changes_nothing(alone: Path, tmp_path: Path) -> None:
    path = tmp_path / "alone"
    killed: list[int] = []

    def kill_workers() -> None:
        tasks = Path(f"/proc/{os.getpid()}/task")
        while len(killed) < 2:
            children = [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]
            if len(list(path.glob("trial-*"))) > 2 * len(killed) + 1 and children:
                os.kill(int(children[0]), signal.SIGKILL)
                killed.append(int(children[0]))
            time.sleep(0.01)

    thread = threading.Thread(target=kill_workers, daemon=True)
    thread.start()
    run_study(path, small_study(3), jobs=1)
    thread.join()
    assert_begins_like(path, alone, trials=3)


def test_a_stop_takes_checkpoints_and_the_study_goes_on_later(alone: Path, tmp_path: Path) -> None:
    path, interrupter = tmp_path / "alone", Interrupter()

    def stop(trial: Trial) -> None:
        if trial.number == 1:
            interrupter.stop("enough for today")

    with pytest.raises(Interrupted, match="enough for today"):
        run_study(path, small_study(4), interrupter=interrupter, on_trial=stop)
    assert Study(path).status == "stopped"
    run_study(path, small_study(4))
    assert_begins_like(path, alone, trials=4)


def test_the_settings_of_a_study_cannot_change(copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"is another study: training\.steps was 160 and is 80; .* was \[0, 1\] and"):
        run_study(copy, small_study(steps=80, seeds=(1, 2)))


def test_one_process_at_a_time_works_on_a_study(copy: Path) -> None:
    lock = Lock(copy / "lock")
    with pytest.raises(RunLocked, match="is being written by"):
        run_study(copy, small_study(TRIALS))
    lock.release()


def test_a_run_that_a_dying_worker_still_writes_is_waited_for(copy: Path) -> None:
    settings = small_study(TRIALS + 1)
    job = Job(TRIALS, 0, Study(copy).trials[0].settings, 40)
    assert train_part(copy, settings, job, Interrupter()).status == "reached"
    (run,) = find_runs(copy / f"trial-{TRIALS:04}-seed0")
    former = Lock(run / "lock")
    threading.Timer(1.5, former.release).start()
    later = msgspec.structs.replace(job, until=None)
    assert train_part(copy, settings, later, Interrupter()).status == "reached"


def test_a_run_that_was_killed_between_an_evaluation_and_its_pause_does_not_train_further(copy: Path) -> None:
    settings = small_study(TRIALS + 1)
    job = Job(TRIALS, 0, Study(copy).trials[0].settings, 40)
    before = train_part(copy, settings, job, Interrupter())
    (run,) = find_runs(copy / f"trial-{TRIALS:04}-seed0")
    digests = verify(run).digests
    metadata = (run / "metadata.json").read_bytes()
    (run / "metadata.json").write_bytes(metadata.replace(b'"status": "stopped"', b'"status": "running"'))
    assert RunReader(run).status == "crashed"

    assert train_part(copy, settings, job, Interrupter()) == before
    assert verify(run).digests == digests


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"space": parse_space("agent.learning_rat = { low = 0.1, high = 0.2 }")}, "has no setting 'learning_rat'"),
        ({"space": parse_space("agent.learning_rate = { low = -2.0, high = -1.0 }")}, "learning_rate"),
        (
            {"space": parse_space("num_env = { choice = [1, 2] }")},
            "a training has no such setting; did you mean",
        ),
        ({"space": parse_space("env.atari_ = { choice = [1, 2] }")}, "an environment has no such setting"),
        ({"space": parse_space("network.size = { choice = [1, 2] }")}, "use agent.NAME, env.NAME, or a setting"),
        ({"trials": 0}, "trials"),
        ({"seeds": ()}, "use different whole numbers"),
        ({"seeds": (1, 1)}, "use different whole numbers"),
        ({"prune_at": (1.5,)}, "use shares between 0 and 1"),
        ({"sampler": "grid"}, "sampler"),
        ({"eval_episodes": 0}, "a sweep compares evaluations"),
        ({"steps": None}, "a sweep compares evaluations"),
        ({"time_limit": 3.0}, "would depend on the speed of the machine"),
        ({"actors": 2, "free": True}, "a sweep has no free"),
    ],
)
def test_wrong_settings_are_refused_before_anything_is_written(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        run_study(tmp_path / "study", small_study(**settings))
    assert message in str(raised.value)
    assert not (tmp_path / "study").exists()


def test_a_trial_is_found_by_its_number_or_as_the_best(alone: Path, tmp_path: Path) -> None:
    best = Study(alone).best
    assert best is not None
    assert find_trial(f"{alone}")[1] == find_trial(f"{alone}@best")[1] == best
    assert find_trial(f"{alone}@3")[1].number == 3
    above = tmp_path / "me@host"
    above.symlink_to(alone.parent)
    assert find_trial(f"{above / alone.name}")[1] == find_trial(f"{above / alone.name}@best")[1] == best
    with pytest.raises(ConfigError, match="has no trial '99'"):
        find_trial(f"{alone}@99")
    with pytest.raises(RunError, match="there is no study at"):
        find_trial(f"{alone.parent}@best")


def test_damaged_settings_are_one_clear_error(copy: Path) -> None:
    (copy / "study.json").write_bytes(msgspec.json.encode({"algorithm": 3}))
    with pytest.raises(RunError, match="is not the description of a study"):
        _ = Study(copy).settings

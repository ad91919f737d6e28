"""One writer at a time, who is named; and as many runs as anybody starts."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import ENVIRONMENT, Training, assert_exact, until

import rekindle
from rekindle.errors import RunLocked
from rekindle.run import creation
from rekindle.run.directory import TrainingRun
from rekindle.run.finding import find_runs
from rekindle.storage.lock import Lock


def script(text: str, *arguments: object) -> subprocess.Popen[str]:
    """A Python program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


class TestTwoProcesses:
    def test_the_second_refuses_and_names_the_first(
        self, training: Training, reference: Mapping[str, str | None]
    ) -> None:
        first = training.begin_fork(pause=0.02)
        until(lambda: training.acknowledged_steps)
        second = training.spawn()
        assert second.code == 1
        assert second.errors.startswith(f"RunLocked: {training.run} is being written by process {first} on ")
        assert f"rekindle stop {training.run}" in second.errors
        assert training.end_fork().code == 0
        assert_exact(training, reference)

    def test_when_the_first_is_killed_the_second_goes_on(
        self, training: Training, reference: Mapping[str, str | None]
    ) -> None:
        first = training.begin_fork(pause=0.02)
        until(lambda: training.acknowledged_steps)
        os.kill(first, signal.SIGKILL)
        assert training.end_fork().killed
        assert rekindle.RunReader(training.run).status == "crashed"
        training.finish()
        assert_exact(training, reference)

    def test_a_stopped_process_still_holds_its_run(self, training: Training) -> None:
        first = training.begin_fork(pause=0.02)
        until(lambda: training.acknowledged_steps)
        os.kill(first, signal.SIGSTOP)
        try:
            assert "RunLocked" in training.spawn().errors
            assert rekindle.RunReader(training.run).is_live
        finally:
            os.kill(first, signal.SIGCONT)
        assert training.end_fork().code == 0

    def test_of_many_that_want_the_same_run_one_gets_it(self, tmp_path: Path) -> None:
        run = TrainingRun.create("wanted", root=tmp_path)
        run.close()
        program = """
            import sys, rekindle
            try:
                run = rekindle.TrainingRun.resume(sys.argv[1])
            except rekindle.RekindleError as error:
                sys.exit(type(error).__name__)
            print("got it", flush=True)
            sys.stdin.read()
        """
        processes = [script(program, run.path) for _ in range(4)]
        until(lambda: sum(process.poll() is not None for process in processes) == 3)
        answers = [process.communicate()[0] for process in processes]
        assert sorted(process.returncode for process in processes) == [0, 1, 1, 1]
        assert sorted(answers) == ["", "", "", "got it\n"]

    def test_readers_never_keep_a_writer_out(self, training: Training) -> None:
        assert training.fork().code == 0
        run, over = training.run, threading.Event()

        def look() -> None:
            while not over.is_set():
                assert Lock.is_held(run / "lock") in (True, False)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                TrainingRun.resume(run).close()
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def test_two_sessions_of_one_process_exclude_each_other_too(self, tmp_path: Path) -> None:
        run = TrainingRun.create("twice", root=tmp_path)
        with pytest.raises(RunLocked, match=f"process {os.getpid()} on"):
            TrainingRun.resume(run.path)
        run.close()
        TrainingRun.resume(run.path).close()

    def test_what_is_in_the_lock_file_is_information_only(self, tmp_path: Path) -> None:
        run = TrainingRun.create("liar", root=tmp_path)
        run.close()
        (run.path / "lock").write_text("process 1 on another-host\n")
        assert not rekindle.RunReader(run.path).is_live
        TrainingRun.resume(run.path).close()
        (run.path / "lock").unlink()
        assert not rekindle.RunReader(run.path).is_live
        TrainingRun.resume(run.path).close()


class TestOrphans:
    @pytest.mark.parametrize("way", ["fork", "multiprocessing", "subprocess"])
    def test_a_worker_that_outlives_its_killed_parent_does_not_keep_the_lock(self, tmp_path: Path, way: str) -> None:
        program = """
            import multiprocessing, os, subprocess, sys, time, rekindle
            run = rekindle.TrainingRun.create("orphan", root=sys.argv[1])
            if sys.argv[2] == "fork":
                worker = os.fork()
                if worker == 0:
                    time.sleep(60)
                    os._exit(0)
            elif sys.argv[2] == "multiprocessing":
                process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
                process.start()
                worker = process.pid
            else:
                worker = subprocess.Popen(["sleep", "60"], close_fds=False).pid
            print(worker, run.path, flush=True)
            time.sleep(60)
        """
        parent = script(program, tmp_path, way)
        assert parent.stdout is not None
        worker, path = parent.stdout.readline().split()
        try:
            with pytest.raises(RunLocked, match=f"process {parent.pid} on"):
                TrainingRun.resume(path)
            parent.kill()
            parent.wait()
            os.kill(int(worker), 0)  # it is still there
            assert rekindle.RunReader(path).status == "crashed"
            TrainingRun.resume(path).close()
        finally:
            os.kill(int(worker), signal.SIGKILL)
            parent.kill()
            parent.communicate()

    def test_a_forked_worker_may_end_without_letting_go_of_its_parents_lock(self, tmp_path: Path) -> None:
        program = """
            import os, sys, rekindle
            run = rekindle.TrainingRun.create("parent", root=sys.argv[1])
            worker = os.fork()
            if worker == 0:
                run.close()
                os._exit(0)
            os.waitpid(worker, 0)
            print(rekindle.RunReader(run.path).is_live)
        """
        parent = script(program, tmp_path)
        assert parent.communicate()[0] == "True\n"


class TestManyStarts:
    def test_fifty_starts_in_one_second_make_fifty_runs(self, tmp_path: Path) -> None:
        program = """
            import sys, rekindle
            for _ in range(10):
                run = rekindle.TrainingRun.create("crowd", root=sys.argv[1], seed=3)
                print(run.path, flush=True)
                run.close()
        """
        processes = [script(program, tmp_path) for _ in range(5)]
        said = [line for process in processes for line in process.communicate()[0].split()]
        assert all(process.returncode == 0 for process in processes)
        assert len(set(said)) == len(said) == 50
        runs = find_runs(tmp_path)
        assert {str(path) for path in runs} == set(said)
        for path in runs:
            assert rekindle.RunReader(path).metadata.run_id == path.name
        assert not list((tmp_path / "crowd" / "v1").glob(".new-*"))

    def test_threads_may_start_runs_too(self, tmp_path: Path) -> None:
        def start(_: int) -> Path:
            run = TrainingRun.create("threads", root=tmp_path)
            run.close()
            return run.path

        with ThreadPoolExecutor(8) as pool:
            assert len(set(pool.map(start, range(24)))) == 24

    def test_of_many_that_start_or_resume_at_once_one_makes_the_run(self, tmp_path: Path) -> None:
        ready = threading.Barrier(20)

        def start(_: int) -> TrainingRun | None:
            ready.wait()
            try:
                return TrainingRun.create_or_resume("auto", root=tmp_path)
            except RunLocked:
                return None

        with ThreadPoolExecutor(20) as pool:
            runs = [run for run in pool.map(start, range(20)) if run is not None]
        (run,) = runs
        run.close()
        assert find_runs(tmp_path) == [run.path]

    def test_a_process_that_hangs_in_its_start_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(creation, "_PATIENCE", 0.1)
        TrainingRun.create("hung", root=tmp_path).close()
        lock = Lock(tmp_path / "hung" / "v1" / ".lock")
        holder = (
            f"is being written by process {os.getpid()} on .*; it has been creating a run there for more than 0.1 s"
        )
        with pytest.raises(RunLocked, match=holder):
            TrainingRun.create("hung", root=tmp_path)
        lock.release()

    def test_runs_of_one_second_are_in_the_order_they_were_made(self, tmp_path: Path) -> None:
        made: list[Path] = []
        for _ in range(12):
            run = TrainingRun.create("order", root=tmp_path)
            run.close()
            made.append(run.path)
        assert find_runs(tmp_path) == made
        assert rekindle.RunReader(tmp_path / "order").path == made[-1]


def test_the_start_method_of_the_tests_leaves_nothing_behind() -> None:
    assert multiprocessing.active_children() == []

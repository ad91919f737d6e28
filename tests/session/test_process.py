"""A session and its process: forks, threads that outlive nobody, signals that belong to others, and the options."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import PolicyAgent, ToyAgent, drive, line, move

from rekindle import Interrupter, KeepLast, RunReader, TrainingRun, TrainingSession, verify
from rekindle.errors import ConfigError, InputError, RekindleError
from rekindle.run import find_runs
from rekindle.session.options import SessionOptions

# Python and JAX warn of forks, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")


def in_a_child(work: Any) -> int:
    """Run something in a forked child, for at most 20 seconds; returns its exit code."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_a_forked_child_that_leaves_the_session_leaves_it_to_the_parent(learner: Any, tmp_path: Path) -> None:
    def leave() -> None:
        with session:
            session.close()

    def fail() -> None:
        try:
            with session:
                raise ValueError("a bug in the worker")
        except ValueError:
            pass

    with TrainingSession.open("walk", PolicyAgent(), root=tmp_path, checkpoint_every=5, learner=learner) as session:
        drive(session, until=12)
        session.flush()
        before = session.run.path.joinpath("metadata.json").read_bytes() if session.run else b""
        assert in_a_child(leave) == 0
        assert in_a_child(fail) == 0
        assert session.run is not None
        assert session.run.path.joinpath("metadata.json").read_bytes() == before
        assert session.run.reader.is_live
        drive(session, until=24)
    assert session.run is not None
    assert session.run.reader.status == "stopped"
    assert verify(session.run.path).ok


def test_a_forked_child_cannot_use_the_session(tmp_path: Path) -> None:
    def use() -> None:
        for call in (
            lambda: session.observe(move(0)),
            lambda: session.act(line(0)),
            lambda: session.log("a", 1.0),
            session.checkpoint,
        ):
            with pytest.raises(InputError, match="belongs to the process that opened it"):
                call()

    with TrainingSession.open("walk", ToyAgent(), root=tmp_path) as session:
        assert in_a_child(use) == 0
        session.observe(move(0))


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("rekindle")}


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_a_session_that_cannot_be_made_leaves_no_thread(learner: Any, tmp_path: Path) -> None:
    class Bad:
        def open(self, path: Path, report: Any) -> Any:
            raise RekindleError("no such service")

    class Broken(PolicyAgent):
        def warm_up(self) -> None:
            raise RuntimeError("no compiler")

    before = threads()
    with pytest.raises(RekindleError, match="no such service"):
        TrainingSession.open("walk", PolicyAgent(), root=tmp_path, recorders=[Bad()], learner=learner)
    with pytest.raises(RuntimeError, match="no compiler"):
        TrainingSession.open("walk", Broken(), root=tmp_path, learner=learner)
    assert threads() == before
    assert find_runs(tmp_path) == []


def test_signals_of_a_host_written_in_c_are_left_to_it(tmp_path: Path) -> None:
    """`signal.getsignal` knows no handler that C code has set, so it could not be put back."""
    program = """
        import ctypes, signal, sys
        from rekindle import Interrupter
        libc = ctypes.CDLL(None, use_errno=True)
        handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: print("host", number, flush=True))
        libc.signal.restype = ctypes.c_void_p
        libc.signal(signal.SIGTERM, handler)
        # Python looks for handlers when it starts: pretend that it started after the host had set its own.
        known = signal.getsignal
        signal.getsignal = lambda number: None if number == signal.SIGTERM else known(number)
        interrupter = Interrupter()
        with interrupter.signals():
            libc.raise_(signal.SIGTERM) if hasattr(libc, "raise_") else getattr(libc, "raise")(signal.SIGTERM)
        print("stopped", interrupter.is_stopped)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.split() == ["host", "15", "stopped", "False"]


def test_an_interrupter_of_the_host_stops_the_session(tmp_path: Path) -> None:
    interrupter = Interrupter()
    interrupter.stop("before it began")
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, interrupter=interrupter) as session:
        assert session.is_done
    assert RunReader(tmp_path / "walk").metadata.stop_reason == "before it began"


# Options


def test_open_takes_exactly_the_options_of_a_session() -> None:
    parameters = inspect.signature(TrainingSession).parameters
    assert set(SessionOptions.__annotations__) == set(parameters) - {"agent", "run", "seed"}


def test_an_option_that_there_is_not_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="checkpoint_evry"):
        TrainingSession.open("walk", ToyAgent(), root=tmp_path, checkpoint_evry=5)  # type: ignore[call-arg]
    assert find_runs(tmp_path) == []


@pytest.mark.parametrize("keep", ["3", 0, -1, 2.5, True, [], [3], None, object()])
def test_a_number_of_checkpoints_that_is_none_is_refused_at_once(keep: Any, tmp_path: Path) -> None:
    run = TrainingRun.create("walk", root=tmp_path)
    with pytest.raises(ConfigError, match="keep_checkpoints"):
        TrainingSession(ToyAgent(), run=run, keep_checkpoints=keep)
    run.close()


def test_numbers_of_numpy_are_counts_too(tmp_path: Path) -> None:
    counts: dict[str, Any] = {
        "max_steps": np.int64(6),
        "checkpoint_every": np.int32(2),
        "metrics_every": np.uint8(3),
        "keep_checkpoints": np.int64(2),
    }
    with TrainingSession.open("walk", ToyAgent(), root=tmp_path, **counts) as session:
        session.every(np.int64(3), lambda: None)  # type: ignore[arg-type]
        drive(session)
    assert session.run is not None
    assert session.run.reader.status == "finished"
    assert session.run.reader.metadata.max_steps == 6
    with TrainingSession.open("other", ToyAgent(), root=tmp_path, keep_checkpoints=[KeepLast(1)]) as session:
        assert session.max_steps is None

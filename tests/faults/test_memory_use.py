"""Too little memory: an error that says so, and every file as it was."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from crashes import contents
from harness import ENVIRONMENT

import rekindle

PROGRAM = """
    import resource, sys
    import numpy as np
    import rekindle
    from rekindle.spaces import ArraySpec

    MEGABYTE = 2**20

    class Heavy:
        \"\"\"An agent of 64 MB with a memory of 24.\"\"\"

        def __init__(self):
            self.env_steps = self.updates = 0
            self.weights = np.zeros(8 * MEGABYTE)
            self.rows = np.zeros((0, MEGABYTE), np.uint8)
            self.columns = {"row": ArraySpec(np.dtype("u1"), (MEGABYTE,))}
            self.first = 0

        def act(self, observations, mode, streams):
            return np.zeros(len(observations), np.int64)

        def observe(self, transitions, streams):
            self.env_steps += len(transitions)
            if self.end < 24:
                self.rows = np.concatenate([self.rows, np.zeros((8, MEGABYTE), np.uint8)])

        def updates_due(self):
            return 0

        def update(self, n):
            raise NotImplementedError

        def state(self):
            return {"weights": self.weights.copy(), "env_steps": self.env_steps}

        def load_state(self, state):
            self.weights, self.env_steps = state["weights"].copy(), state["env_steps"]

        def replay(self):
            return self

        @property
        def end(self):
            return len(self.rows)

        def read(self, first, end):
            return {"row": self.rows[first:end].copy()}

        def restore(self, first, columns):
            self.rows = columns["row"].copy()

    def limit(megabytes):
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + int(megabytes) * MEGABYTE, resource.RLIM_INFINITY))

    def unlimited():
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)

    def train(session, steps):
        observation = np.zeros(2)
        for _ in range(steps):
            session.observe(rekindle.Experience(observation, session.act(observation), 1.0, observation))

    def report(error):
        sys.exit(f"{type(error).__name__}: {error}")

    def open_session():
        return rekindle.TrainingSession.open("heavy", Heavy(), root=sys.argv[1], checkpoint_every=4)
"""


def run(body: str, root: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", program, str(root), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**ENVIRONMENT, "MALLOC_ARENA_MAX": "1"},
    )


TRAIN = """
    with open_session() as session:
        train(session, 10)
        session.stop("enough")
"""
RESUME = """
    import threading
    threading.stack_size(256 * 1024)
    agent = Heavy()
    limit(sys.argv[2])
    try:
        session = rekindle.TrainingSession.open("heavy", agent, root=sys.argv[1], checkpoint_every=4)
    except (rekindle.RekindleError, MemoryError) as error:
        unlimited()
        report(error)
    unlimited()
    session.close()
"""
SAVE = """
    import threading
    threading.stack_size(256 * 1024)
    session = open_session()
    train(session, 3)
    limit(sys.argv[2])
    try:
        train(session, 1)
        session.checkpoint(wait=True)
    except (rekindle.RekindleError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}")
    unlimited()
    train(session, 4)
    session.checkpoint(wait=True)
    session.stop("enough")
    session.close()
    print("failures", session.checkpoint_failures)
"""


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    done = run(TRAIN, root)
    assert done.returncode == 0, done.stderr
    return root


class TestLoading:
    def test_with_too_little_memory_it_is_an_error_and_the_files_are_as_they_were(self, heavy: Path) -> None:
        before = contents(heavy)
        refused = [run(RESUME, heavy, megabytes) for megabytes in (20, 100, 200)]
        for done in refused:
            assert done.returncode == 1
            assert "memory" in done.stderr.lower()
            assert "Traceback" not in done.stderr
        assert contents(heavy) == before

    def test_with_enough_memory_the_same_run_goes_on(self, heavy: Path) -> None:
        done = run(RESUME, heavy, 800)
        assert (done.returncode, done.stderr) == (0, "")
        (resume,) = rekindle.RunReader(heavy / "heavy").metadata.resumes
        assert (resume.step, resume.grade) == (10, "exact")


class TestSaving:
    @pytest.mark.parametrize("megabytes", [8, 70])
    def test_with_too_little_memory_the_older_checkpoint_stays_and_a_later_one_is_whole(
        self, tmp_path: Path, megabytes: int
    ) -> None:
        done = run(SAVE, tmp_path, megabytes)
        assert done.returncode == 0, done.stderr
        first, last = done.stdout.splitlines()
        assert "memory" in first.lower()
        assert "Unable to allocate" in first or "MemoryError" in first
        assert last.startswith("failures")
        found = rekindle.verify(tmp_path / "heavy")
        assert found.ok, found.problems
        assert rekindle.RunReader(tmp_path / "heavy").metadata.total_steps == 8

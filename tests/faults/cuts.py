"""Cuts one training at every point, each time in a forked process, and goes on in another.

Prints what went wrong: one line a cut point, or nothing. Runs in an interpreter of its own, which has no threads that
a fork would leave behind.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import forms

import rekindle


def in_child(function: Callable[[], None]) -> int:
    """Call a function in a forked process; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train(root: Path, form: str, agent: str, *, steps: int = forms.STEPS, cut: int = 0) -> None:
    """Train to the end, or die at a point."""
    with forms.begin(root, form, agent, steps=steps) as session:
        for point, _ in enumerate(forms.FORMS[form](session), 1):
            if point == cut:
                os.kill(os.getpid(), signal.SIGKILL)


def found(root: Path) -> tuple[object, ...]:
    """What must be the same of all trainings."""
    verified = rekindle.verify(root / forms.NAME)
    metadata = rekindle.RunReader(root / forms.NAME).metadata
    counts = (metadata.status, metadata.total_steps, metadata.total_episodes, metadata.updates)
    grades = {resume.grade for resume in metadata.resumes} | {verified.grade}
    return verified.problems, verified.digests, counts, grades


class Sweep:
    """One form with one agent, cut everywhere."""

    def __init__(self, top: Path, form: str, agent: str) -> None:
        self._top, self._form, self._agent = top, form, agent
        assert self._train(top / "whole") == 0, "the training does not even run undisturbed"
        self.expected = found(top / "whole")
        self.problems: list[str] = []

    def _train(self, root: Path, *, steps: int = forms.STEPS, cut: int = 0) -> int:
        return in_child(lambda: train(root, self._form, self._agent, steps=steps, cut=cut))

    def killed(self, *, stride: int, first: int) -> int:
        """Kill at every point; says how many there were."""
        cut = first
        while (code := self._train(self._top / f"cut_{cut}", cut=cut)) == -signal.SIGKILL:
            self._check(self._top / f"cut_{cut}", f"killed at point {cut}")
            cut += stride
        if code != 0:
            self.problems.append(f"cut at point {cut}: it ended with {code}")
        return (cut - first) // stride

    def killed_twice(self) -> None:
        """Kill, go on, kill again soon after, go on."""
        for cut in range(5, 60, 11):
            root = self._top / f"twice_{cut}"
            self._train(root, cut=cut)
            self._train(root, cut=3)
            self._check(root, f"killed at point {cut} and again 3 points later")

    def stopped(self, *, stride: int, first: int) -> None:
        """Finish with fewer steps, then go on to the full number."""
        for steps in range(first, forms.STEPS, stride):
            root = self._top / f"steps_{steps}"
            if self._train(root, steps=steps) != 0:
                self.problems.append(f"stopped at {steps} steps: it did not end well")
                continue
            self._check(root, f"stopped at {steps} steps")

    def _check(self, root: Path, what: str) -> None:
        code = self._train(root)
        if code != 0:
            self.problems.append(f"{what}: it could not go on ({code})")
        elif (result := found(root)) != self.expected:
            self.problems.append(f"{what}: {result} instead of {self.expected}")
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=forms.FORMS)
    parser.add_argument("agent", choices=forms.AGENTS)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--first", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as top:
        sweep = Sweep(Path(top), options.form, options.agent)
        points = sweep.killed(stride=options.stride, first=options.first)
        sweep.killed_twice()
        sweep.stopped(stride=options.stride, first=options.first)
    print(f"{points} points", file=sys.stderr)
    print(*sweep.problems, sep="\n", end="")


if __name__ == "__main__":
    main()

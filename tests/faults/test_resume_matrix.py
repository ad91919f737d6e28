"""Wherever a training is cut, and however its host drives it, it ends as if it had not been."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import forms
import pytest
from harness import ENVIRONMENT, HERE
from worker import Learner, Walk

import rekindle
from rekindle.errors import CheckpointError
from rekindle.run.directory import TrainingRun
from rekindle.session import restoring

exhaustive = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


def cases() -> Iterator[Any]:
    """Every form with every agent; in CI half of them, with every form and every agent, and not cut everywhere."""
    for row, form in enumerate(forms.FORMS):
        for column, agent in enumerate(forms.AGENTS):
            yield pytest.param(form, agent, 1, marks=exhaustive)
            yield pytest.param(form, agent, 9, marks=exhaustive if (row + column) % 2 else ())


class TestExact:
    @pytest.mark.parametrize(("form", "agent", "stride"), list(cases()))
    def test_cut_anywhere_it_ends_as_if_it_had_not_been(self, form: str, agent: str, stride: int) -> None:
        # Each agent begins at another point, so that together they are cut nearly everywhere in CI too.
        first = 1 if stride == 1 else 1 + 2 * list(forms.AGENTS).index(agent)
        command = [sys.executable, str(HERE / "cuts.py"), form, agent, f"--stride={stride}", f"--first={first}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
        counted = re.search(r"(\d+) points", done.stderr)
        assert counted is not None
        assert int(counted[1]) > 18 // stride - 1


def play(session: rekindle.TrainingSession, steps: int, *, env: Any = None, seed: int = 0) -> None:
    """A raw loop whose environment nobody saves."""
    env = Walk() if env is None else env
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = session.act(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        status = rekindle.EpisodeStatus.of(terminated, truncated)
        session.observe(rekindle.Experience(observation, action, reward, following, status))
        observation = following
        if status.is_done:
            session.on_episode()
            observation, _ = env.reset(seed=seed + session.total_steps)


def stopped_run(root: Path, *, steps: int = 10, seed: int = 4) -> Path:
    """A run that was stopped in the middle of an episode."""
    with rekindle.TrainingSession.open("plain", Learner(seed=1), root=root) as session:
        play(session, steps, seed=seed)
        assert session.stream().is_open
        session.stop("enough for today")
    assert session.run is not None
    assert rekindle.verify(session.run.path).grade == "exact"
    return session.run.path


class TestApproximate:
    def test_an_episode_whose_world_is_gone_is_closed_as_truncated_and_the_resume_says_so(self, tmp_path: Path) -> None:
        path = stopped_run(tmp_path)
        logged = len(rekindle.RunReader(path).train_episodes())
        with rekindle.TrainingSession.open("plain", Learner(seed=1), root=tmp_path) as session:
            assert session.resumed is not None
            assert session.resumed.grade == "exact"  # so far nothing is lost
            play(session, 10, seed=77)
            assert session.resumed.grade == "approximate"
            (lost,) = session.resumed.lost
            assert re.fullmatch(r"the open episode of stream 0 \(\d+ steps\) was closed as truncated", lost)
        metadata = rekindle.RunReader(path).metadata
        assert not metadata.exact
        assert [(resume.number, resume.grade, resume.lost) for resume in metadata.resumes] == [
            (1, "approximate", (lost,))
        ]
        assert rekindle.verify(path).grade == "approximate"
        closed = rekindle.RunReader(path).train_episodes()[logged]
        assert closed["status"] == "truncated"
        assert f"({closed['length']} steps)" in lost

    def test_begin_on_an_episode_that_is_still_open_closes_it_as_truncated(self, tmp_path: Path) -> None:
        path = stopped_run(tmp_path)
        with rekindle.TrainingSession.open("plain", Learner(seed=1), root=tmp_path) as session:
            session.stream().begin(Walk().reset(seed=8)[0])
        (resume,) = rekindle.RunReader(path).metadata.resumes
        assert resume.grade == "approximate"
        assert "closed as truncated" in resume.lost[0]

    def test_an_environment_that_does_not_repeat_itself_is_found_out(self, tmp_path: Path) -> None:
        class Moody(Walk):
            moods = iter(range(100))

            def reset(self, **options: Any) -> Any:
                return super().reset(seed=next(self.moods))

        for _ in range(2):
            with rekindle.TrainingSession.open("moody", Learner(seed=1), root=tmp_path) as session:
                stream, env = session.stream(), Moody()
                action = stream.begin(stream.reset(env))
                observation, reward, *_ = env.step(action)
                stream.step(observation, reward)
                session.stop("enough")
        (resume,) = rekindle.RunReader(tmp_path / "moody").metadata.resumes
        assert resume.grade == "approximate"
        assert "the open episode of stream 0 (1 steps) was closed as truncated" in resume.lost[0]

    @pytest.mark.parametrize("name", ["numpy", "python", "threads", "machine", "processors"])
    def test_another_environment_makes_a_resume_approximate(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        path = stopped_run(tmp_path)
        before = restoring.environment()
        monkeypatch.setattr(restoring, "environment", lambda: {**before, name: "other"})
        with rekindle.TrainingSession.open("plain", Learner(seed=1), root=tmp_path) as session:
            assert session.resumed is not None
            assert session.resumed.grade == "approximate"
            assert session.resumed.lost == (f"not bit-exact: {name} was {before[name]} and is other",)
        assert not rekindle.RunReader(path).metadata.exact

    def test_another_version_of_a_framework_makes_a_resume_approximate_and_one_that_is_not_loaded_does_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lost: list[tuple[str, ...]] = []
        for version in ("2.0", None, "2.1"):
            module = ModuleType("torch")
            vars(module)["__version__"] = version
            if version is None:
                monkeypatch.delitem(sys.modules, "torch", raising=False)
            else:
                monkeypatch.setitem(sys.modules, "torch", module)
            with rekindle.TrainingSession.open("plain", Learner(seed=1), root=tmp_path) as session:
                session.stop("for now")
                lost.append(session.resumed.lost if session.resumed else ())
        assert lost == [(), (), ("not bit-exact: torch was 2.0 and is 2.1",)]

    def test_a_strict_session_refuses_and_leaves_the_run_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from crashes import contents

        path = stopped_run(tmp_path)
        before = contents(path)
        monkeypatch.setattr(restoring, "environment", lambda: {"numpy": "0.1"})
        agent = Learner(seed=1)
        untouched = agent.state()
        with pytest.raises(CheckpointError, match=r"cannot be resumed exactly: .*numpy was .* and is 0\.1"):
            rekindle.TrainingSession.open("plain", agent, root=tmp_path, strict=True)
        assert contents(path) == before
        assert str(agent.state()) == str(untouched)
        monkeypatch.undo()
        with rekindle.TrainingSession.open("plain", agent, root=tmp_path, strict=True) as session:
            assert session.resumed is not None
            assert session.resumed.grade == "exact"

    def test_another_number_of_threads_is_noticed_between_real_processes(self, tmp_path: Path) -> None:
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); import rekindle; from worker import Learner\n"
            "session = rekindle.TrainingSession.open('threads', Learner(seed=1), root=sys.argv[2])\n"
            "session.stop('enough'); session.close(); print(session.resumed and session.resumed.lost)"
        )
        said = [
            subprocess.run(
                [sys.executable, "-c", program, str(HERE), str(tmp_path)],
                capture_output=True,
                text=True,
                check=True,
                env={**ENVIRONMENT, "OMP_NUM_THREADS": threads},
            ).stdout.strip()
            for threads in ("1", "1", "3")
        ]
        assert said == ["None", "()", "('not bit-exact: threads was 1 and is 3',)"]

    def test_once_approximate_a_run_stays_so(self, tmp_path: Path) -> None:
        path = stopped_run(tmp_path)
        for seed in (77, 78):
            with rekindle.TrainingSession.open("plain", Learner(seed=1), root=tmp_path) as session:
                play(session, 14, seed=seed)
                session.stream().abandon()
                session.stop("enough for today")
        with rekindle.TrainingSession.open("plain", Learner(seed=1), root=tmp_path) as session:
            assert session.resumed is not None
            assert session.resumed.grade == "exact"
        grades = [resume.grade for resume in rekindle.RunReader(path).metadata.resumes]
        assert grades[0] == "approximate"
        assert grades[-1] == "exact"
        assert rekindle.verify(path).grade == "approximate"


class TestGoingOn:
    def test_a_finished_run_goes_on_when_it_is_asked_for_by_name(self, tmp_path: Path) -> None:
        with forms.begin(tmp_path, "two_calls", "learner", steps=7) as session:
            list(forms.two_calls(session))
        assert session.run is not None
        path = session.run.path
        assert rekindle.RunReader(path).status == "finished"
        run = TrainingRun.resume(path)
        run.close()
        with forms.begin(tmp_path, "two_calls", "learner", steps=7) as session:
            assert session.is_done
        assert rekindle.RunReader(path).status == "finished"

    def test_a_run_that_ends_where_it_began_is_unchanged(self, tmp_path: Path) -> None:
        with forms.begin(tmp_path, "two_calls", "learner") as session:
            list(forms.two_calls(session))
        before = rekindle.verify(tmp_path / forms.NAME).digests
        with forms.begin(tmp_path, "two_calls", "learner"):
            pass
        after = rekindle.verify(tmp_path / forms.NAME).digests
        assert after["state"] == before["state"]
        assert after["weights"] == before["weights"]
        assert after["logs"] == before["logs"]

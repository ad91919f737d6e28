"""`rekindle fork`: continue from a checkpoint of a run as a new run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import Averager, play_episode

from rekindle import RunReader, TrainingSession, verify

Rekindle = Callable[..., Any]
TRAIN = ("--steps", 400, "--checkpoint-every", 100, "--keep-checkpoints", 9, "--eval-episodes", 0, "--name", "lake")


@pytest.fixture
def parent(rekindle: Rekindle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert rekindle("train", "tabular", "FrozenLake-v1", *TRAIN, "--ui", "none").code == 0
    return RunReader("runs/lake").path


def test_an_unchanged_fork_ends_with_the_digests_of_the_run(rekindle: Rekindle, parent: Path) -> None:
    outcome = rekindle("fork", "runs/lake@200", "-o", "branch", "--json")
    assert outcome.code == 0
    assert outcome.json["env_steps"] == 400
    assert outcome.json["path"].startswith("runs/branch/v1/")
    assert f"a fork of lake/v1/{parent.name} at step 200" in outcome.err
    assert verify("runs/branch").digests == verify(parent).digests


def test_a_fork_is_named_like_a_training_and_says_that_no_steps_are_left(rekindle: Rekindle, parent: Path) -> None:
    outcome = rekindle("fork", "runs/lake", "--name", "end", "--ui", "none")
    assert outcome.code == 0
    assert RunReader("runs/end").metadata.total_steps == 400
    hint = "all 400 steps of this training are done; --steps N, with a larger N, trains further"
    assert hint in outcome.err
    assert hint in rekindle("resume", "runs/lake", "--ui", "none").err
    assert "are done" not in rekindle("resume", "runs/lake", "--steps", 500, "--ui", "none").err


def test_a_changed_setting_is_said_and_shown(rekindle: Rekindle, parent: Path) -> None:
    changes = ("--agent.learning-rate", 0.5, "--steps", 500, "--env.arguments", "is_slippery", "false")
    outcome = rekindle("fork", "runs/lake@200", "-o", "runs/branch", *changes, "--ui", "none")
    assert outcome.code == 0
    made = RunReader("runs/branch").metadata.fork
    assert made is not None
    assert made.changes == {
        "steps": (400, 500),
        "agent.learning_rate": (0.1, 0.5),
        "env.arguments": ({}, {"is_slippery": False}),
    }
    shown = rekindle("show", "runs/branch").out
    assert f"lake/v1/{parent.name} at step 200" in shown
    assert "agent.learning_rate 0.1 -> 0.5" in shown
    assert rekindle("show", "runs/branch", "--json").json["metadata"]["fork"]["step"] == 200


def test_settings_can_be_assigned_by_name(rekindle: Rekindle, parent: Path) -> None:
    agent = ("agent.learning_rate=0.5", "agent.replay_updates=1e1")
    others = ("steps=5e2", "env.arguments.is_slippery=false", "env.max_episode_steps=20")
    words = ("fork", "runs/lake@200", "-o", "branch", "--create-only", "--set", *agent, "--set", *others)
    assert rekindle(*words).code == 0
    made = RunReader("runs/branch").metadata.fork
    assert made is not None
    assert made.changes == {
        "steps": (400, 500),
        "agent.learning_rate": (0.1, 0.5),
        "agent.replay_updates": (0, 10),
        "env.arguments": ({}, {"is_slippery": False}),
        "env.max_episode_steps": (None, 20),
    }


def test_a_fork_can_be_created_only_and_resumed(rekindle: Rekindle, parent: Path) -> None:
    outcome = rekindle("fork", "runs/lake@100", "--create-only", "--agent.gamma", 0.5)
    assert outcome.code == 0
    made = RunReader("runs/lake-fork")
    assert outcome.out == (
        f"runs/lake-fork/v1/{made.path.name}: a fork of lake/v1/{parent.name} at step 100\n"
        "  agent.gamma: 0.99 -> 0.5\n"
        f"continue it with: rekindle resume runs/lake-fork/v1/{made.path.name}\n"
    )
    assert made.metadata.total_steps == 100
    assert rekindle("resume", "runs/lake-fork", "--ui", "none").code == 0
    assert made.metadata.total_steps == 400
    told = rekindle("fork", "runs/lake@100", "--create-only", "--json").json
    assert told["step"] == 100
    assert (Path(told["path"]).parent, told["parent"]) == (Path("runs/lake-fork/v1"), str(parent.absolute()))


def test_a_run_of_a_loop_of_your_own_is_forked_for_its_program(rekindle: Rekindle, tmp_path: Path) -> None:
    with TrainingSession.open("own", Averager(), root=tmp_path, journal=True, signals=False) as session:
        play_episode(session)
    told = rekindle("fork", tmp_path / "own", "-o", "branch", "--tag", "x", "--json").json
    assert (told["step"], told["changes"]) == (5, {})
    assert RunReader(told["path"]).tags == ("x",)
    with TrainingSession.open("branch", Averager(), root=tmp_path, journal=True, signals=False) as session:
        assert (session.total_steps, session.resumed.grade if session.resumed else None) == (5, "exact")
    outcome = rekindle("fork", tmp_path / "own")
    assert outcome.code == 0
    assert "continue it with your program, or with rekindle serve" in outcome.out
    assert rekindle("fork", tmp_path / "own", "--agent.gamma", "0.9").code == 2


def test_the_help_shows_the_settings_of_the_run(rekindle: Rekindle, parent: Path) -> None:
    shown = rekindle("fork", "runs/lake", "--help").out
    assert "--agent.learning-rate" in shown
    assert "(default: 400)" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("runs/lake@150",), "has no checkpoint of step 150: there are 100, 200, 300, 400"),
        (("runs/nothing",), "there is no run at runs/nothing"),
        (("runs/lake@200", "--agent.lr", "1"), "--agent.lr is called --agent.learning-rate here"),
        (("runs/lake@200", "--num-envs", "2"), "num_envs is 2"),
        (("runs/lake@200", "--set", "agent.lerning_rate=1"), "did you mean learning_rate"),
        (("runs/lake@200", "--set", "stepps=1"), "--set stepps: the run has no such setting"),
        (("runs/lake@200", "--set", "agent.gamma"), "use KEY=VALUE"),
        (("runs/lake@200", "--set", "agent.gamma=1:0:x%"), "Expected `float`"),
        (("runs/lake@200", "--set", "agent.gamma=1:0:e%"), "--set agent.gamma is '1:0:e%': use a percentage"),
        (("runs/lake@200", "--set", "record=tensorboard"), "record is 'tensorboard': use a list"),
    ],
)
def test_mistakes_are_one_line(rekindle: Rekindle, parent: Path, words: tuple[str, ...], message: str) -> None:
    outcome = rekindle("fork", *words)
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert not Path("runs/lake-fork").exists()

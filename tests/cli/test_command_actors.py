"""`rekindle train --actors`: actors from the command line, and a resume where they run elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle import verify

Rekindle = Callable[..., Any]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_actors_are_trained_and_resumed_in_another_place(rekindle: Rekindle) -> None:
    common = ("tabular", "FrozenLake-v1", "--actors", 4, "--round-steps", 8, "--eval-episodes", 0, "--ui", "none")
    outcome = rekindle("train", *common, "--steps", 640, "--name", "whole", "--actors-on", "here", "--json")
    assert outcome.json["env_steps"] == 640
    assert rekindle("train", *common, "--steps", 320, "--name", "moved", "--workers", 2).code == 0
    outcome = rekindle("resume", "runs/moved", "--steps", 640, "--actors-on", "here", "--ui", "none", "--json")
    assert outcome.json["env_steps"] == 640
    assert verify("runs/moved").digests == verify("runs/whole").digests


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tabular", "FrozenLake-v1", "--actors", 0), "actors is 0"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--vectorization", "native"), "vectorization is native"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--actors-on", "moon"), "moon"),
        (("tabular", "FrozenLake-v1", "--round-steps", 2), "--round-steps would have no effect: it is for actors"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--actors-on", "here", "--workers", 2), "add --vectorization"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--num-envs", 8), "--num-envs would have no effect"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--eval-envs", 8), "--eval-envs would have no effect"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--actors-on", "here", "--eval-workers", 2), "actors run here"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--free", "--eval-workers", 2), "they are played here"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--actors-on", "here", "--actor-patience", 2), "actors run here"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--ray-address", "auto"), "add --actors-on ray"),
        (("tabular", "FrozenLake-v1", "--actors", 2, "--free", "--pipeline", 0), "free actors play no rounds"),
    ],
)
def test_actors_that_cannot_be_are_refused_in_one_line(
    rekindle: Rekindle, arguments: tuple[Any, ...], message: str
) -> None:
    outcome = rekindle("train", *arguments, "--ui", "none")
    assert outcome.code in (1, 2)
    assert message in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--actors-on", "here"), "--actors-on would have no effect: the run has no actors"),
        (("--ray-address", "auto"), "--ray-address would have no effect: its actors do not run on Ray"),
        (("--workers", 2), "--workers would have no effect: the run has no worker processes"),
    ],
)
def test_a_resume_refuses_what_would_have_no_effect(rekindle: Rekindle, option: tuple[Any, ...], message: str) -> None:
    common = ("FrozenLake-v1", "--steps", 64, "--eval-episodes", 0, "--ui", "none", "--name", "plain")
    assert rekindle("train", "tabular", *common).code == 0
    outcome = rekindle("resume", "runs/plain", "--steps", 128, *option, "--ui", "none")
    assert outcome.code == 2
    assert message in outcome.err

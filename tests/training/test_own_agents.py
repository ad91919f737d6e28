"""An agent of another module is trained, resumed, evaluated and exported as those of rekindle are."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rekindle
from rekindle.checkpoint.store import list_steps
from rekindle.errors import ConfigError
from rekindle.policy.policy import load
from rekindle.run.finding import find_runs
from rekindle.training import Trainer, make_agent, rebuild
from rekindle.training.algorithms import config_type

HERE = Path(__file__).parent
TRAIN = ("train", "mine:Wandering", "CartPole-v1", "--seed", "3", "--name", "t", "--checkpoint-every", "500")
SETTINGS = ("--agent.spread", "0.25", "--agent.update-every", "3", "--agent.sizes", "4", "5")
OPTIONS = ("--eval-every", "2000", "--eval-episodes", "2", "--determinism", "repeats", "--ui", "none")
STORED = {"spread": 0.25, "update_every": 3, "sizes": [4, 5]}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working directory with an agent in it."""
    shutil.copy(HERE / "own_agents.py", tmp_path / "mine.py")
    return tmp_path


def start(here: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rekindle", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=here,
        env={**os.environ, "COLUMNS": "100"},
    )


def run(here: Path, *words: str, code: int = 0) -> str:
    process = start(here, *words)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    return out if code == 0 else errors


def newest(here: Path) -> int:
    runs = find_runs(here / "runs")
    return max(list_steps(runs[-1] / "checkpoints"), default=0) if runs else 0


@pytest.mark.slow
class TestTheCommandLine:
    def test_killed_and_resumed_it_is_the_run_that_was_not(self, here: Path, tmp_path: Path) -> None:
        run(here, *TRAIN, *SETTINGS, *OPTIONS, "--steps", "12000", "--runs", "whole")
        process = start(here, *TRAIN, *SETTINGS, *OPTIONS, "--steps", "12000")
        while newest(here) < 1_000 and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.communicate()
        assert process.returncode == -9, "it was too quick to be killed"
        refusal = run(here, "resume", "runs/t", "--ui", "none", code=2)
        assert "--agent-module mine" in refusal
        run(here, "resume", "runs/t", "--ui", "none", "--agent-module", "mine")
        found, expected = rekindle.verify(here / "runs" / "t"), rekindle.verify(here / "whole" / "t")
        assert (found.grade, found.digests) == ("exact", expected.digests)
        config = rekindle.RunReader(here / "runs" / "t").read_config()
        assert (config["algorithm"], config["agent"]) == ("mine:Wandering", STORED)

    def test_its_run_is_evaluated_and_exported(self, here: Path) -> None:
        run(here, *TRAIN, *SETTINGS, *OPTIONS, "--steps", "600")
        for words in (("eval", "runs/t", "--json"), ("export", "runs/t", "-o", "policy.mpk")):
            assert "--agent-module mine" in run(here, *words, code=2)
            run(here, *words, "--agent-module", "mine")
        assert load(here / "policy.mpk").algorithm == "wandering"

    def test_its_settings_are_in_the_help_and_in_algos(self, here: Path) -> None:
        for words in (("train", "mine:Wandering", "CartPole-v1", "--help"), ("algos", "mine:Wandering")):
            shown = " ".join(run(here, *words).split())
            assert "How far the weights wander in an update" in shown
            assert "update" in shown
        settings = json.loads(run(here, "algos", "mine:Wandering", "--json"))
        assert settings["spread"] == {"default": 0.1, "help": "How far the weights wander in an update."}

    def test_flags_may_come_first(self, here: Path) -> None:
        words = ("train", "--name", "dqn", *SETTINGS, "--steps", "20", "mine:Wandering", "CartPole-v1", *OPTIONS)
        run(here, *words)
        config = rekindle.RunReader(here / "runs" / "dqn").read_config()
        assert (config["algorithm"], config["agent"]) == ("mine:Wandering", STORED)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (("train", "nowhere:Agent", "CartPole-v1"), "nowhere cannot be imported"),
            (("train", "mine:Nobody", "CartPole-v1"), "has no class Nobody"),
            (("train", "mine:a_function", "CartPole-v1"), "has no class a_function"),
            (("train", "mine:Demanding", "CartPole-v1"), "every field needs a default"),
            (("train", "mine:Odd", "CartPole-v1"), "neither a msgspec.Struct nor a dataclass"),
            (
                ("train", "mine:Failing", "CartPole-v1", "--steps", "9"),
                "could not be created as Failing(observation_space",
            ),
            (("train", "mine:Wandering", "CartPole-v1", "--agent.update-every", "0"), "update_every is 0"),
            (("train", "mine:Plain", "CartPole-v1", "--agent.spread", "1"), "agent.spread"),
            (("algos", "mine:Nobody"), "has no class Nobody"),
            (("train", "wandering", "CartPole-v1"), "module:Class for one of your own"),
        ],
    )
    def test_what_is_wrong_is_told_and_nothing_is_begun(self, here: Path, words: tuple[str, ...], message: str) -> None:
        assert message in " ".join(run(here, *words, code=2).split())
        assert not (here / "runs").exists()

    def test_several_seeds_are_trained(self, here: Path) -> None:
        command = [word for word in TRAIN if word not in ("--seed", "3")]
        run(here, *command, *SETTINGS, *OPTIONS, "--steps", "50", "--seeds", "0-1")
        assert len(find_runs(here / "runs")) == 2


class TestPython:
    def test_a_name_is_enough_to_train_resume_and_rebuild(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"seed": 3, "name": "t", "eval_episodes": 0, "determinism": "repeats"}
        settings = {"spread": 0.5}

        def train(root: Path, steps: int) -> None:
            agent = "own_agents:Wandering"
            Trainer("CartPole-v1", agent, steps=steps, root=root, agent_settings=settings, **options).train()

        train(tmp_path / "whole", 300)
        train(tmp_path / "cut", 100)
        with pytest.raises(ConfigError, match=r"--agent-module own_agents, or modules=\['own_agents'\]"):
            Trainer.resume(tmp_path / "cut" / "t", steps=300)
        Trainer.resume(tmp_path / "cut" / "t", steps=300, modules=["own_agents"]).train()
        whole, cut = (rekindle.verify(tmp_path / name / "t") for name in ("whole", "cut"))
        assert (cut.grade, cut.digests) == ("exact", whole.digests)
        assert rebuild(tmp_path / "cut" / "t", modules=["own_agents"]).config.agent["spread"] == 0.5

    def test_other_settings_are_another_training(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {"name": "t", "root": tmp_path, "eval_episodes": 0, "determinism": "repeats"}
        trainer = Trainer("CartPole-v1", "own_agents:Nested", steps=50, agent_settings={"spread": 0.5}, **options)
        assert trainer.config.agent == {"spread": 0.5}
        next(trainer.steps())
        with pytest.raises(ConfigError, match=r"agent.spread was 0.5 and is 0.2"):
            Trainer("CartPole-v1", "own_agents:Nested", steps=50, **options).train()

    def test_an_agent_without_settings_takes_none(self, tmp_path: Path) -> None:
        assert Trainer("CartPole-v1", "own_agents:Plain").config.agent == {}
        with pytest.raises(ConfigError, match="NoSettings has no setting 'spread'; there are none"):
            Trainer("CartPole-v1", "own_agents:Plain", agent_settings={"spread": 1})

    def test_settings_are_those_in_the_class_or_those_beside_it(self) -> None:
        assert config_type("own_agents:Nested").__qualname__ == "Nested.Config"
        assert config_type("own_agents:Wandering").__name__ == "WanderingConfig"
        assert config_type("own_agents:Plain").__name__ == "NoSettings"

    def test_an_unknown_setting_is_named_with_what_is_near(self) -> None:
        with pytest.raises(ConfigError, match="did you mean spread"):
            make_agent("own_agents:Wandering", None, None, seed=0, settings={"sprad": 1})

"""`rekindle train --config FILE`: options from TOML, which those of the command override."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle import RunReader
from rekindle.agents.presets import find_preset
from rekindle.agents.settings import Linear
from rekindle.cli.commands import train_command, with_positionals

Rekindle = Callable[..., Any]
FILE = """
algorithm = "tabular"
steps = 3e2
name = "lake"
version = "v7"
eval_every = "None"
eval_episodes = 0
ui = "none"

[env]
id = "FrozenLake-v1"
max_episode_steps = 50
arguments = {is_slippery = false, map_name = "4x4"}

[agent]
gamma = 0.9
epsilon_steps = "50%"
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.toml").write_text(FILE)
    return tmp_path


def config_of(path: str) -> dict[str, Any]:
    return RunReader(path).read_config()


def test_a_file_has_every_option_of_the_command(rekindle: Rekindle) -> None:
    outcome = rekindle("train", "--config", "train.toml", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.json["path"].startswith("runs/lake/v7/")
    config = config_of(outcome.json["path"])
    assert (config["steps"], config["eval_episodes"], config["algorithm"]) == (300, 0, "tabular")
    assert config["eval_every"] is None
    assert (config["agent"]["gamma"], config["agent"]["epsilon_steps"]) == (0.9, 150)
    assert config["env"]["max_episode_steps"] == 50
    assert config["env"]["arguments"] == {"is_slippery": False, "map_name": "4x4"}


def test_options_of_the_command_override_it(rekindle: Rekindle) -> None:
    changes = ("--steps", 100, "--agent.gamma", 0.5, "--name", "other")
    outcome = rekindle("train", "tabular", "CliffWalking-v1", "--config=train.toml", *changes, "--json")
    assert outcome.code == 2, "its arguments are for another environment"
    assert "CliffWalking-v1 could not be created" in outcome.err
    outcome = rekindle("train", "tabular", "FrozenLake-v1", "--config=train.toml", *changes, "--json")
    config = config_of(outcome.json["path"])
    assert (config["steps"], config["agent"]["gamma"]) == (100, 0.5)
    assert outcome.json["path"].startswith("runs/other/v7/")


@pytest.mark.slow
def test_seeds_of_a_file_train_one_run_each(rekindle: Rekindle, here: Path) -> None:
    (here / "train.toml").write_text(f'seeds = "0-1"\njobs = 2\n{FILE}')
    outcome = rekindle("train", "--config", "train.toml", "--json")
    assert (outcome.code, [run["report"]["env_steps"] for run in outcome.json]) == (0, [300, 300])
    assert sorted(path.name for path in (here / "runs/lake").iterdir()) == ["v7-seed0", "v7-seed1"]


def test_it_overrides_the_preset(here: Path) -> None:
    pytest.importorskip("jax")
    (here / "train.toml").write_text('algorithm = "dqn"\nenv = "CartPole"\n[agent]\nlearning_rate = "1e-3:0:100%"')
    preset = find_preset("dqn", "CartPole-v1")
    assert preset is not None
    command: Any = train_command(with_positionals(["--config", "train.toml"]))
    training, agent = command.__kwdefaults__["training"], command.__kwdefaults__["agent"]
    assert training.steps == preset.steps
    assert agent.learning_rate == Linear(1e-3, 0.0, 1.0)
    assert agent.batch_size == preset.agent["batch_size"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = ", "train.toml is not TOML: Invalid value"),
        ("steps = 10", "train.toml has no algorithm"),
        (FILE.replace("steps", "stepps"), "train.toml: there is no setting 'stepps'; did you mean steps"),
        (FILE.replace("steps = 3e2", "total_timesteps = 9"), "`total_timesteps` is called `steps` here"),
        (FILE.replace("gamma", "gama"), "train.toml: TabularConfig has no setting 'gama'; did you mean gamma?"),
        (FILE.replace("0.9", '"much"'), "train.toml: TabularConfig: Expected `float`, got `str` - at `$.gamma`"),
        (FILE.replace("3e2", '"many"'), "train.toml: Expected `int | null`, got `str` - at `$.steps`"),
        (FILE.replace("3e2", "-1"), "train.toml: steps is -1"),
        (FILE.replace("max_episode_steps", "max_steps"), "train.toml, [env]: there is no setting 'max_steps'"),
        (FILE.replace('"v7"', "7"), "train.toml: version: Expected `str`, got `int`"),
        (FILE.replace('"tabular"', '"tabula"'), "there is no algorithm 'tabula'; did you mean tabular?"),
        (FILE.replace("[agent]", "[[agent]]"), "use a table [agent]"),
        (FILE.replace("50%", "e%"), "train.toml: agent.epsilon_steps is 'e%': use a percentage such as '20%'"),
        (FILE.replace("0.9", '"1:0:1e999"'), "train.toml: agent.gamma is '1:0:1e999': use a percentage"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_one_line(rekindle: Rekindle, here: Path, text: str, message: str) -> None:
    (here / "train.toml").write_text(text)
    outcome = rekindle("train", "--config", "train.toml")
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (2, "", 1)
    assert message in outcome.err
    assert not (here / "runs").exists()


def test_a_file_that_is_missing_is_named(rekindle: Rekindle) -> None:
    outcome = rekindle("train", "--config", "other.toml")
    assert (outcome.code, outcome.err) == (1, "rekindle: cannot read other.toml: No such file or directory\n")

"""What can be wrong with a training that was asked for, or go wrong in it: one clear line, and nothing is lost."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rekindle import RunReader, verify
from rekindle.rng import episode_seed

Rekindle = Callable[..., Any]
FRAGILE = """
import os, signal, sys
from pathlib import Path

import gymnasium
import numpy as np

class Fragile(gymnasium.Wrapper):
    '''Goes wrong in its 40th step, as long as the file is there that says how.'''

    count = 0

    def step(self, action):
        self.count += 1
        observation, reward, *rest = self.env.step(action)
        how = Path("how").read_text() if self.count == 40 and Path("how").exists() else ""
        if how == "raises":
            raise ZeroDivisionError("by nothing")
        if how == "exits":
            sys.exit(0)
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "nan":
            reward = float("nan")
        if how == "shape":
            observation = np.zeros(3, np.float32)
        return observation, reward, *rest

def make():
    return Fragile(gymnasium.make("FrozenLake-v1"))
"""
LAKE = ("train", "tabular", "FrozenLake-v1", "--name", "t", "--checkpoint-every", 50, "--ui", "none", "--steps", 200)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("qrdqn", "CartPole-v1"), "there is no algorithm 'qrdqn'; use dqn with --agent.quantiles 50"),
            (("A2C", "CartPole-v1"), "there is no algorithm 'A2C'; use ppo, which is its successor"),
            (("sax", "Pendulum-v1"), "there is no algorithm 'sax'; did you mean sac?"),
            (("tabular", "frozenlake"), "Did you mean: `FrozenLake`"),
            (("tabular", "FrozenLake-v7"), "versioned environments: [ `v1` ]"),
            (("tabular", "env_worlds:Nope"), "env_worlds has no function or class Nope"),
            (("tabular", "env_worlds:Endles"), "did you mean env_worlds:Endless?"),
            (("dqn", "Pendulum-v1"), "dqn takes Discrete actions, and those of this environment are Box; use ppo"),
            (("sac", "CartPole-v1"), "sac takes Box actions, and those of this environment are Discrete; use dqn"),
            (("tabular", "CartPole-v1"), "a table needs a Discrete space"),
            (("tabular", "FrozenLake-v1", "--seeds", "1-"), "seeds '1-': use different whole numbers"),
            (("tabular", "FrozenLake-v1", "--seeds", "1", "--jobs", "0"), "jobs is 0"),
            (("tabula", "FrozenLake-v1", "--seeds", "0-2"), "there is no algorithm 'tabula'; did you mean tabular?"),
        ],
    )
    def test_it_is_told_in_one_line_and_nothing_is_written(
        self, rekindle: Rekindle, here: Path, arguments: tuple[str, ...], message: str
    ) -> None:
        if arguments[0] in ("dqn", "sac"):
            pytest.importorskip("jax")
        outcome = rekindle("train", *arguments, "--preset", "none", "--ui", "none")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1
        assert message in outcome.err
        assert list(here.iterdir()) == []


@pytest.mark.slow
class TestMissingExtras:
    @pytest.mark.parametrize(
        ("algorithm", "env", "module", "extra"),
        [
            ("dqn", "CartPole-v1", "jax", "agents"),
            ("tabular", "LunarLander-v3", "Box2D", "box2d"),
            ("tabular", "HalfCheetah-v5", "mujoco", "mujoco"),
            ("tabular", "ALE/Pong-v5", "ale_py", "atari"),
            ("dqn", "MinAtar/Breakout-v1", "minatar", "minatar"),
        ],
    )
    def test_the_extra_is_named(self, here: Path, algorithm: str, env: str, module: str, extra: str) -> None:
        program = (
            f"import sys; sys.modules[{module!r}] = None; from rekindle.cli import main; "
            f"sys.exit(main(['train', {algorithm!r}, {env!r}]))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert f'pip install "rekindle-rl[{extra}]"' in done.stderr
        assert list(here.iterdir()) == []


class TestFailuresOnTheWay:
    @pytest.mark.parametrize(
        ("how", "vector", "message"),
        [
            ("raises", (), r"fragile:make, env 0, failed in step: ZeroDivisionError: by nothing (fragile.py:"),
            ("exits", (), r"fragile:make, env 0, failed in step: it called sys.exit(0) (fragile.py:"),
            (
                "exits",
                ("--num-envs", 2, "--vectorization", "async", "--workers", 2),
                "fragile:make, env 0, failed in step: it called sys.exit(0) (fragile.py:",
            ),
            ("nan", (), "fragile:make, env 0, failed in step: "),
            ("shape", (), "fragile:make, env 0, failed in step: "),
            (
                "dies",
                ("--num-envs", 2, "--vectorization", "async", "--workers", 2),
                "fragile:make: the worker process of env 0 was killed by signal 9",
            ),
        ],
    )
    def test_the_environment_and_the_step_are_named_and_the_run_goes_on_when_it_is_mended(
        self, rekindle: Rekindle, here: Path, how: str, vector: tuple[Any, ...], message: str
    ) -> None:
        (here / "fragile.py").write_text(FRAGILE)
        command = ("train", "tabular", "fragile:make", "--steps", 120, "--ui", "none", "--determinism", "repeats")
        options = (*vector, "--eval-episodes", 0, "--resume", "auto", "--agent.epsilon-steps", "100%")
        assert rekindle(*command, *options, "--name", "whole").code == 0
        (here / "how").write_text(how)
        outcome = rekindle(*command, *options, "--name", "cut")
        assert (outcome.code, outcome.out) == (1, "")
        assert outcome.err.count("\n") == 1
        assert message in outcome.err
        made = 39 * (2 if vector else 1)
        assert f"(env step {made})" in outcome.err
        reader = RunReader("runs/cut")
        assert (reader.status, reader.metadata.total_steps) == ("failed", made)
        (here / "how").unlink()
        assert rekindle("resume", "runs/cut", "--env-module", "fragile", "--ui", "none").code == 0
        assert verify("runs/cut").digests == verify("runs/whole").digests


POND = """
import gymnasium

gymnasium.register("Pond-v0", entry_point="gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", max_episode_steps=20)
"""


def test_a_run_on_an_environment_that_its_script_registered_needs_the_module_that_does(
    rekindle: Rekindle, here: Path
) -> None:
    (here / "pond.py").write_text(POND)
    quiet = 'steps=200, eval_episodes=2, agent_settings={"epsilon_steps": 1.0}'
    script = f'import pond, rekindle\nrekindle.Trainer("Pond-v0", "tabular", name="pond", {quiet}).train()'
    subprocess.run([sys.executable, "-c", script], check=True)
    for command in (("eval", "runs/pond", "--episodes", 2), ("resume", "runs/pond", "--steps", 300, "--ui", "none")):
        assert "registers it, name that module: --env-module" in rekindle(*command).err
        outcome = rekindle(*command, "--env-module", "nowhere")
        assert outcome.err == (
            "rekindle: the module nowhere cannot be imported: ModuleNotFoundError: No module named 'nowhere'\n"
        )
    for command in (("eval", "runs/pond", "--episodes", 2), ("resume", "runs/pond", "--steps", 300, "--ui", "none")):
        assert rekindle(*command, "--env-module", "pond").code == 0


ODD = """
import sys
from pathlib import Path

import gymnasium

class Odd(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("FrozenLake-v1"))

class Exits(Odd):
    def __init__(self):
        sys.exit("the licence is over")

class Prints(Odd):
    def __init__(self):
        print("welcome", flush=True)
        super().__init__()

class FailsInReset(Odd):
    def reset(self, **options):
        raise ZeroDivisionError("no reset")

class FailsInStep(Odd):
    def step(self, action):
        raise ZeroDivisionError("no step")

class ExitsInReset(Odd):
    def reset(self, **options):
        sys.exit()

class ExitsInStep(Odd):
    def step(self, action):
        sys.exit("the licence is over")

class ExitsWithSeed(Odd):
    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if Path("seed").exists() and self.seed == int(Path("seed").read_text()):
            sys.exit(0)
        return super().step(action)

class ExitsInClose(Odd):
    def close(self):
        sys.exit(3)

class FailsInClose(Odd):
    def close(self):
        raise RuntimeError("it is stuck")
"""


class TestOddEnvironments:
    @pytest.fixture(autouse=True)
    def odd(self, here: Path) -> None:
        (here / "odd.py").write_text(ODD)

    def test_one_that_ends_the_process_is_named_and_no_run_is_made(self, rekindle: Rekindle, here: Path) -> None:
        outcome = rekindle("train", "tabular", "odd:Exits")
        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == "rekindle: odd:Exits could not be created: SystemExit: the licence is over\n"
        assert not (here / "runs").exists()

    @pytest.mark.parametrize("what", ["Reset", "Step"])
    def test_one_that_fails_while_it_is_probed_is_named_and_no_run_is_made(
        self, rekindle: Rekindle, here: Path, what: str
    ) -> None:
        outcome = rekindle("train", "tabular", f"odd:FailsIn{what}")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        failure = f"failed in {what.lower()}: ZeroDivisionError: no {what.lower()} (odd.py:"
        assert f"odd:FailsIn{what}, env 0, {failure}" in outcome.err
        assert not (here / "runs").exists()

    @pytest.mark.parametrize(
        ("what", "said"), [("Reset", "it called sys.exit()"), ("Step", "it called sys.exit('the licence is over')")]
    )
    def test_one_that_exits_while_it_is_probed_is_named_and_no_run_is_made(
        self, rekindle: Rekindle, here: Path, what: str, said: str
    ) -> None:
        outcome = rekindle("train", "tabular", f"odd:ExitsIn{what}")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert f"odd:ExitsIn{what}, env 0, failed in {what.lower()}: {said} (odd.py:" in outcome.err
        assert not (here / "runs").exists()

    @pytest.mark.parametrize(("what", "said"), [("Reset", "sys.exit()"), ("Step", "sys.exit('the licence is over')")])
    def test_check_names_one_that_exits(self, rekindle: Rekindle, what: str, said: str) -> None:
        outcome = rekindle("check", f"odd:ExitsIn{what}", "--json")
        assert (outcome.code, outcome.err) == (1, "")
        errors = [finding["message"] for finding in outcome.json if finding["level"] == "error"]
        assert [error.partition(" (odd.py:")[0] for error in errors] == [
            f"{'reset(seed=...)' if what == 'Reset' else 'step'} called {said}"
        ]

    def test_one_that_exits_in_an_evaluation_is_named_and_the_work_is_saved(
        self, rekindle: Rekindle, here: Path
    ) -> None:
        options = ("--steps", 100, "--eval-every", 100, "--ui", "none", "--determinism", "repeats")
        command = ("train", "tabular", "odd:ExitsWithSeed", *options, "--agent.epsilon-steps", "100%")
        assert rekindle(*command, "--name", "whole").code == 0
        (here / "seed").write_text(str(episode_seed(0, "evaluation", 0)))
        outcome = rekindle(*command, "--name", "cut")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert "odd:ExitsWithSeed (evaluation), env 0, failed in step: it called sys.exit(0) (odd.py:" in outcome.err
        reader = RunReader("runs/cut")
        assert (reader.status, reader.metadata.total_steps) == ("failed", 100)
        (here / "seed").unlink()
        assert rekindle("resume", "runs/cut", "--env-module", "odd", "--ui", "none").code == 0
        assert verify("runs/cut").digests == verify("runs/whole").digests

    def test_eval_and_record_name_one_that_exits(self, rekindle: Rekindle, here: Path) -> None:
        options = ("--steps", 50, "--eval-episodes", 0, "--ui", "none", "--determinism", "repeats", "--name", "t")
        assert rekindle("train", "tabular", "odd:ExitsWithSeed", *options, "--agent.epsilon-steps", "100%").code == 0
        (here / "seed").write_text(str(episode_seed(0, "evaluation", 0)))
        outcome = rekindle("eval", "runs/t", "--episodes", 2, "--seed", 0, "--env-module", "odd")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert "odd:ExitsWithSeed (evaluation), env 0, failed in step: it called sys.exit(0) (odd.py:" in outcome.err
        (here / "seed").write_text(str(episode_seed(0, "record", 0)))
        # ENV names the module, as for `train`.
        outcome = rekindle("record", "odd:ExitsWithSeed", "--from", "runs/t", "--episodes", 1, "-o", "data")
        assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
        assert "odd:ExitsWithSeed (recording), env 0, failed in step: it called sys.exit(0) (odd.py:" in outcome.err
        assert not (here / "data").exists()

    def test_one_that_exits_when_it_is_closed_is_told_once_and_trained_on(self, here: Path) -> None:
        command = ["train", "tabular", "odd:ExitsInClose", "--steps", "50", "--ui", "none", "--eval-episodes", "0"]
        done = subprocess.run(
            [sys.executable, "-m", "rekindle", *command], capture_output=True, text=True, check=True, cwd=here
        )
        assert "finished (max_steps): 50 steps" in done.stdout
        assert done.stderr.count("odd:ExitsInClose failed in close: SystemExit: 3") == 1

    @pytest.mark.parametrize("vector", [(), ("--vectorization", "async", "--num-envs", "2")])
    def test_what_one_prints_is_no_part_of_the_json(self, here: Path, vector: tuple[str, ...]) -> None:
        options = ["--steps", "20", "--eval-episodes", "1", "--agent.epsilon-steps", "100%", "--ui", "none", "--json"]
        command = ["train", "tabular", "odd:Prints", *options]
        done = subprocess.run(
            [sys.executable, "-m", "rekindle", *command, *vector], capture_output=True, text=True, check=True, cwd=here
        )
        assert json.loads(done.stdout)["env_steps"] >= 20
        assert "welcome" in done.stderr
        assert done.stderr.replace("welcome", "").split() == []  # two processes may print on one line

    def test_what_one_prints_does_not_disturb_seeds(self, rekindle: Rekindle) -> None:
        command = ("train", "tabular", "odd:Prints", "--steps", 20, "--eval-episodes", 1, "--seeds", "0-1", "--json")
        outcome = rekindle(*command)
        assert outcome.code == 0
        assert [run["report"]["status"] for run in outcome.json] == ["finished", "finished"]

    @pytest.mark.parametrize("determinism", ["repeats", "leaks"])
    def test_one_that_cannot_be_closed_is_told_once_and_trained_on(self, here: Path, determinism: str) -> None:
        command = [
            "train",
            "tabular",
            "odd:FailsInClose",
            "--steps",
            "50",
            "--ui",
            "none",
            "--determinism",
            determinism,
        ]
        done = subprocess.run(
            [sys.executable, "-m", "rekindle", *command], capture_output=True, text=True, check=True, cwd=here
        )
        assert "finished (max_steps): 50 steps" in done.stdout
        assert done.stderr.count("odd:FailsInClose failed in close: RuntimeError: it is stuck") == 1
        assert RunReader("runs/tabular-odd-FailsInClose").status == "finished"


class TestPlaces:
    @pytest.mark.parametrize(
        ("place", "message"),
        [
            ("file", "cannot make the directory .*file/t: Not a directory"),
            ("x" * 300, "cannot make the directory .*: File name too long"),
            ("/proc/nowhere", "cannot make the directory /proc/nowhere: "),
        ],
        ids=["file", "long", "nowhere"],
    )
    def test_a_place_that_cannot_be_written_is_named(
        self, rekindle: Rekindle, here: Path, place: str, message: str
    ) -> None:
        (here / "file").touch()
        for options in ((), ("--resume", "auto")):
            outcome = rekindle(*LAKE, "--runs", place, *options)
            assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
            assert re.search(message, outcome.err)

    @pytest.mark.parametrize("level", ["t", "t/v1", "t/v1/.lock"])
    def test_something_else_in_the_place_of_a_directory_is_named(
        self, rekindle: Rekindle, here: Path, level: str
    ) -> None:
        taken = here / "runs" / level
        taken.parent.mkdir(parents=True)
        taken.mkdir() if level.endswith("lock") else taken.touch()
        for options in ((), ("--resume", "auto")):
            outcome = rekindle(*LAKE, *options)
            assert (outcome.code, outcome.out, outcome.err.count("\n")) == (1, "", 1)
            assert str(taken) in outcome.err


class TestAnotherConfig:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (("CliffWalking-v1",), "is another training: env was "),
            (("FrozenLake-v1", "--agent.gamma", 0.5), "is another training: agent.gamma was 0.99 and is 0.5"),
            (("FrozenLake-v1", "--seed", 4), "is another training: seed was 0 and is 4"),
        ],
    )
    def test_another_training_is_not_continued(
        self, rekindle: Rekindle, changes: tuple[Any, ...], message: str
    ) -> None:
        self.stop_on_the_way(rekindle)
        before = verify("runs/t").digests
        outcome = rekindle("train", "tabular", *changes, *LAKE[3:], "--resume", "auto")
        assert outcome.code == 2
        assert message in outcome.err
        assert verify("runs/t").digests == before
        assert rekindle(*LAKE, "--resume", "auto").code == 0

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"env": {"id": "CliffWalking-v1"}}, "config.json was edited since the training began: env was "),
            ({"seed": 4}, "config.json was edited since the training began: seed was 0 and is 4. Restore it"),
            ({"num_envs": 0}, "num_envs is 0"),
            ({"agent": {"gama": 1}}, "no setting 'gama'; did you mean gamma"),
            ({"colour": "red"}, "is not the config of a trainer"),
        ],
    )
    def test_a_config_file_that_does_not_fit_the_run_loses_nothing(
        self, rekindle: Rekindle, change: dict[str, Any], message: str
    ) -> None:
        self.stop_on_the_way(rekindle)
        file = RunReader("runs/t").path / "config.json"
        before, stored = verify("runs/t").digests, file.read_text()
        file.write_text(json.dumps({**json.loads(stored), **change}))
        outcome = rekindle("resume", "runs/t", "--ui", "none")
        assert outcome.code in (1, 2)
        assert outcome.err.count("\n") == 1
        assert message in outcome.err
        assert verify("runs/t").digests == before
        file.write_text(stored)
        assert rekindle("resume", "runs/t", "--steps", 200, "--ui", "none").code == 0

    def test_an_edited_setting_of_the_agent_is_noticed(self, rekindle: Rekindle) -> None:
        self.stop_on_the_way(rekindle)
        file = RunReader("runs/t").path / "config.json"
        before, stored = verify("runs/t").digests, json.loads(file.read_text())
        file.write_text(json.dumps({**stored, "agent": {**stored["agent"], "gamma": 0.5}}))
        for command in (("resume", "runs/t"), (*LAKE, "--resume", "auto")):
            outcome = rekindle(*command, "--ui", "none")
            assert (outcome.code, outcome.err.count("\n")) == (2, 1)
            assert "was edited since the training began: agent.gamma was 0.99 and is 0.5. Restore it" in outcome.err
        assert verify("runs/t").digests == before

    def test_settings_that_make_no_other_training_may_be_edited(self, rekindle: Rekindle) -> None:
        self.stop_on_the_way(rekindle)
        file = RunReader("runs/t").path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "checkpoint_every": 20, "keep_checkpoints": 9}))
        assert rekindle("resume", "runs/t", "--steps", 200, "--ui", "none").code == 0
        assert (file.parent / "checkpoints" / "step_180.mpk").exists()

    def stop_on_the_way(self, rekindle: Rekindle) -> None:
        assert rekindle(*LAKE[:-1], 100).code == 0
        metadata = RunReader("runs/t").path / "metadata.json"  # as if it had been killed
        metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "status": "running"}))

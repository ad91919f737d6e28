"""What users do in their first hour, from the built wheel in an empty environment, outside of the repository."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path

import pytest
from users import ROOT, User

PAGES = ROOT / "docs"


def program(page: str, number: int = 0) -> str:
    """A program of the documentation."""
    return re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)[number]


KILLED_TRAINER = """
import os, signal, sys
from rekindle.events import MetricsFlushed

def kill(event):
    if event.stamp.env_steps == 4_000:
        os.kill(os.getpid(), signal.SIGKILL)

if "kill" in sys.argv:
    trainer.on(MetricsFlushed, kill)
"""
KILLED_LOOP = """\
            import os, signal, sys
            if "kill" in sys.argv and session.total_steps == 3_456:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def checkpoints(user: User, run: str) -> list[Path]:
    return user.files(f"runs/{run}/*/*/checkpoints/step_*.mpk")


def is_written(file: Path) -> bool:
    return file.exists() and file.stat().st_size > 0


@pytest.mark.slow
def test_a_user_of_stable_baselines_trains_evaluates_predicts_saves_and_goes_on_after_a_kill(user: User) -> None:
    script = program("how-to/stable-baselines3.md")
    for longer, shorter in (
        ("steps=50_000", "steps=6_000, checkpoint_every=1_000"),
        ("10_000)", "500)"),
        ("print(trainer.train())", f"{KILLED_TRAINER}print(trainer.train())"),
    ):
        assert longer in script
        script = script.replace(longer, shorter)
    user.write("pole.py", script)
    assert user.end_of("python", "pole.py", "kill") == -signal.SIGKILL
    printed = user.run("python", "pole.py")
    assert "finished (max_steps) after 6,000 env steps" in printed
    shown = user.json("show", "runs/pole")["summary"]
    assert (shown["status"], shown["exact"], shown["resumes"]) == ("finished", True, 1)
    assert (user.directory / "pole.mpk").exists()
    (evaluated,) = user.json("eval", "runs/pole", "--episodes", "2")
    assert evaluated["n_episodes"] == 2


@pytest.mark.slow
def test_a_user_with_a_loop_of_their_own_kills_it_and_it_goes_on_to_the_same_end(user: User) -> None:
    script = program("tutorial.md")
    assert "max_steps=50_000, checkpoint_every=5_000" in script
    begin = "            observation, reward,"
    assert begin in script
    shorter = script.replace("50_000", "10_000").replace("5_000", "1_000")
    user.write("train.py", shorter.replace(begin, f"{KILLED_LOOP}{begin}"))
    assert user.end_of("python", "train.py", "kill") == -signal.SIGKILL
    assert "crashed" in user.run("rekindle", "runs")
    went_on, ended = user.run("python", "train.py").splitlines()
    assert re.fullmatch(r"resumed at step [23]000, exact", went_on)
    shutil.move(user.directory / "runs", user.directory / "killed")
    assert user.run("python", "train.py").splitlines() == [ended]
    compared = user.run("rekindle", "compare", "killed/lake", "runs/lake", "--digests")
    assert "Equal to the bit:  weights yes, state yes, logs yes" in compared


CORRIDOR = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gym.Env):
    observation_space = Box(-1, 1, (2,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length=8):
        self.length = length

    def observation(self):
        return np.array([2 * self.place / self.length - 1, self.steps / 50], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = int(self.np_random.integers(self.length)), 0
        return self.observation(), {}

    def step(self, action):
        self.steps += 1
        self.place = max(0, self.place + (1 if action == 1 else -1))
        is_there = self.place >= self.length
        return self.observation(), float(is_there) - 0.02, is_there, self.steps >= 50, {}
"""

COMPARE = """
import numpy as np
import onnxruntime

import rekindle.policy

policy = rekindle.policy.load("policy.mpk")
observations = np.random.default_rng(0).uniform(-1, 1, (1_000, 2)).astype(np.float32)
session = onnxruntime.InferenceSession("policy.onnx")
actions, output = session.run(["action", "output"], {"observation": observations})
print(np.abs(output - policy.output(observations)).max() < 1e-5, (actions == policy.act(observations)).mean())
"""


@pytest.mark.exhaustive
def test_a_user_trains_a_network_of_their_own_on_a_world_of_their_own_and_exports_it_to_onnx(
    equipped_user: User,
) -> None:
    user = equipped_user
    user.write("corridor.py", CORRIDOR)
    setup = program("how-to/own-network.md")  # writes networks.py
    user.write("setup.py", setup)
    user.run("python", "setup.py")
    assert "determinism" in user.run("rekindle", "check", "corridor:Corridor")
    settings = ["--agent.network", "networks:Wide", "--agent.warmup-steps", "500", "--agent.learning-rate", "1e-3"]
    lengths = ["--steps", "20000", "--eval-every", "5000", "--checkpoint-every", "1000"]
    train = ["rekindle", "train", "dqn", "corridor:Corridor", "--name", "walk", *settings, *lengths]
    user.killed(*train, when=lambda: len(checkpoints(user, "walk")) > 1)
    advice = "--env-module corridor --agent-module networks"
    assert advice in user.refused("rekindle", "resume", "runs/walk")
    user.run("rekindle", "resume", "runs/walk", *advice.split())
    shown = user.json("show", "runs/walk")["summary"]
    assert (shown["status"], shown["exact"], shown["resumes"]) == ("finished", True, 1)
    assert shown["best_return"]["value"] > 0.8
    for file in ("policy.mpk", "policy.onnx"):
        user.run("rekindle", "export", "runs/walk", *advice.split(), "-o", file)
    user.write("compare.py", COMPARE)
    assert user.run("python", "compare.py") == "True 1.0\n"


@pytest.mark.exhaustive
def test_a_user_kills_a_sweep_resumes_it_and_trains_the_best(user: User) -> None:
    lengths = ["--steps", "2000", "--eval-every", "500", "--eval-episodes", "3", "--prune", "none"]
    sweep = ["rekindle", "sweep", "dqn", "CartPole-v1", "--trials", "3", "--jobs", "2", *lengths]
    user.killed(*sweep, "--name", "pole", when=lambda: is_written(user.directory / "runs/pole/trials.jsonl"))
    assert "rekindle resume runs/pole" in user.run("rekindle", "show", "runs/pole")
    resumed = user.run("rekindle", "resume", "runs/pole")
    assert "3 of 3: 3 complete" in resumed
    (train,) = re.findall(r"^rekindle (train --like \S+)", resumed, re.MULTILINE)
    user.run("rekindle", *train.split(), "--seeds", "100-101", "--name", "tuned")
    assert [run["status"] for run in user.json("runs", "runs/tuned")] == ["finished", "finished"]
    user.run(*sweep, "--name", "whole")
    studies = [user.json("show", f"runs/{name}") for name in ("pole", "whole")]
    assert studies[0]["trials"] == studies[1]["trials"]


@pytest.mark.exhaustive
def test_a_user_runs_the_notebook_and_sees_progress_and_the_report(equipped_user: User) -> None:
    user = equipped_user
    shutil.copy(ROOT / "examples/notebook.ipynb", user.directory)
    user.run("jupyter", "execute", "--inplace", "notebook.ipynb")
    notebook = json.loads((user.directory / "notebook.ipynb").read_text("utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    printed = "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")
    drawn = "".join("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    assert [output for output in outputs if output["output_type"] == "error"] == []
    assert re.search(r"^step [\d,]+ of [\d,]+ \(100 %\)", printed, re.MULTILINE)
    assert "\x1b" not in printed
    assert "<svg" in drawn
    assert "finished" in drawn

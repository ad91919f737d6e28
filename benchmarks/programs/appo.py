"""Steps per second of Sample Factory's APPO; prints JSON."""

# Runs in an environment of its own: see benchmarks/venvs.py.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from typing import Any

import gymnasium
import timed_worlds
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner


class Clock(AlgoObserver):
    """Keeps when how many steps had been learned from."""

    def __init__(self) -> None:
        self.moments: list[tuple[float, int]] = []

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        self.moments.append((time.perf_counter(), sum(runner.env_steps.values())))


def make(full_env_name: str, *_: Any, **__: Any) -> Any:
    return gymnasium.make(full_env_name) if full_env_name.endswith("-v1") else getattr(timed_worlds, full_env_name)()


def learning(given: dict[str, Any]) -> float:
    register_env(given["env"], make)
    settings = {
        "algo": "APPO",
        "env": given["env"],
        "experiment": "speed",
        "train_dir": tempfile.mkdtemp(),
        "device": "cpu",
        "num_workers": given["workers"],
        "num_envs_per_worker": given["envs"] // given["workers"],
        "worker_num_splits": 2,
        "rollout": 64,
        "batch_size": given["minibatch_size"],
        "num_batches_per_epoch": given["rollout_steps"] // given["minibatch_size"],
        "num_epochs": given["epochs"],
        "nonlinearity": "tanh",
        "use_rnn": False,
        "normalize_input": False,
        "normalize_returns": False,
        "async_rl": True,
        "train_for_seconds": int(given["skip"] + given["seconds"]),
    }
    words = [f"--{name}={value}" for name, value in settings.items()] + ["--encoder_mlp_layers", "64", "64"]
    parser, _ = parse_sf_args(words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    clock = Clock()
    runner.register_observer(clock)
    runner.init()
    runner.run()
    first = next(moment for moment in clock.moments if moment[0] - clock.moments[0][0] > given["skip"] / 2)
    last = clock.moments[-1]
    return (last[1] - first[1]) / (last[0] - first[0])


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        rate = learning(json.loads(sys.argv[1]))
    print(json.dumps({"rate": rate}))

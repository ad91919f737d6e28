"""Steps per second of Sample Factory's APPO; prints JSON."""

# Runs in an environment of its own: see benchmarks/venvs.py.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
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
    """Measures the steps that were learned from in some seconds, some time after the first ones; then ends the process.

    Sample Factory does not end by itself here: `train_for_seconds` has no effect.
    """

    def __init__(self, skip: float, seconds: float) -> None:
        self._skip, self._seconds = skip, seconds
        self._began = self._from = 0.0
        self._steps = 0

    def on_training_step(self, runner: Any, training_iteration_since_resume: int) -> None:  # noqa: ARG002
        now, steps = time.perf_counter(), sum(runner.env_steps.values())
        self._began = self._began or now
        if not self._from and now - self._began > self._skip:
            self._from, self._steps = now, steps
        if self._from and now - self._from > self._seconds:
            os.write(OUTPUT, json.dumps({"rate": (steps - self._steps) / (now - self._from)}).encode())
            for process in multiprocessing.active_children():
                process.kill()
            os._exit(0)


def make(full_env_name: str, *_: Any, **__: Any) -> Any:
    return gymnasium.make(full_env_name) if full_env_name.endswith("-v1") else getattr(timed_worlds, full_env_name)()


def learn(given: dict[str, Any]) -> None:
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
    }
    words = [f"--{name}={value}" for name, value in settings.items()] + ["--encoder_mlp_layers", "64", "64"]
    parser, _ = parse_sf_args(words)
    _, runner = make_runner(parse_full_cfg(parser, words))
    runner.register_observer(Clock(given["skip"], given["seconds"]))
    runner.init()
    runner.run()


if __name__ == "__main__":
    OUTPUT = os.dup(1)
    with contextlib.redirect_stdout(sys.stderr):
        learn(json.loads(sys.argv[1]))

"""A training of Stable-Baselines3 or SBX, for `benchmarks/peers.py`.

    python baselines.py {sb3,sbx} CASE

SBX has one width for both hidden layers of DQN, and does not clip its gradients.
"""

# The peers are not installed here.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingTypeStubs=false

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack
from timing import CASES, Case, Stopwatch, keep_to_one_processor


def settings_of(case: Case) -> dict[str, Any]:
    if case.is_atari:
        return {
            "dqn": {
                "learning_rate": 1e-4,
                "batch_size": 32,
                "buffer_size": 10_000,
                "learning_starts": case.warmup,
                "train_freq": 4,
                "target_update_interval": 1_000,
                "exploration_fraction": 1_000 / case.steps,
            },
            "ppo": {"n_steps": 128, "batch_size": 256, "n_epochs": 4},
        }[case.algorithm]
    return {
        "dqn": {
            "policy_kwargs": {"net_arch": [120, 84]},
            "learning_rate": 2.5e-4,
            "batch_size": 128,
            "buffer_size": 100_000,
            "learning_starts": case.warmup,
            "train_freq": 4,
            "target_update_interval": 1_000,
            "exploration_fraction": 2_000 / case.steps,
        },
        "ppo": {"n_steps": 128, "batch_size": 256, "n_epochs": 4},
        "sac": {"learning_starts": case.warmup},
    }[case.algorithm]


def make_envs(case: Case) -> Any:
    if not case.is_atari:
        return make_vec_env(case.env_id, case.num_envs, seed=0)
    importlib.import_module("ale_py")  # registers the environments
    # The preprocessing skips frames itself.
    env = make_atari_env(case.env_id, case.num_envs, seed=0, env_kwargs={"frameskip": 1})
    return VecFrameStack(env, 4)


def main() -> None:
    peer, name = sys.argv[1:]
    case = CASES[name]
    keep_to_one_processor()
    torch.set_num_threads(1)
    if peer == "sbx":
        import jax

        # On the thread that asks for it, as ours and PyTorch do, and not on another one that it waits for.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    watch = Stopwatch(case.first)
    library = importlib.import_module({"sb3": "stable_baselines3", "sbx": "sbx"}[peer])
    make = getattr(library, case.algorithm.upper())
    model = make(
        "CnnPolicy" if case.is_atari else "MlpPolicy", make_envs(case), seed=0, device="cpu", **settings_of(case)
    )

    def look(*_: Any) -> bool:
        watch.look(model.num_timesteps)
        return True

    model.learn(case.steps, callback=look)
    watch.report(model.num_timesteps)


if __name__ == "__main__":
    main()

"""One training of d3rlpy from data, as `benchmarks/offline.py` asks for it; request and answer are JSON.

Run in an environment that has d3rlpy. Its defaults are changed only where a setting of the request says so, and in the
targets of AWAC: d3rlpy takes over those of SAC with a temperature of 1; those of the paper, and ours, have no entropy.
"""

# This file is run where d3rlpy and torch are, and checked where they need not be.
# pyright: basic, reportMissingImports=false, reportPrivateImportUsage=false

from __future__ import annotations

import contextlib
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from learning import play


def dataset_of(path: str, reward_scale: float) -> Any:
    """Its kind of data set: the observation after a timeout is a row of its own, so that no transition is left out."""
    from d3rlpy.dataset import MDPDataset

    data = np.load(path)
    lengths = data["episode_lengths"]
    names = ("observations", "actions", "rewards", "terminals", "timeouts")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    step = seen = 0
    for length in lengths:
        steps, rows = slice(step, step + length), slice(seen, seen + length + 1)
        terminated = bool(data["terminations"][step + length - 1])
        added = 0 if terminated else 1
        columns["observations"].append(data["observations"][rows][: length + added])
        for name, scale in (("actions", 1.0), ("rewards", reward_scale)):
            values = scale * data[name][steps]
            columns[name].append(np.concatenate([values, np.zeros((added, *values.shape[1:]))]))
        last = np.zeros(length + added)
        last[-1] = 1
        columns["terminals"].append(last * terminated)
        columns["timeouts"].append(last * (not terminated))
        step, seen = step + length, seen + length + 1
    whole = {name: np.concatenate(parts).astype(np.float32) for name, parts in columns.items()}
    return MDPDataset(**whole)


def create(request: dict[str, Any], env: Any, data: Any) -> Any:
    from d3rlpy import algos
    from d3rlpy.models.encoders import VectorEncoderFactory
    from d3rlpy.preprocessing import MinMaxActionScaler, StandardObservationScaler

    given = request["settings"]
    kind = {"iql": "IQL", "awac": "AWAC", "bc": "BC", "td3_bc": "TD3PlusBC"}[request["algorithm"]]
    config = getattr(algos, f"{kind}Config")
    fields = config.__dataclass_fields__
    settings: dict[str, Any] = {
        "batch_size": given["batch_size"],
        "gamma": given["gamma"],
        **{name: given["learning_rate"] for name in fields if name.endswith("learning_rate")},
        **{
            name: VectorEncoderFactory(hidden_units=list(given["hidden_sizes"]))
            for name in fields
            if name.endswith("encoder_factory")
        },
        "action_scaler": MinMaxActionScaler(minimum=env.action_space.low, maximum=env.action_space.high),
    }
    if kind == "TD3PlusBC":
        scaler = settings["observation_scaler"] = StandardObservationScaler()
        scaler.fit_with_transition_picker(data.episodes, data.transition_picker)
    algo = config(**settings).create(device="cpu:0")
    algo.build_with_dataset(data)
    if kind == "AWAC":
        next(algo.impl._modules.log_temp.parameters()).data.fill_(-math.inf)
    return algo


def main() -> dict[str, Any]:
    import d3rlpy
    import torch

    request = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    d3rlpy.seed(request["seed"])
    env = gym.make(request["env"])
    data = dataset_of(request["file"], request["settings"].get("reward_scale", 1.0))
    algo = create(request, env, data)
    for _ in range(20):
        algo.update(data.sample_transition_batch(request["settings"]["batch_size"]))
    d3rlpy.seed(request["seed"])
    algo = create(request, env, data)
    started = time.process_time()
    for _ in range(request["updates"]):
        algo.update(data.sample_transition_batch(request["settings"]["batch_size"]))
    cpu_seconds = time.process_time() - started
    act = lambda seen: algo.predict(seen[None].astype(np.float32))[0]  # noqa: E731
    returns = play(env, act, request["first_seed"], request["episodes"])
    answer = {name: request[name] for name in ("side", "algorithm", "data", "seed", "updates")}
    final = round(statistics.mean(returns), 2) if returns else None
    return {**answer, "final": final, "cpu_seconds": round(cpu_seconds, 2)}


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # for the logs of d3rlpy
        answer = main()
    print(json.dumps(answer))

"""One training of ours from data, as `benchmarks/offline.py` asks for it; request and answer are JSON."""

# Gymnasium is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym

from rekindle.agents.td3 import td3_bc
from rekindle.training import Trainer
from rekindle.training.evaluation import greedy

sys.path.insert(0, str(Path(__file__).parents[1]))
from learning import play


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    settings: dict[str, Any] = {**request["settings"], "hidden_sizes": tuple(request["settings"]["hidden_sizes"])}
    algorithm = request["algorithm"]
    if algorithm == "td3_bc":
        algorithm, settings = "td3", td3_bc(**settings)
    elif algorithm == "bc":
        settings["loss"] = "mse"
    trainer = Trainer(
        None,
        algorithm,
        data=request["file"],
        steps=request["updates"],
        seed=request["seed"],
        agent_settings=settings,
        eval_episodes=0,
        checkpoint_every=None,
    )
    agent: Any = trainer.agent
    agent.warm_up()  # compiles, which the time of updates does not count
    started = time.process_time()
    trainer.train()
    cpu_seconds = time.process_time() - started
    act, env = greedy(agent), gym.make(request["env"])
    returns = play(env, lambda seen: act(seen[None])[0], request["first_seed"], request["episodes"])
    answer = {name: request[name] for name in ("side", "algorithm", "data", "seed", "updates")}
    print(
        json.dumps(
            {
                **answer,
                "final": round(statistics.mean(returns), 2) if returns else None,
                "cpu_seconds": round(cpu_seconds, 2),
            }
        )
    )


if __name__ == "__main__":
    main()

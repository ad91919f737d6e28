"""One training of ours from data, as `benchmarks/offline.py` asks for it; request and answer are JSON.

For IQL, the answer has the mean of its values of the first observations of episodes, ten times during the training,
and the largest discounted return of an episode in the data.
"""

# Gymnasium is not typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rekindle.agents.td3 import td3_bc
from rekindle.data import Dataset
from rekindle.events import Updated
from rekindle.training import Trainer
from rekindle.training.evaluation import greedy

sys.path.insert(0, str(Path(__file__).parents[1]))
from learning import play


def value_of_starts(agent: Any, starts: Any) -> float:
    """The mean value that IQL gives to observations, in the unit of the rewards."""
    values = agent._algorithm._values(agent._learned.value, starts)
    return float(np.mean(values)) / agent.config.reward_scale


def discounted_return(rewards: Any, gamma: float) -> float:
    return float(np.sum(rewards * gamma ** np.arange(len(rewards))))


def main() -> None:
    request: dict[str, Any] = json.loads(sys.argv[1])
    settings: dict[str, Any] = {**request["settings"], "hidden_sizes": tuple(request["settings"]["hidden_sizes"])}
    algorithm = request["algorithm"]
    if algorithm == "td3_bc":
        algorithm, settings = "td3", td3_bc(**settings)
    elif algorithm == "bc":
        settings["loss"] = "mse"
    dataset = Dataset.open(request["file"])
    trainer = Trainer(
        None,
        algorithm,
        data=dataset,
        steps=request["updates"],
        seed=request["seed"],
        agent_settings=settings,
        eval_episodes=0,
        checkpoint_every=None,
    )
    agent: Any = trainer.agent
    values: list[float] = []
    if algorithm == "iql" and request["episodes"]:
        starts = np.stack([np.asarray(e.observations)[0] for e in dataset.episodes() if not e.is_fragment])
        every = max(1, request["updates"] // 10)

        def look(event: Updated) -> None:
            if event.stamp.updates % every == 0:
                values.append(value_of_starts(agent, starts))

        trainer.on(Updated, look)
    agent.warm_up()  # compiles, which the time of updates does not count
    started = time.process_time()
    trainer.train()
    cpu_seconds = time.process_time() - started
    act, env = greedy(agent), gym.make(request["env"])
    returns = play(env, lambda seen: act(seen[None])[0], request["first_seed"], request["episodes"])
    answer = {name: request[name] for name in ("side", "algorithm", "data", "seed", "updates")}
    answer["final"] = round(statistics.mean(returns), 2) if returns else None
    answer["cpu_seconds"] = round(cpu_seconds, 2)
    if values:
        gamma = settings["gamma"]
        answer["start_values"] = [round(value, 2) for value in values]
        answer["largest_return"] = round(max(discounted_return(e.rewards, gamma) for e in dataset.episodes()), 2)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

"""Whether actors with a pipeline learn as well as a training without actors: final weights, greedy, 50 episodes.

    python benchmarks/actor_learning.py                 # what is missing, one training at a time
    python benchmarks/actor_learning.py --table         # only the table of the results so far

Both sides have the settings of the preset, the same seeds and as many env steps. `Synchronous` is what
`benchmarks/learning.py` has trained; a `Trainer` with seed 1005 of DQN on CartPole had the same final return as its
loop. The other side has actors with `pipeline=1`, whose policies are up to two rounds old. Every result is appended to
the file of results, and results that exist are not run again. LunarLander needs the extra `box2d`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from typing import Any, NamedTuple

import gymnasium
from learning import FINAL_EPISODES, FINAL_SEEDS, RESULTS, Result, append_each, command_line, name_of, play, read

from rekindle.training import Trainer


class Cell(NamedTuple):
    """An algorithm on an environment."""

    algorithm: str
    env: str
    steps: int
    seeds: range
    actors: int
    envs_each: int

    @property
    def name(self) -> str:
        return f"{self.algorithm}:{self.env}:{self.steps}"

    def finals(self, there: list[Result]) -> dict[int, float]:
        """The final return of every seed."""
        found = {each["seed"]: each["final"] for each in there if name_of(each) == self.name}
        return {seed: found[seed] for seed in self.seeds if seed in found}


CELLS = [
    Cell("ppo", "CartPole-v1", 100_000, range(1000, 1005), 2, 4),
    Cell("dqn", "CartPole-v1", 50_000, range(1000, 1005), 4, 1),
    Cell("ppo", "LunarLander-v3", 1_000_000, range(1000, 1005), 2, 8),
    Cell("dqn", "LunarLander-v3", 250_000, range(100, 105), 4, 1),
]


def train(cell: Cell, seed: int) -> Result:
    """One training with actors, and how well its final policy plays."""
    began = time.process_time()
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer.from_preset(
            cell.env,
            cell.algorithm,
            steps=cell.steps,
            seed=seed,
            root=root,
            name="t",
            actors=cell.actors,
            envs_each=cell.envs_each,
            pipeline=1,
            actors_on="here",  # makes no difference to the result
            determinism="repeats",
            eval_episodes=0,
            checkpoint_every=None,
        )
        trainer.train()
        agent: Any = trainer.agent
        policy, round_steps = agent.policy(), trainer.config.round_steps
    cpu_seconds = time.process_time() - began
    env = gymnasium.make(cell.env)
    final = play(env, lambda observation: policy.act(observation[None])[0], FINAL_SEEDS, FINAL_EPISODES)
    return {
        "algorithm": cell.algorithm,
        "env": cell.env,
        "steps": cell.steps,
        "seed": seed,
        "actors": cell.actors,
        "envs_each": cell.envs_each,
        "round_steps": round_steps,
        "final": round(statistics.mean(final), 2),
        "final_std": round(statistics.stdev(final), 2),
        "cpu_seconds": round(cpu_seconds, 1),
    }


def difference(synchronous: list[float], actors: list[float]) -> float:
    """How much better the mean with actors is, in pooled standard errors."""
    better = statistics.mean(actors) - statistics.mean(synchronous)
    error = sum(statistics.variance(side) / len(side) for side in (synchronous, actors)) ** 0.5
    return better / error if error else 0.0


def table(with_actors: list[Result], without: list[Result]) -> str:
    """Both sides of each cell, as Markdown."""
    lines = [
        "| agent | environment | steps | `Synchronous`: seeds | `pipeline=1`: seeds | means | difference |",
        "|---|---|---:|---|---|---|---:|",
    ]
    scores: list[float] = []
    for cell in CELLS:
        actors, synchronous = cell.finals(with_actors), cell.finals(without)
        seeds = sorted(actors.keys() & synchronous.keys())
        if len(seeds) < 2:
            continue
        sides = [[side[seed] for seed in seeds] for side in (synchronous, actors)]
        scores.append(difference(*sides))
        each = " | ".join(", ".join(f"{final:.0f}" for final in side) for side in sides)
        means = ", ".join(f"{statistics.mean(side):.1f}" for side in sides)
        lines.append(
            f"| {cell.algorithm.upper()} | {cell.env} | {cell.steps:,} | {each} | {means} | {scores[-1]:+.2f} |"
        )
    if scores:
        lines.append(
            f"\nDifferences are in pooled standard errors: {statistics.mean(scores):+.2f} in the mean, "
            f"{min(scores):+.2f} in the lowest cell."
        )
    return "\n".join(lines)


def main() -> None:
    results = RESULTS.with_name("actor_learning.jsonl")
    parser = command_line(__doc__, results, seeds=None, only="algorithm:environment:steps")
    parser.set_defaults(jobs=1)
    options = parser.parse_args()
    if options.one:
        name, _, seed = options.one.rpartition(":")
        print(json.dumps(train(next(cell for cell in CELLS if cell.name == name), int(seed))))
        return
    if not options.table:
        there = {f"{name_of(result)}:{result['seed']}" for result in read(options.results)}
        wanted = [
            f"{cell.name}:{cell.seeds[place]}"
            for place in range(5)
            for cell in CELLS
            if options.only in (None, cell.name)
        ]
        missing = [name for name in wanted if name not in there]
        append_each(options.results, ([sys.executable, __file__, "--one", name] for name in missing), options.jobs)
    print(table(read(options.results), read(RESULTS)))


if __name__ == "__main__":
    main()

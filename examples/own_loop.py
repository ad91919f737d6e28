"""A plain loop over a Gymnasium environment. Kill it at any time and start it again: it continues exactly.

python examples/own_loop.py --steps 20000
"""

from __future__ import annotations

import argparse
from typing import Any

import gymnasium

from rekindle import TrainingSession
from rekindle.agents import Tabular


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on FrozenLake; started again, go on where it stopped.")
    parser.add_argument("--runs", default="runs", help="where runs are kept")
    parser.add_argument("--steps", type=int, default=20_000, help="env steps in all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    env: gymnasium.Env[Any, Any] = gymnasium.make("FrozenLake-v1", is_slippery=True)
    agent = Tabular(env.observation_space, env.action_space, seed=args.seed, epsilon_steps=args.steps // 2)
    with TrainingSession.open(
        "own_loop", agent, root=args.runs, seed=args.seed, max_steps=args.steps, checkpoint_every=500
    ) as session:
        if session.resumed is not None:
            print(f"going on from step {session.resumed.step} ({session.resumed.grade})", flush=True)
        stream = session.stream()
        while not session.is_done:
            # Resets the environment with the seed of this episode; after a resume, it replays the open episode.
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    print(f"{session.total_steps} steps, {session.episodes} episodes, {session.stats_summary()}")


if __name__ == "__main__":
    main()

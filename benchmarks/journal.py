"""What making the calls of an input journal again costs, beside the session that made them first.

    python benchmarks/journal.py [--steps 10000] [--repeats 5]

A DQN learns CartPole in a session with a journal and no checkpoint, and the session is left as a kill would leave it.
Then it is opened again, and every call is made again. Both are CPU time of the whole process, after everything has been
compiled, and take turns. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium as gym

from rekindle import TrainingSession
from rekindle.agent import State
from rekindle.agents import DQN

SETTINGS: dict[str, Any] = {
    "hidden_sizes": (120, 84),
    "batch_size": 128,
    "update_every": 4,
    "warmup_steps": 1_000,
    "epsilon_steps": 2_000,
    "capacity": 100_000,
}


def opened(root: Path, agent: DQN) -> TrainingSession:
    return TrainingSession.open("journal", agent, root=root, journal=True, checkpoint_every=None, signals=False)


def live(root: Path, agent: DQN, env: gym.Env[Any, Any], steps: int) -> float:
    """Seconds of CPU time of the training, without those of the environment."""
    session = opened(root, agent)
    stream, in_env = session.stream(), 0.0
    started = time.process_time()
    observation, _ = env.reset(seed=0)
    action = stream.begin(observation)
    for _ in range(steps):
        before = time.process_time()
        observation, reward, terminated, truncated, _ = env.step(action)
        in_env += time.process_time() - before
        action = stream.step(observation, float(reward), terminated, truncated)
        if action is None:
            before = time.process_time()
            observation, _ = env.reset()
            in_env += time.process_time() - before
            action = stream.begin(observation)
    cost = time.process_time() - started - in_env
    _leave(session)
    return cost


def replay(root: Path, agent: DQN, steps: int) -> float:
    """Seconds of CPU time to make every call again."""
    session = opened(root, agent)
    started = time.process_time()
    if session.total_steps != steps:
        raise SystemExit(f"{session.total_steps} of {steps} steps were made again")
    cost = time.process_time() - started
    _leave(session)
    return cost


def _leave(session: TrainingSession) -> None:
    """Release the run without a checkpoint, as a kill would."""
    try:
        with session:
            session._parts.learner.fail(RuntimeError("killed"))  # pyright: ignore[reportPrivateUsage]
            raise RuntimeError("killed")
    except RuntimeError:
        return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    env = gym.make("CartPole-v1")
    agent = DQN(env.observation_space, env.action_space, seed=0, **SETTINGS)
    first: State = agent.state()
    ratios: list[float] = []
    costs: list[tuple[float, float]] = []
    for repeat in range(options.repeats + 1):
        with tempfile.TemporaryDirectory() as directory:
            agent.load_state(first)
            cost = live(Path(directory), agent, env, options.steps)
            agent.load_state(first)
            again = replay(Path(directory), agent, options.steps)
        if repeat:  # the first one compiles
            ratios.append(again / cost)
            costs.append((cost, again))
            print(f"live {1e6 * cost / options.steps:.1f} us a step, again {1e6 * again / options.steps:.1f} us")
    print(json.dumps({"ratio": round(statistics.median(ratios), 3), "steps": options.steps}))


if __name__ == "__main__":
    main()

"""Train a toy agent that keeps its data; a process of its own, which may kill itself.

python kept_run.py ROOT STEPS STREAMS [write|step NUMBER]
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

from toys import Corridor, ToyAgent

from rekindle import TrainingSession
from rekindle.session import keeping
from rekindle.storage import files


class SpacedAgent(ToyAgent):
    """A toy agent without a replay buffer, which acts on several streams."""


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_write(number: int) -> None:
    """Kill this process before, and in later runs after, an atomic write."""
    write, count = files.write_atomic, iter(range(10**9))

    def counted(*arguments: object, **options: object) -> None:
        at = next(count)
        if at == number // 2 and number % 2 == 0:
            kill()
        write(*arguments, **options)  # pyright: ignore[reportArgumentType]
        if at == number // 2:
            kill()

    files.write_atomic = counted  # pyright: ignore[reportAttributeAccessIssue]


def train(root: str, steps: int, streams: int, kill_at: int | None = None) -> None:
    options = {"checkpoint_every": 21, "keep_checkpoints": 2, "metrics_every": None, "keep_data": True}
    with TrainingSession.open("kept", SpacedAgent(), root=root, max_steps=steps, **options) as session:  # pyright: ignore[reportArgumentType]
        envs = [Corridor() for _ in range(streams)]
        handles = [session.stream(name) for name in range(streams)]
        actions = [handle.begin(handle.reset(env)) for handle, env in zip(handles, envs, strict=True)]
        while not session.is_done:
            for index in range(streams):
                observation, reward, terminated, truncated, _ = envs[index].step(actions[index])
                action = handles[index].step(observation, reward, terminated, truncated)
                if session.total_steps == kill_at:
                    kill()
                if session.is_done:
                    break
                if terminated or truncated:
                    action = handles[index].begin(handles[index].reset(envs[index]))
                actions[index] = action


if __name__ == "__main__":
    if "write" in sys.argv:
        kill_at_write(int(sys.argv[-1]))
    keeping._MOST_BYTES = 1000  # pyright: ignore[reportPrivateUsage]
    at = int(sys.argv[-1]) if "step" in sys.argv else None
    np.seterr(all="raise")
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), at)

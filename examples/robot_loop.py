"""A robot arm that cannot be reset or paused, and a controller that is killed again and again while it learns.

The arm is a process of its own, in real time: it keeps swinging while no controller runs. Each controller is killed
with SIGKILL in the middle of an episode. The next one replays the calls in the input journal, and continues with the
action that was chosen last.

    python examples/robot_loop.py --kills 5
"""

from __future__ import annotations

import argparse
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

import numpy as np
from gymnasium import spaces

from rekindle import RunReader, TrainingSession, verify
from rekindle.agents import Tabular
from rekindle.training import replay_run

FRAME_SECONDS = 0.005
EPISODE_STEPS = 60
TORQUES = (-4.0, 0.0, 4.0)
ANGLES, SPEEDS = 12, 7
LOOK, PUSH = b"look", b"push"


# The world: it knows nothing of training


class Arm:
    """A pendulum with a motor; its angle is 0 when it points up."""

    def __init__(self) -> None:
        self.angle: float = math.pi
        self.speed = self.torque = 0.0
        self._time = time.monotonic()

    def advance(self) -> None:
        """Swing until now, with the torque that was set last."""
        now = time.monotonic()
        while self._time < now:
            self.speed += 0.001 * (9.8 * math.sin(self.angle) + self.torque - 0.3 * self.speed)
            self.angle += 0.001 * self.speed
            self._time += 0.001


def be_the_world(address: str) -> None:
    """Serve one controller after the other, until the supervisor is gone."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    arm = Arm()
    with Listener(address, "AF_UNIX") as listener:
        print("ready", flush=True)
        while True:
            with listener.accept() as controller:
                serve(arm, controller)


def serve(arm: Arm, controller: Connection) -> None:
    """Answer a controller until it is gone."""
    while True:
        try:
            message = controller.recv_bytes()
            arm.advance()
            if message.startswith(PUSH):
                (arm.torque,) = struct.unpack("<d", message.removeprefix(PUSH))
            else:
                controller.send_bytes(struct.pack("<2d", arm.angle, arm.speed))
        except (EOFError, ConnectionError):
            return


# The controller: it learns, and may be killed at any time


class Bins:
    """Converts angle and speed to the number of a cell, as a table needs it."""

    def encode(self, observation: tuple[float, float]) -> int:
        """The cell of a state."""
        angle, speed = observation
        place = int((angle % (2 * math.pi)) / (2 * math.pi) * ANGLES) % ANGLES
        return place * SPEEDS + int(np.clip(round(speed / 2) + SPEEDS // 2, 0, SPEEDS - 1))


def be_the_controller(address: str, runs: str, steps: int | None) -> None:
    """Learn until all controllers together have made this many steps; None for no end."""
    agent = Tabular(spaces.Discrete(ANGLES * SPEEDS), spaces.Discrete(len(TORQUES)), seed=0, learning_rate=0.2)
    with (
        Client(address, "AF_UNIX") as arm,
        TrainingSession.open(
            "robot",
            agent,
            root=runs,
            max_steps=steps,
            checkpoint_every=100,
            observation_encoder=Bins(),
            journal=True,  # a resume makes the calls since the last checkpoint again
            journal_keep="all",  # and `rekindle replay` replays all of them
        ) as session,
    ):
        stream = session.stream("arm")
        action = None
        if stream.is_open:
            # The last controller was killed in the middle of an episode. This one continues with the action that was
            # chosen last. In the meantime the arm has moved on, as any part of the real world would have.
            print(f"continues in cell {stream.observation} with action {stream.action}", file=sys.stderr)
            action = stream.resume()
        while not session.is_done:
            if action is None:
                action = stream.begin(look(arm))
            arm.send_bytes(PUSH + struct.pack("<d", TORQUES[action]))
            time.sleep(FRAME_SECONDS)
            state = look(arm)
            action = stream.step(state, math.cos(state[0]), truncated=stream.length + 1 == EPISODE_STEPS)
            print(session.total_steps, flush=True)


def look(arm: Connection) -> tuple[float, float]:
    """The angle and the speed of the arm now."""
    arm.send_bytes(LOOK)
    angle, speed = struct.unpack("<2d", arm.recv_bytes())
    return angle, speed


# The supervisor: it kills controllers and starts new ones, and looks at the run in the end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--role", choices=("supervisor", "world", "controller"), default="supervisor")
    parser.add_argument("--address", default="")
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    if arguments.role == "world":
        be_the_world(arguments.address)
    elif arguments.role == "controller":
        be_the_controller(arguments.address, arguments.runs, arguments.steps)
    else:
        return supervise(arguments.runs, arguments.kills)
    return 0


def supervise(runs: str, kills: int) -> int:
    """Let controllers learn, killing all but the last one; returns 0 if the run is exact."""
    choose, steps = random.Random(0), 0
    with tempfile.TemporaryDirectory() as directory:
        common = ["--address", str(Path(directory) / "arm"), "--runs", runs]
        world = start("world", common)
        try:
            read_lines(world, 1)
            for kill in range(1, kills + 1):
                controller = start("controller", common)
                steps = int(read_lines(controller, choose.randrange(5, 120))[-1])
                controller.kill()
                print(f"kill {kill}: after step {steps}")
                controller.communicate()
            last = start("controller", [*common, "--steps", str(steps + 100)])
            last.communicate()
        finally:
            world.communicate()  # closes its standard input, which ends it
    if last.returncode:
        print("the last controller failed")
        return 1
    return report(runs)


def start(role: str, arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start this script as another process."""
    command = [sys.executable, __file__, "--role", role, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines that a process prints."""
    assert process.stdout is not None
    lines = [process.stdout.readline().strip() for _ in range(count)]
    if not all(lines):
        raise SystemExit(f"{process.args} ended too early")
    return lines


def report(runs: str) -> int:
    """Print what each resume did, and whether the run is what its journal leads to."""
    run = RunReader(Path(runs) / "robot")
    for resume in run.metadata.resumes:
        print(
            f"resume {resume.number}: from the checkpoint of step {resume.step}, {resume.replayed} calls replayed "
            f"({resume.grade})"
        )
    found = verify(run.path)
    print(f"verify: {'ok' if found.ok else 'damaged'}, {found.grade}, {run.metadata.total_steps} steps")
    again = replay_run(run.path)
    verdict = "equal to the bit" if again.ok else "different"
    print(f"replay: {again.records} calls replayed without the arm, {len(again.checkpoints)} checkpoints {verdict}")
    return 0 if found.ok and found.grade == "exact" and again.ok else 1


if __name__ == "__main__":
    sys.exit(main())

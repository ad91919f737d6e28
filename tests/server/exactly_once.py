"""The campaign that shows that every request is processed exactly once, whatever happens to the server or the network.

Clients are processes that log what they asked and what they were answered. Afterwards the logs are the only witness:
they must be unbroken, and the same ticks given to a plain session must lead to the same run.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from hosting import STATES, ServerProcess

from rekindle import TrainingSession
from rekindle.agents import Tabular
from rekindle.checkpoint.store import list_steps
from rekindle.experience import Array
from rekindle.run.finding import find_run
from rekindle.session.ticks import Tick, Ticks
from rekindle.storage import codec
from rekindle.verification import checkpoint_digests, verify

HERE = Path(__file__).parent
ACTIONS = 3
SPACES = {
    "observation_space": {"type": "Discrete", "n": STATES},
    "action_space": {"type": "Discrete", "n": ACTIONS},
}


def serving(root: Path, port: int) -> ServerProcess:
    spaces = root / "spaces.json"
    spaces.write_text(json.dumps(SPACES), encoding="utf-8")
    options = ["--learner", "inline", "--journal-keep", "all", "--checkpoint-every", "400", "--metrics-every", "100"]
    return ServerProcess(
        "serve",
        "tabular",
        "--runs",
        root / "runs",
        "--name",
        "served",
        "--spaces",
        spaces,
        "--port",
        str(port),
        *options,
    )


def started_clients(address: str, root: Path, clients: int, requests: int) -> list[subprocess.Popen[str]]:
    return [
        subprocess.Popen(
            [
                sys.executable,
                str(HERE / "load_client.py"),
                address,
                f"client-{number}",
                str(root / f"client-{number}.log"),
                str(number),
                str(requests),
                str(STATES),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(clients)
    ]


def kill_under_load(server: ServerProcess, root: Path, answers: int, kills: int, seed: int) -> None:
    """Kill the server and start it again, each time when the clients have got some random number of answers."""
    for wanted in sorted(random.Random(seed).sample(range(answers // 10, answers * 9 // 10), kills)):
        deadline = time.monotonic() + 300
        while sum(log.read_bytes().count(b"\n") for log in root.glob("client-*.log")) < wanted:
            assert time.monotonic() < deadline, f"the clients do not get to {wanted} answers"
            time.sleep(0.005)
        server.kill()
        server.start()


def logs(root: Path, clients: int) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for number in range(clients):
        lines = (root / f"client-{number}.log").read_text(encoding="utf-8").splitlines()
        found[f"client-{number}"] = [json.loads(line) for line in lines]
    return found


class Silent:
    """A ledger that keeps nothing."""

    def state(self) -> dict[str, Any]:
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        pass

    def took(self, note: bytes, actions: Array) -> None:
        pass


def fed(ticks: Ticks, requests: list[tuple[str, dict[str, Any]]]) -> None:
    """Make one tick of the requests in it, in the order of the clients, and compare the actions."""
    steps: list[Any] = [[], [], [], []]
    first: list[Any] = [[], []]
    for name, line in requests:
        observations, rewards, statuses, streams = line["request"]["step"]
        values = (observations, rewards, statuses, [ticks.slot(f"{name}/{stream}") for stream in streams])
        for column, part in zip(steps, values, strict=True):
            column.extend(part)
    for name, line in requests:
        observations, streams = line["request"]["begin"]
        first[0] += observations
        first[1] += [ticks.slot(f"{name}/{stream}") for stream in streams]
    rows = ticks.make(
        Tick(
            steps=np.array(steps[3], np.int64),
            after=[np.array(steps[0], np.int64)] if steps[3] else (),
            rewards=np.array(steps[1], np.float64),
            statuses=np.array(steps[2], np.uint8),
            begins=np.array(first[1], np.int64),
            first=[np.array(first[0], np.int64)] if first[1] else (),
        ),
        b"",
    ).tolist()
    step_rows, begin_rows = rows[: len(steps[3])], rows[len(steps[3]) :]
    for name, line in requests:
        stepped, begun = len(line["request"]["step"][3]), len(line["request"]["begin"][1])
        assert line["actions"] == step_rows[:stepped] + begin_rows[:begun], (name, line["seq"])
        del step_rows[:stepped], begin_rows[:begun]


def check(root: Path, clients: int, requests: int) -> None:
    """The logs are unbroken, and a plain session that gets the same ticks is the same run."""
    found = logs(root, clients)
    by_tick: dict[int, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for name, lines in found.items():
        assert [line["seq"] for line in lines] == list(range(1, requests + 1)), name
        ticks_of_client = [line["tick"] for line in lines]
        assert ticks_of_client == sorted(set(ticks_of_client)), name
        for line in lines:
            by_tick[line["tick"]].append((name, line))
    order = admission_order(root)
    agent = Tabular(gym.spaces.Discrete(STATES), gym.spaces.Discrete(ACTIONS), seed=0)
    options: dict[str, Any] = {"journal": True, "checkpoint_every": 400, "metrics_every": 100, "signals": False}
    session = TrainingSession.open("served", agent, root=root / "again", **options)
    ticks = session.serve(Silent())
    for number in sorted(by_tick):
        fed(ticks, sorted(by_tick[number], key=lambda one: order[one[0]]))
    session.stop("SIGTERM")
    session.close()
    transitions = sum(len(line["request"]["step"][3]) for lines in found.values() for line in lines)
    assert session.total_steps == transitions
    assert (made := verify(root / "runs" / "served")).ok, made.problems
    served, again = (find_run(root / name / "served") for name in ("runs", "again"))
    assert checkpoint_digests(served, transitions) == checkpoint_digests(again, transitions)


def admission_order(root: Path) -> dict[str, int]:
    """The numbers that the server gave to its clients, from its last checkpoint."""
    directory = find_run(root / "runs" / "served") / "checkpoints"
    tree = codec.read_file(directory / f"step_{list_steps(directory)[-1]}.mpk")
    return {client["name"]: client["numbers"][0] for client in tree["attached"]["server"]["clients"]}

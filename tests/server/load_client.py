"""A client process: plays a seeded world against a server, and logs each request and its answer, each before the next.

The world depends on its seed and the answers alone, so the log can be replayed without it.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rekindle.client import Client


def play(address: str, name: str, log: Path, seed: int, requests: int, states: int) -> None:
    rng = np.random.default_rng(seed)
    streams = list(range(1 + seed % 3))
    with Client(address, client=name, patience=120.0) as client, log.open("w", encoding="utf-8") as file:
        is_open = dict.fromkeys(streams, False)
        for number in range(1, requests + 1):
            stepping = [stream for stream in streams if is_open[stream]]
            beginning = [stream for stream in streams if not is_open[stream]]
            observations = rng.integers(0, states, len(stepping))
            rewards = rng.random(len(stepping)).round(3).tolist()
            statuses = rng.choice([0, 0, 0, 0, 0, 0, 1, 2], len(stepping)).tolist()
            first = rng.integers(0, states, len(beginning))
            request: dict[str, Any] = {
                "step": [observations.tolist(), rewards, statuses, stepping],
                "begin": [first.tolist(), beginning],
            }
            actions = client.batch(
                step=(observations, rewards, statuses, stepping) if stepping else None,
                begin=(first, beginning) if beginning else None,
            )
            for stream, status in zip(stepping, statuses, strict=True):
                is_open[stream] = status == 0
            for stream in beginning:
                is_open[stream] = True
            line = {"seq": number, "tick": client.tick, "request": request, "actions": actions}
            file.write(json.dumps(line) + "\n")
            file.flush()
        sys.stdout.write(f"{client.reconnects}\n")


if __name__ == "__main__":
    address_, name_, log_, seed_, requests_, states_ = sys.argv[1:]
    play(address_, name_, Path(log_), int(seed_), int(requests_), int(states_))

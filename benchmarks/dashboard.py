"""What the dashboard costs: the list of a thousand runs, and a run of ten million rows.

The server is a process of its own, as users start it. Its CPU time is what the operating system has counted, so other
work on the machine hardly matters. The long run takes about a minute to make and to read, and 0.9 GB of disk.

    python benchmarks/dashboard.py [--rows 10000000]
"""

from __future__ import annotations

import argparse
import http.client
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np
from dashboard_server import Server, serving
from rich.console import Console
from rich.table import Table

from rekindle import TrainingRun

RUNS = 1000
EPISODES = 600


class Figure(msgspec.Struct, frozen=True):
    what: str
    value: float
    unit: str
    budget: float | None = None


def most_memory(process: int) -> float:
    """Megabytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def stamp(number: int) -> dict[str, Any]:
    return {"env_steps": 100 * number, "updates": number, "episodes": number, "wall_time": 1.79e9 + number}


def make_runs(root: Path) -> None:
    """A thousand runs of six hundred episodes, with metrics and evaluations."""
    run = TrainingRun.create("template", root=root / "template")
    run.write_config({"algorithm": "dqn", "env": {"id": "CartPole-v1"}, "agent": {"gamma": 0.99, "batch_size": 128}})
    for number in range(EPISODES):
        fields = {"total_reward": number / 3, "length": 100, "status": "terminated", "extras": {"epsilon": 0.05}}
        run.log("train_episodes").append({**stamp(number), "stream": 0, **fields})
        if number % 20 == 19:
            aggregate = {"mean": 0.5, "min": 0.1, "max": 0.9, "last": 0.4, "count": 100}
            run.log("metrics").append({**stamp(number), "metrics": {f"agent/{part}": aggregate for part in "abcdefgh"}})
        if number % 60 == 59:
            for _ in range(5):
                run.log("eval_episodes").append({**stamp(number), "total_steps_at_eval": 100 * number, **fields})
    run.update_metadata(status="finished")
    run.close()
    for number in range(RUNS):
        shutil.copytree(run.path, root / "runs" / f"name{number % 20}" / f"v{number // 20}" / "20260101_000000")


def list_all(server: Server) -> None:
    with server.events("/api/list") as events:
        seen = 0
        while seen < RUNS:
            seen += len(next(events)["runs"])


def measure_list(root: Path) -> Iterator[Figure]:
    make_runs(root)
    first: list[float] = []
    again: list[float] = []
    for _ in range(3):
        with serving(root / "runs") as server:
            for costs in (first, again):
                costs.append(server.cost(lambda server=server: list_all(server)))
    yield Figure(f"the list of {RUNS:,} runs, for the first time", min(first), "s", 1.0)
    yield Figure("the same once more", min(again), "s")


def write_long_log(path: Path, rows: int) -> None:
    """Rows of equal length, written as bytes: numbers are padded with blanks, which JSON allows."""
    template = b'{"row":          ,"env_steps":          ,"wall_time":          ,"total_reward":          }\n'
    starts = [index + 1 for index in range(len(template)) if template[index : index + 2] == b": "]
    with path.open("wb") as file:
        for first in range(0, rows, 500_000):
            numbers = np.arange(first, min(first + 500_000, rows))
            lines = np.tile(np.frombuffer(template, np.uint8), (len(numbers), 1))
            for start, values in zip(starts, (numbers, numbers, numbers, numbers % 1000), strict=True):
                digits = values[:, None] // 10 ** np.arange(9, -1, -1) % 10
                blank = np.cumsum(digits, axis=1) == 0
                blank[:, -1] = False
                lines[:, start : start + 10] = np.where(blank, 32, digits + 48)
            file.write(lines.tobytes())


def measure_long_run(root: Path, rows: int) -> Iterator[Figure]:
    run = TrainingRun.create("long", root=root)
    run.update_metadata(status="finished")
    run.close()
    write_long_log(run.path / "train_episodes.jsonl", rows)
    id_ = run.path.relative_to(root).as_posix()

    def chart(server: Server, total: int) -> None:
        with server.events("/api/watch", id=id_) as events:
            while next(event for event in events if event.get("log") == "train_episodes")["total"] < total:
                pass

    def zoom(server: Server, part: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port)
        query = {"id": id_, "by": "step", "from": 0.3 * rows, "to": (0.3 + part) * rows}
        connection.request("GET", f"/api/detail?{urlencode(query)}", headers=server.headers)
        connection.getresponse().read()
        connection.close()

    with serving(root) as server:
        reading = server.cost(lambda: chart(server, rows))
        yield Figure(f"{rows:,} rows, read for the first time", reading, "s")
        yield Figure("their chart after that", server.cost(lambda: chart(server, rows)), "s", 1.0)
        yield Figure("a tenth of it, zoomed", server.cost(lambda: zoom(server, 0.1)), "s", 1.0)
        yield Figure("a fiftieth of it, to the row", server.cost(lambda: zoom(server, 0.02)), "s", 1.0)
        yield Figure("memory of the server at most", most_memory(server.process), "MB", 400)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows: int = parser.parse_args().rows
    table = Table(title="Dashboard, CPU time of the server")
    for heading in ("", "figure", "budget", ""):
        table.add_column(heading, justify="left" if not heading else "right")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        figures = [
            *measure_list(root / "many"),
            *measure_long_run(root / "long", rows),
        ]
    for figure in figures:
        budget = "" if figure.budget is None else f"{figure.budget:g} {figure.unit}"
        verdict = "" if figure.budget is None else "within" if figure.value <= figure.budget else "OVER"
        table.add_row(figure.what, f"{figure.value:.2f} {figure.unit}", budget, verdict)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

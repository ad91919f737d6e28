"""What MLflow shows of the runs that were recorded, in a database or on a server."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from recorded_runs import timeless


def client(store: Path | str) -> Any:
    """Of a database at a path, or of a server."""
    uri = store if isinstance(store, str) else f"sqlite:///{store}"
    return importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)


def only_run(store: Path | str) -> Any:
    (run,) = client(store).search_runs([client(store).get_experiment_by_name("walk").experiment_id])
    return run


def shown(store: Path | str) -> list[tuple[int, dict[str, float]]]:
    """Step and values of each row, times aside; a value that is there twice is an error."""
    run = only_run(store)
    rows: dict[int, dict[str, float]] = {}
    for name in run.data.metrics:
        for item in client(store).get_metric_history(run.info.run_id, name):
            assert name not in rows.setdefault(item.step, {})
            rows[item.step][name] = item.value
    return [(step, timeless(values)) for step, values in sorted(rows.items())]

"""MLflow: a run in a local SQLite file, or on a tracking server."""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rekindle.errors import ConfigError
from rekindle.events import Histogram, Media, Stamp, Text
from rekindle.recorders.extras import load, require
from rekindle.recorders.following import Follower, Mark, Place, Row
from rekindle.recorders.video import gif
from rekindle.run.reader import RunReader
from rekindle.run.settings import flat_settings, setting_text
from rekindle.run.tags import readable_tags

__all__ = ["MLflow"]

_STATUSES = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_MOST_METRICS, _MOST_SETTINGS = 1000, 100
"""The most metrics and settings in one request."""
_LONGEST_NAME, _LONGEST_SETTING = 250, 5000


class MLflow:
    """Sends metrics and settings to MLflow: experiment `name`, run `name/version/run_id`.

    `uri` is a tracking server or a database; without one it is `MLFLOW_TRACKING_URI`, or else the SQLite file
    `mlflow.db` in the directory of runs: `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` shows it.
    """

    def __init__(self, uri: str | None = None, *, experiment: str | None = None) -> None:
        parts = ("mlflow.tracking", "mlflow.entities", "mlflow.store.tracking.sqlalchemy_store", "PIL.Image")
        require("MLflow", "mlflow", "sqlalchemy", "alembic", "PIL", extra="mlflow", parts=parts)
        self._uri, self._experiment = uri, experiment

    def open(self, path: Path, report: Callable[[str], None]) -> Follower:
        """The recorder of the run at a path."""
        return Follower("mlflow", Tracking(self._uri, self._experiment), path, report)


class Tracking:
    """One MLflow run."""

    def __init__(self, uri: str | None, experiment: str | None) -> None:
        self._uri, self._experiment = uri, experiment
        self._client: Any = None
        self._run_id = ""

    def start(self, run: RunReader, place: Place) -> None:
        """Create the MLflow run, or find the one that was created for this place, and mark it as running."""
        root = run.path.resolve().parents[2]
        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = (root / "mlflow-artifacts").as_uri() if uri is None or uri.startswith("sqlite:") else None
        if uri is None:
            uri = f"sqlite:///{root / 'mlflow.db'}"
            make_whole(root / "mlflow.db", place.token, _make_tables)
        self._client = load("mlflow.tracking").MlflowClient(tracking_uri=uri)
        if place.external_id is None:
            place.external_id = self._made_before(run, place, artifacts)
        self._run_id = place.external_id
        if self._client.get_run(self._run_id).data.tags.get("rekindle.token") != place.token:
            raise ConfigError(f"the MLflow run {self._run_id!r} belongs to another run: remove recorders/mlflow.json")
        self._client.update_run(self._run_id, status="RUNNING")

    def _made_before(self, run: RunReader, place: Place, artifacts: str | None) -> str:
        metadata = run.metadata
        name = self._experiment or metadata.name
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            number = self._client.create_experiment(name, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        for found in self._client.search_runs([number], filter_string=f"tags.`rekindle.token` = '{place.token}'"):
            return found.info.run_id
        tags = {
            **{_key(tag): "true" for tag in readable_tags(run.path)},
            "rekindle.token": place.token,
            "rekindle.path": os.fsencode(run.path.resolve()).decode(errors="backslashreplace"),
            "rekindle.agent": str(metadata.agent),
            "rekindle.seed": str(metadata.seed),
        }
        called = f"{metadata.name}/{metadata.version}/{metadata.run_id}"
        return self._client.create_run(number, run_name=called, tags=tags).info.run_id

    def describe(self, config: Mapping[str, Any]) -> None:
        """Log settings as params; log settings that have changed as tags, because MLflow does not allow new values."""
        entities = load("mlflow.entities")
        known = self._client.get_run(self._run_id).data.params
        settings = {_key(name): setting_text(value)[:_LONGEST_SETTING] for name, value in flat_settings(config).items()}
        for name, value in settings.items():
            if known.get(name, value) != value:
                self.note(f"config.{name}", value)
        fresh = [entities.Param(name, value) for name, value in settings.items() if name not in known]
        for first in range(0, len(fresh), _MOST_SETTINGS):
            self._client.log_batch(self._run_id, params=fresh[first : first + _MOST_SETTINGS])

    def send(self, rows: Sequence[Row], place: Place, doubtful: Mapping[Mark, float]) -> None:  # noqa: ARG002
        """Log metrics; of doubtful rows, only those that MLflow does not have."""
        metric = load("mlflow.entities").Metric
        histories: dict[str, set[tuple[int, int]]] = {}
        metrics: list[Any] = []
        for row in rows:
            sent_at = doubtful.get(row.mark)
            for name, value in row.values.items():
                key = _key(name)
                if sent_at is not None:
                    if key not in histories:
                        history = self._client.get_metric_history(self._run_id, key)
                        histories[key] = {(item.step, item.timestamp) for item in history}
                    if (row.env_steps, _milliseconds(sent_at)) in histories[key]:
                        continue
                metrics.append(metric(key, value, _milliseconds(row.wall_time), row.env_steps))
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[first : first + _MOST_METRICS])

    def show(self, name: str, media: Media, stamp: Stamp, place: Place) -> bool:  # noqa: ARG002
        """Log a text or a video as an artifact; MLflow does not support histograms."""
        if isinstance(media, Histogram):
            return False
        if isinstance(media, Text):
            self._client.log_text(self._run_id, media.text, f"{_key(name)}/{stamp.env_steps}.txt")
            return True
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory, f"{stamp.env_steps}.gif")
            file.write_bytes(gif(media.frames, media.fps))
            self._client.log_artifact(self._run_id, str(file), _key(name))
        return True

    def take_back(self, env_steps: int) -> bool:  # noqa: ARG002 - MLflow keeps what it has
        """Return False: MLflow does not support it."""
        return False

    def note(self, name: str, text: str) -> None:
        """Set a tag."""
        self._client.set_tag(self._run_id, name, text)

    def finish(self, status: str, place: Place) -> None:  # noqa: ARG002
        """End the MLflow run."""
        self._client.set_terminated(self._run_id, status=_STATUSES[status])


def make_whole(database: Path, token: str, make: Callable[[Path], object]) -> None:
    """Create a database under a temporary name first: a half-created one could never be used."""
    if database.exists():
        return
    building = database.with_name(f".{database.name}-{token}.tmp")
    building.unlink(missing_ok=True)
    make(building)
    with contextlib.suppress(FileExistsError):  # another run was faster
        os.link(building, database)
    building.unlink()


def _make_tables(database: Path) -> None:
    load("mlflow.tracking").MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments(max_results=1)


def _milliseconds(wall_time: float) -> int:
    return int(wall_time * 1000)


def _key(name: str) -> str:
    """A valid MLflow key: with few characters, and a path that stays in its directory."""
    key = re.sub(r"[^\w.:/ -]", "_", name, flags=re.ASCII)[:_LONGEST_NAME]
    if key not in ("", ".") and posixpath.normpath(key) == key and not key.startswith(("/", "..")):
        return key
    return re.sub(r"[/.]", "_", key) or "_"

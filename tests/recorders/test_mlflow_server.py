"""The MLflow recorder and a tracking server of MLflow itself, on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("flask_cors")
pytest.importorskip("aiohttp")

from mlflow_shown import client, only_run, shown
from recorded_runs import MARKS, MEDIA, expected, killed_at_save, train

from rekindle import RunReader
from rekindle.recorders import MLflow

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that runs as long as these tests do."""
    directory = tmp_path_factory.mktemp("server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-W", "ignore", "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
        *("--workers", "1", "--backend-store-uri", f"sqlite:///{directory / 'server.db'}"),
        *("--artifacts-destination", str(directory / "artifacts")),
    ]
    settings = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=directory, env={**os.environ, **settings}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            address = f"http://127.0.0.1:{port}"
            while not answers(address):
                assert process.poll() is None, (directory / "log").read_text()
                time.sleep(0.2)
            yield address
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # its workers too
            process.wait()


def answers(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5) as answer:
        return answer.status == 200
    return False


@pytest.fixture
def store(server: str) -> Iterator[str]:
    """The server, which has forgotten what other tests sent."""
    yield server
    experiment = client(server).get_experiment_by_name("walk")
    client(server).rename_experiment(experiment.experiment_id, f"walk before {time.monotonic_ns()}")


def test_rows_settings_and_artifacts_reach_it_and_a_resume_goes_on_with_the_same_run(
    store: str, tmp_path: Path
) -> None:
    train(tmp_path, [MLflow(store)], fail_at=25)
    before = only_run(store).info
    assert before.status == "FAILED"
    run = train(tmp_path, [MLflow(store)], media=MEDIA)
    after = only_run(store)
    assert (after.info.run_id, after.info.status) == (before.run_id, "FINISHED")
    assert after.data.params == {"agent.learning_rate": "0.1", "steps": "40"}
    assert [step for step, _ in shown(store)] == MARKS
    assert shown(store) == expected(run)
    for name, file in (("train/remark", "40.txt"), ("eval/episode", "40.gif")):
        assert f"{name}/{file}" in [item.path for item in client(store).list_artifacts(after.info.run_id, name)]


def test_after_a_kill_no_row_is_there_twice_and_none_is_missing(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert killed_at_save("rekindle.recorders:MLflow", tmp_path, 10)
    assert only_run(store).info.status == "RUNNING"
    run = train(tmp_path, [MLflow()])
    assert RunReader(run).metadata.resumes[-1].grade == "exact"
    assert shown(store) == expected(run)
    assert only_run(store).info.status == "FINISHED"

"""What a run from elsewhere may bring for a recorder: names that lead out of it, links, the settings of a service."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recorded_runs import train

from rekindle import RunReader
from rekindle.errors import ConfigError, StorageError
from rekindle.recorders.following import Follower, Place
from rekindle.recorders.mlflow import Tracking
from rekindle.recorders.tensorboard import EventFiles
from rekindle.recorders.wandb import Project


class Service:
    """Takes all, and knows whether it was started."""

    def __init__(self) -> None:
        self.started: list[Place] = []

    def start(self, run: RunReader, place: Place) -> None:
        self.started.append(place)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.mark.parametrize("token", ["", "x", "../../etc", "*", "a/../../..", "0123456", "0123456g", "[a-z]*1"])
def test_a_token_that_could_lead_elsewhere_is_refused(tmp_path: Path, token: str) -> None:
    run = train(tmp_path, [])
    (run / "recorders").mkdir()
    (run / "recorders" / "any.json").write_text(json.dumps({"token": token}))
    service: Any = Service()
    told: list[str] = []
    follower = Follower("any", service, run, told.append, patience=0.01)
    follower.close("finished")
    assert service.started == []
    assert "its token is invalid" in told[0]


EVENTS = f"events.out.tfevents.1.host.rekindle-{'a' * 8}-1"


def test_tensorboard_cuts_no_file_that_a_link_leads_to(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    victim, directory = tmp_path / "thesis.tex", tmp_path / "tensorboard"
    victim.write_text("years of work")
    directory.mkdir()
    (directory / EVENTS).symlink_to(victim)
    place = Place("a" * 8, files={EVENTS: 3})
    with pytest.raises(OSError, match="symbolic links"):
        EventFiles(directory).start(RunReader(train(tmp_path, [])), place)
    assert victim.read_text() == "years of work"


def test_tensorboard_writes_to_no_directory_that_a_link_leads_to(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    (tmp_path / "outside").mkdir()
    (tmp_path / "tensorboard").symlink_to(tmp_path / "outside")
    with pytest.raises(StorageError, match="it is a symbolic link"):
        EventFiles(tmp_path / "tensorboard").start(RunReader(train(tmp_path, [])), Place("a" * 8))
    assert list((tmp_path / "outside").iterdir()) == []


def test_mlflow_goes_on_with_no_run_that_it_did_not_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []
    data = SimpleNamespace(tags={"rekindle.token": "b" * 8})
    client = SimpleNamespace(
        get_run=lambda _: SimpleNamespace(data=data), update_run=lambda number, **_: changed.append(number)
    )
    loaded = SimpleNamespace(MlflowClient=lambda **_: client)
    monkeypatch.setattr("rekindle.recorders.mlflow.load", lambda _: loaded)
    run = RunReader(train(tmp_path, []))
    with pytest.raises(ConfigError, match="the MLflow run 'other' belongs to another run"):
        Tracking("http://server", None).start(run, Place("a" * 8, external_id="other"))
    assert changed == []
    Tracking("http://server", None).start(run, Place("b" * 8, external_id="own"))
    assert changed == ["own"]


@pytest.mark.parametrize("name", ["wandb", ".wandb"])
def test_wandb_takes_no_settings_from_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("rekindle.recorders.wandb.load", lambda _: SimpleNamespace())
    run = train(tmp_path, [])
    (run / name).mkdir()
    (run / name / "settings").write_text("[default]\nbase_url = http://evil.example\n")
    with pytest.raises(ConfigError, match="would be used by W&B"):
        Project(None, "online").start(RunReader(run), Place("a" * 8))
    os.unlink(run / name / "settings")
    os.rmdir(run / name)
    (run / name).symlink_to(tmp_path)
    with pytest.raises(StorageError, match="it is a symbolic link"):
        Project(None, "online").start(RunReader(run), Place("a" * 8))

"""`rekindle serve` says at once what cannot work."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from rekindle import RunReader
from rekindle.cli import main


@pytest.mark.parametrize("options", [[], ["--godot"]], ids=["clients", "godot"])
def test_an_unknown_algorithm_is_an_error_before_anybody_connects(
    options: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "dqnn", *options]) == 2
    assert "there is no algorithm 'dqnn'; did you mean dqn" in capsys.readouterr().err


def test_a_signal_while_the_session_is_opened_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvloop", reason="needs rekindle[server]")
    from rekindle.cli.served_run import ServedRun

    opened = ServedRun.open

    def interrupted(self: ServedRun, *spaces: Any, **options: Any) -> Any:
        session = opened(self, *spaces, **options)
        signal.raise_signal(signal.SIGINT)
        return session

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ServedRun, "open", interrupted)
    spaces = Path("spaces.json")
    spaces.write_text(
        '{"observation_space": {"type": "Discrete", "n": 3}, "action_space": {"type": "Discrete", "n": 2}}'
    )
    assert main(["serve", "tabular", "--spaces", str(spaces), "--learner", "inline", "--port", "0"]) == 0
    assert "stopped (stopped before it served)" in capsys.readouterr().err
    assert RunReader("runs/tabular-served").status == "stopped"


def test_other_spaces_than_those_of_the_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("uvloop", reason="needs rekindle[server]")
    from rekindle.cli.served_run import ServedRun

    monkeypatch.chdir(tmp_path)
    text = '{"observation_space": {"type": "Discrete", "n": %d}, "action_space": {"type": "Discrete", "n": 2}}'
    for states in (3, 4):
        Path(f"{states}.json").write_text(text % states)
    run = ServedRun(
        algorithm="tabular",
        name="tabular-served",
        version="v1",
        root=Path("runs"),
        seed=0,
        steps=None,
        play=None,
        session={"checkpoint_every": 1_000, "keep_checkpoints": 3, "metrics_every": 1_000},
        agent=None,
    )
    run.open(gym.spaces.Discrete(3), gym.spaces.Discrete(2)).close()
    assert main(["serve", "tabular", "--spaces", "4.json", "--port", "0"]) == 2
    assert "4.json has other spaces than the run that is continued" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabular", "--steps", "-4"], "steps is -4"),
        (["tabular", "--journal-sync", "-1"], "journal_sync is -1.0"),
        (["tabular", "--checkpoint-every", "0"], "checkpoint_every is 0"),
        (["tabular", "--name", "../lake"], "name '../lake' cannot be a directory"),
        (["tabular", "--checkpoint", "best"], "--checkpoint would have no effect: it is for --play"),
        (["tabular", "--play", "--steps", "10"], "--steps would have no effect: with --play, nothing is learned"),
        (["tabular", "--play", "--agent.gamma", "0.9"], "--agent.gamma would have no effect"),
        (["bc"], "bc learns from data, and not from clients"),
        (["iql", "--godot"], "iql learns from data, and not from clients"),
    ],
)
def test_options_that_cannot_be_right_are_an_error_before_anybody_connects(
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("uvloop", reason="needs rekindle[server]")
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *words, "--port", "0"]) == 2
    assert message in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The command of a server that stops as soon as it serves; its run has made 30 steps."""
    pytest.importorskip("uvloop", reason="needs rekindle[server]")
    from rekindle.cli import serve
    from rekindle.cli.served_run import ServedRun

    monkeypatch.chdir(tmp_path)
    spaces = Path("spaces.json")
    spaces.write_text(
        '{"observation_space": {"type": "Discrete", "n": 3}, "action_space": {"type": "Discrete", "n": 2}}'
    )
    command = ["serve", "tabular", "--name", "lake", "--port", "0"]
    with monkeypatch.context() as patched:
        opened = ServedRun.open

        def played(self: ServedRun, *spaces: Any, **options: Any) -> Any:
            session = opened(self, *spaces, **options)
            stream = session.stream(0)
            stream.begin(0)
            for number in range(30):
                stream.step(number % 3, 1.0)
            return session

        patched.setattr(ServedRun, "open", played)
        patched.setattr(serve, "serve", lambda server, announce: server.session.close())
        assert main([*command, "--spaces", str(spaces)]) == 0
    monkeypatch.setattr(serve, "serve", lambda server, announce: server.session.close())
    capsys.readouterr()
    return command


def test_settings_can_be_changed_after_a_server_that_did_nothing(served: list[str]) -> None:
    for learner in ("background", "background", "inline", "background"):
        assert main([*served, "--learner", learner]) == 0
    assert RunReader("runs/lake").metadata.exact


def test_a_served_run_is_not_continued_with_an_end_in_its_past(
    served: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*served, "--steps", "20"]) == 2
    assert "has made 30 steps already" in capsys.readouterr().err
    assert main([*served, "--steps", "40"]) == 0
    assert RunReader("runs/lake").status == "stopped"


def test_another_algorithm_is_refused_in_one_sentence(served: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax", reason="needs rekindle[agents]")
    assert main(["serve", "dqn", *served[2:]]) == 2
    assert 'is another training: algorithm was "tabular" and is "dqn". Use another --name' in capsys.readouterr().err


def test_resume_names_the_command_that_continues_a_served_run(
    served: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", "runs/lake"]) == 2
    assert "continue it with rekindle serve tabular --name lake --version v1" in capsys.readouterr().err


def test_a_finished_run_is_named_when_a_new_one_begins(served: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*served, "--steps", "30"]) == 2  # it has made them, but was not to end there
    run = RunReader("runs/lake")
    metadata = run.path / "metadata.json"
    metadata.write_text(metadata.read_text().replace('"stopped"', '"finished"'))
    assert main([*served, "--spaces", "spaces.json"]) == 0
    assert f"{run.path.name} is finished: a new run begins" in capsys.readouterr().err


def test_a_port_in_use_is_an_error_before_the_run_is_opened(
    served: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([*served[:-1], str(port)]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; use another port" in capsys.readouterr().err
    assert main([*served, "--tls-cert", "none.pem", "--tls-key", "none.pem"]) == 2
    assert "the certificate none.pem or its key cannot be used" in capsys.readouterr().err
    assert RunReader("runs/lake").metadata.resumes == ()

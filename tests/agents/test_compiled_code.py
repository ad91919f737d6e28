"""Compiled code that is kept: the same results to the bit, and nothing that is damaged or not ours is used."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rekindle.agents import compiled
from rekindle.agents.compiled import CompiledCode

TRAIN = """
import hashlib
import numpy as np
from gymnasium.spaces import Box, Discrete
from jax import monitoring
from rekindle.agents import DQN
from rekindle.experience import Transitions

compiled = []
monitoring.register_event_listener(lambda name, **_: compiled.append(name) if name.endswith("cache_misses") else None)
agent = DQN(Box(-1, 1, (3,), np.float32), Discrete(2), seed=0, hidden_sizes=(8,), batch_size=4, warmup_steps=0)
rng, slots = np.random.default_rng(0), np.arange(200)
seen = [rng.normal(size=(200, 3)).astype(np.float32) for _ in range(2)]
transitions = Transitions(seen[0], rng.integers(2, size=200), rng.normal(size=200), seen[1], np.zeros(200, np.uint8))
agent.observe(transitions, slots)
agent.update(70)
weights = agent.state()["weights"]["network"]
print(hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest(), len(compiled))
"""


def train(cache: Path | str) -> tuple[str, int]:
    environment = {**os.environ, "REKINDLE_COMPILED": str(cache)}
    done = subprocess.run([sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, check=True)
    digest, compiled = done.stdout.split()
    return digest, int(compiled)


def test_results_are_the_same_with_and_without_it_and_after_damage(tmp_path: Path) -> None:
    plain, _ = train("off")
    first, compiled = train(tmp_path)
    assert compiled
    again, none = train(tmp_path)
    assert none == 0
    entries = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for path in entries[::2]:
        path.write_bytes(path.read_bytes()[:-1])
    for path in entries[1::2]:
        path.write_bytes(bytes(len(path.read_bytes())))
    damaged, some = train(tmp_path)
    assert some == len(entries)
    assert plain == first == again == damaged


def test_what_is_damaged_is_removed(tmp_path: Path) -> None:
    cache = CompiledCode(tmp_path)
    assert cache.get("key") is None
    cache.put("key", b"code")
    assert cache.get("key") == b"code"
    data = (tmp_path / "key").read_bytes()
    for byte in range(len(data)):
        (tmp_path / "key").write_bytes(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
        assert cache.get("key") is None
        assert not (tmp_path / "key").exists()


def test_a_directory_that_others_can_write_to_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert CompiledCode.opened(tmp_path / "open") is None
    assert "others" in caplog.text
    made = CompiledCode.opened(tmp_path / "new")
    assert made is not None
    assert made.path.stat().st_mode & 0o077 == 0


def test_a_directory_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert CompiledCode.opened(tmp_path / "file" / "below") is None
    CompiledCode(tmp_path / "missing").put("key", b"code")


def test_the_oldest_entries_go_when_there_are_too_many(tmp_path: Path) -> None:
    cache = CompiledCode(tmp_path)
    for number in range(10):
        cache.put(str(number), bytes(84))
        os.utime(tmp_path / str(number), (number, number))
    cache.remove_oldest(1_000)
    assert len(list(tmp_path.iterdir())) == 10
    cache.get("0")  # is used, and so not the oldest
    cache.remove_oldest(999)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "7", "8", "9"]


def test_another_version_of_jax_has_another_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = compiled._machine()
    assert compiled._machine() == machine
    for name in ("jax.__version__", "jaxlib_version"):
        with monkeypatch.context() as changed:
            changed.setattr(f"rekindle.agents.compiled.{name}", "0.0.1")
            assert compiled._machine() != machine


def test_entries_that_are_written_at_once_are_whole(tmp_path: Path) -> None:
    cache = CompiledCode(tmp_path)
    values = [bytes([number]) * 200_000 for number in range(4)]

    def write(value: bytes) -> None:
        for _ in range(25):
            cache.put("key", value)

    writers = [threading.Thread(target=write, args=(value,)) for value in values]
    for writer in writers:
        writer.start()
    seen = set[bytes | None]()
    while any(writer.is_alive() for writer in writers):
        seen.add(cache.get("key"))
    assert seen <= {None, *values}
    assert cache.get("key") in values
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


@pytest.mark.exhaustive
def test_two_trainings_that_fill_it_at_once_and_entries_of_others_change_no_bit(tmp_path: Path) -> None:
    plain, _ = train("off")
    environment = {**os.environ, "REKINDLE_COMPILED": str(tmp_path)}
    command = [sys.executable, "-c", TRAIN]
    pair = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].split()[0] for process in pair] == [plain, plain]
    assert train(tmp_path) == (plain, 0)
    (machine,) = tmp_path.iterdir()
    entries = [path.name for path in machine.iterdir()]
    assert not [name for name in entries if name.startswith(".")]
    cache = CompiledCode(machine)
    for name in entries:  # what another version of JAX may have written: whole, but no code for this one
        cache.put(name, b"code of another version")
    assert train(tmp_path)[0] == plain

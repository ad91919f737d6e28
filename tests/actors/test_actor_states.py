"""Actors in environments that save their own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Discrete
from perilous import digests, trainer

from rekindle.actors.packing import aligned, pack, packed_size, unpack, write
from rekindle.errors import EnvError
from rekindle.rng import generator_from_state, generator_state

pytestmark = pytest.mark.timeout(120)


class Counted(gymnasium.Env[Any, Any]):
    """Its observation is one number, and its state is the array that it works with."""

    observation_space, action_space = Discrete(40), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        self._counts = np.zeros(2, np.int64)
        return 0, {}

    def step(self, action: Any) -> Any:
        self._counts += [action + self.np_random.integers(2), 1]
        return int(self._counts[0]), float(action), bool(self._counts[1] >= 17), False, {}

    def get_state(self) -> dict[str, Any]:
        return {"rng": generator_state(self.np_random), "counts": self._counts}

    def set_state(self, state: dict[str, Any]) -> None:
        self.np_random, self._counts = generator_from_state(state["rng"]), state["counts"]


class Opaque(Counted):
    """Its state is not data."""

    def get_state(self) -> dict[str, Any]:
        return {"parts": [self]}


OPTIONS: dict[str, Any] = {"agent": "tabular", "steps": 400}


@pytest.mark.parametrize("pipeline", [0, 1])
def test_a_state_with_a_number_as_observation_continues_exactly(tmp_path: Path, pipeline: int) -> None:
    options = {**OPTIONS, "env": Counted, "pipeline": pipeline}
    trainer(tmp_path / "here", tmp_path / "perils", **options, actors_on="here").train()
    for steps, placement in ((120, "here"), (240, "processes"), (400, "here")):
        trainer(tmp_path / "moved", tmp_path / "perils", **{**options, "steps": steps}, actors_on=placement).train()
    assert digests(tmp_path / "moved") == digests(tmp_path / "here")


@pytest.mark.parametrize("placement", ["here", "processes"])
def test_a_state_that_cannot_be_saved_is_one_clear_error(
    tmp_path: Path, placement: str, capfd: pytest.CaptureFixture[str]
) -> None:
    training = trainer(tmp_path, tmp_path / "perils", **OPTIONS, env=Opaque, actors_on=placement)
    with pytest.raises(EnvError, match=r"Opaque, env \d, failed in get_state: the state\['parts'\]\[0\] is a .*Opaque"):
        training.train()
    assert "Traceback" not in capfd.readouterr().err


def test_an_array_without_axes_stays_one() -> None:
    packed = pack({"number": np.array(3)})
    data = aligned(packed_size(packed))
    write(packed, data)
    assert unpack(data)["number"].shape == ()

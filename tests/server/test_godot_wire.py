"""Bytes from a Godot game become messages, or an error, whatever they are."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.godot_games import GOOD, mutated

from rekindle.errors import InputError
from rekindle.server.godot_game import Game
from rekindle.server.godot_spaces import read_env_info
from rekindle.server.godot_wire import Frames, encode_frame, read_message


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_a_frame_may_come_in_pieces(sizes: list[int]) -> None:
    frame, frames, start = encode_frame({"type": "step", "text": "x" * 60}), Frames(1000), 0
    for size in [*sizes, 1000]:
        piece = frame[start : start + size]
        start += size
        found = frames.feed(piece) if piece else None
        if found is not None:
            assert read_message(found, "step") == {"type": "step", "text": "x" * 60}
            assert len(frames) == 0
            return
    raise AssertionError("the frame is complete")


def test_text_that_is_not_ascii_is_escaped() -> None:
    frame = encode_frame({"type": "action", "action": [{"прыжок": 1}]})
    assert frame.isascii() or frame[4:].isascii()
    assert len(frame) == 4 + int.from_bytes(frame[:4], "little")
    assert json.loads(frame[4:]) == {"type": "action", "action": [{"прыжок": 1}]}


def test_a_long_frame_and_bytes_after_a_frame_are_refused() -> None:
    with pytest.raises(InputError, match="longer than the limit of 100"):
        Frames(100).feed((101).to_bytes(4, "little"))
    with pytest.raises(InputError, match="1 bytes follow a message"):
        Frames(100).feed(encode_frame({}) + b"x")


@pytest.mark.parametrize(
    ("text", "number"),
    [("nan", math.nan), ("-inf", -math.inf), ("inf", math.inf), ("1e99999", math.inf), ("null", None), ("1.5", 1.5)],
)
def test_numbers_that_are_not_finite_are_read_as_every_godot_writes_them(text: str, number: float | None) -> None:
    read = read_message(f'{{"type":"step","reward":[{text}, {text}],"x":{text}}}'.encode(), "step")
    assert repr([read["x"], *read["reward"]]) == repr([number] * 3)


def test_flags_in_an_observation_are_numbers() -> None:
    info = read_env_info(
        {
            "n_agents": 1,
            "observation_space": {"obs": {"size": [3], "space": "box"}},
            "action_space": {"a": {"size": 1.0, "action_type": "continuous"}},
        },
        max_agents=1,
    )
    assert info.spaces.read_observations([{"obs": [0.5, True, False]}])["obs"].tolist() == [[0.5, 1.0, 0.0]]


def process(text: bytes) -> None:
    """What the server does with a message: everything that is not understood is an `InputError`."""
    for kind in ("env_info", "reset", "step"):
        try:
            message = read_message(text, kind)
            if kind == "env_info":
                info = read_env_info(message, max_agents=64)
                Game(0, info.spaces, info.agents)
                assert info.spaces.observation_space is not None
                assert info.spaces.action_space is not None
            else:
                reply = GAME.read(message, is_reset=kind == "reset")
                assert reply.rewards.dtype == np.float64
                assert len(reply.infos) == GAME.agents
        except InputError:
            continue


GAME = Game(0, read_env_info(read_message(GOOD[0], "env_info"), max_agents=64).spaces, 2)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just([0.0] * 7),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "obs", "reward", "done", "info", "size", "space", "terminal_observation", "x/y"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(
    st.sampled_from(["env_info", "reset", "step"]), st.dictionaries(st.text(max_size=6), JSON, max_size=3), st.data()
)
def test_any_json_is_read_or_refused(kind: str, others: dict[str, Any], data: st.DataObject) -> None:
    good = next(json.loads(text) for text in GOOD if json.loads(text)["type"] == kind)
    good |= others
    for field in [field for field in good if field != "type"]:
        if data.draw(st.booleans()):
            good[field] = data.draw(JSON)
    process(json.dumps({**good, "type": kind}).encode())


def test_two_thousand_malformed_messages_are_read_or_refused() -> None:
    rng = random.Random(1)
    for _ in range(2_000):
        process(mutated(rng))


@pytest.mark.exhaustive
def test_a_hundred_thousand_malformed_messages_are_read_or_refused() -> None:
    rng = random.Random(2)
    for _ in range(100_000):
        process(mutated(rng))

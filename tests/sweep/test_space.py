"""Spaces: TOML files, values on their scales, and the spaces that come with the algorithms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rekindle.errors import ConfigError
from rekindle.sweep import Choice, Range, built_in_space, parse_space, read_space, space_text
from rekindle.sweep.samplers import propose
from rekindle.training import ALGORITHMS
from rekindle.training.algorithms import config_type, converted

UNITS = st.floats(0, 1)


def test_a_space_is_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "space.toml"
    file.write_text(
        """
        num_envs = { choice = [1, 8] }
        env.frame_stack = { low = 1, high = 4 }
        [agent]
        learning_rate = { low = 1e-5, high = 1e-2, log = true }
        hidden_sizes = { choice = [[64], [64, 64]] }
        """
    )
    space = read_space(file)
    assert space == {
        "num_envs": Choice((1, 8)),
        "env.frame_stack": Range(1, 4),
        "agent.learning_rate": Range(1e-5, 1e-2, log=True),
        "agent.hidden_sizes": Choice(([64], [64, 64])),
    }
    assert parse_space(space_text(space)) == space


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 3", "a is 3; use { low, high } or { choice = [...] }"),
        ("a = { low = 1 }", "a: Object missing required field `high`"),
        ("a = { low = 2, high = 1 }", "low is 2 and high is 1"),
        ("a = { low = 0, high = 1, log = true }", "a logarithmic scale needs a number above 0"),
        ("a = { low = 'x', high = 1 }", "Expected `int | float`"),
        ("a = { choice = [1] }", "choice has 1 values: use 2 to 1000 different ones"),
        ("a = { choice = [1, 1] }", "different ones"),
        ("a = { choice = [1, 2], low = 3 }", "unknown field `low`"),
        ("a = { low = 1, high = 2, lgo = true }", "unknown field `lgo`"),
        ("a = {", "is not TOML"),
        ("", "varies nothing"),
        ("agent = {}", "varies nothing"),
    ],
)
def test_what_is_wrong_in_a_space_is_told(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_space(text)
    assert message in str(raised.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "space.toml").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not a TOML file"):
        read_space(tmp_path / "space.toml")


@given(UNITS)
def test_a_value_lies_in_its_range_and_leads_back_to_its_place(unit: float) -> None:
    for parameter in (Range(1e-5, 1e-2, log=True), Range(-3.0, 7.0)):
        value = parameter.value(unit)
        assert parameter.low <= value <= parameter.high
        assert parameter.unit(value) == pytest.approx(unit, abs=1e-3)


def test_integers_are_equally_likely_and_a_logarithmic_scale_has_equal_decades() -> None:
    drawn = [Range(1, 4).value((place + 0.5) / 400) for place in range(400)]
    assert [drawn.count(value) for value in (1, 2, 3, 4)] == [100] * 4
    rates = [Range(1e-4, 1.0, log=True).value((place + 0.5) / 400) for place in range(400)]
    assert [sum(low <= rate < 10 * low for rate in rates) for low in (1e-4, 1e-3, 1e-2, 1e-1)] == [100] * 4
    assert all(type(value) is int for value in drawn)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_a_space_of_settings_that_it_takes(algorithm: str) -> None:
    space = built_in_space(algorithm)
    assert len(space) >= 4
    for number in range(20):
        drawn = propose("random", space, number, seed=0, ranked=(), pending=())
        converted(config_type(algorithm), {name.removeprefix("agent."): value for name, value in drawn.items()})


def test_an_agent_of_your_own_needs_a_space_of_your_own() -> None:
    with pytest.raises(ConfigError, match="write one, and pass it with --space FILE"):
        built_in_space("mine:Agent")

"""Correlated exploration noise: its distribution, one sequence for each episode of a stream, and exact resume."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from misfits import misfits

pytest.importorskip("jax")

from rekindle.agents import SAC, TD3, SACConfig
from rekindle.agents.noise import StreamNoise, stream_noise
from rekindle.agents.settings import generators
from rekindle.errors import ConfigError, StateError
from rekindle.experience import ActMode, Transitions
from rekindle.session.session import TrainingSession

EXPLORE, EXPLOIT = ActMode
SEEN, BOUNDS = Box(-1, 1, (3,), np.float32), Box(-1, 3, (2,), np.float32)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "capacity": 200, "warmup_steps": 0, "batch_size": 4}
CORRELATED = ["ou", "pink"]
correlated = pytest.mark.parametrize("noise", CORRELATED)
both = pytest.mark.parametrize("kind", [SAC, TD3])


def made(noise: str, *, dimensions: int = 2, timescale: float = 20.0, seed: int = 0) -> StreamNoise:
    config = SACConfig(noise=noise, noise_timescale=timescale)  # pyright: ignore[reportArgumentType]
    source = stream_noise(config, Box(-1, 1, (dimensions,)), np.random.default_rng(seed))
    assert source is not None
    return source


def drawn(source: StreamNoise, steps: int, streams: int = 1) -> np.ndarray:
    """(steps, streams, dimensions)."""
    return np.stack([source.draw(np.arange(streams)) for _ in range(steps)])


def autocorrelation(rows: np.ndarray, lag: int) -> float:
    return float((rows[: len(rows) - lag] * rows[lag:]).mean())


# Distribution

STREAMS = 1_000


@pytest.mark.parametrize("timescale", [0.5, 20.0])
def test_ou_noise_has_unit_variance_at_every_step_and_the_correlation_of_its_timescale(timescale: float) -> None:
    rows = drawn(made("ou", timescale=timescale), 300, STREAMS).reshape(300, -1)
    # The standard error of a variance is sqrt(2 / 2000), and the largest of 300 errors about four times that.
    assert np.abs(rows.var(axis=1) - 1).max() < 0.16
    assert np.abs(rows.mean(axis=1)).max() < 0.1
    for lag in (1, 5, 20, 60):
        assert autocorrelation(rows, lag) == pytest.approx(np.exp(-lag / timescale), abs=0.03)


def test_ou_noise_is_as_correlated_from_one_block_of_steps_to_the_next() -> None:
    source, streams = made("ou"), np.arange(STREAMS)
    source = source.loaded({**source.state(), "streams": [[stream, 0, 998, None] for stream in range(STREAMS)]})
    rows = np.stack([source.draw(streams) for _ in range(6)]).reshape(6, -1)  # a block has 1000 steps
    assert rows.var(axis=1) == pytest.approx(1, abs=0.12)
    for before, after in itertools.pairwise(rows):
        assert (before * after).mean() == pytest.approx(np.exp(-1 / 20), abs=0.12)
        assert (after - before).var() == pytest.approx(2 - 2 * np.exp(-1 / 20), rel=0.15)


def test_pink_noise_has_unit_variance_at_every_step_and_a_power_of_one_over_the_frequency() -> None:
    rows = drawn(made("pink", dimensions=1), 1_000, STREAMS)[:, :, 0]
    assert np.abs(rows.var(axis=1) - 1).max() < 0.2  # the largest of 1000
    assert rows.var(axis=1).mean() == pytest.approx(1, abs=0.05)
    frequencies = np.fft.rfftfreq(1_000)
    power = (np.abs(np.fft.rfft(rows, axis=0)) ** 2).mean(axis=1) / 1_000
    expected = np.concatenate([[1_000], 1 / frequencies[1:]])
    both_sides = expected[0] + 2 * expected[1:-1].sum() + expected[-1]
    assert power * both_sides / (1_000 * expected) == pytest.approx(1, abs=0.2)
    slope, _ = np.polyfit(np.log(frequencies[1:]), np.log(power[1:]), 1)
    assert slope == pytest.approx(-1, abs=0.01)


def test_the_autocorrelation_of_pink_noise_is_that_of_its_spectrum() -> None:
    rows = drawn(made("pink", dimensions=1), 400, STREAMS)[:, :, 0]
    waves = np.fft.fftfreq(1_000)
    power = 1 / np.maximum(np.abs(waves), 1 / 1_000)
    for lag in (1, 10, 100):
        expected = (power * np.cos(2 * np.pi * waves * lag)).sum() / power.sum()
        assert autocorrelation(rows, lag) == pytest.approx(expected, abs=0.03)


@correlated
def test_dimensions_streams_and_episodes_are_independent(noise: str) -> None:
    source = made(noise, timescale=5.0)
    episodes = []
    for _ in range(60):
        episodes.append(drawn(source, 100, 4))
        for stream in range(4):
            source.restart(stream)
    columns = np.stack(episodes)[:, 50].reshape(60, -1)  # (episodes, streams x dimensions) at one step
    correlations = np.corrcoef(columns.T)[~np.eye(8, dtype=bool)]
    assert np.abs(correlations).max() < 0.5
    assert abs(np.mean(columns[1:] * columns[:-1])) < 0.15


# One sequence for each episode of a stream


@correlated
def test_a_stream_has_the_same_noise_alone_and_among_many(noise: str) -> None:
    alone, among = made(noise), made(noise)
    wanted = [alone.draw(np.array([2])) for _ in range(40)]
    alone.restart(2)
    wanted += [alone.draw(np.array([2])) for _ in range(40)]
    got = []
    for step in range(80):
        streams = np.array([[7, 2, 0], [2, 9], [2]][step % 3])
        if step == 40:
            among.restart(2)
        if step % 5 == 0:
            among.restart(7)
        got.append(among.draw(streams)[streams.tolist().index(2)][None])
    assert np.array_equal(got, wanted)


@correlated
def test_noise_starts_anew_once_an_episode_is_over(noise: str) -> None:
    once, twice = made(noise), made(noise)
    first = drawn(once, 5)
    once.restart(0)
    second = drawn(once, 5)
    assert not np.isin(second, first).any()
    twice.restart(0)  # nothing was drawn yet
    assert np.array_equal(drawn(twice, 5), first)
    for _ in range(3):
        twice.restart(0)
    assert np.array_equal(drawn(twice, 5), second)


@correlated
def test_another_seed_gives_other_noise(noise: str) -> None:
    assert not np.isin(drawn(made(noise), 9), drawn(made(noise, seed=1), 9)).any()


# Saving


@correlated
@pytest.mark.parametrize("cut", [0, 1, 999, 1_000, 1_001, 2_500])
def test_noise_continues_from_a_saved_state(noise: str, cut: int) -> None:
    source, other = made(noise), made(noise, seed=9)
    drawn(source, 3, 2)
    source.restart(1)
    for _ in range(cut):
        source.draw(np.array([1]))
    state = source.state()
    expected = drawn(source, 300, 3)
    assert np.array_equal(drawn(other.loaded(state), 300, 3), expected)


@correlated
def test_a_state_of_noise_that_does_not_fit_is_refused(noise: str) -> None:
    source = made(noise)
    drawn(source, 1_001, 2)
    state = source.state()
    refused = 0
    for at, other in misfits(state):
        try:
            source.loaded(other)
        except StateError:
            refused += 1
        else:  # another number is another place, and a stream can be missing
            assert at in {("key",), ("streams",), *itertools.product(["streams"], range(2))} or at[2] < 3, at
    assert refused > 60
    twice = {**state, "streams": [state["streams"][0]] * 2}
    unfinished = {**state, "streams": [[0, 0, 3, np.zeros(2, np.float32)]]}
    infinite = {**state, "streams": [[0, 0, 1_001, np.full(2, np.inf, np.float32)]]}
    for wrong in (None, twice, unfinished, infinite):
        with pytest.raises(StateError, match="noise"):
            source.loaded(wrong)


# Agents


def agent(kind: type = SAC, **settings: Any) -> Any:
    return kind(SEEN, BOUNDS, seed=0, **{**SMALL, **settings})


def seen(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (rows, 3)).astype(np.float32)


def explored(kind: type, learner: Any, observations: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The actions that noise makes of the network's output."""
    output = learner.policy().output(observations)
    if kind is SAC:
        return 1 + 2 * np.tanh(output[:, :2] + np.exp(output[:, 2:]) * noise)
    return 1 + 2 * np.clip(np.tanh(output) + np.float32(0.1) * noise, -1, 1)


@both
def test_white_noise_is_the_default_and_comes_from_the_exploring_generator_alone(kind: type) -> None:
    learner, rng = agent(kind), generators(0)[1]
    for rows in (1, 5):
        actions = learner.act(seen(rows), EXPLORE, np.arange(rows))
        white = rng.standard_normal((rows, 2), np.float32)
        assert actions == pytest.approx(explored(kind, learner, seen(rows), white), abs=1e-5)
    assert "noise" not in learner.state()


@both
@correlated
def test_an_agent_explores_with_the_noise_of_each_stream(kind: type, noise: str) -> None:
    learner = agent(kind, noise=noise, noise_timescale=7.0)
    config = SACConfig(noise=noise, noise_timescale=7.0)  # pyright: ignore[reportArgumentType]
    source = stream_noise(config, BOUNDS, generators(0)[1])
    assert source is not None
    for streams in ([0], [1], [2, 0], [0, 1, 2]):
        rows = np.array(streams)
        learner.act(seen(len(rows)), EXPLOIT, rows)  # draws nothing
        actions = learner.act(seen(len(rows)), EXPLORE, rows)
        assert actions == pytest.approx(explored(kind, learner, seen(len(rows)), source.draw(rows)), abs=1e-5)


@correlated
def test_actions_of_the_warm_up_are_uniform_within_the_bounds_and_correlated(noise: str) -> None:
    learner = agent(warmup_steps=1_000, noise=noise)
    streams = np.arange(STREAMS)
    observations = seen(STREAMS)
    actions = np.stack([learner.act(observations, EXPLORE, streams) for _ in range(3)])
    assert actions.dtype == np.float32
    assert actions.min() >= -1
    assert actions.max() <= 3
    shares, _ = np.histogram(actions[2], bins=8, range=(-1, 3))
    assert shares / actions[2].size == pytest.approx(1 / 8, abs=0.03)
    assert np.corrcoef(actions[0].ravel(), actions[1].ravel())[0, 1] > 0.5


def observe(learner: Any, streams: list[int], statuses: list[int]) -> None:
    rows = seen(len(streams))
    learner.observe(
        Transitions(rows, np.zeros((len(streams), 2)), np.zeros(len(streams)), rows, np.array(statuses, np.uint8)),
        np.array(streams),
    )


def places(learner: Any) -> list[list[int]]:
    """The stream, its episode and its step in it, for each."""
    return [place[:3] for place in learner.state()["noise"]["streams"]]


def test_each_way_to_end_an_episode_starts_the_noise_of_its_stream_anew() -> None:
    learner = agent(noise="pink")
    for _ in range(2):
        learner.act(seen(3), EXPLORE, np.arange(3))
    observe(learner, [0, 1, 2], [0, 1, 2])  # continuing, terminated, truncated
    assert places(learner) == [[0, 0, 2], [1, 1, 0], [2, 1, 0]]
    learner.cut(np.array([0, 2]))
    assert places(learner) == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]


def test_closing_a_stream_starts_its_noise_anew() -> None:
    learner = agent(noise="ou")
    learner.warm_up = lambda: None  # nothing is learned here
    with TrainingSession(learner, max_steps=100) as session:
        for name in ("left", "right"):
            session.stream(name).begin(seen(1)[0])
        session.stream("left").close()
        assert places(learner) == [[0, 1, 0], [1, 0, 1]]
        session.stream("another").begin(seen(1)[0])  # takes over the slot, and none of the noise
        assert places(learner) == [[0, 1, 1], [1, 0, 1]]


@both
@correlated
def test_an_agent_continues_its_noise_from_a_saved_state(kind: type, noise: str) -> None:
    learner = agent(kind, noise=noise)
    streams = np.arange(2)
    for _ in range(130):
        learner.act(seen(2), EXPLORE, streams)
    state = learner.state()
    expected = [learner.act(seen(2), EXPLORE, streams) for _ in range(5)]
    learner.load_state(state)
    assert np.array_equal([learner.act(seen(2), EXPLORE, streams) for _ in range(5)], expected)


def test_noise_of_another_kind_of_state_is_refused() -> None:
    white, pink = agent(), agent(noise="pink")
    with pytest.raises(StateError, match="the agent's noise is white"):
        white.load_state(pink.state())
    with pytest.raises(StateError, match="not the state of exploration noise"):
        pink.load_state(white.state())


def test_weights_are_taken_over_whatever_the_noise() -> None:
    white, pink = agent(), agent(noise="pink")
    pink.take_over(white.state())
    white.take_over(pink.state(), with_optimiser=True)


def test_a_policy_explores_with_white_noise() -> None:
    policy = agent(noise="pink").policy()
    rng = np.random.default_rng(0)
    policy.act(seen(1), EXPLORE, rng)
    white = np.random.default_rng(0)
    white.standard_normal((1, 2), np.float32)
    assert rng.bit_generator.state == white.bit_generator.state


@correlated
def test_a_background_learner_refuses_correlated_noise(noise: str) -> None:
    with pytest.raises(ConfigError, match=f"noise is '{noise}': with learner='background'"):
        TrainingSession(agent(noise=noise), learner="background")
    agent().check_learner("background")
    for learner in ("inline", "manual"):
        agent(noise=noise).check_learner(learner)

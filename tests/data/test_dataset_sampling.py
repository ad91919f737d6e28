"""Minibatches of a data set are those of a replay buffer with the same transitions."""

from pathlib import Path

import numpy as np
import pytest
from data_files import ACTIONS, ENDS, OBSERVATIONS, episodes, flat, write_minari, write_npz

from rekindle.data import Dataset
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import EpisodeStatus, Transitions
from rekindle.replay import Batch, Memory
from rekindle.storage import codec


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset.open(write_minari(tmp_path / "set", episodes()))


def memory() -> Memory:
    held = Memory(100, OBSERVATIONS, ACTIONS)
    for episode in episodes():
        statuses = EpisodeStatus.of_many(episode.terminations, episode.truncations)
        for step in range(len(episode.rewards)):
            rows = slice(step, step + 1)
            transitions = Transitions(
                episode.observations[rows],
                episode.actions[rows],
                episode.rewards[rows],
                episode.observations[step + 1 : step + 2],
                statuses[rows],
            )
            held.append(transitions, np.array([0]))
    return held


def assert_same(one: Batch, other: Batch) -> None:
    for name in ("observations", "actions", "rewards", "next_observations", "discounts"):
        mine, yours = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert (mine.dtype, mine.shape) == (yours.dtype, yours.shape)
        np.testing.assert_allclose(mine, yours, rtol=1e-6)


@pytest.mark.parametrize("n_step", [1, 2, 3, 10])
def test_batches_are_those_of_a_replay_buffer(dataset: Dataset, n_step: int) -> None:
    rows = np.flatnonzero(dataset.columns["status"] < 3)
    ours = dataset.reader().gather(rows, n_step=n_step, gamma=0.9)
    assert_same(ours, memory().gather(rows, n_step=n_step, gamma=0.9))


def test_every_transition_is_sampled_equally_often(dataset: Dataset) -> None:
    reader = dataset.reader()
    rows = reader.sample(np.random.default_rng(0), 26_000).rows
    counts = np.bincount(rows, minlength=17)
    assert len(reader) == 13
    assert (counts[dataset.columns["status"] >= 3] == 0).all()
    assert abs(counts[dataset.columns["status"] < 3] - 2_000).max() < 200


def test_batches_continue_exactly_from_a_saved_state(dataset: Dataset) -> None:
    batches = dataset.batches(8, seed=3, n_step=2)
    next(batches)
    saved = codec.decode(b"".join(codec.encode(batches.state())), name="state")
    expected = [next(batches).rows.tolist() for _ in range(5)]
    again = dataset.batches(8, seed=9, n_step=2)
    again.load_state(saved)
    assert [next(again).rows.tolist() for _ in range(5)] == expected


def test_several_batches_can_be_taken_at_once(dataset: Dataset) -> None:
    assert len(dataset.batches(8).take(3).rows) == 24


def test_a_state_of_other_data_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    fields = flat(episodes())
    fields["rewards"][0] += 1
    other = Dataset.open(write_npz(tmp_path / "other.npz", fields))
    with pytest.raises(StateError, match="the data have changed: their digest was"):
        other.batches(8).load_state(dataset.batches(8).state())


def test_a_state_that_is_none_is_refused(dataset: Dataset) -> None:
    for state in ({}, {"digest": dataset.digest, "generator": {}}, {"digest": np.zeros(3), "generator": {}}):
        with pytest.raises(StateError):
            dataset.batches(8).load_state(state)


def test_rows_that_are_no_transitions_are_refused(dataset: Dataset) -> None:
    for rows in ([0], [-1], [17]):
        with pytest.raises(InputError):
            dataset.reader().gather(rows)
    with pytest.raises(InputError, match="n_step"):
        dataset.reader().gather([1], n_step=0)
    with pytest.raises(ConfigError, match="gamma"):
        dataset.batches(8, gamma=1.5)


def test_a_window_never_leaves_its_episode(dataset: Dataset) -> None:
    batch = dataset.reader().gather(np.flatnonzero(dataset.columns["status"] < 3), n_step=100, gamma=1.0)
    returns = [episode.rewards.sum() for episode in episodes()]
    firsts = np.cumsum([0, *(steps for steps, _ in ENDS)])[:-1]
    np.testing.assert_allclose(batch.rewards[firsts], returns, rtol=1e-5)
    ended = np.repeat([end == EpisodeStatus.TERMINATED for _, end in ENDS], [steps for steps, _ in ENDS])
    np.testing.assert_array_equal(batch.discounts == 0, ended)


@pytest.mark.slow
def test_an_agent_learns_from_a_data_set(dataset: Dataset) -> None:
    from rekindle.agents import DQN

    agent = DQN(dataset.observation_space, dataset.action_space, seed=0, batch_size=8, hidden_sizes=(8,))
    before = codec.tree_digest({"weights": agent.state()["weights"]})
    agent.learn_from(dataset.reader())
    agent.update(3)
    assert agent.updates == 3
    assert codec.tree_digest({"weights": agent.state()["weights"]}) != before

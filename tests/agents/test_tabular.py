"""The three methods by hand, what ends an episode, and a state that is everything."""

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from hypothesis import given
from hypothesis import strategies as st

from rekindle.agent import HasPolicy, HasReplay, LearningAgent, ReportsEpisodes, SkipsUpdates, TracksStreams
from rekindle.agents import Tabular, TabularConfig
from rekindle.errors import ConfigError, InputError, StateError
from rekindle.experience import ActMode, EpisodeStatus, Experience, Transitions
from rekindle.storage import codec

CONTINUING, TERMINATED, TRUNCATED = EpisodeStatus
METHODS = ["q_learning", "sarsa", "expected_sarsa"]


def agent(observations: int = 5, actions: int = 2, seed: int = 0, **config: Any) -> Tabular:
    settings = {"learning_rate": 0.5, "gamma": 0.9, "epsilon_start": 0.4, "epsilon_end": 0.4, **config}
    return Tabular(Discrete(observations), Discrete(actions), seed=seed, **settings)


def observe(learner: Tabular, *steps: tuple[int, int, float, int, EpisodeStatus], streams: Any = (0,)) -> None:
    """Take one transition for each stream."""
    transitions = Transitions.of([Experience(*step) for step in steps])
    learner.observe(transitions, np.array(streams, np.int64))


def learn(learner: Tabular) -> int:
    due = learner.updates_due()
    if due:
        learner.update(due)
    return due


def table(learner: Tabular) -> np.ndarray:
    return learner.state()["weights"]["table"]


def with_table(learner: Tabular, values: dict[tuple[int, int], float]) -> Tabular:
    state = learner.state()
    for place, value in values.items():
        state["weights"]["table"][place] = value
    learner.load_state(state)
    return learner


def same(first: Any, second: Any) -> bool:
    return codec.tree_digest({"tree": first}) == codec.tree_digest({"tree": second})


# What is learned

FUTURE = {(0, 1): 1.0, (1, 0): 3.0, (1, 1): 2.0}


def test_q_learning_takes_the_value_of_the_best_next_action() -> None:
    learner = with_table(agent(method="q_learning"), FUTURE)
    observe(learner, (0, 1, 0.5, 1, CONTINUING))
    metrics = learner.update(1)
    error = 0.5 + 0.9 * 3.0 - 1.0
    assert table(learner)[0, 1] == pytest.approx(1.0 + 0.5 * error)
    assert metrics == pytest.approx({"loss": error**2, "q_mean": 1.0, "epsilon": 0.4})


def test_sarsa_takes_the_value_of_the_action_taken_next() -> None:
    learner = with_table(agent(method="sarsa"), FUTURE)
    observe(learner, (0, 1, 0.5, 1, CONTINUING))
    assert learner.updates_due() == 0
    observe(learner, (1, 1, 0.0, 2, CONTINUING))
    assert learner.updates_due() == 1
    learner.update(1)
    assert table(learner)[0, 1] == pytest.approx(1.0 + 0.5 * (0.5 + 0.9 * 2.0 - 1.0))
    assert learner.env_steps == 2


def test_a_policy_takes_one_observation_or_a_batch() -> None:
    policy = with_table(agent(), {(1, 1): 2.0}).policy()
    assert [policy.act(0), policy.act(np.int64(1)), policy.act(np.array(1))] == [0, 1, 1]
    assert policy.act([1]).tolist() == [1]
    assert policy.act(np.array([0, 1])).tolist() == [0, 1]
    assert policy.act(1, "explore", np.random.default_rng(0)) in (0, 1)


def test_expected_sarsa_weighs_all_next_actions_by_the_exploring_policy() -> None:
    learner = with_table(agent(method="expected_sarsa"), FUTURE)
    observe(learner, (0, 1, 0.5, 1, CONTINUING))
    learner.update(1)
    future = 0.8 * 3.0 + 0.2 * 2.0  # epsilon 0.4 over two actions
    assert table(learner)[0, 1] == pytest.approx(1.0 + 0.5 * (0.5 + 0.9 * future - 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_a_termination_has_no_future(method: str) -> None:
    learner = with_table(agent(method=method), FUTURE)
    observe(learner, (0, 1, 0.5, 1, TERMINATED))
    assert learn(learner) == 1
    assert table(learner)[0, 1] == pytest.approx(1.0 + 0.5 * (0.5 - 1.0))


@pytest.mark.parametrize(("method", "future"), [("q_learning", 3.0), ("sarsa", 2.8), ("expected_sarsa", 2.8)])
def test_a_truncation_has_one(method: str, future: float) -> None:
    learner = with_table(agent(method=method), FUTURE)
    observe(learner, (0, 1, 0.5, 1, TRUNCATED))
    assert learn(learner) == 1
    assert table(learner)[0, 1] == pytest.approx(1.0 + 0.5 * (0.5 + 0.9 * future - 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_reward_forever_is_worth_r_over_one_minus_gamma_however_short_the_episodes(method: str) -> None:
    learner = agent(observations=1, actions=1, method=method)
    for step in range(400):
        observe(learner, (0, 0, 2.0, 0, TRUNCATED if step % 3 == 2 else CONTINUING))
        learn(learner)
    assert table(learner)[0, 0] == pytest.approx(2.0 / (1 - 0.9))


@pytest.mark.parametrize("method", METHODS)
def test_reward_once_is_worth_r(method: str) -> None:
    learner = agent(observations=1, actions=1, method=method)
    for _ in range(100):
        observe(learner, (0, 0, 2.0, 0, TERMINATED))
        learn(learner)
    assert table(learner)[0, 0] == pytest.approx(2.0)


# Streams

PATHS = {
    3: [(0, 0, 1.0, 1, CONTINUING), (1, 1, 2.0, 2, CONTINUING), (2, 0, 3.0, 0, TERMINATED)],
    1: [(4, 1, 5.0, 3, CONTINUING), (3, 0, 6.0, 4, TRUNCATED), (0, 1, 7.0, 1, CONTINUING)],
}


def rows_by_reward(learner: Tabular) -> dict[float, tuple[int, int]]:
    memory = learner.replay()
    rows = memory.read(memory.first, memory.end)
    ends = zip(rows["next_action"].tolist(), rows["status"].tolist(), strict=True)
    return dict(zip(rows["reward"].tolist(), ends, strict=True))


def test_sarsa_links_the_steps_of_a_stream_and_of_no_other() -> None:
    learner = agent(method="sarsa")
    for first, second in zip(PATHS[3], PATHS[1], strict=True):
        observe(learner, first, second, streams=(3, 1))
    linked = {1.0: (1, CONTINUING), 2.0: (0, CONTINUING), 5.0: (0, CONTINUING)}
    ended = {3.0: (-1, TERMINATED), 6.0: (-1, TRUNCATED)}
    assert rows_by_reward(learner) == {**linked, **ended}
    assert learner.env_steps == 6


def test_a_cut_links_nothing_to_what_came_before() -> None:
    learner = agent(method="sarsa")
    observe(learner, (0, 0, 1.0, 1, CONTINUING), (2, 0, 2.0, 3, CONTINUING), streams=(0, 1))
    learner.cut(np.array([0, 5]))
    assert rows_by_reward(learner) == {1.0: (-1, TRUNCATED)}
    observe(learner, (4, 1, 3.0, 0, CONTINUING), (3, 1, 4.0, 0, CONTINUING), streams=(0, 1))
    assert rows_by_reward(learner) == {1.0: (-1, TRUNCATED), 2.0: (1, CONTINUING)}


@pytest.mark.parametrize("method", METHODS)
def test_many_streams_at_once_teach_the_same_as_one_after_the_other(method: str) -> None:
    batched, single = agent(method=method), agent(method=method)
    for first, second in zip(PATHS[3], PATHS[1], strict=True):
        observe(batched, first, second, streams=(3, 1))
        observe(single, first, streams=(3,))
        observe(single, second, streams=(1,))
    learn(batched)
    learn(single)
    assert same(batched.state(), single.state())


# Acting


def test_exploiting_takes_the_best_action_and_of_equals_the_first() -> None:
    learner = with_table(agent(actions=3), {(1, 1): 1.0, (1, 2): 1.0, (2, 2): -1.0})
    actions = learner.act(np.array([0, 1, 2]), ActMode.EXPLOIT, np.arange(3))
    assert actions.tolist() == [0, 1, 0]


def test_exploiting_draws_no_random_number() -> None:
    learner = agent(epsilon_start=1.0, epsilon_end=1.0)
    before = learner.state()
    for _ in range(10):
        learner.act(np.array([0, 1, 2]), ActMode.EXPLOIT, np.arange(3))
    assert same(before, learner.state())


def test_exploring_is_as_random_as_epsilon_says() -> None:
    learner = with_table(agent(actions=4, epsilon_start=0.4), {(0, 2): 1.0})
    actions = learner.act(np.zeros(20_000, np.int64), ActMode.EXPLORE, np.zeros(20_000, np.int64))
    shares = np.bincount(actions, minlength=4) / len(actions)
    assert shares == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.02)


def test_epsilon_falls_in_a_straight_line_and_stays() -> None:
    config = TabularConfig(epsilon_start=1.0, epsilon_end=0.2, epsilon_steps=100)
    assert [config.epsilon(steps) for steps in (0, 50, 100, 1000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
    learner = agent(epsilon_start=1.0, epsilon_end=0.0, epsilon_steps=4)
    observe(learner, (0, 0, 0.0, 1, CONTINUING))
    assert learner.epsilon == 0.75


def test_spaces_may_start_anywhere_and_have_any_dtype() -> None:
    observations, actions = Discrete(3, start=-1), Discrete(2, start=10, dtype=np.int32)
    learner = Tabular(observations, actions, seed=0, learning_rate=1.0, gamma=0.0)
    observe(learner, (1, 11, 5.0, -1, CONTINUING))
    learn(learner)
    assert table(learner)[2, 1] == 5.0
    for mode in ActMode:
        chosen = learner.act(np.array([-1, 0, 1]), mode, np.arange(3))
        assert chosen.dtype == np.int32
        assert all(action in actions for action in chosen)
    assert learner.act(np.array([-1, 1]), ActMode.EXPLOIT, np.arange(2)).tolist() == [10, 11]


def test_a_policy_acts_like_the_agent_did_and_does_not_change() -> None:
    learner = with_table(agent(), {(0, 1): 1.0})
    policy = learner.policy()
    observe(learner, (0, 0, 9.0, 0, TERMINATED))
    learn(learner)
    assert policy.act(np.array([0])).tolist() == [1]
    assert learner.act(np.array([0]), ActMode.EXPLOIT, np.array([0])).tolist() == [0]
    with pytest.raises(ValueError, match="read-only"):
        policy.table[0, 0] = 5.0


def test_a_policy_explores_with_the_generator_it_is_given() -> None:
    policy = agent(actions=9, epsilon_start=1.0, epsilon_end=1.0).policy()
    first, second = (policy.act(np.zeros(50, np.int64), ActMode.EXPLORE, np.random.default_rng(3)) for _ in range(2))
    assert first.tolist() == second.tolist()
    with pytest.raises(InputError, match="needs a random generator"):
        policy.act(np.zeros(1, np.int64), ActMode.EXPLORE)


# Updates


def walk(learner: Tabular, steps: int, seed: int = 0) -> None:
    """A random environment; the agent chooses."""
    world, streams = np.random.default_rng(seed), np.arange(3)
    states = world.integers(5, size=3)
    for _ in range(steps):
        actions = learner.act(states, ActMode.EXPLORE, streams)
        after, rewards = world.integers(5, size=3), world.normal(size=3)
        statuses = world.choice(3, p=(0.8, 0.1, 0.1), size=3).astype(np.uint8)
        learner.observe(Transitions(states, actions, rewards, after, statuses), streams)
        learn(learner)
        states = after


@pytest.mark.parametrize("method", METHODS)
def test_updates_together_are_the_same_as_one_by_one(method: str) -> None:
    together, apart = agent(method=method, replay_updates=3), agent(method=method, replay_updates=3)
    for learner in (together, apart):
        for step in range(6):
            observe(learner, (step % 5, step % 2, 1.0 * step, (step + 1) % 5, CONTINUING))
    due = together.updates_due()
    together.update(due)
    for _ in range(due):
        apart.update(1)
    assert same(together.state(), apart.state())


def test_each_transition_is_learned_from_once() -> None:
    learner = agent()
    walk(learner, 20)
    assert (learner.env_steps, learner.updates, learner.updates_due()) == (60, 60, 0)


def test_replaying_learns_again_from_what_is_remembered() -> None:
    learner = agent(observations=1, actions=1, gamma=0.0, replay_updates=4)
    observe(learner, (0, 0, 1.0, 0, CONTINUING))
    learn(learner)
    assert table(learner)[0, 0] == 1 - 0.5**5
    assert learner.updates == 1


def test_replaying_does_not_change_which_random_actions_are_tried() -> None:
    states = np.zeros(100, np.int64)
    tried = []
    for replayed in (0, 7):
        learner = agent(epsilon_start=1.0, epsilon_end=1.0, replay_updates=replayed)
        walk(learner, 5)
        tried.append(learner.act(states, ActMode.EXPLORE, states).tolist())
    assert tried[0] == tried[1]


def test_skipped_updates_are_no_longer_due() -> None:
    learner = agent(gamma=0.0)
    for reward in (1.0, 2.0, 3.0):
        observe(learner, (0, 0, reward, 0, TERMINATED))
    learner.skip_updates(2)
    assert learn(learner) == 1
    assert table(learner)[0, 0] == 1.5
    learner.skip_updates(5)
    assert learner.updates_due() == 0


def test_what_is_overwritten_before_it_was_learned_from_is_no_longer_due() -> None:
    learner = agent(gamma=0.0, capacity=2)
    for reward in (1.0, 2.0, 4.0):
        observe(learner, (0, 0, reward, 0, TERMINATED))
    assert learn(learner) == 2
    assert table(learner)[0, 0] == (2.0 / 2 + 4.0) / 2


def test_more_updates_than_are_due_are_refused() -> None:
    learner = agent()
    observe(learner, (0, 0, 1.0, 1, CONTINUING))
    for wrong in (0, 2):
        with pytest.raises(InputError, match="1 updates are due"):
            learner.update(wrong)


def test_an_episode_reports_epsilon_and_its_mean_error() -> None:
    learner = agent(gamma=0.0)
    assert learner.episode_extras() == {"epsilon": 0.4}
    for reward in (1.0, -1.0):
        observe(learner, (0, 0, reward, 0, TERMINATED))
    learn(learner)
    assert learner.episode_extras() == {"epsilon": 0.4, "td_error": (1.0 + 1.5) / 2}
    learner.on_episode_start()
    assert learner.episode_extras() == {"epsilon": 0.4}


# State


@given(before=st.integers(0, 30), after=st.integers(1, 10), method=st.sampled_from(METHODS), replay=st.integers(0, 2))
def test_an_agent_restored_in_mid_training_goes_on_to_the_bit(
    before: int, after: int, method: str, replay: int
) -> None:
    original, restored = (agent(method=method, replay_updates=replay, capacity=16) for _ in range(2))
    walk(restored, 3, seed=9)
    walk(original, before)
    memory = original.replay()
    (document,) = codec.decode(b"".join(codec.encode({"agent": original.state()})), name="state").values()
    restored.load_state(document)
    restored.replay().restore(memory.first, memory.read(memory.first, memory.end))
    assert same(restored.state(), original.state())
    for each in (original, restored):
        walk(each, after, seed=1)
    assert same(restored.state(), original.state())
    assert same(restored.replay().read(memory.first, memory.end), memory.read(memory.first, memory.end))


def test_a_state_does_not_change_afterwards() -> None:
    learner = agent(method="sarsa")
    walk(learner, 5)
    state = learner.state()
    known = copy.deepcopy(state)
    walk(learner, 5)
    assert same(state, known)


def test_a_state_without_its_rows_learns_from_what_comes_next() -> None:
    original, restored = agent(), agent()
    walk(original, 10)
    restored.load_state(original.state())
    assert restored.updates_due() == 0
    observe(restored, (0, 0, 1.0, 1, CONTINUING))
    assert learn(restored) == 1


def without(key: str) -> Any:
    return lambda state: state.pop(key)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without("updates"), "updates"),
        (lambda state: state.update(surprise=1), "surprise"),
        (lambda state: state.update(env_steps=-1), "env_steps"),
        (lambda state: state.update(learned="3"), "learned"),
        (lambda state: state.update(weights={}), "the table is missing"),
        (lambda state: state["weights"].update(table=np.zeros((5, 3))), r"\(5, 3\) of float64, not \(5, 2\)"),
        (lambda state: state["weights"].update(table=np.zeros((5, 2), np.float32)), "of float32"),
        (lambda state: state["weights"]["table"].fill(np.nan), "NaN or infinity"),
        (lambda state: state.update(waiting=[[0, 5, 0, 1.0, 0]]), "stream 0 is outside the table"),
        (lambda state: state.update(waiting=[[2, 0, 2, 1.0, 0]]), "stream 2 is outside the table"),
        (lambda state: state.update(waiting=[[3, 0, 0, 1.0, 5]]), "stream 3 is outside the table"),
        (lambda state: state.update(waiting=[[0, 0]]), "waiting"),
        (lambda state: state.update(learned=99), "99 transitions were learned from"),
        (lambda state: state["exploring"].update(bit_generator="dice"), "dice"),
        (without("sampling"), "sampling"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(damage: Any, message: str) -> None:
    learner = agent(method="sarsa")
    walk(learner, 5)
    before, rows = learner.state(), len(learner.replay())
    state = learner.state()
    damage(state)
    with pytest.raises(StateError, match=message):
        learner.load_state(state)
    assert same(learner.state(), before)
    assert len(learner.replay()) == rows


# What it is and what it refuses


def test_it_has_the_abilities_it_says() -> None:
    for ability in (LearningAgent, HasPolicy, HasReplay, ReportsEpisodes, SkipsUpdates, TracksStreams):
        assert isinstance(agent(), ability)


@pytest.mark.parametrize(
    ("setting", "value", "allowed"),
    [
        ("method", "monte_carlo", "one of q_learning, sarsa, expected_sarsa"),
        ("learning_rate", 0.0, "above 0, at most 1"),
        ("learning_rate", 1.5, "from 0 to 1"),
        ("learning_rate", float("nan"), "from 0 to 1"),
        ("gamma", -0.1, "from 0 to 1"),
        ("gamma", "0.9", "from 0 to 1"),
        ("epsilon_start", 2, "from 0 to 1"),
        ("epsilon_end", True, "from 0 to 1"),
        ("epsilon_steps", -1, "at least 0"),
        ("epsilon_steps", 1.5, "whole number"),
        ("capacity", 0, "at least 1"),
        ("replay_updates", -1, "at least 0"),
    ],
)
def test_a_setting_out_of_range_is_named_with_its_value_and_range(setting: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError, match=rf"{setting} is {value!r}: use .*{allowed}"):
        agent(**{setting: value})


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="no setting 'alpha'; `alpha` is called `learning_rate` here"):
        agent(alpha=0.1)


def test_numbers_of_numpy_are_settings() -> None:
    seed: Any = np.int64(4)
    learner = agent(seed=seed, gamma=np.float32(0.5), capacity=np.int64(9), replay_updates=np.int8(1))
    assert learner.config.gamma == 0.5
    assert [type(value) for value in (learner.config.gamma, learner.config.capacity)] == [float, int]


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    with pytest.raises(ConfigError, match="seed is"):
        agent(seed=seed)


@pytest.mark.parametrize("space", [Box(0, 1, (2,)), MultiDiscrete([2, 3]), None])
def test_a_space_that_is_not_discrete_is_refused(space: Any) -> None:
    with pytest.raises(ConfigError, match=r"observation_space is .*: a table needs a Discrete space"):
        Tabular(space, Discrete(2), seed=0)
    with pytest.raises(ConfigError, match=r"action_space is .*: a table needs a Discrete space"):
        Tabular(Discrete(2), space, seed=0)


@pytest.mark.parametrize("observations", [np.array([0.5]), np.array(0.5), np.array([[1]]), np.array([True])])
def test_observations_that_are_not_one_whole_number_a_row_are_refused(observations: np.ndarray) -> None:
    with pytest.raises(InputError, match="one integer per row"):
        agent().policy().act(observations)


def test_values_outside_the_spaces_are_refused_and_change_nothing() -> None:
    learner = agent(method="sarsa")
    observe(learner, (0, 0, 1.0, 1, CONTINUING))
    before = learner.state()
    with pytest.raises(InputError, match="observation 5 is outside 0 to 4"):
        learner.act(np.array([0, 5]), ActMode.EXPLORE, np.arange(2))
    for wrong, name in (((-1, 0, 0.0, 1), "observation -1"), ((1, 2, 0.0, 1), "action 2"), ((1, 0, 0.0, 9), "next")):
        with pytest.raises(InputError, match=name):
            observe(learner, (*wrong, CONTINUING))
    assert same(learner.state(), before)

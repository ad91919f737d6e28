"""What agents learn from data without an environment, and how they go on with one."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from probes import CONTINUING, NUMBER, TERMINATED, TRUNCATED, TWO, numbers, reward_by_distance, tell

import rekindle.policy
from rekindle.agents import AWAC, BC, DQN, IQL, SAC, TD3, Linear
from rekindle.agents.imitation import DiscreteActions
from rekindle.errors import ConfigError, InputError
from rekindle.experience import ActMode, Array, EpisodeStatus, Transitions
from rekindle.policy.policy import NetworkPolicy
from rekindle.replay import Batch, Memory

EXPLORE, EXPLOIT = ActMode
BOUNDS = Box(-1, 3, (1,), np.float32)
ACTIONS = np.linspace(-1, 3, 9).tolist()
SMALL: dict[str, Any] = {
    "hidden_sizes": (32,),
    "learning_rate": 0.01,
    "gamma": 0.5,
    "capacity": 256,
    "warmup_steps": 0,
    "batch_size": 32,
}

Rows = list[tuple[float, Any, float, float, EpisodeStatus]]
"""Observation, action, reward, next observation, status."""


def data_of(rows: Rows, action_space: Any) -> Memory:
    """Transitions as a source to learn from."""
    seen, actions, rewards, following, statuses = zip(*rows, strict=True)
    memory = Memory(4 * len(rows), NUMBER, action_space)
    transitions = Transitions(
        np.array(seen, np.float32)[:, None],
        np.array(actions, action_space.dtype).reshape(len(rows), *action_space.shape),
        np.array(rewards),
        np.array(following, np.float32)[:, None],
        np.array(statuses, np.uint8),
    )
    memory.append(transitions, np.zeros(len(rows), np.int64))
    return memory


def agent(kind: type, action_space: Any = BOUNDS, seed: int = 0, **settings: Any) -> Any:
    return kind(NUMBER, action_space, seed=seed, **{**SMALL, **settings})


def learned(learner: Any, rows: Rows, updates: int) -> Any:
    learner.learn_from(data_of(rows, learner.action_space))
    for _ in range(updates // 8):
        learner.update(8)
    return learner


def greedy(learner: Any, *seen: float) -> Array:
    return learner.act(numbers(*seen), EXPLOIT, np.arange(len(seen)))


# What they learn

CLONED: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "gaussian": (BOUNDS, {}, lambda seen: [seen + 1]),
    "one action": (BOUNDS, {"loss": "mse"}, lambda seen: [seen + 1]),
    "categorical": (Discrete(3, start=5), {}, lambda seen: 5 + int(seen >= 0) + int(seen > 0.5)),
    "several": (MultiDiscrete([2, 3]), {}, lambda seen: [int(seen > 0), 2 - int(seen > 0)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CLONED)
def test_bc_copies_a_deterministic_policy_whatever_it_earns(name: str) -> None:
    space, settings, policy = CLONED[name]
    rng = np.random.default_rng(0)
    seen = np.linspace(-1, 1, 21).tolist()
    rows: Rows = [(x, policy(x), float(rng.normal()), 0, TERMINATED) for x in seen]
    learner = learned(agent(BC, space, **settings), rows, 800)
    found = greedy(learner, *seen[::4]).reshape(6, -1)
    expected = np.array([policy(x) for x in seen[::4]]).reshape(6, -1)
    assert found == pytest.approx(expected, abs=0.15)


def test_actions_that_need_more_than_32_bits_become_indices() -> None:
    actions = DiscreteActions(MultiDiscrete([3, 2], start=[2**40, -(2**50)]))
    # JAX has the lower 32 bits of each.
    given = np.array([[2**40 + 2, -(2**50)], [2**40, 1 - 2**50]]).astype(np.int32)
    assert np.asarray(actions.encoded(jnp.asarray(given))).tolist() == [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]


def test_bc_learns_how_widely_actions_are_spread() -> None:
    actions = np.clip(np.random.default_rng(0).normal(1, 0.5, 200), -1, 3).tolist()
    learner = learned(agent(BC), [(0, action, 0, 0, TERMINATED) for action in actions], 800)
    drawn = learner.act(numbers(*[0] * 500), EXPLORE, np.arange(500))
    assert drawn.mean() == pytest.approx(np.mean(actions), abs=0.1)
    assert drawn.std() == pytest.approx(np.std(actions), rel=0.15)
    assert greedy(learner, 0)[0, 0] == pytest.approx(np.mean(actions), abs=0.1)


CHAIN: Rows = [
    # From -1 either action leads to 1, where the second earns 1 and the first costs 1; the first is taken more often.
    *[(-1, 0, 0, 1, CONTINUING), (1, 0, -1, 0, TERMINATED)] * 5,
    *[(-1, 1, 0, 1, CONTINUING), (1, 1, 1, 0, TERMINATED)],
]


@functools.cache
def learned_chain() -> Any:
    return learned(agent(IQL, TWO, expectile=0.95, tau=0.2, learning_rate=Linear(0.01, 0.0, 1600)), CHAIN, 1600)


def critic_values(learner: Any, seen: float, action: Array) -> Array:
    critics = learner._algorithm.weights["critics"].network(learner._learned.critics)
    return np.asarray(critics(numbers(seen), action[None].astype(np.float32)))[:, 0]


@pytest.mark.slow
def test_iql_takes_the_better_action_of_the_data_although_it_is_rare() -> None:
    learner = learned_chain()
    assert greedy(learner, 1).tolist() == [1]
    assert critic_values(learner, 1, np.eye(2)[0]) == pytest.approx(-1, abs=0.1)
    assert critic_values(learner, 1, np.eye(2)[1]) == pytest.approx(1, abs=0.1)


@pytest.mark.slow
def test_iql_values_a_state_by_the_expectile_and_never_above_the_largest_return() -> None:
    learner = learned_chain()
    values = learner._algorithm._values(learner._learned.value, numbers(-1, 1))
    # The expectile m of -1 (5 of 6) and 1: 0.95 / 6 * (1 - m) = 0.05 * 5 / 6 * (m + 1), so m = 7 / 12.
    assert np.asarray(values) == pytest.approx([0.5 * 7 / 12, 7 / 12], abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AWAC, IQL])
def test_they_find_the_best_continuous_action_of_the_data(kind: type) -> None:
    settings = {"expectile": 0.9} if kind is IQL else {}
    learner = agent(kind, tau=0.2, advantage_scale=10.0, **settings)
    learned(learner, reward_by_distance(ACTIONS), 1200)
    assert greedy(learner, -1, 1)[:, 0] == pytest.approx([0, 2], abs=0.3)


@pytest.mark.slow
def test_td3_with_bc_stays_at_the_actions_of_the_data_where_nothing_else_is_known() -> None:
    # More is better, as far as the data shows; it shows nothing beyond 1.
    rows: Rows = [(0, action, action, 0, TERMINATED) for action in (0.8, 0.9, 1.0)]
    settings: dict[str, Any] = {"tau": 0.2, "batch_size": 16}
    cloning, alone = (learned(agent(TD3, bc_alpha=alpha, **settings), rows, 600) for alpha in (0.1, None))
    assert greedy(cloning, 0)[0, 0] == pytest.approx(0.95, abs=0.15)
    assert abs(greedy(alone, 0)[0, 0] - 1) > 1.8, "it goes to a bound"


@pytest.mark.slow
def test_conservative_q_learning_takes_no_action_that_is_not_in_the_data() -> None:
    # The task never ends and every reward is -1: what is not in the data looks best to plain Q-learning.
    rows: Rows = [(seen, 0, -1, -seen, TRUNCATED) for seen in (-1, 1)]
    settings: dict[str, Any] = {"gamma": 0.9, "tau": 0.1}
    plain, conservative = (
        learned(agent(DQN, Discrete(3), cql_alpha=alpha, **settings), rows, 800) for alpha in (0.0, 1.0)
    )
    assert 0 not in greedy(plain, -1, 1)
    assert greedy(conservative, -1, 1).tolist() == [0, 0]
    assert np.mean(conservative.update(1)["q_gap"]) > 0


# How they act


@pytest.mark.parametrize(("kind", "space"), [(IQL, BOUNDS), (AWAC, BOUNDS), (BC, MultiDiscrete([2, 3]))])
def test_numpy_compiled_and_exported_networks_act_alike(kind: type, space: Any, tmp_path: Path) -> None:
    learner = agent(kind, space)
    seen = np.linspace(-2, 2, 300, dtype=np.float32)[:, None]
    compiled = learner._actor.output(seen, None)
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    rekindle.policy.save(policy, tmp_path / "policy.mpk")
    exported = rekindle.policy.load(tmp_path / "policy.mpk")
    np.testing.assert_allclose(exported.output(seen), compiled, rtol=1e-4, atol=1e-6)
    one_by_one = np.concatenate([learner._actor.output(row[None], None) for row in seen])
    np.testing.assert_allclose(one_by_one, compiled, rtol=1e-4, atol=1e-6)
    for mode in ActMode:
        actions = exported.act(seen, mode, np.random.default_rng(0))
        assert all(space.contains(action) for action in actions)
    np.testing.assert_allclose(exported.act(seen), learner.act(seen, EXPLOIT, np.arange(300)), rtol=1e-4, atol=1e-5)


def test_an_action_that_the_mask_forbids_is_never_taken() -> None:
    space = Dict({"seen": NUMBER, "action_mask": Box(0, 1, (2,), np.int8)})
    observation = {"seen": numbers(0.5), "action_mask": np.array([[0, 1]], np.int8)}
    for kind in (BC, IQL):
        learner = kind(space, TWO, seed=0, **SMALL)
        for mode in ActMode:
            assert all(learner.act(observation, mode, np.zeros(1, np.int64)).tolist() == [1] for _ in range(10))


def test_continuous_exploration_may_be_correlated_over_time() -> None:
    noisy = agent(AWAC, noise="pink")
    drawn = [float(noisy.act(numbers(0), EXPLORE, np.zeros(1, np.int64))[0, 0]) for _ in range(400)]
    assert np.corrcoef(drawn[:-1], drawn[1:])[0, 1] > 0.3


# Learning from data

ROWS: Rows = [(x, 0.5 * x, x, -x, CONTINUING if x < 0.9 else TERMINATED) for x in np.linspace(-1, 1, 40).tolist()]


def test_offline_no_update_is_due_and_none_is_owed_later() -> None:
    learner = agent(BC)
    learner.learn_from(data_of(ROWS, BOUNDS))
    assert (learner.updates_due(), len(learner.replay())) == (0, 0)
    learner.update(40)
    assert (learner.updates, learner.env_steps) == (40, 0)
    learner.learn_from(None)
    with pytest.raises(InputError, match="there are 0 transitions"):
        learner.update(1)
    tell(learner, [(0, 0.5, 1, 0, TERMINATED)] * 3)
    assert learner.updates_due() == 3


def test_schedules_count_updates_offline_and_env_steps_online() -> None:
    learner = agent(BC, learning_rate=Linear(1.0, 0.0, 100))
    learner.learn_from(data_of(ROWS, BOUNDS))
    learner.update(25)
    assert float(learner._inputs()["schedules"]["learning_rate"]) == pytest.approx(0.75)
    learner.learn_from(None)
    tell(learner, [(0, 0.5, 1, 0, TERMINATED)] * 10)
    assert float(learner._inputs()["schedules"]["learning_rate"]) == pytest.approx(0.9)


@pytest.mark.parametrize(("kind", "actions"), [(SAC, BOUNDS), (TD3, BOUNDS), (DQN, Discrete(3))])
def test_the_policy_learned_from_data_alone_explores_as_at_the_end_of_a_training(kind: type, actions: Any) -> None:
    def is_random() -> bool:
        head = learner.policy().head
        return head.anywhere or head.exploration > 0.9

    learner = agent(kind, actions, warmup_steps=100)
    assert is_random()
    rows = [(x, 1, x, -x, TERMINATED) for x in np.linspace(-1, 1, 40).tolist()]
    learner.learn_from(data_of(rows, actions))
    learner.update(1)
    assert not is_random()
    assert learner.policy().head.exploration == {SAC: 0, TD3: 0.1, DQN: 0.05}[kind]
    tell(learner, rows[:1])
    assert is_random(), "its warm-up has begun"


def test_a_share_of_each_batch_is_from_the_data_and_the_rest_from_memory() -> None:
    learner = agent(BC, batch_size=8)
    learner.learn_from(data_of(ROWS, BOUNDS), share=0.25)
    rows, columns = learner._draw(3)
    assert len(rows) == 24
    assert set(columns["rewards"].tolist()) <= {np.float32(row[2]) for row in ROWS}, "the memory is empty"
    tell(learner, [(0, 0.5, 7, 0, TERMINATED)] * 5)
    assert learner.updates_due() == 5
    _, columns = learner._draw(3)
    is_own = (columns["rewards"] == 7).reshape(3, 8)
    assert is_own.tolist() == [[False] * 2 + [True] * 6] * 3
    learner.update(5)
    assert learner.updates_due() == 0


@pytest.mark.parametrize(("share", "from_data"), [(0.01, 1), (0.99, 7)])
def test_each_batch_has_a_row_of_the_data_and_one_of_memory(share: float, from_data: int) -> None:
    learner = agent(BC, batch_size=8)
    learner.learn_from(data_of(ROWS, BOUNDS), share=share)
    tell(learner, [(0, 0.5, 7, 0, TERMINATED)])
    _, columns = learner._draw(2)
    is_own = (columns["rewards"] == 7).reshape(2, 8)
    assert is_own.sum(axis=1).tolist() == [8 - from_data] * 2


def test_observations_are_normalised_by_the_data_once() -> None:
    learner = agent(BC, normalise_observations=True)
    data = data_of(ROWS, BOUNDS)
    learner.learn_from(data)
    learner.update(1)
    mean, variance = learner.policy().normaliser.mean, learner.policy().normaliser.variance
    seen = np.array([row[0] for row in ROWS])
    assert (mean[0], variance[0]) == (pytest.approx(seen.mean(), abs=0.3), pytest.approx(seen.var(), rel=0.5))
    state = learner.state()
    learner.learn_from(data)
    assert same(learner.state(), state)


@pytest.mark.parametrize("order", ["before", "after"])
def test_offline_training_continues_to_the_bit_from_a_saved_state(order: str) -> None:
    data = data_of(ROWS, BOUNDS)
    learner = agent(BC, normalise_observations=True, seed=4)
    learner.learn_from(data)
    learner.update(11)
    saved = learner.state()
    learner.update(5)
    other = agent(BC, normalise_observations=True, seed=9)
    if order == "before":
        other.learn_from(data)
    other.load_state(saved)
    if order == "after":
        other.learn_from(data)
    other.update(5)
    assert same(other.state(), learner.state())


def test_any_source_with_sample_is_data() -> None:
    class Constant:
        """One transition, over and over."""

        def __len__(self) -> int:
            return 1

        def sample(self, rng: np.random.Generator, count: int, *, n_step: int, gamma: float) -> Batch:
            del rng, n_step, gamma
            ones, rows = np.ones((count, 1), np.float32), np.zeros(count, np.int64)
            return Batch(ones, 2 * ones, ones[:, 0], ones, 0 * ones[:, 0], rows)

    learner = agent(BC, loss="mse")
    learner.learn_from(Constant())
    for _ in range(50):
        learner.update(8)
    assert greedy(learner, 1)[0, 0] == pytest.approx(2, abs=0.05)


def test_what_cannot_be_learned_from_is_refused() -> None:
    data, empty = data_of(ROWS, BOUNDS), Memory(8, NUMBER, BOUNDS)
    with pytest.raises(InputError, match="no transitions in the data"):
        agent(BC).learn_from(empty)
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="share is "):
            agent(BC).learn_from(data, share=share)
    with pytest.raises(ConfigError, match=r"share is 0\.5: a minibatch of one transition cannot be shared"):
        agent(BC, batch_size=1).learn_from(data, share=0.5)
    with pytest.raises(ConfigError, match="prioritised is True"):
        agent(BC, prioritised=True).learn_from(data)


BAD: list[tuple[type, Any, str, Any]] = [
    (BC, BOUNDS, "loss", "huber"),
    (BC, TWO, "loss", "mse"),
    (BC, TWO, "hidden_sizes", ()),
    (AWAC, BOUNDS, "advantage_scale", 0.0),
    (IQL, BOUNDS, "expectile", 1.0),
    (IQL, BOUNDS, "expectile", 0.0),
    (IQL, BOUNDS, "advantage_scale", -1.0),
    (IQL, BOUNDS, "max_weight", 0.0),
    (IQL, BOUNDS, "cosine_updates", 0),
    (IQL, TWO, "noise", "pink"),
]


@pytest.mark.parametrize(("kind", "space", "name", "value"), BAD)
def test_a_setting_out_of_range_is_named(kind: type, space: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is "):
        agent(kind, space, **{name: value})


@pytest.mark.parametrize("kind", [BC, AWAC, IQL])
@pytest.mark.parametrize("space", [Box(-np.inf, np.inf, (1,)), Tuple([Discrete(2), Discrete(2)])])
def test_actions_that_cannot_be_learned_are_refused(kind: type, space: Any) -> None:
    with pytest.raises(ConfigError, match=f"action_space is .*: {kind.__name__} needs"):
        agent(kind, space)

"""What PPO learns, how it acts, and when it does either."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium as gym
import jax
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from probes import (
    CONTINUING,
    NUMBER,
    TERMINATED,
    TWO,
    Move,
    constant_reward,
    cut_short,
    delayed_reward,
    numbers,
    reward_by_action,
    reward_by_observation,
    tell,
)

from rekindle.agent import (
    HasPolicy,
    HasReplay,
    InterruptibleUpdates,
    LearningAgent,
    ReportsEpisodes,
    SkipsUpdates,
    TracksStreams,
    VersionsPolicies,
    WarmsUp,
)
from rekindle.agents import PPO, Linear, PPOConfig
from rekindle.agents.acting import CompiledPolicy
from rekindle.errors import AgentError, ConfigError, InputError, Interrupted, StateError
from rekindle.experience import ActMode, Array, EpisodeStatus, Transitions
from rekindle.policy import policy as policies
from rekindle.policy.network import Normaliser
from rekindle.policy.policy import NetworkPolicy
from rekindle.run.directory import TrainingRun
from rekindle.session.session import TrainingSession
from rekindle.storage import codec

EXPLORE, EXPLOIT = ActMode
ONE = np.zeros(1, np.int64)
SMALL: dict[str, Any] = {
    "hidden_sizes": (16,),
    "learning_rate": 0.01,
    "gamma": 0.5,
    "rollout_steps": 32,
    "minibatch_size": 16,
    "epochs": 4,
}
FEW: dict[str, Any] = {"rollout_steps": 4, "minibatch_size": 4, "epochs": 1}
IMAGE = Box(0, 255, (2, 36, 36), np.uint8)
ARM = Box(-1, 1, (1,), np.float32)
MASKED = Dict({"seen": Box(-2, 2, (2,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)})


_MADE: dict[str, tuple[PPO, dict[str, Any]]] = {}


def agent(observation_space: Any = NUMBER, action_space: Any = TWO, seed: int = 0, **settings: Any) -> PPO:
    """One as if it were new: compiling another takes longer than most tests."""
    key = repr((observation_space, action_space, seed, settings))
    if key not in _MADE:
        made = PPO(observation_space, action_space, seed=seed, **{**SMALL, **settings})
        _MADE[key] = made, made.state()
    learner, fresh = _MADE[key]
    learner.load_state(fresh)
    return learner


def values(learner: PPO, *seen: float) -> Array:
    normaliser = learner._acting.normaliser
    encoded = numbers(*seen) if normaliser is None else normaliser.apply(numbers(*seen))
    return learner._scorer.rows(learner._acting, encoded, None, None)[1]


def policy_of(learner: PPO) -> NetworkPolicy:
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    return policy


def outputs(learner: PPO, *seen: float) -> Array:
    return policy_of(learner).output(numbers(*seen))


def normaliser_of(learner: PPO) -> Normaliser:
    normaliser = policy_of(learner).normaliser
    assert normaliser is not None
    return normaliser


def fill(learner: PPO, moves: list[Move] | None = None) -> None:
    """Tell moves until updates are due."""
    while not learner.updates_due():
        tell(learner, constant_reward() if moves is None else moves)


def learn(learner: PPO, moves: list[Move] | None = None, rollouts: int = 1) -> None:
    for _ in range(rollouts):
        fill(learner, moves)
        learner.update(learner.updates_due())


# What it learns


@pytest.fixture(scope="module", params=["discrete", "continuous"])
def learner(request: pytest.FixtureRequest) -> PPO:
    """One agent for all probes, as compiling it takes longer than all of them."""
    return agent(action_space=TWO if request.param == "discrete" else ARM)


@pytest.mark.slow
def test_it_learns_the_values_of_worlds_where_they_are_known(learner: PPO) -> None:
    fresh = learner.state()

    def learned(moves: list[Move], *seen: float) -> Array:
        learner.load_state(fresh)
        if learner.action_space is ARM:
            moves = [(before, [action - 0.5], *rest) for before, action, *rest in moves]  # pyright: ignore
        learn(learner, moves, 40)
        return values(learner, *seen)

    assert learned(constant_reward(), 0) == pytest.approx([1], abs=0.1)
    assert learned(delayed_reward(), -1, 1) == pytest.approx([0.5, 1], abs=0.1)
    assert learned(reward_by_observation(), -1, 1) == pytest.approx([-1, 1], abs=0.1)
    # r / (1 - gamma) where the episode was cut short, r where the task ended.
    assert learned(cut_short(), 0) == pytest.approx([2], abs=0.1)
    learned(reward_by_action(), 0)
    best = learner.act(numbers(0), EXPLOIT, ONE)[0]
    assert best == 1 if learner.action_space is TWO else best > 0.2


def play(learner: PPO, world: Callable[[Array, Any], float], rollouts: int, seen: Array | None = None) -> None:
    """Episodes of one step, in which the reward follows from what is seen and done."""
    rng, done = np.random.default_rng(0), learner.policy_version + rollouts
    while learner.policy_version < done:
        before = rng.choice([-1.0, 1.0], (8, 1)).astype(np.float32)
        actions = learner.act(before, EXPLORE, np.arange(8))
        rewards = np.array([world(*row) for row in zip(before, actions, strict=True)])
        learner.observe(Transitions(before, actions, rewards, before, np.full(8, TERMINATED, np.uint8)), np.arange(8))
        if learner.updates_due():
            learner.update(learner.updates_due())


def test_it_finds_the_best_action_for_what_it_sees() -> None:
    learner = agent(action_space=MultiDiscrete([2, 3]))
    play(learner, lambda seen, action: float(action[0] == (seen[0] > 0)) + float(action[1] == 1 + (seen[0] > 0)), 25)
    assert learner.act(numbers(-1, 1), EXPLOIT, np.arange(2)).tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize(("best", "found"), [(0.4, 0.4), (3.0, 1.0)], ids=["inside the bounds", "at a bound"])
def test_it_finds_the_best_of_continuous_actions(best: float, found: float) -> None:
    learner = agent(action_space=ARM, log_std_init=-0.5, rollout_steps=64)
    play(learner, lambda seen, action: -(float(action[0] - best * seen[0]) ** 2), 40)
    actions = learner.act(numbers(-1, 1), EXPLOIT, np.arange(2))[:, 0]
    assert actions == pytest.approx([-found, found], abs=0.15)


@pytest.mark.slow
def test_cart_pole_is_learned() -> None:
    env = gym.make("CartPole-v1")
    learner = PPO(
        env.observation_space,
        env.action_space,
        seed=0,
        rollout_steps=256,
        minibatch_size=64,
        gae_lambda=0.8,
        gamma=0.98,
        learning_rate=3e-3,
    )
    learner.warm_up = lambda: None
    with TrainingSession(learner, max_steps=6_000, seed=0) as session:
        stream = session.stream()
        while not session.is_done:
            action = stream.begin(stream.reset(env))
            while action is not None:
                observation, reward, terminated, truncated, _ = env.step(action)
                action = stream.step(observation, float(reward), terminated, truncated)
    returns = []
    for seed in range(5):
        observation, _ = env.reset(seed=seed)
        total, is_done = 0.0, False
        while not is_done:
            action = learner.act(np.asarray(observation)[None], EXPLOIT, ONE)[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total, is_done = total + float(reward), terminated or truncated
        returns.append(total)
    assert np.mean(returns) > 150  # at random it is about 20


def test_a_schedule_that_has_ended_at_zero_learns_nothing_more() -> None:
    learner = agent(learning_rate=Linear(0.01, 0.0, 64), clip=Linear(0.2, 0.1, 64), entropy_coef=Linear(0.1, 0.0, 64))
    fill(learner)
    metrics = learner.update(learner.updates_due())
    now = {name: metrics[name] for name in ("learning_rate", "clip", "entropy_coef")}
    assert now == pytest.approx({"learning_rate": 0.005, "clip": 0.15, "entropy_coef": 0.05})
    moved = learner.state()["weights"]
    learn(learner)
    assert same(moved, learner.state()["weights"])


def test_a_schedule_stands_still_while_a_rollout_is_learned_from() -> None:
    learner = agent(learning_rate=Linear(0.01, 0.0, 64))
    fill(learner)
    first = learner.update(1)["learning_rate"]
    tell(learner, constant_reward())
    assert learner.update(1)["learning_rate"] == first == pytest.approx(0.005)


def test_an_undecided_policy_is_worth_something_by_the_entropy_coefficient() -> None:
    decided = []
    for coefficient in (0.0, 1.0):
        learner = agent(entropy_coef=coefficient)
        learn(learner, reward_by_action(), 10)
        decided.append(abs(np.diff(outputs(learner, 0)[0])[0]))
    assert decided[0] > 2 * decided[1]


def test_the_deviation_of_continuous_actions_is_learned() -> None:
    learner = agent(action_space=ARM, log_std_init=-0.5)
    start = learner.policy().head.scale[0]
    assert start == pytest.approx(np.exp(-0.5))
    play(learner, lambda seen, action: -abs(float(action[0])), 20)
    assert learner.policy().head.scale[0] < 0.8 * start


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_weights_that_are_not_finite_stop_a_session_and_keep_the_last_checkpoint(tmp_path: Path) -> None:
    learner = agent(learning_rate=1e30, max_grad_norm=None)
    run = TrainingRun.create("diverged", "v1", root=tmp_path, seed=0)

    def train() -> None:
        with TrainingSession(learner, run=run, metrics_every=20, checkpoint_every=30, keep_checkpoints=9) as session:
            stream = session.stream()
            for _ in range(100):
                stream.begin(np.zeros(1, np.float32))
                stream.step(np.ones(1, np.float32), 1.0, terminated=True)

    with pytest.raises(AgentError, match="has diverged"):
        train()
    assert sorted(path.name for path in (run.path / "checkpoints").glob("step_*")) == ["step_30.mpk"]


# When it learns


def test_updates_are_due_when_a_rollout_is_full_until_its_epochs_are_over() -> None:
    learner = agent(epochs=3)
    due = []
    for _ in range(34):
        tell(learner, constant_reward()[:1])
        due.append(learner.updates_due())
        if due[-1]:
            assert len(np.asarray(learner.update(4)["loss"])) == 4
            due.append(learner.updates_due())
            learner.update(99)
    assert due == [0] * 31 + [6, 2, 0, 0]
    assert (learner.updates, learner.env_steps, learner.policy_version) == (6, 34, 1)
    with pytest.raises(InputError, match="0 updates are due"):
        learner.update(1)


def test_it_acts_with_the_same_policy_until_a_rollout_is_learned_from_whole() -> None:
    learner = agent()
    fill(learner, reward_by_action())
    before, policy = outputs(learner, 0.5), policy_of(learner)
    learner.update(7)
    np.testing.assert_array_equal(outputs(learner, 0.5), before)
    assert (learner.policy(), learner.policy_version) == (policy, 0)
    learner.update(1)
    assert not np.array_equal(outputs(learner, 0.5), before)
    np.testing.assert_array_equal(policy.output(numbers(0.5)), before)
    assert learner.policy_version == 1


def test_a_batch_that_overfills_a_rollout_begins_the_next() -> None:
    learner = agent(**FEW)
    for _ in range(2):
        learner.observe(batch(3), np.arange(3))
    assert (learner.updates_due(), len(learner._collector._waiting), len(learner._collector._current)) == (1, 4, 2)
    learner.update(1)
    assert (learner.updates_due(), len(learner._collector._current), learner.stale_steps) == (0, 2, 0)


def batch(rows: int) -> Transitions:
    return Transitions(
        np.zeros((rows, 1), np.float32),
        np.zeros(rows, np.int64),
        np.ones(rows),
        np.zeros((rows, 1), np.float32),
        np.zeros(rows, np.uint8),
    )


def test_what_there_is_no_room_for_while_updates_are_owed_is_left_out_and_counted() -> None:
    learner = agent(**FEW)
    for _ in range(5):
        learner.observe(batch(2), np.arange(2))
    assert (learner.env_steps, learner.stale_steps, learner.updates_due()) == (10, 2, 2)
    assert learner.update(1)["stale_steps"] == 2
    assert (learner.updates_due(), learner.policy_version) == (1, 1)
    learner.update(1)
    assert (learner.updates_due(), learner.policy_version) == (0, 2)


def test_two_rollouts_that_are_full_are_learned_from_one_after_the_other() -> None:
    states = []
    for chunks in ([2], [1, 1]):
        learner = agent(**FEW)
        learner.act(np.zeros((8, 1), np.float32), EXPLORE, np.arange(8))
        learner.observe(batch(8), np.arange(8))
        assert [len(np.asarray(learner.update(n)["loss"])) for n in chunks] == chunks
        assert (learner.policy_version, learner.updates_due(), learner.stale_steps) == (2, 0, 0)
        states.append(learner.state())
    assert same(*states)


def test_more_at_once_than_two_rollouts_hold_is_refused_and_nothing_is_changed() -> None:
    learner = agent(**FEW)
    learner.act(np.zeros((9, 1), np.float32), EXPLORE, np.arange(9))
    before = learner.state()
    with pytest.raises(InputError, match="9 transitions at once do not fit: rollout_steps is 4"):
        learner.observe(batch(9), np.arange(9))
    assert same(before, learner.state())


def test_what_a_policy_before_the_last_two_chose_is_left_out_and_counted() -> None:
    learner = agent(**FEW)
    learner.act(np.zeros((2, 1), np.float32), EXPLORE, np.array([1, 2]))
    for stream, stale in ((1, 0), (2, 1)):
        learn(learner)
        learner.observe(batch(1), np.array([stream]))
        assert learner.stale_steps == stale
    assert learner.env_steps == 10
    assert learner._collector._current.steps().versions.tolist() == [1]


def test_the_versions_of_a_rollout_are_those_of_the_policies_that_chose() -> None:
    learner = agent(**FEW)
    streams = np.arange(1, 4)
    learner.act(np.zeros((3, 1), np.float32), EXPLORE, streams)
    learn(learner)
    learner.act(np.zeros((3, 1), np.float32), EXPLOIT, streams)
    learner.act(numbers(0), EXPLORE, np.array([3]))
    learner.observe(batch(3), streams)
    learner.chose(np.array([1]), np.array([0]))
    learner.cut(np.array([1]))
    learner.observe(batch(1), np.array([1]))
    assert learner.updates_due() == 1
    assert learner._collector._waiting.steps().versions.tolist() == [0, 0, 1, 1]


def test_learning_stops_early_when_the_policy_has_moved_too_far() -> None:
    learner = agent(target_kl=1e-3, learning_rate=0.05, epochs=20)
    fill(learner, reward_by_action())
    due = learner.updates_due()
    metrics = learner.update(due)
    kl = np.asarray(metrics["kl"])
    assert 1 < len(kl) < due
    assert (kl[:-1] <= 1e-3).all()
    assert kl[-1] > 1e-3
    assert (learner.updates, learner.updates_due(), learner.policy_version) == (len(kl), 0, 1)
    fill(learner, reward_by_action())
    assert learner.updates_due() == due
    assert len(np.asarray(learner.update(1)["kl"])) == 1


def test_a_session_counts_the_updates_that_were_made() -> None:
    learner = agent(target_kl=1e-4, learning_rate=0.05, epochs=20)
    learner.warm_up = lambda: None
    session = TrainingSession(learner, max_steps=40, learner="manual")
    stream = session.stream()
    for index in range(40):
        action = stream.begin(np.zeros(1, np.float32))
        stream.step(np.ones(1, np.float32), float(action == 1), terminated=True)
        if index == 35:
            made = session.learn()
    session.close()
    assert 0 < made == learner.updates < 40


def test_accumulated_gradients_move_the_weights_once_in_so_many_updates() -> None:
    learner = agent(gradient_accumulation=3)
    fill(learner)
    start = np.array(learner._learned.params)
    learner.update(2)
    np.testing.assert_array_equal(start, learner._learned.params)
    learner.update(1)
    assert not np.array_equal(start, learner._learned.params)


@pytest.mark.slow
def test_a_background_learner_is_told_which_policy_chose() -> None:
    learner = agent(rollout_steps=16, minibatch_size=16, epochs=2)
    learner.warm_up = lambda: None
    with TrainingSession(learner, learner="background") as session:
        streams = [session.stream(index) for index in range(3)]
        actions = [stream.begin(np.zeros(1, np.float32)) for stream in streams]
        while session.total_steps < 600 or learner.policy_version == 0:
            for index, stream in enumerate(streams):
                if actions[index] is None:
                    actions[index] = stream.begin(np.zeros(1, np.float32))
                    continue
                actions[index] = stream.step(np.ones(1, np.float32), float(actions[index]), terminated=True)
    assert learner.env_steps == session.total_steps
    # Every transition was learned from, is collected, or was too old.
    collector = learner._collector
    open_rollouts = len(collector._current) + (len(collector._waiting) if collector.is_waiting else 0)
    learning = 16 if learner._learning is not None else 0
    learned = 16 * learner.policy_version
    assert learner.policy_version > 0
    assert learned + learning + open_rollouts + learner.stale_steps == learner.env_steps


# How it acts


def test_it_follows_every_protocol_but_those_of_a_memory() -> None:
    protocols = (
        *(LearningAgent, HasPolicy, InterruptibleUpdates, ReportsEpisodes, TracksStreams, VersionsPolicies, WarmsUp),
    )
    assert all(isinstance(agent(), protocol) for protocol in protocols)
    assert not any(isinstance(agent(), protocol) for protocol in (HasReplay, SkipsUpdates))


@pytest.mark.parametrize("space", [TWO, ARM])
def test_exploiting_is_pure_and_exploring_is_not(space: Any) -> None:
    learner = agent(action_space=space)
    start = learner.state()
    greedy = [learner.act(numbers(0.3), EXPLOIT, ONE).tolist() for _ in range(20)]
    assert greedy == [greedy[0]] * 20
    assert same(start, learner.state())
    explored = {learner.act(numbers(0.3), EXPLORE, ONE).item() for _ in range(20)}
    assert len(explored) > 1
    assert not same(start, learner.state())


SPACES = [
    Discrete(3, start=-1),
    MultiDiscrete([2, 3]),
    MultiDiscrete([[2, 3], [4, 1]], start=[[1, 0], [0, 5]]),
    MultiBinary((2, 2)),
    Box(-0.1, 0.3, (2, 3), np.float32),
    Box(np.array([-0.1, -np.inf]), np.array([np.inf, 0.7]), dtype=np.float64),
    Box(-0.25, 0.25, (), np.float16),
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_actions_lie_in_their_space_and_are_learned_from(space: Any) -> None:
    learner = agent(action_space=space, rollout_steps=40, minibatch_size=40, log_std_init=2.0)
    observations = np.zeros((20, 1), np.float32)
    for mode in (EXPLORE, EXPLOIT, EXPLORE):
        actions = learner.act(observations, mode, np.arange(20))
        assert all(space.contains(np.asarray(action)) for action in actions)
        assert actions.dtype == space.dtype
        if mode is EXPLORE:
            transitions = Transitions(observations, actions, np.ones(20), observations, np.zeros(20, np.uint8))
            learner.observe(transitions, np.arange(20))
    metrics = learner.update(learner.updates_due())
    assert np.isfinite(metrics["loss"]).all()
    assert abs(np.asarray(metrics["kl"])[0]) < 1e-6
    exported = learner.policy().act(observations, EXPLORE, np.random.default_rng(0))
    assert all(space.contains(np.asarray(action)) for action in exported)


def test_actions_are_as_likely_as_the_policy_says() -> None:
    learner = agent(action_space=Discrete(3))
    learn(learner, [(0, 2, 1, 0, TERMINATED), (0, 0, -1, 0, TERMINATED)], 3)
    logits = outputs(learner, 0.3)[0].astype(float)
    likely = np.exp(logits) / np.exp(logits).sum()
    actions = learner.act(np.full((4000, 1), 0.3, np.float32), EXPLORE, np.arange(4000))
    assert np.bincount(actions, minlength=3) / 4000 == pytest.approx(likely, abs=0.03)


def masked(*masks: list[int]) -> dict[str, Array]:
    return {"seen": np.zeros((len(masks), 2), np.float32), "action_mask": np.array(masks, np.int8)}


def test_an_action_that_is_masked_is_never_taken_nor_learned(tmp_path: Path) -> None:
    learner = agent(MASKED, Discrete(3), rollout_steps=200, minibatch_size=100)
    observations = masked(*[[1, 0, 1], [0, 1, 0]] * 100)
    streams = np.arange(200)
    for _ in range(3):
        actions = learner.act(observations, EXPLORE, streams)
        assert set(actions.reshape(-1, 2)[:, 0]) == {0, 2}
        assert set(actions.reshape(-1, 2)[:, 1]) == {1}
        rewards = (actions == 2).astype(float)
        learner.observe(Transitions(observations, actions, rewards, observations, np.ones(200, np.uint8)), streams)
        metrics = learner.update(learner.updates_due())
        # Half of the rows have one action, and the others two.
        assert np.asarray(metrics["entropy"]).max() <= np.log(2) * 0.6
    assert learner.act(masked([1, 0, 1], [1, 1, 0]), EXPLOIT, np.arange(2)).tolist()[0] == 2
    exported = policy_of(learner)
    policies.save(exported, tmp_path / "policy.mpk")
    for policy in (exported, policies.load(tmp_path / "policy.mpk")):
        actions = policy.act(observations, EXPLORE, np.random.default_rng(0)).reshape(-1, 2)
        assert (set(actions[:, 0]), set(actions[:, 1])) == ({0, 2}, {1})


def test_masks_cover_every_action_of_several() -> None:
    space = Dict({"seen": NUMBER, "action_mask": MultiBinary(5)})
    learner = agent(space, MultiDiscrete([2, 3]))
    mask = np.tile(np.array([[1, 0, 0, 1, 1]], np.int8), (100, 1))
    actions = learner.act({"seen": np.zeros((100, 1), np.float32), "action_mask": mask}, EXPLORE, np.arange(100))
    assert set(actions[:, 0]) == {0}
    assert set(actions[:, 1]) == {1, 2}


@pytest.mark.parametrize("space", [Discrete(5), Box(-1, 1, (2,), np.float32)], ids=["discrete", "continuous"])
def test_numpy_and_compiled_networks_act_alike(space: Any) -> None:
    learner = agent(action_space=space, hidden_sizes=(32, 32), normalise_observations=True, rollout_steps=16)
    play(learner, lambda seen, action: float(np.sum(action)), 2)
    observations = np.linspace(-2, 2, 400, dtype=np.float32)[:, None]
    compiled = learner._actor.output(observations, None)
    one_by_one = np.concatenate([learner._actor.output(row[None], None) for row in observations])
    np.testing.assert_allclose(compiled, one_by_one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(policy_of(learner).output(observations), compiled, rtol=1e-4, atol=1e-5)
    if space.shape:
        acted = learner.act(observations, EXPLOIT, np.arange(400))
        np.testing.assert_allclose(learner.policy().act(observations), acted, rtol=1e-4, atol=1e-5)


def test_an_exported_policy_acts_as_the_agent(tmp_path: Path) -> None:
    for space in (Discrete(3), Box(-1, 1, (2,), np.float32)):
        learner = agent(action_space=space, normalise_observations=True)
        play(learner, lambda seen, action: float(np.sum(action)), 2)
        exported = policy_of(learner)
        policies.save(exported, tmp_path / "policy.mpk")
        loaded = policies.load(tmp_path / "policy.mpk")
        seen = numbers(*np.linspace(-1, 1, 9))
        np.testing.assert_array_equal(loaded.act(seen), learner.act(seen, EXPLOIT, np.arange(9)))
        learner._exploring = np.random.default_rng(7)
        drawn = loaded.act(seen, EXPLORE, np.random.default_rng(7))
        np.testing.assert_array_equal(drawn, learner.act(seen, EXPLORE, np.arange(9)))
        assert loaded.algorithm == "ppo"
        program = f"""if True:
            import sys
            sys.modules["jax"] = sys.modules["gymnasium"] = None
            import numpy, rekindle.policy
            print(rekindle.policy.load({str(tmp_path / "policy.mpk")!r}).act(numpy.zeros((1, 1), "f4")).tolist())"""
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        assert done.stdout.strip() == str(loaded.act(numbers(0)).tolist())


def test_an_exported_cnn_acts_as_the_compiled_one() -> None:
    learner = agent(IMAGE, hidden_sizes=(16,))
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 36, 36), np.uint8)
    np.testing.assert_allclose(
        policy_of(learner).output(images), learner._actor.output(images, None), rtol=1e-3, atol=1e-5
    )


# Networks


def test_weights_are_orthogonal_at_first() -> None:
    learner = agent(Box(-1, 1, (5,), np.float32), hidden_sizes=(8, 6))
    network: Any = learner._weights.views(learner._acting.params)
    for part, gain in ((network.policy, 0.01), (network.value, 1.0)):
        layers = [module for module in part.modules if hasattr(module, "weight")]
        for layer, expected in zip(layers, (np.sqrt(2), np.sqrt(2), gain), strict=True):
            weight = np.asarray(layer.weight)
            gram = weight.T @ weight if weight.shape[0] >= weight.shape[1] else weight @ weight.T
            np.testing.assert_allclose(gram, expected**2 * np.eye(len(gram)), atol=1e-5)
            assert not np.any(layer.bias)
    assert not np.array_equal(network.policy.modules[0].weight, network.value.modules[0].weight)


class Features(eqx.Module):
    """A user's network."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], *, key: jax.Array) -> None:
        self.layer = eqx.nn.Linear(shape[0], 12, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.layer(x))


@pytest.mark.parametrize("network", [Features, f"{__name__}:Features", eqx.nn.MLP(1, 6, 8, 1, key=jax.random.key(0))])
def test_a_network_of_the_users_own_learns(network: Any) -> None:
    learner = agent(network=network, hidden_sizes=None)
    learn(learner, reward_by_action(), 8)
    policy = learner.policy()
    # Layers of equinox are known, and run by numpy.
    assert isinstance(policy, NetworkPolicy if isinstance(network, eqx.Module) else CompiledPolicy)
    assert learner.act(numbers(0), EXPLOIT, ONE) == policy.act(numbers(0)) == policy.act(numbers(0)[0]) == 1
    assert learner.config.network == (None if isinstance(network, eqx.Module) else f"{__name__}:Features")


def test_what_is_no_network_is_refused() -> None:
    for network, message in (("nowhere:Network", "nowhere"), (eqx.nn.Lambda(lambda x: x[None]), "vector of features")):
        with pytest.raises(ConfigError, match=message):
            agent(network=network)


# Normalisation


def test_normalisation_changes_when_a_rollout_was_learned_from_and_at_no_other_time() -> None:
    learner = agent(normalise_observations=True, normalise_rewards=True)
    before = outputs(learner, 0.5)
    fill(learner, [(x, 0, x, x, TERMINATED) for x in (1.0, 3.0)])
    for _ in range(7):
        learner.act(numbers(100), EXPLOIT, ONE)
        learner.update(1)
        np.testing.assert_array_equal(outputs(learner, 0.5), before)
        assert normaliser_of(learner).mean == 0.0
    scale = learner._reward_scale
    assert scale is not None
    assert scale.published == pytest.approx(1.0)  # of 1, 3, 1, 3, ...
    learner.update(1)
    policy, normaliser = learner.policy(), normaliser_of(learner)
    assert (normaliser.mean, normaliser.variance) == (2.0, 1.0)
    learner.act(numbers(100), EXPLOIT, ONE)
    tell(learner, [(100, 0, 50, 100, TERMINATED)])
    assert learner.policy() is policy
    assert scale.published == pytest.approx(1.0)


def test_rewards_are_normalised_for_learning() -> None:
    learner = agent(normalise_rewards=True)
    learn(learner, [(-1, 0, 100, 0, TERMINATED), (1, 0, 300, 0, TERMINATED)], 40)
    assert values(learner, -1, 1) == pytest.approx([1, 3], abs=0.3)


# Metrics


def test_metrics_have_one_value_for_each_update_and_wait_to_be_read() -> None:
    learner = agent(epochs=40)
    fill(learner, reward_by_action())
    metrics = learner.update(70)
    each = {"loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm"}
    once = {"learning_rate", "clip", "entropy_coef", "explained_variance", "stale_steps"}
    assert set(metrics) == each | once
    for name in each:
        assert np.isfinite(np.asarray(metrics[name], np.float64)).all()
        assert np.asarray(metrics[name]).shape == (70,)
    loss = metrics["policy_loss"] + 0.5 * np.asarray(metrics["value_loss"])
    assert np.asarray(metrics["loss"]) == pytest.approx(loss, abs=1e-5)


def test_an_episodes_extras_are_the_mean_loss_since_it_started() -> None:
    learner = agent()
    assert learner.episode_extras() == {}
    fill(learner)
    losses = np.concatenate([np.asarray(learner.update(n)["loss"], np.float64) for n in (2, 1)])
    assert learner.episode_extras()["loss"] == pytest.approx(losses.mean())
    learner.on_episode_start()
    assert learner.episode_extras() == {}


# Going on later


def test_a_state_in_the_middle_of_everything_goes_on_to_the_bit() -> None:
    learner, other = (
        agent(action_space=ARM, seed=seed, normalise_observations=True, normalise_rewards=True, **{**FEW, "epochs": 2})
        for seed in (0, 1)
    )
    seen = np.arange(3, dtype=np.float32)[:, None]

    def go_on(agent: PPO, steps: int) -> dict[str, Any]:
        for step in range(steps):
            actions = agent.act(seen, EXPLORE, np.arange(3))
            statuses = np.array([step % 4 == 0, 0, step % 5 == 0], np.uint8)
            agent.observe(Transitions(seen, actions, actions[:, 0].astype(float), seen, statuses), np.arange(3))
            if agent.updates_due() and step % 2:
                agent.update(1)
        agent.act(seen, EXPLORE, np.arange(3))
        return agent.state()

    met = set()
    for steps in range(1, 25):
        state = codec.decode(b"".join(map(bytes, codec.encode(go_on(learner, 1)))), name="state")
        met |= {name for name in ("waiting", "learning") if state[name] is not None}
        other.load_state(state)
        assert same(state, other.state())
        assert same(go_on(other, steps), go_on(learner, steps))
    assert met == {"waiting", "learning"}


def test_interrupted_updates_are_made_up_for_as_if_there_had_been_no_interruption() -> None:
    settings: dict[str, Any] = {"minibatch_size": 1, "normalise_observations": True}
    learner, other = agent(**settings), agent(seed=1, **settings)
    fill(learner)
    before, due = learner.state(), learner.updates_due()
    metrics = {name: np.asarray(value) for name, value in learner.update(due).items()}
    after = learner.state()
    looks = 0
    while True:
        looks += 1
        learner.load_state(before)
        answers = iter([False] * (looks - 1))
        try:
            learner.update_until(due, lambda answers=answers: next(answers, True))
            break
        except Interrupted:
            assert learner.updates == before["updates"]
        other.load_state(codec.decode(b"".join(map(bytes, codec.encode(learner.state()))), name="state"))
        assert same(learner.state(), other.state())
        again = other.update(other.updates_due())
        assert same({name: np.asarray(value) for name, value in again.items()}, metrics)
        assert same(other.state(), after)
    assert looks > 3, "before the first update, and between dispatches"
    assert same(learner.state(), after)


class TestTheFirstRollout:
    """Until anything was counted, observations are normalised with mean 0 and variance 1."""

    FAR: Any = Box(-np.inf, np.inf, (1,), np.float32)

    def collect(self, learner: PPO, low: float, high: float, steps: int = 32) -> Array:
        """A rollout of numbers between two; returns what the network is shown of it."""
        rng = np.random.default_rng(0)
        for seen in rng.uniform(low, high, steps).astype(np.float32)[:, None, None]:
            action = learner.act(seen, EXPLORE, ONE)
            learner.observe(Transitions(seen, action, np.ones(1), seen, np.array([1], np.uint8)), ONE)
        learner.update(1)
        assert learner._learning is not None
        return np.asarray(learner._learning.columns["observations"])

    def test_is_normalised_by_its_first_steps_if_these_would_be_clipped(self) -> None:
        learner = agent(self.FAR, normalise_observations=True)
        shown = self.collect(learner, 500.0, 1_500.0)
        assert 0.5 < shown.std() < 5
        assert (np.abs(shown) < 10).all()
        learner.update(learner.updates_due())
        assert normaliser_of(learner).mean == pytest.approx(1_000, rel=0.1), "each step is counted once"
        assert learner.stale_steps == 0

    def test_is_not_changed_otherwise(self) -> None:
        learner = agent(self.FAR, normalise_observations=True)
        shown = self.collect(learner, -9.0, 9.0)
        assert np.abs(shown).max() > 7
        assert learner.policy_version == 0

    def test_is_scored_with_what_chose_each_action(self) -> None:
        learner = agent(self.FAR, normalise_observations=True)
        self.collect(learner, 500.0, 1_500.0)
        assert learner._learning is not None
        numbers = np.asarray(learner._learning.columns["numbers"])
        clipped = learner._scorer.rows(learner._previous, np.full((1, 1), 10, np.float32), None, None)[1]
        assert (numbers[:4, 1] == clipped).all(), "the first steps were seen clipped"
        assert len(set(numbers[4:, 1].tolist())) == 28

    def test_goes_on_later_to_the_bit(self) -> None:
        learner, other = (agent(self.FAR, seed=seed, normalise_observations=True) for seed in (0, 1))
        for steps in (3, 5):
            learner.load_state(agent(self.FAR, seed=2, normalise_observations=True).state())
            for number in range(steps):
                seen = np.full((1, 1), 500 + number, np.float32)
                action = learner.act(seen, EXPLORE, ONE)
                learner.observe(Transitions(seen, action, np.ones(1), seen, np.array([1], np.uint8)), ONE)
            other.load_state(codec.decode(b"".join(map(bytes, codec.encode(learner.state()))), name="state"))
            assert np.array_equal(self.collect(other, 0, 900, 32 - steps), self.collect(learner, 0, 900, 32 - steps))
            assert same(other.state(), learner.state())


@pytest.mark.parametrize("table", [np.zeros((2, 3), np.float32), np.zeros(7, np.float32), [[0.0] * 7]])
def test_metrics_of_updates_that_cannot_be_are_refused(table: Any) -> None:
    with pytest.raises(StateError, match="not the metrics of updates"):
        agent().load_state({**agent().state(), "unreported": table})


def test_a_state_of_another_algorithm_or_shape_is_refused_and_nothing_changes() -> None:
    learner, wider, shorter = agent(), agent(hidden_sizes=(17,)), agent(rollout_steps=16)
    fill(learner)
    waiting = learner.state()
    learner.update(3)
    tell(learner, constant_reward())
    state = learner.state()
    learning = state["learning"]
    for other, message in (
        ({**state, "algorithm": "dqn"}, "'dqn', not of 'ppo'"),
        (wider.state(), r"is \(1, 17\) of float32, not \(1, 16\)"),
        (agent(action_space=Discrete(3)).state(), r"\(16, 3\)"),
        (agent(action_space=ARM).state(), "another network"),
        (agent(normalise_observations=True).state(), "normalised observations"),
        (agent(normalise_rewards=True).state(), "normaliser of rewards"),
        ({**state, "optimiser": {}}, "optimiser does not fit"),
        ({**state, "previous": None}, "previous weights are missing"),
        ({**state, "updates": -1}, "updates is -1"),
        ({**state, "losses": "many"}, "losses"),
        ({**state, "exploring": {}}, "bit generator"),
        ({**state, "chosen_by": [[0]]}, "open actions"),
        ({**state, "rollout": None}, "rollouts"),
        ({**state, "rollout": {}}, "rollout"),
        ({**state, "waiting": state["rollout"]}, "rollouts"),
        ({**state, "learning": {**learning, "made": 8}}, "8 of 8 updates"),
        ({**state, "learning": {**learning, "columns": {}}}, "rollout does not fit"),
        ({**state, "learning": {**learning, "explained_variance": None}}, "explained"),
        ({**state, "learning": []}, "seed is None"),
        ({"algorithm": "ppo"}, "env_steps"),
    ):
        with pytest.raises(StateError, match=message):
            learner.load_state(other)
        assert same(learner.state(), state)
    with pytest.raises(StateError, match="32 steps, more than rollout_steps, 16"):
        shorter.load_state(waiting)
    normalised = agent(normalise_rewards=True)
    with pytest.raises(StateError, match="reward normaliser"):
        normalised.load_state({**normalised.state(), "reward_scale": {"count": -1}})


def test_weights_alone_can_be_taken_over() -> None:
    source, target = (agent(seed=seed, normalise_observations=True) for seed in (1, 2))
    learn(source)
    fill(target)
    target.update(1)
    target.load_weights(source.state()["weights"])
    np.testing.assert_array_equal(outputs(source, 0.4), outputs(target, 0.4))
    np.testing.assert_array_equal(values(source, 0.4), values(target, 0.4))
    assert (target.updates, target.updates_due()) == (1, 0)
    learn(target)
    with pytest.raises(StateError, match="another network"):
        target.load_weights(agent(action_space=ARM).state()["weights"])
    with pytest.raises(StateError, match="normalise_observations"):
        agent().load_weights(source.state()["weights"])


def test_what_was_observed_is_a_copy() -> None:
    learner = agent()
    arrays = [numbers(0.5), np.array([1]), np.array([1.0]), numbers(0.6), np.array([CONTINUING], np.uint8)]
    learner.observe(Transitions(*arrays), ONE)
    for array in arrays:
        array[:] = 0
    steps = learner._collector._current.steps()
    assert [np.asarray(seen).item() for seen in (steps.observations, steps.last_observations)] == pytest.approx(
        [0.5, 0.6]
    )


def test_transitions_that_do_not_fit_are_refused_and_change_nothing() -> None:
    learner = agent()
    state = learner.state()
    for shape in (2, 3):
        wrong = Transitions(*([np.zeros((shape, 7))] * 5))
        with pytest.raises(InputError):
            learner.observe(wrong, np.arange(shape))
    assert same(state, learner.state())


# Bad settings

BAD: list[tuple[str, Any]] = [
    ("convolutions", "sometimes"),
    ("learning_rate", 0.0),
    ("learning_rate", "fast"),
    ("learning_rate", Linear(1e-3, -1.0, 10)),
    ("gamma", 1.01),
    ("rollout_steps", 0),
    ("minibatch_size", 0),
    ("minibatch_size", 33),
    ("epochs", 0),
    ("gae_lambda", -0.1),
    ("clip", 0.0),
    ("clip", Linear(0.2, -0.1, 10)),
    ("clip_value", 0.0),
    ("entropy_coef", -0.1),
    ("value_coef", -1),
    ("target_kl", 0.0),
    ("max_grad_norm", 0.0),
    ("hidden_sizes", ()),
    ("hidden_sizes", (16, 0)),
    ("normalise_advantages", 1),
    ("normalise_observations", "on"),
    ("normalise_rewards", None),
    ("observation_clip", 0.0),
    ("reward_clip", -1.0),
    ("adam_eps", 0.0),
    ("log_std_init", 21.0),
    ("log_std_init", float("nan")),
    ("gradient_accumulation", 0),
    ("acting_device", "abacus"),
    ("learning_device", "cpu:99"),
]


def test_every_setting_has_a_bad_value_here() -> None:
    assert set(PPOConfig.__struct_fields__) - {"network"} == {name for name, _ in BAD}


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is "):
        agent(**{name: value})


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="no setting 'batch_size'; `batch_size` is called `minibatch_size` here"):
        agent(batch_size=32)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (NUMBER, Box(0, 255, (1,), np.uint8), "a Box of floats"),
        (NUMBER, Text(3), "PPO needs Discrete"),
        (MASKED, Discrete(4), "action_mask has 3"),
        (MASKED, ARM, "continuous actions cannot be masked"),
        ("a text", TWO, "is not supported"),
    ],
)
def test_spaces_that_cannot_be_learned_are_refused(observation_space: Any, action_space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(observation_space, action_space)


def test_images_are_not_normalised() -> None:
    with pytest.raises(ConfigError, match="normalise_observations"):
        agent(IMAGE, normalise_observations=True)


def test_an_ending_is_not_followed_by_the_next_episode() -> None:
    learner = agent(**FEW)
    tell(learner, [(0, 0, 1, 1, EpisodeStatus.TRUNCATED), (1, 0, 1, 2, CONTINUING)])
    learner.cut(ONE)
    tell(learner, [(2, 0, 1, 3, CONTINUING), (3, 0, 1, 4, CONTINUING)])
    assert learner._collector._waiting.steps().following.tolist() == [-1, -1, 3, -1]

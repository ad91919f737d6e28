"""What DQN learns, how it acts, and when it does either."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from probes import (
    CONTINUING,
    NUMBER,
    TERMINATED,
    TWO,
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
    LearningAgent,
    LearnsFromData,
    ReportsEpisodes,
    SkipsUpdates,
    TracksStreams,
    WarmsUp,
)
from rekindle.agents import DQN, DQNConfig, Linear, rainbow
from rekindle.agents.acting import CompiledPolicy
from rekindle.errors import AgentError, ConfigError, InputError, StateError
from rekindle.experience import ActMode, EpisodeStatus, Transitions
from rekindle.policy.policy import NetworkPolicy
from rekindle.run.directory import TrainingRun
from rekindle.session.session import TrainingSession

EXPLORE, EXPLOIT = ActMode
ONE = np.zeros(1, np.int64)
SMALL: dict[str, Any] = {
    "hidden_sizes": (16,),
    "learning_rate": 0.01,
    "gamma": 0.5,
    "capacity": 64,
    "warmup_steps": 0,
    "batch_size": 16,
    "target_update_every": 10,
}


def agent(observation_space: Any = NUMBER, action_space: Any = TWO, seed: int = 0, **settings: Any) -> DQN:
    return DQN(observation_space, action_space, seed=seed, **{**SMALL, **settings})


def values(learner: DQN, *seen: float) -> np.ndarray:
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    return policy.output(numbers(*seen))


# What it learns

VARIANTS: dict[str, dict[str, Any]] = {
    "double": {},
    "dueling, soft target, mse": {"dueling": True, "tau": 0.1, "loss": "mse", "double": False},
    "quantiles": {"quantiles": 5},
    "rainbow": rainbow(
        **{**SMALL, "n_step": 2, "atoms": 41, "v_min": -2.5, "v_max": 2.5, "noisy_sigma": 0.1, "adam_eps": 1e-8}
    ),
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> DQN:
    """One agent for all probes, as compiling it takes longer than all of them."""
    return agent(**VARIANTS[request.param])


def learned(learner: DQN, fresh: dict[str, Any], moves: list[Any], *seen: float) -> np.ndarray:
    learner.load_state(fresh)
    for _ in range(4):
        tell(learner, moves)
    for _ in range(60):
        learner.update(8)
    return values(learner, *seen)


@pytest.mark.slow
def test_it_learns_the_values_of_worlds_where_they_are_known(variant: DQN) -> None:
    fresh = variant.state()
    assert learned(variant, fresh, constant_reward(), 0) == pytest.approx(np.array([[1, 1]]), abs=0.1)
    assert learned(variant, fresh, delayed_reward(), -1, 1) == pytest.approx(np.array([[0.5, 0.5], [1, 1]]), abs=0.1)
    assert learned(variant, fresh, reward_by_action(), 0) == pytest.approx(np.array([[-1, 1]]), abs=0.1)
    expected = np.array([[-1, -1], [1, 1]])
    assert learned(variant, fresh, reward_by_observation(), -1, 1) == pytest.approx(expected, abs=0.1)
    # r / (1 - gamma) where the episode was cut short, r where the task ended.
    assert learned(variant, fresh, cut_short(), 0) == pytest.approx(np.array([[2, 2]]), abs=0.1)


def test_rewards_are_scaled_for_learning() -> None:
    learner = agent(reward_scale=0.5)
    assert learned(learner, learner.state(), constant_reward(), 0) == pytest.approx(np.array([[0.5, 0.5]]), abs=0.1)


def test_a_hard_target_is_a_copy_every_so_many_updates() -> None:
    learner = agent(target_update_every=4)
    tell(learner, constant_reward())
    start = learner.state()
    learner.update(3)
    assert same(learner.state()["target"], start["target"])
    learner.update(1)
    assert same(learner.state()["target"], learner.state()["weights"]["network"])
    learner.update(1)
    assert not same(learner.state()["target"], learner.state()["weights"]["network"])


def test_a_soft_target_moves_by_tau_in_every_update() -> None:
    learner = agent(tau=0.25)
    tell(learner, constant_reward())
    before = learner.state()["target"]
    learner.update(1)
    after = learner.state()
    for name, array in before.items():
        moved = array + 0.25 * (after["weights"]["network"][name] - array)
        np.testing.assert_allclose(after["target"][name], moved, rtol=1e-5, atol=1e-7)


def test_accumulated_gradients_move_the_weights_once_in_so_many_updates() -> None:
    learner = agent(gradient_accumulation=3)
    tell(learner, constant_reward())
    start = learner.state()["weights"]
    learner.update(2)
    assert same(learner.state()["weights"], start)
    learner.update(1)
    assert not same(learner.state()["weights"], start)


def test_a_schedule_of_the_learning_rate_that_has_ended_at_zero_learns_nothing_more() -> None:
    learner = agent(learning_rate=Linear(0.1, 0.0, 4))
    tell(learner, constant_reward())
    start = learner.state()["weights"]
    learner.update(1)
    moved = learner.state()["weights"]
    assert not same(start, moved)
    tell(learner, constant_reward())
    learner.update(1)
    assert same(moved, learner.state()["weights"])


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("prioritised", [False, True])
def test_a_divergence_stops_a_session_and_keeps_the_last_checkpoint(tmp_path: Path, prioritised: bool) -> None:
    learner = agent(learning_rate=1e30, max_grad_norm=None, loss="mse", warmup_steps=40, prioritised=prioritised)
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


def test_updates_are_due_in_rounds_counted_from_the_end_of_the_warm_up() -> None:
    learner = agent(warmup_steps=5, update_every=3, updates_each=2)
    due = []
    for _ in range(12):
        tell(learner, constant_reward()[:1])
        due.append(learner.updates_due())
        if due[-1]:
            learner.update(due[-1])
    assert due == [0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 2, 0]
    assert (learner.updates, learner.env_steps) == (4, 12)


def test_updates_that_were_skipped_are_not_due() -> None:
    learner = agent(warmup_steps=0, updates_each=4)
    tell(learner, constant_reward())
    assert learner.updates_due() == 8
    learner.skip_updates(5)
    assert learner.updates_due() == 3
    learner.update(3)
    assert (learner.updates_due(), learner.updates) == (0, 3)


def test_no_update_without_a_transition() -> None:
    learner = agent()
    assert learner.updates_due() == 0
    with pytest.raises(InputError, match="0 transitions"):
        learner.update(1)


# How it acts


def test_numbers_of_numpy_are_settings() -> None:
    given: dict[str, Any] = {"gamma": 0.5, "capacity": 64, "dueling": True, "hidden_sizes": (4, 8)}
    types = {"gamma": np.float32, "capacity": np.int64, "dueling": np.bool_, "hidden_sizes": np.array}
    agents = [
        DQN(Box(-1, 1, (2,)), Discrete(2), seed=seed, **settings)
        for seed, settings in ((3, given), (np.int64(3), {name: types[name](value) for name, value in given.items()}))
    ]
    assert agents[0].config == agents[1].config
    assert same(agents[0].state(), agents[1].state())


def test_it_follows_every_protocol() -> None:
    protocols = (
        LearningAgent,
        HasReplay,
        HasPolicy,
        LearnsFromData,
        ReportsEpisodes,
        SkipsUpdates,
        TracksStreams,
        WarmsUp,
    )
    assert all(isinstance(agent(), protocol) for protocol in protocols)


def test_exploiting_is_pure_and_exploring_is_not() -> None:
    learner = agent(epsilon_start=0.5, epsilon_end=0.5)
    start = learner.state()
    greedy = [learner.act(numbers(0.3), EXPLOIT, ONE).tolist() for _ in range(20)]
    assert greedy == [greedy[0]] * 20
    assert same(start, learner.state())
    explored = {int(learner.act(numbers(0.3), EXPLORE, ONE)[0]) for _ in range(20)}
    assert explored == {0, 1}
    assert not same(start, learner.state())


def test_epsilon_is_how_often_an_action_is_random() -> None:
    learner = agent(action_space=Discrete(4), epsilon_start=0.6, epsilon_end=0.2, epsilon_steps=100)
    many = np.zeros((4000, 1), np.float32)
    best = learner.act(many[:1], EXPLOIT, ONE)[0]
    strays = np.mean(learner.act(many, EXPLORE, np.arange(4000)) != best)
    assert strays == pytest.approx(0.6 * 3 / 4, abs=0.04)
    learner.env_steps = 50
    assert learner.exploration == pytest.approx(0.4)
    learner.env_steps = 1000
    assert learner.exploration == 0.2


def test_softmax_prefers_better_actions_by_the_temperature() -> None:
    learner = agent(action_space=Discrete(3), exploration="softmax", temperature=0.2)
    q = values(learner, 0.3)[0].astype(float)
    likely = np.exp(q / 0.2) / np.exp(q / 0.2).sum()
    actions = learner.act(np.full((4000, 1), 0.3, np.float32), EXPLORE, np.arange(4000))
    assert np.bincount(actions, minlength=3) / 4000 == pytest.approx(likely, abs=0.04)


@pytest.mark.parametrize("start", [-1, 2**40])
def test_actions_lie_in_a_space_that_does_not_start_at_zero(start: int) -> None:
    space = Discrete(3, start=start)
    learner = agent(action_space=space, epsilon_start=1.0)
    seen = {int(action) for action in learner.act(np.zeros((100, 1), np.float32), EXPLORE, np.arange(100))}
    assert seen == {start, start + 1, start + 2}
    assert learner.act(numbers(0), EXPLOIT, ONE).dtype == space.dtype
    tell(learner, [(0, start, 1, 0, TERMINATED), (0, start + 2, 0, 0, TERMINATED)])
    for _ in range(20):
        learner.update(8)
    assert values(learner, 0)[0, [0, 2]] == pytest.approx(np.array([1, 0]), abs=0.15)


MASKED = Dict({"seen": Box(-2, 2, (2,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)})


def masked(*masks: list[int]) -> dict[str, np.ndarray]:
    return {"seen": np.zeros((len(masks), 2), np.float32), "action_mask": np.array(masks, np.int8)}


@pytest.mark.parametrize("settings", [{"epsilon_start": 1.0}, {"exploration": "softmax", "temperature": 5.0}])
def test_an_action_that_is_masked_is_never_taken(settings: dict[str, Any]) -> None:
    learner = agent(MASKED, Discrete(3), **settings)
    observations = masked(*[[1, 0, 1], [0, 1, 0]] * 100)
    for mode in ActMode:
        for actor in (lambda: learner.act(observations, mode, np.arange(200)),):  # noqa: B023
            actions = actor().reshape(-1, 2)
            assert set(actions[:, 0]) <= {0, 2}
            assert set(actions[:, 1]) == {1}
    exported = learner.policy().act(observations, EXPLORE, np.random.default_rng(0)).reshape(-1, 2)
    assert set(exported[:, 0]) <= {0, 2}


def test_an_action_that_is_masked_has_no_part_in_a_target() -> None:
    learner = agent(MASKED, Discrete(3), gamma=0.9)
    earns = [2.0, 0.0, 1.0]
    for action in range(3):
        end = Transitions(
            {"seen": np.ones((1, 2), np.float32), "action_mask": np.array([[1, 1, 1]], np.int8)},
            np.array([action]),
            np.array([earns[action]]),
            masked([0, 0, 0]),
            np.array([TERMINATED], np.uint8),
        )
        start = Transitions(
            masked([1, 1, 1]),
            np.array([action]),
            np.array([0.0]),
            {"seen": np.ones((1, 2), np.float32), "action_mask": np.array([[0, 1, 1]], np.int8)},
            np.array([EpisodeStatus.TRUNCATED], np.uint8),
        )
        learner.observe(start, ONE)
        learner.observe(end, ONE)
    for _ in range(60):
        learner.update(8)
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    assert policy.output(masked([1, 1, 1])) == pytest.approx(np.full((1, 3), 0.9 * 1.0), abs=0.15)


# Networks

IMAGE = Box(0, 255, (2, 36, 36), np.uint8)
ACTING = {
    "plain": {},
    "dueling": {"dueling": True},
    "atoms": {"atoms": 7, "dueling": True},
    "quantiles": {"quantiles": 7, "dueling": True},
    "noisy": {"noisy": True},
    "normalised": {"normalise_observations": True},
}


@pytest.mark.parametrize("settings", ACTING.values(), ids=ACTING.keys())
def test_numpy_and_compiled_networks_act_alike(settings: dict[str, Any]) -> None:
    learner = agent(action_space=Discrete(5), hidden_sizes=(32, 32), **settings)
    tell(learner, [(x, 0, 1, x, TERMINATED) for x in (-0.5, 0.2, 1.5)])
    learner.update(3)
    observations = np.linspace(-2, 2, 400, dtype=np.float32)[:, None]
    compiled = learner._actor.output(observations, None)
    one_by_one = np.concatenate([learner._actor.output(row[None], None) for row in observations])
    np.testing.assert_allclose(compiled, one_by_one, rtol=1e-4, atol=1e-5)
    exported = learner.policy().act(observations)
    clear = np.diff(np.sort(compiled)[:, -2:])[:, 0] > 1e-4
    assert clear.mean() > 0.5
    assert (exported == compiled.argmax(axis=1))[clear].all()


def test_an_exported_cnn_acts_as_the_compiled_one() -> None:
    learner = agent(IMAGE, hidden_sizes=(16,))
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 36, 36), np.uint8)
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    np.testing.assert_allclose(policy.output(images), learner._actor.output(images, None), rtol=1e-3, atol=1e-5)


def test_noisy_layers_explore_without_epsilon() -> None:
    learner = agent(noisy=True, epsilon_start=1.0, epsilon_end=1.0)
    assert learner.exploration == 0.0
    assert learner.policy().head.exploration == 0.0  # type: ignore[union-attr]
    assert agent(noisy=True, exploration="softmax", temperature=2.0).exploration == 2.0


def test_noise_is_there_when_exploring_and_only_then() -> None:
    learner = agent(noisy=True, epsilon_start=0.0, epsilon_end=0.0, hidden_sizes=(8,))
    rng = np.random.default_rng(0)
    few, many = numbers(0.5), np.full((400, 1), 0.5, np.float32)
    plain = learner._actor.output(few, None)
    start = rng.bit_generator.state
    one_by_one = np.concatenate([learner._actor.output(few, rng) for _ in range(400)])
    rng.bit_generator.state = start
    # Every row has noise of its own, and the same whether numpy or a compiled network acts.
    np.testing.assert_allclose(learner._actor.output(many, rng), one_by_one, rtol=1e-4, atol=1e-5)
    assert one_by_one.std(axis=0).min() > 0.01
    np.testing.assert_array_equal(plain, learner._actor.output(few, None))
    np.testing.assert_array_equal(plain, values(learner, 0.5))


class TwoHeads(eqx.Module):
    """A user's network."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], *, key: jax.Array) -> None:
        self.layer = eqx.nn.Linear(shape[0], 12, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.layer(x))


@pytest.mark.parametrize("network", [TwoHeads, f"{__name__}:TwoHeads", eqx.nn.MLP(1, 6, 8, 1, key=jax.random.key(0))])
def test_a_network_of_the_users_own_learns(network: Any) -> None:
    learner = agent(network=network)
    tell(learner, reward_by_action())
    for _ in range(30):
        learner.update(8)
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy if isinstance(network, eqx.Module) else CompiledPolicy)
    assert learner.act(numbers(0), EXPLOIT, ONE) == policy.act(numbers(0)) == 1
    assert learner.config.network == (None if isinstance(network, eqx.Module) else f"{__name__}:TwoHeads")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("nowhere:Network", "nowhere"),
        ("numpy:nothing", "nothing"),
        (lambda shape, key: 3, "callable equinox module"),
        (lambda shape, key: eqx.nn.Identity(), None),
        (eqx.nn.Lambda(lambda x: x[None]), "vector of features"),
    ],
)
def test_what_is_no_network_is_refused(network: Any, message: str | None) -> None:
    if message is None:
        agent(network=network)
    else:
        with pytest.raises(ConfigError, match=message):
            agent(network=network)


# Normalisation


def test_normalisation_changes_with_updates_and_at_no_other_time() -> None:
    learner = agent(normalise_observations=True)
    before = learner.act(numbers(0.5), EXPLOIT, ONE), values(learner, 0.5)
    tell(learner, [(x, 0, 1, x, TERMINATED) for x in (1.0, 3.0)])
    np.testing.assert_array_equal(values(learner, 0.5), before[1])
    learner.update(1)
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    assert policy.normaliser is not None
    assert (policy.normaliser.mean, policy.normaliser.variance) == (2.0, 1.0)


# Metrics


def test_metrics_have_one_value_for_each_update_and_wait_to_be_read() -> None:
    learner = agent(epsilon_start=0.3, epsilon_end=0.3)
    tell(learner, constant_reward())
    metrics = learner.update(70)
    assert set(metrics) == {"loss", "q_mean", "grad_norm", "target_lag", "epsilon"}
    assert np.asarray(metrics["loss"], np.float64).shape == (70,)
    assert np.isfinite(metrics["grad_norm"]).all()
    assert metrics["epsilon"] == pytest.approx(0.3)


def test_rainbow_reports_beta_and_saturation() -> None:
    learner = agent(**rainbow(**{**SMALL, "v_min": 0.0, "v_max": 0.5, "priority_beta": Linear(0.4, 1.0, 4)}))
    tell(learner, constant_reward())
    metrics = learner.update(2)
    assert metrics["beta"] == pytest.approx(0.7)
    assert np.asarray(metrics["saturation"]) == pytest.approx(np.ones(2))


def test_an_episodes_extras_are_epsilon_and_the_mean_loss_since_it_started() -> None:
    learner = agent()
    assert set(learner.episode_extras()) == {"epsilon"}
    tell(learner, constant_reward())
    losses = np.concatenate([np.asarray(learner.update(n)["loss"], np.float64) for n in (2, 1)])
    assert learner.episode_extras()["loss"] == pytest.approx(losses.mean())
    learner.on_episode_start()
    assert set(learner.episode_extras()) == {"epsilon"}


# Going on later


def test_a_state_of_another_algorithm_or_shape_is_refused_and_nothing_changes() -> None:
    learner, wider, noisier = agent(), agent(hidden_sizes=(17,)), agent(noisy=True)
    tell(learner, constant_reward())
    state = learner.state()
    for other, message in (
        ({**state, "algorithm": "ppo"}, "'ppo', not of 'dqn'"),
        (wider.state(), r"is \(1, 17\) of float32, not \(1, 16\)"),
        (noisier.state(), "another network"),
        (agent(normalise_observations=True).state(), "normaliser"),
        ({**state, "optimiser": {}}, "optimiser does not fit"),
        ({**state, "updates": -1}, "updates is -1"),
        ({**state, "losses": "many"}, "losses"),
        ({**state, "exploring": {}}, "bit generator"),
        ({**state, "memory": {}}, "replay buffer"),
        ({"algorithm": "dqn"}, "env_steps"),
    ):
        with pytest.raises(StateError, match=message):
            learner.load_state(other)
        assert same(learner.state(), state)
        assert len(learner.replay()) == 2


def test_weights_alone_can_be_taken_over() -> None:
    source, target = agent(seed=1), agent(seed=2)
    tell(source, constant_reward())
    source.update(5)
    target.load_weights(source.state()["weights"])
    np.testing.assert_array_equal(values(source, 0.4), values(target, 0.4))
    assert (target.updates, target.env_steps) == (0, 0)
    with pytest.raises(StateError, match="another network"):
        target.load_weights(agent(dueling=True).state()["weights"])


def test_a_policy_does_not_change_with_later_updates() -> None:
    learner = agent()
    tell(learner, constant_reward())
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    before = policy.output(numbers(0.1, 0.7))
    learner.update(5)
    np.testing.assert_array_equal(policy.output(numbers(0.1, 0.7)), before)


def test_what_was_observed_is_a_copy() -> None:
    learner = agent()
    arrays = [numbers(0.5), np.array([1]), np.array([1.0]), numbers(0.6), np.array([CONTINUING], np.uint8)]
    learner.observe(Transitions(*arrays), ONE)
    for array in arrays:
        array[:] = 0
    assert learner.replay().read(0, 2)["observation"].ravel().tolist() == pytest.approx([0.5, 0.6])


# Bad settings

BAD: list[tuple[str, Any]] = [
    ("learning_rate", 0.0),
    ("learning_rate", "fast"),
    ("learning_rate", Linear(1e-3, -1.0, 10)),
    ("gamma", 1.01),
    ("capacity", 1),
    ("warmup_steps", -1),
    ("batch_size", 0),
    ("update_every", 0),
    ("updates_each", 0),
    ("target_update_every", 0),
    ("tau", 0.0),
    ("tau", 1.1),
    ("hidden_sizes", ()),
    ("hidden_sizes", (16, 0)),
    ("hidden_sizes", 16),
    ("double", "yes"),
    ("dueling", 1),
    ("n_step", 0),
    ("n_step", True),
    ("atoms", 0),
    ("quantiles", 0),
    ("cql_alpha", -1.0),
    ("v_min", float("nan")),
    ("v_max", -10.0),
    ("noisy", None),
    ("noisy_sigma", 0.0),
    ("prioritised", None),
    ("priority_alpha", 1.5),
    ("priority_beta", -0.1),
    ("loss", "l1"),
    ("exploration", "none"),
    ("epsilon_start", 2.0),
    ("epsilon_end", -0.1),
    ("epsilon_steps", 1.5),
    ("temperature", -1.0),
    ("max_grad_norm", 0.0),
    ("adam_eps", 0.0),
    ("gradient_accumulation", 0),
    ("reward_scale", 0.0),
    ("reward_scale", float("inf")),
    ("normalise_observations", "on"),
    ("observation_clip", 0.0),
    ("frame_stack", 0),
    ("convolutions", "sometimes"),
    ("acting_device", "abacus"),
    ("learning_device", "cpu:99"),
]


def test_every_setting_has_a_bad_value_here() -> None:
    assert set(DQNConfig.__struct_fields__) - {"network"} == {name for name, _ in BAD}


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value}" for name, value in BAD])
def test_a_setting_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is "):
        agent(**{name: value})


@pytest.mark.parametrize("name", ["gamma", "tau", "reward_scale", "adam_eps"])
def test_a_schedule_of_a_constant_setting_is_refused_with_those_that_can_have_one(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is Linear.* cannot be a schedule; these can: learning_rate, "):
        agent(**{name: Linear(1.0, 0.5, 10)})


def test_an_unknown_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="no setting 'learning_rat'; did you mean learning_rate"):
        agent(learning_rat=0.1)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (NUMBER, Box(-1, 1, (1,)), "needs a Discrete space"),
        (NUMBER, MultiDiscrete([2, 2]), "needs a Discrete space"),
        (MASKED, Discrete(4), "action_mask has 3"),
        ("a text", TWO, "is not supported"),
    ],
)
def test_spaces_that_cannot_be_learned_are_refused(observation_space: Any, action_space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(observation_space, action_space)


def test_images_are_not_normalised() -> None:
    with pytest.raises(ConfigError, match="normalise_observations"):
        agent(IMAGE, normalise_observations=True)

"""What SAC and TD3 learn, how they act, and when they do either."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given
from hypothesis import strategies as st
from probes import (
    NUMBER,
    TERMINATED,
    constant_reward,
    cut_short,
    delayed_reward,
    numbers,
    reward_by_distance,
    reward_by_observation,
    tell,
)

import rekindle.policy
from rekindle.agent import (
    HasPolicy,
    HasReplay,
    LearningAgent,
    ReportsEpisodes,
    SkipsUpdates,
    TracksStreams,
    WarmsUp,
)
from rekindle.agents import SAC, TD3, Linear, SACConfig, TD3Config
from rekindle.agents.acting import CompiledPolicy
from rekindle.errors import AgentError, ConfigError, InputError, StateError
from rekindle.experience import ActMode, Transitions
from rekindle.policy.actions import ActionHead
from rekindle.policy.policy import NetworkPolicy
from rekindle.run.directory import TrainingRun
from rekindle.session.session import TrainingSession

EXPLORE, EXPLOIT = ActMode
ONE = np.zeros(1, np.int64)
BOUNDS = Box(-1, 3, (1,), np.float32)
ACTIONS = np.linspace(-1, 3, 9).tolist()
SMALL: dict[str, Any] = {
    "hidden_sizes": (32,),
    "learning_rate": 0.01,
    "gamma": 0.5,
    "capacity": 256,
    "warmup_steps": 0,
    "batch_size": 32,
    "tau": 0.2,
}
KINDS = [SAC, TD3]
both = pytest.mark.parametrize("kind", KINDS)


def agent(
    kind: type = SAC, observation_space: Any = NUMBER, action_space: Any = BOUNDS, seed: int = 0, **settings: Any
) -> Any:
    return kind(observation_space, action_space, seed=seed, **{**SMALL, **settings})


def values(learner: Any, seen: float, *actions: float) -> np.ndarray:
    """What all critics say of actions."""
    critics = learner._algorithm.weights["critics"].network(learner._learned.critics)
    unit = (np.array(actions, np.float32)[:, None] - 1) / 2
    return np.asarray(critics(np.full((len(actions), 1), seen, np.float32), unit))


# What they learn

VARIANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "sac": (SAC, {"temperature": 0.0}),
    "sac, five critics, prioritised, two steps": (
        SAC,
        {"temperature": 0.0, "critics": 5, "prioritised": True, "n_step": 2, "layer_norm": True},
    ),
    "td3": (TD3, {"exploration_noise": 0.3, "target_update_every": 1}),
}


@pytest.fixture(scope="module", params=list(VARIANTS))
def variant(request: pytest.FixtureRequest) -> tuple[Any, dict[str, Any]]:
    """One agent for all probes, as compiling it takes longer than all of them; and its state when it was new."""
    kind, settings = VARIANTS[request.param]
    learner = agent(kind, learning_rate=0.005, **settings)
    return learner, learner.state()


def learn(learner: Any, fresh: dict[str, Any], moves: list[Any], updates: int = 480) -> None:
    learner.load_state(fresh)
    for _ in range(4):
        tell(learner, moves)
    for _ in range(updates // 8):
        learner.update(8)


@pytest.mark.slow
def test_they_learn_the_values_of_worlds_where_they_are_known(variant: tuple[Any, dict[str, Any]]) -> None:
    learner, fresh = variant
    learn(learner, fresh, constant_reward(ACTIONS))
    assert values(learner, 0, -1, 1, 3) == pytest.approx(1, abs=0.1)
    learn(learner, fresh, delayed_reward(ACTIONS))
    assert values(learner, -1, -1, 1, 3) == pytest.approx(0.5, abs=0.1)
    assert values(learner, 1, -1, 1, 3) == pytest.approx(1, abs=0.1)
    learn(learner, fresh, reward_by_observation(ACTIONS))
    assert values(learner, -1, -1, 1, 3) == pytest.approx(-1, abs=0.15)
    assert values(learner, 1, -1, 1, 3) == pytest.approx(1, abs=0.15)
    # r / (1 - gamma) where the episode was cut short, r where the task ended.
    learn(learner, fresh, cut_short(ACTIONS))
    assert values(learner, 0, -1, 1, 3) == pytest.approx(2, abs=0.2)


@pytest.mark.slow
def test_they_learn_the_best_action_and_that_it_depends_on_what_is_seen(variant: tuple[Any, dict[str, Any]]) -> None:
    learner, fresh = variant
    learn(learner, fresh, reward_by_distance(ACTIONS), updates=1600)
    best = learner.act(numbers(-1, 1), EXPLOIT, np.arange(2))[:, 0]
    assert best == pytest.approx([0, 2], abs=0.3)


@pytest.mark.slow
def test_the_temperature_is_learned_until_the_entropy_is_what_is_wanted() -> None:
    learner = agent(SAC, target_entropy=-1.5, temperature_learning_rate=0.05)
    learn(learner, learner.state(), reward_by_distance(ACTIONS), updates=1600)
    metrics = learner.update(32)
    assert np.mean(metrics["entropy"]) == pytest.approx(-1.5, abs=0.4)
    assert 0 < np.mean(metrics["temperature"]) < 0.9


@pytest.mark.slow
def test_a_fixed_temperature_keeps_the_policy_random() -> None:
    spread = []
    for temperature in (0.0, 2.0):
        learner = agent(SAC, temperature=temperature)
        learn(learner, learner.state(), reward_by_distance(ACTIONS))
        assert np.asarray(learner.update(1)["temperature"]) == pytest.approx([temperature])
        spread.append(learner.act(numbers(*[1.0] * 500), EXPLORE, np.arange(500)).std())
    assert spread[1] > 3 * spread[0]


@pytest.mark.parametrize("every", [1, 3])
def test_targets_move_by_tau_once_in_so_many_updates(every: int) -> None:
    learner = agent(TD3, tau=0.25, target_update_every=every, policy_delay=1)
    tell(learner, constant_reward(ACTIONS))
    before = learner.state()
    if every > 1:
        learner.update(every - 1)
        assert same(learner.state()["target_critics"], before["target_critics"])
        assert same(learner.state()["target_actor"], before["target_actor"])
    learner.update(1)
    after = learner.state()
    for name, array in before["target_critics"].items():
        moved = array + 0.25 * (after["critics"][name] - array)
        np.testing.assert_allclose(after["target_critics"][name], moved, rtol=1e-4, atol=1e-6)
    for name, array in before["target_actor"].items():
        moved = array + 0.25 * (after["weights"]["network"][name] - array)
        np.testing.assert_allclose(after["target_actor"][name], moved, rtol=1e-4, atol=1e-6)


@both
def test_the_actor_waits_for_its_turn(kind: type) -> None:
    learner = agent(kind, policy_delay=3)
    tell(learner, constant_reward(ACTIONS))
    for turn in range(1, 7):
        before = learner.state()
        metrics = learner.update(1)
        after = learner.state()
        assert same(before["weights"], after["weights"]) == (turn % 3 != 0)
        assert not same(before["critics"], after["critics"])
        assert (np.asarray(metrics["actor_loss"])[0] != 0) == (turn >= 3)


def test_an_own_learning_rate_of_the_temperature_is_its_own() -> None:
    learner = agent(SAC, learning_rate=Linear(0.1, 0.0, 1), temperature_learning_rate=0.1)
    tell(learner, constant_reward(ACTIONS))
    before = learner.state()
    first, second = np.asarray(learner.update(2)["temperature"])
    assert abs(np.log(second) - np.log(first)) == pytest.approx(0.1, rel=0.01)  # Adam's first step
    assert same(before["weights"], learner.state()["weights"])


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("prioritised", [False, True])
@both
def test_a_loss_that_is_not_finite_stops_a_session_and_keeps_the_last_checkpoint(
    tmp_path: Path, kind: type, prioritised: bool
) -> None:
    learner = agent(kind, learning_rate=1e30, warmup_steps=40, prioritised=prioritised)
    run = TrainingRun.create("diverged", "v1", root=tmp_path, seed=0)

    def train() -> None:
        with TrainingSession(learner, run=run, metrics_every=20, checkpoint_every=30, keep_checkpoints=9) as session:
            stream = session.stream()
            for _ in range(100):
                stream.begin(np.zeros(1, np.float32))
                stream.step(np.ones(1, np.float32), 1.0, terminated=True)

    with pytest.raises(AgentError, match="not finite"):
        train()
    assert sorted(path.name for path in (run.path / "checkpoints").glob("step_*")) == ["step_30.mpk"]


def test_many_updates_for_a_step_are_due_by_the_ratio() -> None:
    learner = agent(SAC, warmup_steps=2, update_every=2, updates_each=6)
    due = []
    for _ in range(6):
        tell(learner, constant_reward()[:1])
        due.append(learner.updates_due())
        learner.skip_updates(due[-1])
    assert due == [0, 0, 0, 6, 0, 6]
    with pytest.raises(InputError, match="0 transitions"):
        agent(SAC).update(1)


# How they act


@both
def test_they_follow_every_protocol(kind: type) -> None:
    protocols = (LearningAgent, HasReplay, HasPolicy, ReportsEpisodes, SkipsUpdates, TracksStreams, WarmsUp)
    assert all(isinstance(agent(kind), protocol) for protocol in protocols)


@both
def test_exploiting_is_pure_and_exploring_is_not(kind: type) -> None:
    learner = agent(kind)
    start = learner.state()
    greedy = {float(learner.act(numbers(0.3), EXPLOIT, ONE)[0, 0]) for _ in range(20)}
    assert len(greedy) == 1
    assert same(start, learner.state())
    explored = {float(learner.act(numbers(0.3), EXPLORE, ONE)[0, 0]) for _ in range(20)}
    assert len(explored) == 20
    assert not same(start, learner.state())


@both
def test_while_warming_up_they_explore_anywhere_in_the_bounds_and_exploit_as_ever(kind: type) -> None:
    learner, many = agent(kind, warmup_steps=4), np.zeros((3000, 1), np.float32)
    slots = np.arange(3000)
    greedy = learner.act(many[:1], EXPLOIT, ONE)
    for actions in (
        learner.act(many, EXPLORE, slots),
        learner.policy().act(many, EXPLORE, np.random.default_rng(0)),
    ):
        assert np.histogram(actions, 4, (-1, 3))[0] / 3000 == pytest.approx(np.full(4, 0.25), abs=0.04)
    tell(learner, constant_reward([0, 1, 2, 3]))
    assert learner.act(many[:1], EXPLOIT, ONE) == greedy
    if kind is TD3:
        assert learner.act(many, EXPLORE, slots).std() == pytest.approx(0.1 * 2, rel=0.1)  # half the width is 2
    else:
        assert learner.act(many, EXPLORE, slots).mean() == pytest.approx(float(greedy[0, 0]), abs=0.5)


SPACES = {
    "a matrix": Box(np.array([[-1, 0], [2, -9]], np.float32), np.array([[1, 5], [2.5, -3]], np.float32)),
    "double precision": Box(-0.1, 0.1, (3,), np.float64),
    "one that cannot move": Box(np.array([1, -1], np.float32), np.array([1, 2], np.float32)),
    "a number": Box(-2, 7, (), np.float32),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
@both
def test_actions_lie_in_the_space_whatever_its_bounds(kind: type, space: Box) -> None:
    learner = agent(kind, action_space=space, warmup_steps=2)
    observations, slots = np.zeros((50, 1), np.float32), np.arange(50)
    for _ in range(2):
        for mode in ActMode:
            actions = learner.act(observations, mode, slots)
            assert actions.dtype == space.dtype
            assert all(space.contains(np.asarray(action)) for action in actions)
        learner.observe(Transitions(observations, actions, np.zeros(50), observations, np.zeros(50, np.uint8)), slots)
    if space.shape == (2, 2):
        assert np.isfinite(np.asarray(learner.update(2)["loss"])).all()


@given(st.data())
def test_the_bounds_are_never_passed_not_even_in_the_last_bit(data: st.DataObject) -> None:
    width = data.draw(st.sampled_from([32, 64]))
    ends = st.floats(-(2.0**99), 2.0**99, width=width)
    low, high = sorted([data.draw(ends), data.draw(ends)])
    dtype = np.dtype(f"float{width}")
    bounds = (np.array([end], dtype) for end in (low, high))
    head = ActionHead("noisy_tanh", dtype.str, [1], **dict(zip(("low", "high"), bounds, strict=True)))
    outputs = np.array([[-50], [50], [data.draw(st.floats(-9, 9, width=32))]], np.float32)
    actions = head.choose(outputs, None, None)
    assert (actions >= head.low).all()
    assert (actions <= head.high).all()
    tolerance = 1e-6 * max(abs(low), abs(high))
    assert actions[:2, 0] == pytest.approx([low, high], abs=tolerance)


@pytest.mark.parametrize("settings", [{}, {"normalise_observations": True}], ids=["plain", "normalised"])
@both
def test_numpy_and_compiled_networks_act_alike(kind: type, settings: dict[str, Any]) -> None:
    learner = agent(kind, hidden_sizes=(32, 32), **settings)
    tell(learner, [(x, 0, 1, x, TERMINATED) for x in (-0.5, 0.2, 1.5)])
    learner.update(3)
    observations = np.linspace(-2, 2, 400, dtype=np.float32)[:, None]
    compiled = learner.act(observations, EXPLOIT, np.arange(400))
    one_by_one = np.concatenate([learner.act(row[None], EXPLOIT, ONE) for row in observations])
    np.testing.assert_allclose(compiled, one_by_one, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(learner.policy().act(observations), compiled, rtol=1e-4, atol=1e-5)
    # The same noise gives the same exploration, too.
    exploring = learner._exploring.bit_generator.state
    together = learner.act(observations, EXPLORE, np.arange(400))
    learner._exploring.bit_generator.state = exploring
    apart = np.concatenate([learner.act(row[None], EXPLORE, ONE) for row in observations])
    np.testing.assert_allclose(together, apart, rtol=1e-4, atol=1e-5)


@both
def test_an_exported_policy_acts_with_numpy_alone(tmp_path: Path, kind: type) -> None:
    learner = agent(kind, action_space=SPACES["a matrix"], normalise_observations=True)
    rekindle.policy.save(learner.policy(), tmp_path / "policy.mpk")
    observations = numbers(-1, 0.5, 2)
    np.savez(tmp_path / "expected.npz", observations=observations, actions=learner.act(observations, EXPLOIT, ONE))
    program = f"""
import sys, numpy as np, rekindle.policy
known = np.load({str(tmp_path / "expected.npz")!r})
policy = rekindle.policy.load({str(tmp_path / "policy.mpk")!r})
np.testing.assert_allclose(policy.act(known["observations"]), known["actions"], rtol=1e-5)
print(policy.algorithm, "jax" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == [kind.__name__.lower(), "False"]


# Networks

IMAGE = Box(0, 255, (2, 36, 36), np.uint8)
PARTS = Dict({"place": Box(-2, 2, (2,), np.float32), "mode": Discrete(3)})


@both
def test_images_have_convolutions_of_their_own_for_actor_and_critics(kind: type) -> None:
    learner = agent(kind, IMAGE, hidden_sizes=(8,), batch_size=2)
    state = learner.state()
    encoders = [state["weights"]["network"], state["critics"]]
    assert all(sum(array.ndim == 4 for array in encoder.values()) == 3 for encoder in encoders)
    images = np.random.default_rng(0).integers(0, 256, (3, 2, 36, 36), np.uint8)
    np.testing.assert_allclose(
        learner.policy().act(images), learner.act(images, EXPLOIT, np.arange(3)), rtol=1e-3, atol=1e-4
    )


@both
def test_parts_of_a_dict_are_put_end_to_end(kind: type) -> None:
    learner = agent(kind, PARTS)
    rng = np.random.default_rng(0)
    observations = {"place": rng.normal(size=(20, 2)).astype(np.float32), "mode": rng.integers(3, size=20)}
    actions = learner.act(observations, EXPLORE, np.arange(20))
    learner.observe(Transitions(observations, actions, np.ones(20), observations, np.ones(20, np.uint8)), np.arange(20))
    assert np.isfinite(np.asarray(learner.update(2)["loss"])).all()
    assert learner.state()["weights"]["network"][".body.modules[0].weight"].shape == (5, 32)


class Own(eqx.Module):
    """A user's network."""

    layer: eqx.nn.Linear

    def __init__(self, shape: tuple[int, ...], *, key: jax.Array) -> None:
        self.layer = eqx.nn.Linear(shape[0], 12, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(self.layer(x))


@both
def test_a_network_of_the_users_own_learns(kind: type) -> None:
    learner = agent(kind, network=f"{__name__}:Own", policy_delay=1)
    assert learner.config.network == f"{__name__}:Own"
    before = learner.state()
    tell(learner, reward_by_distance(ACTIONS))
    learner.update(2)
    after = learner.state()
    for part in ("weights", "critics"):
        one, other = (state["weights"]["network"] if part == "weights" else state[part] for state in (before, after))
        assert not same(one[".encoder.module.layer.weight"], other[".encoder.module.layer.weight"])
    policy = learner.policy()
    assert isinstance(policy, CompiledPolicy)
    np.testing.assert_allclose(policy.act(numbers(0.5)), learner.act(numbers(0.5), EXPLOIT, ONE), rtol=1e-5)


# Metrics


@both
def test_metrics_have_one_value_for_each_update_and_wait_to_be_read(kind: type) -> None:
    learner = agent(kind, prioritised=True, priority_beta=Linear(0.4, 1.0, 18))
    tell(learner, constant_reward(ACTIONS))
    metrics = learner.update(10)
    shared = {"loss", "critic_loss", "actor_loss", "q_mean", "grad_norm", "target_lag", "beta"}
    assert set(metrics) == shared | ({"entropy", "temperature"} if kind is SAC else set())
    assert metrics["beta"] == pytest.approx(0.7)
    for name in set(metrics) - {"beta"}:
        assert np.asarray(metrics[name], np.float64).shape == (10,)
    total = np.asarray(metrics["critic_loss"]) + np.asarray(metrics["actor_loss"])
    np.testing.assert_allclose(np.asarray(metrics["loss"]), total, rtol=1e-5)
    assert learner.episode_extras()["loss"] == pytest.approx(total.mean(), rel=1e-5)
    learner.on_episode_start()
    assert learner.episode_extras() == {}


# Going on later


@both
def test_a_state_of_another_algorithm_or_shape_is_refused_and_nothing_changes(kind: type) -> None:
    learner = agent(kind)
    tell(learner, constant_reward(ACTIONS))
    state, algorithm = learner.state(), kind.__name__.lower()
    other = agent(TD3 if kind is SAC else SAC).state()
    for wrong, message in (
        (other, f"not of '{algorithm}'"),
        ({**other, "algorithm": algorithm}, "is "),
        (agent(kind, hidden_sizes=(17,)).state(), r"is \(1, 17\) of float32, not \(1, 32\)"),
        (agent(kind, critics=3).state(), r"the weights \(critics\): .* not "),
        (agent(kind, layer_norm=True).state(), r"the weights \(critics\) belong to another network"),
        (agent(kind, normalise_observations=True).state(), "normaliser"),
        ({**state, "optimiser": {}}, "optimiser does not fit"),
        ({**state, "updates": -1}, "updates is -1"),
        ({**state, "memory": {}}, "replay buffer"),
        ({"algorithm": algorithm}, "env_steps"),
    ):
        with pytest.raises(StateError, match=message):
            learner.load_state(wrong)
        assert same(learner.state(), state)
        assert len(learner.replay()) == 9


@both
def test_weights_alone_can_be_taken_over(kind: type) -> None:
    source, target = agent(kind, seed=1), agent(kind, seed=2)
    critics = target.state()["critics"]
    target.load_weights(source.state()["weights"])
    np.testing.assert_array_equal(source.act(numbers(0.4), EXPLOIT, ONE), target.act(numbers(0.4), EXPLOIT, ONE))
    assert same(target.state()["critics"], critics)
    if kind is TD3:
        assert same(target.state()["target_actor"], source.state()["weights"]["network"])
    with pytest.raises(StateError, match="the weights"):
        target.load_weights(agent(kind, hidden_sizes=(32, 32)).state()["weights"])


@both
def test_a_policy_does_not_change_with_later_updates(kind: type) -> None:
    learner = agent(kind)
    tell(learner, reward_by_distance(ACTIONS))
    policy = learner.policy()
    assert isinstance(policy, NetworkPolicy)
    before = policy.act(numbers(0.1, 0.7))
    learner.update(4)
    np.testing.assert_array_equal(policy.act(numbers(0.1, 0.7)), before)
    assert not np.array_equal(learner.policy().act(numbers(0.1, 0.7)), before)


# Bad settings

BAD: list[tuple[str, Any]] = [
    ("learning_rate", 0.0),
    ("learning_rate", Linear(1e-3, -1.0, 10)),
    ("gamma", 1.01),
    ("capacity", 1),
    ("warmup_steps", -1),
    ("batch_size", 0),
    ("update_every", 0),
    ("updates_each", 0),
    ("tau", 0.0),
    ("tau", None),
    ("target_update_every", 0),
    ("hidden_sizes", ()),
    ("hidden_sizes", (16, 0)),
    ("critics", 0),
    ("layer_norm", "yes"),
    ("policy_delay", 0),
    ("noise", "brown"),
    ("noise_timescale", 0.0),
    ("n_step", 0),
    ("prioritised", None),
    ("priority_alpha", 1.5),
    ("priority_beta", -0.1),
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
BAD_OF: dict[type, list[tuple[str, Any]]] = {
    SAC: [
        *BAD,
        ("temperature", "hot"),
        ("temperature", -0.1),
        ("temperature", None),
        ("initial_temperature", 0.0),
        ("temperature_learning_rate", 0.0),
        ("target_entropy", float("nan")),
    ],
    TD3: [
        *BAD,
        ("exploration_noise", -0.1),
        ("target_noise", -0.1),
        ("target_noise_clip", float("inf")),
        ("bc_alpha", 0.0),
    ],
}


def test_every_setting_has_a_bad_value_here() -> None:
    for kind, config in ((SAC, SACConfig), (TD3, TD3Config)):
        assert set(config.__struct_fields__) - {"network"} == {name for name, _ in BAD_OF[kind]}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(kind, name, value) for kind, bad in BAD_OF.items() for name, value in bad],
    ids=lambda part: part.__name__ if isinstance(part, type) else str(part),
)
def test_a_setting_out_of_range_is_named(kind: type, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"{name} is .*: "):
        agent(kind, **{name: value})


@both
def test_an_unknown_setting_is_named(kind: type) -> None:
    with pytest.raises(ConfigError, match="no setting 'epsilon_start'; there are learning_rate"):
        agent(kind, epsilon_start=0.1)


MASKED = Dict({"seen": NUMBER, "action_mask": Box(0, 1, (3,), np.int8)})


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (NUMBER, Discrete(2), "needs a Box of floats"),
        (NUMBER, Box(0, 9, (1,), np.int64), "needs a Box of floats"),
        (NUMBER, Box(-np.inf, np.inf, (1,), np.float32), "needs finite bounds"),
        (NUMBER, Box(np.array([-1, -np.inf], np.float32), np.ones(2, np.float32)), "needs finite bounds"),
        (NUMBER, Box(-3e38, 3e38, (1,), np.float32), "needs finite bounds"),
        (MASKED, BOUNDS, "only discrete actions can be masked"),
        ("a text", BOUNDS, "is not supported"),
    ],
)
@both
def test_spaces_that_cannot_be_learned_are_refused(
    kind: type, observation_space: Any, action_space: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(kind, observation_space, action_space)


def test_images_are_not_normalised() -> None:
    with pytest.raises(ConfigError, match="normalise_observations"):
        agent(SAC, IMAGE, normalise_observations=True)

"""Composite actions: their likelihood, masks of their parts, and the structure that hosts and environments see."""

# JAX's types are partial.
# pyright: reportArgumentType=false

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import env_worlds
import numpy as np
import pytest
from bitwise import same
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.vector import AutoresetMode
from scipy import stats

from rekindle.agents import DQN, PPO, SAC, TD3, Tabular
from rekindle.agents.distributions import distribution_of
from rekindle.errors import ConfigError, InputError
from rekindle.experience import ActMode, Array, EpisodeStatus, Experience, Transitions
from rekindle.policy import load, save
from rekindle.session.session import TrainingSession
from rekindle.spaces import ActionStructure
from rekindle.training import Trainer

EXPLORE, EXPLOIT = ActMode
SEEN = Box(-1, 1, (2,), np.float32)
ACTIONS = Dict(
    {
        "arm": Tuple([Box(-0.5, 0.5, (2,), np.float32), MultiBinary(2)]),
        "move": Discrete(3, start=-1),
        "say": MultiDiscrete([2, 3], start=[5, 0]),
    }
)
"""As a row: two numbers of the arm, two switches, the move, two words."""
ALL_DISCRETE = Tuple([Discrete(3), Dict({"b": MultiDiscrete([2, 2])})])
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "rollout_steps": 12, "minibatch_size": 6, "epochs": 2}
STRUCTURE = ActionStructure.of(ACTIONS)
assert STRUCTURE is not None


_MADE: dict[str, tuple[PPO, dict[str, Any]]] = {}


def agent(observations: Any = SEEN, actions: Any = ACTIONS, **settings: Any) -> PPO:
    """One as if it were new: compiling another takes longer than most tests."""
    key = repr((observations, actions, settings))
    if key not in _MADE:
        made = PPO(observations, actions, seed=0, **{**SMALL, **settings})
        made.warm_up = lambda: None  # compile what is needed, and not what could be
        _MADE[key] = made, made.state()
    made, fresh = _MADE[key]
    made.load_state(fresh)
    return made


# How likely they are


def reference(outputs: Array, log_std: Array, mask: Array, row: Array) -> tuple[float, float]:
    """Log-probability and entropy of one action, part by part, in double precision."""
    log_prob = entropy = 0.0
    for index in range(2):
        mean, scale, value = outputs[index], np.exp(log_std[index]), row[index]
        inner: Any = stats.norm(mean, scale)
        log_prob += inner.logcdf(-0.5) if value <= -0.5 else inner.logsf(0.5) if value >= 0.5 else inner.logpdf(value)
        entropy += float(inner.entropy())
    end, masked = 2, 0
    for value, start, count in zip(row[2:], [0, 0, -1, 5, 0], [2, 2, 3, 2, 3], strict=True):
        logits = outputs[end : end + count].astype(np.float64)
        allowed = mask[masked : masked + count]
        end, masked = end + count, masked + count
        weights = np.where(allowed, np.exp(logits), 0)
        likely = weights / weights.sum()
        log_prob += np.log(likely[int(value) - start])
        entropy -= sum(p * np.log(p) for p in likely if p > 0)
    return log_prob, entropy


@pytest.mark.parametrize("is_masked", [False, True])
def test_log_probability_and_entropy_are_sums_over_the_parts(is_masked: bool) -> None:
    assert STRUCTURE is not None
    distribution = distribution_of(ACTIONS, agent="PPO")
    assert (distribution.outputs, distribution.deviations, distribution.masked) == (14, 2, 12)
    rng = np.random.default_rng(0)
    ACTIONS.seed(1)
    rows = np.stack([STRUCTURE.flat(ACTIONS.sample(), "action") for _ in range(40)])
    rows[:, :2] *= rng.choice([0.5, 1, 2], (40, 1))  # some at a bound
    rows[:, :2] = np.clip(rows[:, :2], -0.5, 0.5)
    outputs = rng.normal(size=(40, 14)).astype(np.float32)
    log_std = rng.normal(size=2).astype(np.float32)
    mask = np.ones((40, 12), np.bool_)
    flat = distribution.flat(rows)
    if is_masked:
        mask = rng.random((40, 12)) < 0.5
        starts = np.array([0, 2, 4, 7, 9])
        np.put_along_axis(mask, flat[:, 2:].astype(int) + starts, True, axis=1)  # what was done was allowed
    found = distribution.score(outputs, log_std, mask if is_masked else None, flat)
    expected = [reference(*row) for row in zip(outputs, np.tile(log_std, (40, 1)), mask, rows, strict=True)]
    np.testing.assert_allclose(np.stack(found, axis=1), expected, rtol=2e-4, atol=2e-4)


def test_a_rollout_is_scored_with_the_likelihood_of_what_was_done() -> None:
    learner = agent(rollout_steps=24, minibatch_size=24, epochs=1)
    seen = np.zeros((24, 2), np.float32)
    actions = learner.act(seen, EXPLORE, np.arange(24))
    assert (actions.shape, actions.dtype) == ((24, 7), np.float32)
    learner.observe(Transitions(seen, actions, np.ones(24), seen, np.ones(24, np.uint8)), np.arange(24))
    metrics = learner.update(learner.updates_due())
    assert abs(np.asarray(metrics["kl"])[0]) < 1e-6  # the first update finds the policy that chose


def test_whole_numbers_stay_whole_numbers() -> None:
    learner = agent(actions=ALL_DISCRETE)
    actions = learner.act(np.zeros((500, 2), np.float32), EXPLORE, np.arange(500))
    assert actions.dtype == np.int64
    assert actions.max(axis=0).tolist() == [2, 1, 1]
    assert learner.state()["weights"]["network"].keys().isdisjoint({".log_std"})


# What is learned


@pytest.mark.slow
def test_an_optimum_that_needs_both_parts_is_found(tmp_path: Path) -> None:
    settings = {"hidden_sizes": (32,), "learning_rate": 3e-3, "rollout_steps": 256, "minibatch_size": 64, "epochs": 6}
    trainer = Trainer(
        env_worlds.Both,
        "ppo",
        steps=6_000,
        root=tmp_path,
        num_envs=8,
        agent_settings={**settings, "gamma": 0.5, "log_std_init": -0.5},
    )
    trainer.train()
    # Of 5. The side alone earns 0, as the force is 1 away from both; the force alone earns 0 too, on average.
    assert trainer.eval(20).stats["episode_reward_mean"] > 4.5


# Masks

MASK = {"arm": (np.array([1, 0, 1, 1]),), "move": np.array([0, 1, 1]), "say": np.array([0, 1, 1, 0, 1])}
"""Without the Box; the Tuple is shorter by it."""
MASKED = Dict(
    {
        "seen": SEEN,
        "action_mask": Dict({"say": MultiBinary(5), "move": MultiBinary(3), "arm": Tuple([Box(0, 1, (4,), np.int8)])}),
    }
)
FLAT = Dict({"seen": SEEN, "action_mask": MultiBinary(12)})


def with_masks(space: Any, rows: int) -> dict[str, Array]:
    """A batch as an agent sees it."""
    seen = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    parts = {"arm/0": MASK["arm"][0], "move": MASK["move"], "say": MASK["say"]}
    if space is FLAT:
        return {"seen": seen, "action_mask": np.tile(np.concatenate(list(parts.values())).astype(np.int8), (rows, 1))}
    return {
        "seen": seen,
        **{f"action_mask/{name}": np.tile(mask.astype(np.int8), (rows, 1)) for name, mask in parts.items()},
    }


@pytest.mark.parametrize("space", [MASKED, FLAT], ids=["by part", "flat"])
def test_a_mask_of_each_part_is_respected_in_acting_scoring_and_an_exported_policy(space: Any, tmp_path: Path) -> None:
    learner = agent(space, rollout_steps=200, minibatch_size=200, epochs=1)
    observations = with_masks(space, 200)

    def check(rows: Array) -> None:
        assert set(rows[:, 2]) == {0}
        assert set(rows[:, 3]) == {0, 1}
        assert set(rows[:, 4]) == {0, 1}
        assert set(rows[:, 5]) == {6}
        assert set(rows[:, 6]) == {0, 2}
        assert len(set(rows[:, 0])) > 50

    actions = learner.act(observations, EXPLORE, np.arange(200))
    check(actions)
    assert learner.act(observations, EXPLOIT, np.arange(200))[:, 5].tolist() == [6] * 200
    learner.observe(
        Transitions(observations, actions, np.ones(200), observations, np.ones(200, np.uint8)), np.arange(200)
    )
    metrics = learner.update(learner.updates_due())
    # Of the discrete parts, three can still be one of two; the standard deviations of the arm are 1.
    undecided = 3 * np.log(2) + 2 * (0.5 * np.log(2 * np.pi * np.e))
    assert np.asarray(metrics["entropy"])[0] == pytest.approx(undecided, abs=0.01)
    assert abs(np.asarray(metrics["kl"])[0]) < 1e-6
    save(learner.policy(), tmp_path / "policy.mpk")
    assert STRUCTURE is not None
    for policy in (learner.policy(), load(tmp_path / "policy.mpk")):
        check(STRUCTURE.flat(policy.act(observations, EXPLORE, np.random.default_rng(0)), "actions", rows=200))


def test_masks_of_parts_are_in_the_order_of_the_actions() -> None:
    # The keys of this Dict keep their order, which is another than that of the actions.
    masks = Dict([("say", MultiBinary(5)), ("move", MultiBinary(3)), ("arm", Tuple([MultiBinary(4)]))])
    learner, flat = agent(Dict({"seen": SEEN, "action_mask": masks})), agent(FLAT)
    batch = with_masks(MASKED, 50)
    np.testing.assert_array_equal(
        learner.act(batch, EXPLORE, np.arange(50)), flat.act(with_masks(FLAT, 50), EXPLORE, np.arange(50))
    )


@pytest.mark.parametrize(
    ("masks", "actions", "message"),
    [
        (MultiBinary(11), ACTIONS, "the action_mask has 11 numbers, but there are 12 actions"),
        (Dict({"move": MultiBinary(3)}), ACTIONS, "action_mask/arm/0 with 4 numbers, action_mask/move with 3 numbers"),
        (Dict({"move": MultiBinary(3)}), Discrete(3), "must be one array, or have the structure of the discrete act"),
        (MultiBinary(2), Tuple([SEEN]), "only discrete actions can be masked"),
    ],
)
def test_a_mask_of_another_structure_is_refused(masks: Any, actions: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(Dict({"seen": SEEN, "action_mask": masks}), actions)


# Sessions


def executed() -> dict[str, Any]:
    return {"arm": (np.zeros(2, np.float32), np.array([0, 1], np.int8)), "move": -1, "say": np.array([6, 2])}


@pytest.mark.parametrize("learner", ["inline", "background"])
def test_a_session_hands_out_and_takes_actions_in_their_structure(learner: Any) -> None:
    made = agent()
    with TrainingSession(made, seed=1, learner=learner) as session:
        seen = np.zeros(2, np.float32)
        for _ in range(20):
            action = session.act(seen)
            assert ACTIONS.contains(action)
            session.observe(Experience(seen, action, 1.0, seen, EpisodeStatus.CONTINUING))
        # The host may have done something else.
        session.observe(Experience(seen, executed(), 1.0, seen, EpisodeStatus.CONTINUING))
        assert ACTIONS.contains(session.act(seen, "exploit"))
        batch = np.zeros((3, 2), np.float32)
        actions = session.act_many(batch, streams=[4, 5, 6])
        assert actions["arm"][1].shape == (3, 2)
        assert actions["move"].shape == (3,)
        session.observe_many(Transitions(batch, actions, np.ones(3), batch, np.zeros(3, np.uint8)), streams=[4, 5, 6])
        stream = session.stream(9)
        assert ACTIONS.contains(stream.begin(seen))
        assert ACTIONS.contains(stream.step(seen, 1.0))
    assert made.env_steps == 25


def test_a_row_that_the_host_executed_is_what_the_agent_learns_from() -> None:
    made = agent()
    session = TrainingSession(made, seed=1)
    seen = np.zeros(2, np.float32)
    session.observe(Experience(seen, executed(), 1.0, seen, EpisodeStatus.CONTINUING))
    assert made.state()["rollout"]["steps"]["action"].tolist() == [[0, 0, 0, 1, -1, 6, 2]]
    session.close()


class Renamed:
    """Calls the move a step, and names its direction."""

    def to_host(self, action: Any) -> Any:
        rest = {name: part for name, part in action.items() if name != "move"}
        return {**rest, "step": "<|>"[action["move"] + 1]}

    def to_agent(self, action: Any) -> Any:
        return {
            **{name: part for name, part in action.items() if name != "step"},
            "move": "<|>".index(action["step"]) - 1,
        }


def test_a_mapper_maps_the_structure() -> None:
    with TrainingSession(agent(), seed=1, action_mapper=Renamed()) as session:
        seen = np.zeros(2, np.float32)
        action = session.act(seen)
        assert action["step"] in "<|>"
        session.observe(Experience(seen, action, 1.0, seen, EpisodeStatus.CONTINUING))
        batch = np.zeros((2, 2), np.float32)
        actions = session.act_many(batch, streams=[1, 2])
        assert [sorted(action) for action in actions] == [["arm", "say", "step"]] * 2
        session.observe_many(Transitions(batch, actions, np.ones(2), batch, np.zeros(2, np.uint8)), streams=[1, 2])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"move": 2}, "action 'move' is outside the space"),
        ({"say": np.array([4, 0])}, "action 'say' is outside the space"),
        ({"move": 0.5}, "action 'move' is float64, which cannot become int64"),
        ({"arm": np.zeros(2)}, "action 'arm' must be a tuple of 2"),
        ({"arm": (np.zeros(3, np.float32), np.zeros(2, np.int8))}, r"action 'arm/0' has the shape \(3,\)"),
        ({"arm": (np.full(2, np.nan), np.zeros(2, np.int8))}, "action 'arm/0' is outside the space"),
        ({"run": 1}, r"action must be a dict with the keys \['arm', 'move', 'say'\]"),
    ],
)
def test_an_action_of_another_structure_is_refused_by_its_path(change: dict[str, Any], message: str) -> None:
    session = TrainingSession(agent(), seed=1)
    seen = np.zeros(2, np.float32)
    with pytest.raises(InputError, match=message):
        session.observe(Experience(seen, {**executed(), **change}, 1.0, seen, EpisodeStatus.CONTINUING))
    assert session.total_steps == 0
    session.close()


# Trainers


def trained(root: Path, steps: int, env: Any = env_worlds.Both, **options: Any) -> dict[str, Any]:
    """The state of an agent after this many steps."""
    example = env_worlds.Both()
    made = agent(example.observation_space, example.action_space, normalise_rewards=True)
    trainer = Trainer(env, made, steps=steps, name="t", root=root, eval_every=40, eval_episodes=2, **options)
    trainer.train()
    return made.state()


@pytest.mark.parametrize(
    "options", [{}, {"num_envs": 3}, {"num_envs": 2, "vectorization": "async", "workers": 2}], ids=str
)
def test_a_trainer_goes_on_exactly(tmp_path: Path, options: Any) -> None:
    whole = trained(tmp_path / "whole", 83, **options)
    trained(tmp_path / "cut", 38, **options)
    assert same(whole, trained(tmp_path / "cut", 83, **options))


@pytest.mark.parametrize("mode", AutoresetMode)
def test_a_vector_environment_takes_them(tmp_path: Path, mode: AutoresetMode) -> None:
    def make(num_envs: int) -> Any:
        return env_worlds.many(num_envs, mode=mode)

    assert trained(tmp_path, 60, make, num_envs=3, vectorization="native")["updates"] > 0


def test_a_step_processor_sees_rows(tmp_path: Path) -> None:
    seen: list[Transitions] = []

    def kept(transitions: Transitions, streams: Any) -> Array:
        seen.append(transitions)
        return transitions.rewards

    trained(tmp_path, 17, num_envs=2, step_processor=kept)
    trained(tmp_path, 24, num_envs=2, step_processor=kept)  # replays what was open
    assert {transitions.actions.shape[1] for transitions in seen} == {2}
    assert {tuple(transitions.observations) for transitions in seen} == {("force/x", "side/0")}


# Policies


def test_an_exported_policy_runs_without_jax_and_gives_the_structure(tmp_path: Path) -> None:
    learner = agent()
    save(learner.policy(), tmp_path / "policy.mpk")
    seen = np.array([[0.1, -0.3], [0.9, 0.2]], np.float32)
    actions, one = learner.policy().act(seen), learner.policy().act(seen[1])
    assert STRUCTURE is not None
    np.testing.assert_allclose(
        STRUCTURE.flat(actions, "actions", rows=2), learner.act(seen, EXPLOIT, np.arange(2)), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        STRUCTURE.flat(one, "action"), STRUCTURE.flat(actions, "", rows=2)[1], rtol=1e-4, atol=1e-6
    )
    assert ACTIONS.contains(one)
    program = f"""
import sys, numpy as np, rekindle.policy
policy = rekindle.policy.load({str(tmp_path / "policy.mpk")!r})
print(policy.act(np.array([0.9, 0.2], np.float32)), "jax" in sys.modules, sep="|")
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == f"{one}|False"


# Refusals


@pytest.mark.parametrize("kind", [DQN, SAC, TD3, Tabular])
def test_other_agents_say_which_agent_takes_them(kind: Any) -> None:
    observations = Discrete(3) if kind is Tabular else SEEN
    with pytest.raises(ConfigError, match="use PPO for composite actions"):
        kind(observations, ACTIONS, seed=0)


def test_a_trainer_says_which_algorithm_takes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="those of this environment are Dict; use ppo"):
        Trainer(env_worlds.Both, "dqn", steps=10, root=tmp_path)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (Dict({"a": Tuple([Discrete(2), Box(0, 9, (2,), np.int64)])}), "action_space has the part 'a/1', Box"),
        (Tuple([Text(3)]), r"action_space is Tuple\(Text"),
    ],
)
def test_a_part_that_cannot_be_learned_is_named(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(actions=space)

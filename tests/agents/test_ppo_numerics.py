"""Loss, gradient, log-probabilities and advantages against plain numpy, and many updates against one at a time."""

# JAX's types are partial.
# pyright: reportArgumentType=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from rekindle.agents import PPO, Linear
from rekindle.agents.distributions import categorical, censored_gaussian
from rekindle.agents.networks import layers_of
from rekindle.agents.normalisation import ReturnScale
from rekindle.agents.updates import RolloutBatch
from rekindle.experience import ActMode, Array, EpisodeStatus, Transitions
from rekindle.interrupt import never
from rekindle.policy.network import Layer
from rekindle.policy.policy import NetworkPolicy
from rekindle.storage import codec

ROWS = 10
SPACE = Box(-1, 1, (2,), np.float32)
MASKED = Dict({"seen": SPACE, "action_mask": MultiBinary(5)})
LOW, HIGH = np.array([-0.4, -np.inf], np.float32), np.array([0.3, 0.5], np.float32)
CONTINUOUS = Box(LOW, HIGH, dtype=np.float32)
CONFIGS: dict[str, dict[str, Any]] = {
    "discrete": {"actions": Discrete(3)},
    "discrete, clipped value, raw advantages": {
        "actions": Discrete(3),
        "clip_value": 0.3,
        "normalise_advantages": False,
        "minibatch_size": 5,
    },
    "several, masked": {"observations": MASKED, "actions": MultiDiscrete([2, 3])},
    "binary": {"actions": MultiBinary(3), "minibatch_size": 5},
    "continuous": {"actions": CONTINUOUS},
}


class Case:
    """An agent, and its loss compiled."""

    def __init__(self, actions: Any, observations: Any = SPACE, **config: Any) -> None:
        self.agent = PPO(
            observations,
            actions,
            seed=0,
            **{"hidden_sizes": (7, 6), "rollout_steps": ROWS, "minibatch_size": 4, **config},
        )
        self.head, self.weights, self.config = self.agent._head, self.agent._weights, self.agent.config
        normalises = self.config.normalise_advantages

        def loss(params: Any, indices: Any, inputs: dict[str, Any]) -> Any:
            batch = RolloutBatch.of(inputs["rollout"], indices, ROWS)
            update: Any = self.agent._algorithm
            return update.loss(params, batch.normalised() if normalises else batch, inputs["schedules"])

        def share(inputs: dict[str, Any]) -> Any:
            """The loss of a batch as it is."""
            update: Any = self.agent._algorithm
            return lambda params, batch: update.loss(params, batch, inputs["schedules"])

        self.share = share
        self.loss, self.gradient = jax.jit(loss), jax.jit(jax.grad(loss, has_aux=True))
        self.is_continuous = self.head.kind == "gaussian"

    def params(self, rng: np.random.Generator) -> Array:
        return rng.normal(0, 0.5, self.weights.size).astype(np.float32)

    def inputs(self, rng: np.random.Generator, params: Array) -> dict[str, Any]:
        """A rollout that another policy chose, but not an altogether different one."""
        columns = self.agent._scorer.zeros(ROWS)
        columns["observations"] = rng.normal(size=columns["observations"].shape).astype(np.float32)
        if self.is_continuous:
            raw = rng.normal(size=columns["actions"].shape).astype(np.float32)
            columns["actions"] = np.clip(raw, LOW, HIGH)
        else:
            columns["actions"] = rng.integers(self.head.counts, size=columns["actions"].shape).astype(np.int32)
        if columns["mask"] is not None:
            columns["mask"] = rng.random(columns["mask"].shape) < 0.5
            starts = np.cumsum([0, *self.head.counts[:-1]])
            np.put_along_axis(columns["mask"], columns["actions"] + starts, True, axis=1)
        columns["numbers"] = rng.normal(size=(ROWS, 4)).astype(np.float32)
        log_probs = [reference_score(self, params, columns, row)[0] for row in range(ROWS)]
        columns["numbers"][:, 0] = log_probs + rng.normal(0, 0.3, ROWS)
        return {
            "rollout": columns,
            "schedules": {
                "learning_rate": np.float32(1e-3),
                "clip": np.float32(0.2),
                "entropy_coef": np.float32(0.01),
            },
        }

    def indices(self, rng: np.random.Generator) -> Array:
        """The rows of a minibatch; where 4 does not divide 10, one that has a gap."""
        return np.append(rng.permutation(ROWS), ROWS)[self.agent._minibatches.table[-1]].astype(np.int32)


@functools.cache
def case(name: str) -> Case:
    return Case(**CONFIGS[name])


# The reference: one row after the other, in double precision


def run_layers(layers: list[Layer], x: Array) -> Array:
    for layer in layers:
        if layer.kind == "dense":
            x = x @ layer.arrays["weight"].astype(np.float64) + layer.arrays["bias"].astype(np.float64)
        else:
            assert (layer.kind, layer.name) == ("activation", "tanh")
            x = np.tanh(x)
    return x


def reference_log_prob(action: float, mean: float, std: float, low: float, high: float) -> float:
    if action <= low:
        return float(stats.norm.logcdf(low, mean, std))
    if action >= high:
        return float(stats.norm.logsf(high, mean, std))
    return float(stats.norm.logpdf(action, mean, std))


def reference_score(case: Case, params: Array, columns: dict[str, Any], row: int) -> tuple[float, float, float]:
    """Log-probability, entropy and value."""
    network: Any = case.weights.views(params)
    x = columns["observations"][row].astype(np.float64)
    output, value = (run_layers(layers_of(part), x) for part in (network.policy, network.value))
    log_prob, entropy = 0.0, 0.0
    if case.is_continuous:
        for index, (mean, log_std) in enumerate(zip(output, network.log_std, strict=True)):
            bounds = float(LOW[index]), float(HIGH[index])
            log_prob += reference_log_prob(float(columns["actions"][row, index]), mean, math.exp(log_std), *bounds)
            entropy += float(stats.norm.entropy(mean, math.exp(log_std)))
        return log_prob, entropy, value[0]
    start = 0
    for count, action in zip(case.head.counts, columns["actions"][row].tolist(), strict=True):
        likely = np.exp(output[start : start + count])
        if columns["mask"] is not None:
            likely *= columns["mask"][row, start : start + count]
        likely /= likely.sum()
        log_prob += math.log(likely[action])
        entropy -= sum(p * math.log(p) for p in likely if p > 0)
        start += count
    return log_prob, entropy, value[0]


def reference_loss(case: Case, params: Array, inputs: dict[str, Any], indices: Array) -> dict[str, float]:
    """As the paper writes it."""
    config, columns = case.config, inputs["rollout"]
    rows = [index for index in indices.tolist() if index < ROWS]
    numbers = columns["numbers"].astype(np.float64)
    advantages = numbers[rows, 2]
    if config.normalise_advantages:
        advantages = (advantages - advantages.mean()) / (advantages.std(ddof=1) + 1e-8)
    clip = float(inputs["schedules"]["clip"])
    found = dict.fromkeys(("policy_loss", "value_loss", "entropy", "kl", "clip_fraction"), 0.0)
    for row, advantage in zip(rows, advantages, strict=True):
        log_prob, entropy, value = reference_score(case, params, columns, row)
        ratio = math.exp(log_prob - numbers[row, 0])
        limited = min(max(ratio, 1 - clip), 1 + clip)
        error = (value - numbers[row, 3]) ** 2
        if config.clip_value is not None:
            moved = min(max(value - numbers[row, 1], -config.clip_value), config.clip_value)
            error = max(error, (numbers[row, 1] + moved - numbers[row, 3]) ** 2)
        found["policy_loss"] -= min(ratio * advantage, limited * advantage) / len(rows)
        found["value_loss"] += error / len(rows)
        found["entropy"] += entropy / len(rows)
        found["kl"] += (ratio - 1 - math.log(ratio)) / len(rows)
        found["clip_fraction"] += (limited != ratio) / len(rows)
    loss = found["policy_loss"] + config.value_coef * found["value_loss"]
    return {**found, "loss": loss - float(inputs["schedules"]["entropy_coef"]) * found["entropy"]}


@pytest.mark.parametrize("name", CONFIGS)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_the_loss_is_that_of_the_reference(name: str, seed: int) -> None:
    rng, it = np.random.default_rng(seed), case(name)
    params = it.params(rng)
    inputs, indices = it.inputs(rng, params), it.indices(rng)
    loss, metrics = it.loss(params, indices, inputs)
    found = {name: float(value) for name, value in {**metrics, "loss": loss}.items()}
    assert found == pytest.approx(reference_loss(it, params, inputs, indices), rel=2e-4, abs=2e-5)


@pytest.mark.parametrize("name", ["discrete, clipped value, raw advantages", "several, masked", "continuous"])
def test_the_gradient_is_that_of_small_differences(name: str) -> None:
    rng, it = np.random.default_rng(3), case(name)
    params = it.params(rng)
    inputs, indices = it.inputs(rng, params), it.indices(rng)
    gradient = np.asarray(it.gradient(params, indices, inputs)[0])
    wide = params.astype(np.float64)
    for index in [*rng.choice(it.weights.size, 20, replace=False), it.weights.size - 1]:
        step = np.zeros_like(wide)
        step[index] = 1e-6
        above, below = (reference_loss(it, wide + sign * step, inputs, indices)["loss"] for sign in (1, -1))
        assert gradient[index] == pytest.approx((above - below) / 2e-6, rel=2e-3, abs=2e-5)


@pytest.mark.parametrize("name", ["discrete", "discrete, clipped value, raw advantages", "several, masked"])
@pytest.mark.parametrize("most_rows", [1, 2, 3])
def test_the_gradient_of_a_minibatch_is_the_sum_of_those_of_its_pieces(name: str, most_rows: int) -> None:
    rng, it = np.random.default_rng(5), case(name)
    params = it.params(rng)
    inputs, indices = it.inputs(rng, params), it.indices(rng)
    whole, pieces = (
        jax.jit(lambda: RolloutBatch.of(inputs["rollout"], indices, ROWS).gradient(it.share(inputs), params, rows))()  # noqa: B023
        for rows in (ROWS, most_rows)
    )
    jax.tree_util.tree_map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), whole, pieces
    )


# What actions are scored with

NUMBERS = st.floats(-5, 5, width=32, allow_subnormal=False)  # XLA takes the smallest of numbers for 0
_censored: Any = jax.jit(censored_gaussian)
_categorical: Any = jax.jit(categorical, static_argnums=2)


@given(mean=NUMBERS, log_std=st.floats(-2, 2, width=32), raw=NUMBERS, low=NUMBERS, width=st.floats(0.0625, 5, width=32))
@settings(deadline=None)
def test_what_is_at_a_bound_has_the_mass_of_the_tail_and_the_rest_a_density(
    mean: float, log_std: float, raw: float, low: float, width: float
) -> None:
    bounds = np.float32(low), np.float32(low + width)
    action = np.clip(np.float32(raw), *bounds)
    arrays = [np.full((1, 1), value, np.float32) for value in (mean, log_std, action)]
    found, entropy = _censored(arrays[0], arrays[1][0], arrays[2], *(np.full(1, bound) for bound in bounds))
    expected = reference_log_prob(float(action), mean, math.exp(log_std), float(bounds[0]), float(bounds[1]))
    assert float(found[0]) == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert float(entropy[0]) == pytest.approx(stats.norm.entropy(mean, math.exp(log_std)), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("counts", [(3,), (2, 2, 2), (1, 4, 2)])
@given(seed=st.integers(0, 2**32))
@settings(deadline=None, max_examples=20)
def test_discrete_actions_are_independent_of_each_other(counts: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(2, sum(counts))).astype(np.float32)
    actions = rng.integers(counts, size=(2, len(counts))).astype(np.int32)
    found = _categorical(logits, actions, counts)
    for row in range(2):
        parts = np.split(logits[row].astype(np.float64), np.cumsum(counts)[:-1])
        likely = [np.exp(part) / np.exp(part).sum() for part in parts]
        log_prob = sum(math.log(part[action]) for part, action in zip(likely, actions[row], strict=True))
        assert float(found[0][row]) == pytest.approx(log_prob, abs=1e-4)
        assert float(found[1][row]) == pytest.approx(-sum((part * np.log(part)).sum() for part in likely), abs=1e-4)


def test_executed_actions_teach_what_raw_ones_would() -> None:
    """The score-function gradient of the expected reward, with raw actions kept and with those that were executed."""
    mean, log_std, low, high = 0.3, -0.2, -0.5, 0.7

    def reward(action: Any) -> Any:
        return np.square(action - 0.2) + action

    def expected(mean: float, log_std: float) -> float:
        std = math.exp(log_std)
        inside = integrate.quad(lambda a: reward(a) * stats.norm.pdf(a, mean, std), low, high)[0]
        return inside + reward(low) * stats.norm.cdf(low, mean, std) + reward(high) * stats.norm.sf(high, mean, std)

    truth = [
        (expected(mean + step, log_std + other) - expected(mean - step, log_std - other)) / 2e-5
        for step, other in ((1e-5, 0), (0, 1e-5))
    ]
    raw = np.random.default_rng(0).normal(mean, math.exp(log_std), 200_000).astype(np.float32)[:, None]
    executed, unbounded = np.clip(raw, low, high), np.full(1, np.inf, np.float32)
    earned = (reward(executed) - expected(mean, log_std)).ravel()

    @jax.jit
    def gradients(actions: Any, low: Any, high: Any) -> Any:
        def log_prob(parameters: Any, action: Any) -> Any:
            return censored_gaussian(parameters[:1][None], parameters[1:], action[None], low, high)[0][0]

        parameters = np.array([mean, log_std], np.float32)
        return jax.vmap(jax.grad(log_prob), (None, 0))(parameters, actions)

    bounds = np.array([low], np.float32), np.array([high], np.float32)
    censored = earned[:, None] * np.asarray(gradients(executed, *bounds))
    kept = earned[:, None] * np.asarray(gradients(raw, -unbounded, unbounded))
    blind = earned[:, None] * np.asarray(gradients(executed, -unbounded, unbounded))
    for estimate in (censored, kept):
        errors = estimate.std(axis=0) / math.sqrt(len(raw))
        assert (np.abs(estimate.mean(axis=0) - truth) < 4 * errors).all()
    assert (censored.std(axis=0) < kept.std(axis=0)).all()
    # A plain density of what was executed would teach something else.
    assert np.abs(blind.mean(axis=0) - truth).max() > 0.05


# From what was done to what is learned from


class Walks:
    """Streams that walk at random, and end now and then for either reason."""

    def __init__(self, streams: int, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.seen = self.rng.normal(size=(streams, 2)).astype(np.float32) * 3 + 1

    def step(self, stream: int) -> tuple[Array, float, Array, int]:
        before = self.seen[stream].copy()
        after = (before + self.rng.normal(size=2)).astype(np.float32)
        status = int(self.rng.choice(3, p=[0.8, 0.1, 0.1]))
        self.seen[stream] = after if status == 0 else self.rng.normal(size=2) * 3 + 1
        return before, float(after.sum()), after, status


class Recorded:
    """What was told to an agent, with the log-probability of each action by the policy that was asked for it."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, Array, float, Array, int]] = []
        self.log_probs: list[float] = []
        self.versions: list[int] = []


def drive(agent: PPO, walks: Walks, recorded: Recorded, *, until_due: bool = False) -> None:
    """Every stream acts, then every stream is told what came of it: an update may come in between."""
    streams = len(walks.seen)
    for _ in range(100):
        policy = agent.policy()
        assert isinstance(policy, NetworkPolicy)
        log_probs, actions, versions = [], [], []
        for stream in range(streams):
            seen = walks.seen[stream : stream + 1]
            action = agent.act(seen, ActMode.EXPLORE, np.array([stream]))[0]
            mean = policy.output(seen)[0].astype(np.float64)
            if policy.head.kind == "gaussian":
                columns = zip(action, mean, policy.head.scale, policy.head.low, policy.head.high, strict=True)
                log_probs.append(sum(reference_log_prob(*map(float, column)) for column in columns))
            else:
                log_probs.append(float(mean[action] - np.log(np.exp(mean).sum())))
            actions.append(action)
            versions.append(agent.policy_version)
        for stream in range(streams):
            before, reward, after, status = walks.step(stream)
            agent.observe(
                Transitions(
                    before[None],
                    actions[stream][None],
                    np.array([reward]),
                    after[None],
                    np.array([status], np.uint8),
                ),
                np.array([stream]),
            )
            recorded.rows.append((stream, before, reward, after, status))
            recorded.log_probs.append(log_probs[stream])
            recorded.versions.append(versions[stream])
            if agent.updates_due():
                if until_due and agent.policy_version >= 2:
                    return
                agent.update(agent.updates_due())
    raise AssertionError("no third rollout")


def reference_advantages(rows: list[Any], values: Any, scaled: Array, gamma: float, gae_lambda: float) -> list[float]:
    """The sum of all later errors of its episode, each decayed by its distance."""
    chains: dict[int, list[int]] = {}
    found = [0.0] * len(rows)

    def close(chain: list[int]) -> None:
        errors = []
        for index in chain:
            _, before, _, after, status = rows[index]
            future = 0.0 if status == EpisodeStatus.TERMINATED else gamma * values(index, after, last=True)
            errors.append(scaled[index] + future - values(index, before))
        for place, index in enumerate(chain):
            found[index] = sum((gamma * gae_lambda) ** k * error for k, error in enumerate(errors[place:]))

    for index, (stream, _, _, _, status) in enumerate(rows):
        chains.setdefault(stream, []).append(index)
        if status:
            close(chains.pop(stream))
    for chain in chains.values():
        close(chain)
    return found


SCORED: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "discrete, one stream": (Discrete(3), 1, {}),
    "discrete, several streams": (Discrete(3), 5, {"normalise_observations": True, "normalise_rewards": True}),
    "continuous, several streams": (
        Box(-0.5, 0.5, (2,), np.float32),
        3,
        {"normalise_observations": True, "normalise_rewards": True, "gae_lambda": 0.7},
    ),
}


@pytest.mark.parametrize("name", SCORED)
def test_a_rollout_is_scored_by_what_chose_it(name: str) -> None:
    actions, streams, config = SCORED[name]
    agent = PPO(
        SPACE,
        actions,
        seed=0,
        **{"rollout_steps": 31, "minibatch_size": 8, "epochs": 2, "learning_rate": 0.01, **config},
    )
    recorded = Recorded()
    drive(agent, Walks(streams), recorded, until_due=True)
    acting, previous, version = agent._acting, agent._previous, agent.policy_version
    scale = agent._reward_scale
    learning = agent._begun(never)
    numbers = np.asarray(learning.columns["numbers"])
    rows, versions = recorded.rows[-31:], recorded.versions[-31:]
    assert agent.stale_steps == 0
    assert set(versions) == ({version} if streams == 1 else {version - 1, version})
    np.testing.assert_allclose(numbers[:, 0], recorded.log_probs[-31:], atol=2e-5, rtol=2e-5)

    def value(chosen: Any, seen: Array) -> float:
        network: Any = agent._weights.views(chosen.params)
        encoded = seen[None] if chosen.normaliser is None else chosen.normaliser.apply(seen[None])
        return float(run_layers(layers_of(network.value), encoded[0].astype(np.float64))[0])

    heads = {stream: index for index, (stream, *_) in enumerate(rows)}
    followers = {
        index: next((later for later in range(index + 1, len(rows)) if rows[later][0] == stream), None)
        for index, (stream, *_) in enumerate(rows)
    }

    def values(index: int, seen: Array, *, last: bool = False) -> float:
        if last and rows[index][4] == 0 and heads[rows[index][0]] != index:
            follower = followers[index]
            assert follower is not None
            return values(follower, seen)
        chosen = acting if last or versions[index] == version else previous
        return value(chosen, seen)

    rewards = np.array([row[2] for row in rows])
    scaled = rewards if scale is None else np.clip(rewards / scale.published, -10, 10)
    expected = reference_advantages(rows, values, scaled, 0.99, agent.config.gae_lambda)
    np.testing.assert_allclose(numbers[:, 2], expected, rtol=1e-3, atol=1e-3)
    own = [values(index, row[1]) for index, row in enumerate(rows)]
    np.testing.assert_allclose(numbers[:, 1], own, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(numbers[:, 3], np.array(expected) + own, rtol=1e-3, atol=1e-3)
    variance = 1 - np.var(numbers[:, 3] - numbers[:, 1]) / np.var(numbers[:, 3])
    assert learning.explained_variance == pytest.approx(variance, rel=1e-3, abs=1e-3)

    # Nothing has been learned yet, so that every ratio is 1 but for those that the policy before chose.
    indices = learning.order[:8]
    log_probs, _, _ = agent._algorithm.score(
        acting.params, learning.columns["observations"][indices], None, learning.columns["actions"][indices]
    )
    ratios = np.exp(np.asarray(log_probs) - numbers[indices, 0])
    current = np.array(versions)[indices] == version
    assert current.sum() >= 3
    assert np.abs(ratios[current] - 1).max() < 1e-4


def test_clipped_actions_are_among_those_scored() -> None:
    agent = PPO(SPACE, Box(-0.5, 0.5, (2,), np.float32), seed=0)
    actions = agent.act(np.zeros((200, 2), np.float32), ActMode.EXPLORE, np.arange(200))
    assert 0.4 < (np.abs(actions) == 0.5).mean() < 0.8


def test_rewards_are_scaled_by_the_deviation_of_the_discounted_return() -> None:
    rng, scale = np.random.default_rng(0), ReturnScale(0.9, clip=1.5)
    totals, open_returns = [], [0.0, 0.0]
    for _ in range(200):
        rewards, statuses = rng.normal(3, 1, 2), rng.choice(3, 2, p=[0.7, 0.2, 0.1]).astype(np.uint8)
        scale.add(rewards, statuses, np.arange(2))
        for stream in range(2):
            open_returns[stream] = 0.9 * open_returns[stream] + rewards[stream]
            totals.append(open_returns[stream])
            if statuses[stream]:
                open_returns[stream] = 0.0
    assert scale.apply(np.array([1.0])) == pytest.approx(1.0)  # not published yet
    scale.publish()
    deviation = np.std(totals)
    assert scale.apply(np.array([1.0, -100.0])) == pytest.approx([1 / deviation, -1.5], rel=1e-5)
    scale.cut(np.array([0]))
    assert [stream for stream, _ in scale.state()["open"]] in ([1], [])


# Many updates in one dispatch

CHUNKED: dict[str, dict[str, Any]] = {
    "plain": {"learning_rate": Linear(0.01, 0.0, 100), "normalise_observations": True},
    "accumulated, not divided evenly": {"gradient_accumulation": 2, "minibatch_size": 7, "clip_value": 0.1},
    "target_kl": {"target_kl": 0.01, "learning_rate": 0.05},
}


def trained(agent: PPO, chunks: list[int]) -> list[int]:
    """Three rollouts, with updates made this many at a time; returns how many each rollout took."""
    walks, made = Walks(2), []
    for _ in range(60):
        actions = agent.act(walks.seen, ActMode.EXPLORE, np.arange(2))
        before, rewards, after, statuses = zip(*(walks.step(stream) for stream in range(2)), strict=True)
        transitions = Transitions(
            np.stack(before), actions, np.array(rewards), np.stack(after), np.array(statuses, np.uint8)
        )
        agent.observe(transitions, np.arange(2))
        before_updates, sizes = agent.updates, iter(chunks * 100)
        while agent.updates_due():
            agent.update(min(next(sizes), agent.updates_due()))
        if agent.updates > before_updates:
            made.append(agent.updates - before_updates)
    return made


@pytest.mark.parametrize("name", CHUNKED)
def test_updates_are_equal_to_the_bit_however_they_are_divided(name: str) -> None:
    config = {"hidden_sizes": (8,), "rollout_steps": 40, "minibatch_size": 8, "epochs": 4, **CHUNKED[name]}
    agent = PPO(SPACE, Discrete(3), seed=0, **config)
    fresh, digests, counts = agent.state(), set(), []
    for chunks in ([1000], [1], [3, 5, 1]):
        agent.load_state(fresh)
        counts.append(trained(agent, chunks))
        digests.add(codec.tree_digest({"state": agent.state()}))
    assert counts[0] == counts[1] == counts[2]
    assert len(counts[0]) == 3
    if name == "target_kl":
        assert 0 < min(counts[0]) < 20
    assert len(digests) == 1


@pytest.mark.exhaustive
def test_the_same_holds_for_optimised_code() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-k", "however_they_are_divided and not plain", __file__]
    subprocess.run(command, check=True, env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=3"})


@pytest.mark.parametrize(("rows", "most", "sizes"), [(12, 4, [4, 4, 4]), (10, 4, [4, 3, 3]), (5, 5, [5])])
def test_minibatches_are_as_even_as_can_be_and_hold_every_row_once(rows: int, most: int, sizes: list[int]) -> None:
    agent = PPO(SPACE, Discrete(2), seed=0, rollout_steps=rows, minibatch_size=most, epochs=2)
    epochs = agent._minibatches.order(3).reshape(2, len(sizes), -1)
    for epoch in epochs:
        assert [int((minibatch < rows).sum()) for minibatch in epoch] == sizes
        assert sorted(epoch[epoch < rows].tolist()) == list(range(rows))
    assert not np.array_equal(epochs[0], epochs[1])

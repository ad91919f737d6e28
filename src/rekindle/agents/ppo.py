"""Proximal policy optimisation: actions that turned out better than expected become likelier, a little at a time.

A rollout of `rollout_steps` transitions is collected with one policy, learned from in a few epochs of minibatches, and
forgotten. How far a minibatch may move the policy is bounded by clipping how much likelier an action becomes:

    ratio     = pi(a | s) / pi_old(a | s)
    objective = min(ratio * advantage, clip(ratio, 1 - clip, 1 + clip) * advantage)

Papers: Schulman 2017 (PPO), Schulman 2016 (generalised advantage estimation), Fujita 2018 (clipped actions).
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import Metrics, State, StreamSlots
from rekindle.agents.acting import Actor, CompiledPolicy, device_of
from rekindle.agents.counting import LossMean, saved_count
from rekindle.agents.dispatch import Dispatch, Outcome, each_array, padded
from rekindle.agents.networks import (
    Dense,
    Module,
    Sequential,
    Weight,
    convolutions,
    feature_size,
    hidden_layers,
    layers_of,
    orthogonal,
    user_network,
)
from rekindle.agents.normalisation import ReturnScale, RunningMoments
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import (
    Linear,
    Setting,
    check_flag,
    check_number,
    check_sizes,
    check_whole,
    encoding_of,
    make_config,
    network_setting,
    value_at,
)
from rekindle.agents.trees import placed, placed_number, tree_from_state, tree_state
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.checks import refuses_misfits
from rekindle.errors import AgentError, ConfigError, InputError, Interrupted, StateError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.interrupt import ShouldStop, never
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding
from rekindle.policy.network import Layer, Normaliser
from rekindle.policy.policy import NetworkPolicy
from rekindle.replay import Rollout
from rekindle.replay.rollout import Steps
from rekindle.rng import generator_from_state, generator_state
from rekindle.spaces import discrete_values

__all__ = ["ActorCritic", "Learned", "Learner", "PPO", "PPOConfig", "categorical", "censored_gaussian"]

_ALGORITHM = "ppo"
_EXPLORE = ActMode.EXPLORE
_NEVER = -1e9
"""The logit of an action that a mask forbids: finite, so that its share of the entropy is 0 and not NaN."""
_MOST_SCORED, _MOST_IMAGES_SCORED = 1024, 128
"""Rows of a rollout scored in one dispatch."""
_FEW_SCORED = 64
"""Rows for which there is a smaller dispatch: usually those after the last step of each stream."""
_LARGE_MINIBATCH = 1 << 24
"""Rows times weights of a minibatch from which on a dispatch makes few updates, so that a stop need not wait long."""


class PPOConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `PPO` agent."""

    learning_rate: Setting = 3e-4
    """Adam's step size, above 0; or a schedule over env steps."""
    gamma: float = 0.99
    """What a reward is worth one step earlier, from 0 to 1."""
    rollout_steps: int = 2_048
    """Transitions of all streams together that are collected, and then learned from."""
    minibatch_size: int = 64
    """Transitions in an update at most: a rollout that it does not divide is cut into minibatches as even as can be."""
    epochs: int = 10
    """How often each transition is learned from."""
    gae_lambda: float = 0.95
    """How far advantages trust rewards (1) over the values learned so far (0)."""
    clip: Setting = 0.2
    """How much likelier or less likely an action may become before there is nothing more to gain."""
    clip_value: float | None = None
    """The same for values, in their own unit; None for no limit."""
    entropy_coef: Setting = 0.0
    """How much an undecided policy is worth, so that it goes on exploring."""
    value_coef: float = 0.5
    """How much the squared error of the value counts beside the policy."""
    target_kl: float | None = None
    """Learn no more from a rollout once the policy is so far from the one that chose its actions (as a Kullback-Leibler
    divergence, estimated on a minibatch); None for no such limit."""
    max_grad_norm: float | None = 0.5
    """Scale gradients down to this norm."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of the hidden layers of policy and value; None for (64, 64), or (512,) after the convolutions on images."""
    network: str | None = None
    """A network of your own from an observation to features that policy and value share, as `package.module:Name`."""
    normalise_advantages: bool = True
    """Give the advantages of each minibatch mean 0 and deviation 1."""
    normalise_observations: bool = False
    """Subtract the mean of the observations seen and divide by their standard deviation."""
    normalise_rewards: bool = False
    """Divide rewards by the standard deviation of the discounted return; logged returns are not."""
    observation_clip: float = 10.0
    """The largest size of a normalised observation."""
    reward_clip: float = 10.0
    """The largest size of a normalised reward."""
    adam_eps: float = 1e-5
    """Adam's epsilon, above 0."""
    log_std_init: float = 0.0
    """The logarithm of the standard deviation of a continuous action at first, in its own unit."""
    gradient_accumulation: int = 1
    """Updates whose gradients are averaged into one step of the optimiser."""
    acting_device: str | None = None
    """Where to act, when not with numpy: a platform such as `cpu` or `gpu:1`; None for JAX's own choice."""
    learning_device: str | None = None
    """Where to learn."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name in ("gamma", "gae_lambda"):
            check_number(name, getattr(self, name), most=1.0)
        for name in ("observation_clip", "reward_clip", "adam_eps"):
            check_number(name, getattr(self, name), above=True)
        for name in ("learning_rate", "clip"):
            check_number(name, getattr(self, name), above=not isinstance(getattr(self, name), Linear))
        for name in ("entropy_coef", "value_coef"):
            check_number(name, getattr(self, name))
        check_number("log_std_init", self.log_std_init, least=-20.0, most=20.0)
        for name in ("clip_value", "target_kl", "max_grad_norm"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=True)
        for name in ("rollout_steps", "minibatch_size", "epochs", "gradient_accumulation"):
            check_whole(name, getattr(self, name), 1)
        for name in ("normalise_advantages", "normalise_observations", "normalise_rewards"):
            check_flag(name, getattr(self, name))
        check_sizes("hidden_sizes", self.hidden_sizes)
        if self.minibatch_size > self.rollout_steps:
            raise ConfigError(
                f"minibatch_size is {self.minibatch_size!r}: use at most rollout_steps, {self.rollout_steps!r}"
            )


# The network


class ActorCritic(eqx.Module):
    """From an observation to the policy (logits, or the means of continuous actions) and the value.

    The two have hidden layers of their own, or share what comes out of convolutions or of a user's network.
    """

    body: Module
    policy: Module
    value: Module
    log_std: Weight | None
    """Of continuous actions, whatever is observed."""

    def __init__(
        self, config: PPOConfig, encoding: Encoding, head: ActionHead, network: Any, rng: np.random.Generator
    ) -> None:
        sizes, hidden = config.hidden_sizes or ((512,) if encoding.image else (64, 64)), orthogonal(math.sqrt(2))
        if network is not None:
            self.body, sizes = user_network(network, encoding, rng=rng), ()
        elif encoding.image:
            layers = convolutions(encoding, rng=rng, weight=hidden)
            features = feature_size(Sequential(layers), encoding)
            self.body = Sequential([*layers, *hidden_layers(features, sizes, rng=rng, weight=hidden, bias=0.0)])
            sizes = ()
        else:
            self.body = Sequential(())
        features = feature_size(self.body, encoding)

        def stream(outputs: int, gain: float) -> Sequential:
            layers = hidden_layers(features, sizes, rng=rng, activation="tanh", weight=hidden, bias=0.0)
            last = Dense((features, *sizes)[-1], outputs, rng=rng, weight=orthogonal(gain), bias=0.0)
            return Sequential([*layers, last])

        self.policy = stream(head.low.size if head.kind == "gaussian" else sum(head.counts), 0.01)
        self.value = stream(1, 1.0)
        self.log_std = np.full(head.low.size, config.log_std_init, np.float32) if head.kind == "gaussian" else None

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Policy and value for one observation."""
        features = self.body(x)
        return self.policy(features), self.value(features)[0]

    def layers(self) -> list[Layer]:
        """The policy as data."""
        return [*layers_of(self.body), *layers_of(self.policy)]


# What actions are scored with


def categorical(logits: jax.Array, actions: jax.Array, counts: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Log-probability and entropy of discrete actions, each row: (rows, actions) with `counts` logits for each."""
    rows, width = len(logits), max(counts)
    if min(counts) == width:
        logits = logits.reshape(rows, len(counts), width)
    else:
        places = np.arange(width)
        table = np.minimum(np.cumsum([0, *counts[:-1]])[:, None] + places, sum(counts) - 1)
        logits = jnp.where(places < np.array(counts)[:, None], logits[:, table], _NEVER)
    logs = jax.nn.log_softmax(logits)
    chosen = jnp.where(actions[:, :, None] == np.arange(width), logs, 0)
    return chosen.sum(axis=(1, 2)), -(jnp.exp(logs) * logs).sum(axis=(1, 2))


def censored_gaussian(
    mean: jax.Array, log_std: jax.Array, actions: jax.Array, low: Array, high: Array
) -> tuple[jax.Array, jax.Array]:
    """Log-probability of executed actions, each row, and the entropy of the Gaussian before it is clipped.

    An action at a bound stands for all that was clipped to it, and has the probability of that; others have a density.
    """
    distances = (actions - mean) * jnp.exp(-log_std)
    is_low, is_high = actions <= low, actions >= high
    # Where it does not apply it is the tail from 0 on: what is left out must have a finite gradient as well.
    tails = jax.scipy.special.log_ndtr(jnp.where(is_low, distances, jnp.where(is_high, -distances, 0)))
    densities = -0.5 * jnp.square(distances) - log_std - 0.5 * math.log(2 * math.pi)
    entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
    return jnp.where(is_low | is_high, tails, densities).sum(axis=1), jnp.broadcast_to(entropy, len(mean))


# The update


class Learned(NamedTuple):
    """Everything that an update changes."""

    params: Any
    """The weights of the network, in one vector."""
    optimiser: Any
    made: Any
    """Updates made on this rollout."""
    is_over: Any
    """Whether `target_kl` allows no more of them."""


class Learner:
    """One update, as a pure function of state, minibatch and rollout."""

    metrics = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")

    def __init__(self, config: PPOConfig, weights: Weights[ActorCritic], head: ActionHead) -> None:
        self._config, self._weights, self._head = config, weights, head
        self.device = device_of(config.learning_device, "learning_device")
        self._optimiser = optimiser_of(config)

    def start(self) -> Learned:
        """The state before the first update."""
        params = self._weights.initial
        return placed(Learned(params, jax.jit(self._optimiser.init)(params), np.int32(0), np.False_), self.device)

    def step(self, state: Learned, batch: Any, inputs: Any) -> tuple[Learned, dict[str, jax.Array], None]:
        """One update, unless `target_kl` allows no more of them."""
        if self._config.target_kl is None:
            return *self._made(state, batch, inputs), None
        nothing = dict.fromkeys(self.metrics, jnp.float32(0))
        return *jax.lax.cond(state.is_over, lambda: (state, nothing), lambda: self._made(state, batch, inputs)), None

    def _made(self, state: Learned, batch: Any, inputs: Any) -> tuple[Learned, dict[str, jax.Array]]:
        (loss, metrics), gradient = jax.value_and_grad(self.loss, has_aux=True)(state.params, batch, inputs)
        params, optimiser = optimised(self._optimiser, gradient, state.optimiser, state.params, inputs["learning_rate"])
        target_kl = self._config.target_kl
        is_over = state.is_over if target_kl is None else metrics["kl"] > target_kl
        metrics = {"loss": loss, "grad_norm": norm(gradient), **metrics}
        return Learned(params, optimiser, state.made + 1, is_over), metrics

    def loss(self, params: Parts, batch: Any, inputs: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        """The loss of the minibatch of these rows of the rollout, and metrics beside it."""
        config, rollout, indices = self._config, inputs["rollout"], batch["indices"]
        chosen = jax.tree_util.tree_map(lambda column: jnp.take(column, indices, axis=0, mode="clip"), rollout)
        old_log_probs, old_values, advantages, returns = chosen["numbers"].T
        log_probs, entropies, values = self.score(params, chosen["observations"], chosen["mask"], chosen["actions"])
        mean = _mean_over(indices < config.rollout_steps if config.rollout_steps % len(indices) else None)

        if config.normalise_advantages and len(indices) > 1:
            centred = advantages - mean(advantages)
            advantages = centred / (jnp.sqrt(mean(jnp.square(centred), less=1)) + 1e-8)
        log_ratios = log_probs - old_log_probs
        ratios, clip = jnp.exp(log_ratios), inputs["clip"]
        gains = jnp.minimum(ratios * advantages, jnp.clip(ratios, 1 - clip, 1 + clip) * advantages)
        errors = jnp.square(values - returns)
        if config.clip_value is not None:
            near = old_values + jnp.clip(values - old_values, -config.clip_value, config.clip_value)
            errors = jnp.maximum(errors, jnp.square(near - returns))
        metrics = {
            "policy_loss": -mean(gains),
            "value_loss": mean(errors),
            "entropy": mean(entropies),
            "kl": mean(ratios - 1 - log_ratios),
            "clip_fraction": mean((jnp.abs(ratios - 1) > clip).astype(jnp.float32)),
        }
        loss = metrics["policy_loss"] + config.value_coef * metrics["value_loss"]
        return loss - inputs["entropy_coef"] * metrics["entropy"], metrics

    def score(
        self, params: Parts, observations: jax.Array, mask: jax.Array | None, actions: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Log-probability of the action, entropy and value, each row of encoded observations."""
        network, head = self._weights.network(params), self._head
        outputs, values = jax.vmap(network)(observations)
        if network.log_std is not None:
            return *censored_gaussian(outputs, jnp.asarray(network.log_std), actions, head.low, head.high), values
        if mask is not None:
            outputs = jnp.where(mask, outputs, _NEVER)
        return *categorical(outputs, actions, tuple(head.counts)), values


def _mean_over(counts: jax.Array | None) -> Any:
    """The mean of a column; of those rows only that count, if not all do."""

    def mean(column: jax.Array, *, less: int = 0) -> jax.Array:
        if counts is None:
            return column.sum() / (len(column) - less)
        return jnp.where(counts, column, 0).sum() / jnp.maximum(counts.sum() - less, 1)

    return mean


# The agent


class _Version(NamedTuple):
    """All that a policy chose its actions with."""

    params: Parts
    normaliser: Normaliser | None


class _Learning(msgspec.Struct, eq=False):
    """A rollout that is being learned from."""

    columns: dict[str, Any]
    """On the device: encoded observations, actions, masks, and numbers (log-probability, value, advantage, return)."""
    seed: int
    """Of the order in which it is learned from."""
    began_at: int
    """Env steps when it began; schedules stand still from there on."""
    explained_variance: float
    order: Array
    """The rows of every minibatch of every epoch, one after the other."""
    made: int = 0


class PPO:
    """Learns a policy, and beside it the value of states, from what its newest policy did.

    Actions may be discrete (Discrete, MultiDiscrete, MultiBinary) or continuous (Box). The settings are the fields of
    `PPOConfig`: `PPO(observation_space, action_space, seed=0, gamma=0.98)`. `network` may also be an equinox module, or
    what makes one from the shape of an encoded observation and `key=`.

    It acts with the weights that the last rollout left it with, until the next is learned from whole. What is observed
    meanwhile belongs to the rollout after. A transition that was chosen by a policy before the last two, or for which
    there is no room while updates are owed, is left out and counted in `stale_steps`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        check_whole("seed", seed, 0)
        self.config = config = make_config(PPOConfig, {**settings, "network": network_setting(network)})
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = 0
        """Transitions observed so far."""
        self.updates = 0
        """Gradient steps made so far."""
        self.policy_version = 0
        """Rollouts learned from so far."""
        self.stale_steps = 0
        """Transitions that were too old to learn from."""
        self._head = _head(action_space)
        self._encoding = encoding = encoding_of(observation_space, config, actions=sum(self._head.counts))
        self._losses = LossMean()
        self._moments = (
            RunningMoments(encoding.shape[0], clip=config.observation_clip) if config.normalise_observations else None
        )
        self._reward_scale = ReturnScale(config.gamma, clip=config.reward_clip) if config.normalise_rewards else None
        self._rollout, self._other = (Rollout(observation_space, action_space) for _ in range(2))
        self._is_waiting = False
        """Whether the other rollout is full, and nothing was learned from it yet."""
        self._learning: _Learning | None = None
        self._unreported: list[Outcome] = []
        """Updates that were made before an interruption: the next `update` reports them."""
        self._chosen_by: dict[int, int] = {}
        """By stream, the version of the policy that chose its open action."""
        # Generators of their own, so that how much is learned does not change which actions are tried.
        initial, self._exploring, self._shuffling = np.random.default_rng(seed).spawn(3)
        self._weights = Weights(ActorCritic(config, encoding, self._head, network, initial))
        self._learner = Learner(config, self._weights, self._head)
        self._learned = self._learner.start()
        self._score = jax.jit(self._learner.score)
        self._minibatches = _minibatches(config)
        self._updates_each = config.epochs * len(self._minibatches)
        """Updates on a rollout."""
        is_large = bool(encoding.image) or self._weights.size * self._minibatches.shape[1] >= _LARGE_MINIBATCH
        self._dispatch = Dispatch(
            self._learner.step,
            self._learner.metrics,
            example={"indices": self._minibatches[0].astype(np.int32)},
            most=2 if is_large else None,
        )
        self._actor = Actor(
            self._weights,
            encoding,
            lambda network, x, _: network.policy(network.body(x)),
            device=device_of(config.acting_device, "acting_device"),
        )
        self._actor.owner = "PPO"
        self._acting = self._previous = _Version(self._weights.initial, self._normaliser)
        self._policy: NetworkPolicy | CompiledPolicy | None = None
        """How to act now, once somebody has asked."""
        self._publish()

    # Acting

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """An action for each row."""
        output, mask = self._actor.output(observations, None), self._encoding.mask(observations)
        if mode is not _EXPLORE:
            return self._head.choose(output, mask, None)
        for stream in streams.tolist():
            self._chosen_by[stream] = self.policy_version
        return self._head.choose(output, mask, self._exploring)

    def chose(self, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        """Take note that policies of these versions chose the open actions of these streams."""
        self._chosen_by.update(zip(streams.tolist(), versions.tolist(), strict=True))

    def policy(self) -> NetworkPolicy | CompiledPolicy:
        """How to act now; later updates do not change it."""
        if self._policy is None:
            self._policy = self._actor.policy(self._head, _ALGORITHM)
        return self._policy

    # Collecting

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Collect transitions."""
        chosen_by, newest, slots = self._chosen_by, self.policy_version, streams.tolist()
        versions = np.array([chosen_by.get(stream, newest) for stream in slots], np.int64)
        if self._can_take(versions):
            self._collect(transitions, streams, versions)
        else:
            for index in range(len(transitions)):
                row = slice(index, index + 1)
                if self._can_take(versions[row]):
                    self._collect(transitions.part(row), streams[row], versions[row])
                else:
                    self._rollout.cut(streams[row])
                    self.stale_steps += 1
        if self._reward_scale is not None:
            self._reward_scale.add(transitions.rewards, transitions.statuses, streams)
        for stream in slots:
            chosen_by.pop(stream, None)
        self.env_steps += len(transitions)

    def cut(self, streams: StreamSlots) -> None:
        """Link nothing to the last transitions of these streams."""
        self._rollout.cut(streams)
        if self._reward_scale is not None:
            self._reward_scale.cut(streams)
        for stream in streams.tolist():
            self._chosen_by.pop(stream, None)

    @property
    def _is_ahead(self) -> bool:
        """Whether another rollout is learned from before the one that is being collected."""
        return self._is_waiting or self._learning is not None

    @property
    def _is_full(self) -> bool:
        """Whether the one that is being collected is full."""
        return len(self._rollout) == self.config.rollout_steps

    def _can_take(self, versions: NDArray[np.int64]) -> bool:
        """Whether there is room, and the policies that chose will be one of the last two when it is learned from."""
        if len(self._rollout) + len(versions) > self.config.rollout_steps:
            return False
        return bool(versions.min(initial=self.policy_version) >= self.policy_version + self._is_ahead - 1)

    def _collect(self, transitions: Transitions, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        self._rollout.append(transitions, streams, versions)
        self._turn_over()

    def _turn_over(self) -> None:
        """If the rollout is full and none is ahead of it, let it wait for updates, and collect another."""
        if self._is_full and not self._is_ahead:
            self._rollout, self._other = self._other, self._rollout
            self._is_waiting = True

    # Learning

    def updates_due(self) -> int:
        """How many updates are owed: none until a rollout is full, then what is left of its epochs."""
        if not self._is_ahead:
            return 0
        made = 0 if self._learning is None else self._learning.made
        return self._updates_each * (1 + self._is_full) - made

    def update(self, n: int) -> Metrics:
        """Make `n` of the updates that are due: all of them if they are fewer, or those that `target_kl` allows."""
        return self.update_until(n, never)

    def update_until(self, n: int, should_stop: ShouldStop) -> Metrics:
        """As `update`, but raise `Interrupted` between two dispatches once `should_stop()`."""
        due = self.updates_due()
        if n < 1 or not due:
            raise InputError(f"update({n}): {due} updates are due")
        about: dict[str, float] = {}
        left = n
        while left > 0 and self._is_ahead:
            learning = self._learning = self._learning or self._begun(should_stop)
            about = {**self._settings_at(learning.began_at), "explained_variance": learning.explained_variance}
            left -= self._learn_from(learning, left, should_stop)
        outcomes, self._unreported = self._unreported, []
        self.updates += sum(outcome.count for outcome in outcomes)
        metrics = self._dispatch.metrics(outcomes)
        self._losses.add(metrics["loss"])
        return {**metrics, **about, "stale_steps": self.stale_steps}

    def _learn_from(self, learning: _Learning, n: int, should_stop: ShouldStop) -> int:
        """Make up to `n` updates on a rollout, in as few dispatches as there can be; returns how many."""
        inputs = _inputs(learning.columns, self._settings_at(learning.began_at), self._learner.device)
        size, before = self._minibatches.shape[1], learning.made
        is_over = False
        for count in self._dispatch.split(min(n, self._updates_each - learning.made)):
            if should_stop():
                raise Interrupted(f"stopped after {learning.made} of the {self._updates_each} updates of a rollout")
            rows = slice(learning.made * size, (learning.made + count) * size)
            self._learned, outcome = self._dispatch(self._learned, {"indices": learning.order[rows]}, count, inputs)
            made = count
            if self.config.target_kl is not None:
                made, is_over = int(self._learned.made) - learning.made, bool(self._learned.is_over)
            learning.made += made
            outcome.count = made
            self._unreported.append(outcome)
            if is_over:
                break
        made = learning.made - before
        if is_over or learning.made == self._updates_each:
            self._finish()
        return made

    def warm_up(self) -> None:
        """Compile everything that acting and learning may need."""
        columns = self._zero_columns(self.config.rollout_steps)
        device = self._learner.device
        inputs = _inputs(placed(columns, device), self._settings_at(0), device)
        self._learned = self._dispatch.warm_up(self._learned, inputs)
        for rows in (1, self.config.rollout_steps):
            self._scores(self._acting, columns["observations"][:rows], None, None)
        self._actor.warm_up(self.observation_space)

    def _begun(self, should_stop: ShouldStop) -> _Learning:
        """Score the rollout that waits with the weights that chose its actions, and have it on the device.

        Nothing has changed if it is interrupted, which it can be while it scores.
        """
        config, steps = self.config, self._other.steps()
        encoded, mask = self._encoding.encode(steps.observations), self._encoding.mask(steps.observations)
        actions = self._scored_actions(steps)
        observations = _normalised(self._acting, encoded)
        log_probs, values = self._scores(self._acting, observations, mask, actions, should_stop)
        older = steps.versions < self.policy_version
        if older.any():
            others = self._scores(self._previous, _normalised(self._previous, encoded), mask, actions, should_stop)
            log_probs, values = (np.where(older, *pair) for pair in zip(others, (log_probs, values), strict=True))
        last = _normalised(self._acting, self._encoding.encode(steps.last_observations))
        _, last_values = self._scores(self._acting, last, None, None, should_stop)
        rewards = None
        if self._reward_scale is not None:
            self._reward_scale.publish()
            rewards = self._reward_scale.apply(steps.rewards)
        advantages, returns = steps.advantages(
            values, last_values, gamma=config.gamma, gae_lambda=config.gae_lambda, rewards=rewards
        )
        if self._moments is not None:
            self._moments.add(encoded)
        columns = {
            "observations": observations,
            "mask": mask,
            "actions": actions,
            "numbers": np.stack([log_probs, values, advantages, returns], axis=1),
        }
        seed = int(self._shuffling.integers(1 << 62))
        learning = _Learning(
            columns=placed(columns, self._learner.device),
            seed=seed,
            began_at=self.env_steps,
            explained_variance=_explained_variance(values, returns),
            order=self._order(seed),
        )
        self._learned = self._learned._replace(**placed(_untouched(), self._learner.device))
        self._other.clear()
        self._is_waiting = False
        return learning

    def _finish(self) -> None:
        """Act with what was learned; normalisation moves now, and at no other time."""
        params = jax.tree_util.tree_map(np.array, self._learned.params)
        if (reason := self._weights.diverged(params)) is not None:
            raise AgentError(f"PPO: {reason}: training has diverged; the last good checkpoint is kept")
        if self._moments is not None:
            self._moments.publish()
        self._previous, self._acting = self._acting, _Version(params, self._normaliser)
        self.policy_version += 1
        self._learning = None
        self._turn_over()
        self._publish()

    def _scores(
        self,
        version: _Version,
        observations: Array,
        mask: Array | None,
        actions: Array | None,
        should_stop: ShouldStop = never,
    ) -> tuple[Array, Array]:
        """Log-probabilities and values of rows, so many at a time; without actions only the values mean anything."""
        rows = len(observations)
        most = min(_MOST_IMAGES_SCORED if self._encoding.image else _MOST_SCORED, self.config.rollout_steps)
        few = most if self._encoding.image else min(_FEW_SCORED, most)
        zeros = self._zero_columns(rows)
        columns = (
            observations,
            zeros["mask"] if mask is None else mask,
            zeros["actions"] if actions is None else actions,
        )
        params = self._there(version.params)
        pieces: list[tuple[Array, Array]] = []
        for start in range(0, rows, most):
            if should_stop():
                raise Interrupted("stopped before the first update of a rollout")
            size = few if rows - start <= few else most
            piece = each_array(columns, lambda column: padded(column[start : start + size], size))  # noqa: B023
            log_probs, _, values = self._score(params, *self._there(piece))
            pieces.append((np.asarray(log_probs), np.asarray(values)))
        log_probs, values = (np.concatenate(parts)[:rows] for parts in zip(*pieces, strict=True))
        return log_probs, values

    def _there(self, arrays: Any) -> Any:
        """Arrays for a compiled function: where none is named, it moves them to its device, quicker than JAX would."""
        device = self._learner.device
        return arrays if device is None else jax.device_put(arrays, device)

    def _scored_actions(self, steps: Steps) -> Array:
        """Actions as a row of numbers each; discrete ones counted from 0."""
        flat = steps.actions.reshape(len(steps.actions), -1)
        if self._head.kind == "gaussian":
            return flat.astype(np.float32)
        return (flat - np.array(self._head.starts)).astype(np.int32)

    def _order(self, seed: int) -> Array:
        """The rows of every minibatch: in each epoch all rows once, shuffled."""
        rng, rows = np.random.default_rng(seed), self.config.rollout_steps
        epochs = [np.append(rng.permutation(rows), rows)[self._minibatches] for _ in range(self.config.epochs)]
        return np.concatenate(epochs).astype(np.int32).ravel()

    def _settings_at(self, env_steps: int) -> dict[str, float]:
        """What schedules have come to."""
        config = self.config
        return {
            "learning_rate": value_at(config.learning_rate, env_steps),
            "clip": value_at(config.clip, env_steps),
            "entropy_coef": value_at(config.entropy_coef, env_steps),
        }

    def _zero_columns(self, rows: int) -> dict[str, Any]:
        """A rollout of so many rows, of zeros."""
        encoding, head = self._encoding, self._head
        is_continuous = head.kind == "gaussian"
        size = head.low.size if is_continuous else len(head.counts)
        return {
            "observations": np.zeros((rows, *encoding.shape), np.uint8 if encoding.is_bytes else np.float32),
            "mask": np.zeros((rows, encoding.mask_size), np.bool_) if encoding.mask_size else None,
            "actions": np.zeros((rows, size), np.float32 if is_continuous else np.int32),
            "numbers": np.zeros((rows, 4), np.float32),
        }

    @property
    def _normaliser(self) -> Normaliser | None:
        return None if self._moments is None else self._moments.published

    def _publish(self) -> None:
        self._actor.use(self._acting.params, self._acting.normaliser)
        if self._head.kind == "gaussian":
            log_std = self._weights.views(self._acting.params).log_std
            self._head = msgspec.structs.replace(self._head, scale=np.exp(cast("Array", log_std)))
        self._policy = None

    # Reporting

    def episode_extras(self) -> Mapping[str, float]:
        """The mean loss since an episode last started."""
        loss = self._losses.mean()
        return {} if loss is None else {"loss": loss}

    def on_episode_start(self) -> None:
        """Start counting anew."""
        self._losses.clear()

    # Going on later

    def state(self) -> State:
        """Everything."""
        moments, scale, learning = self._moments, self._reward_scale, self._learning
        return {
            "algorithm": _ALGORITHM,
            "weights": self._version_state(self._acting),
            "previous": self._version_state(self._previous),
            "optimiser": tree_state(self._learned.optimiser),
            "moments": None if moments is None else moments.state(),
            "reward_scale": None if scale is None else scale.state(),
            "rollout": self._rollout.state(),
            "waiting": self._other.state() if self._is_waiting else None,
            "learning": None if learning is None else self._learning_state(learning),
            "chosen_by": [list(pair) for pair in sorted(self._chosen_by.items())],
            "env_steps": self.env_steps,
            "updates": self.updates,
            "policy_version": self.policy_version,
            "stale_steps": self.stale_steps,
            "losses": self._losses.state(),
            "exploring": generator_state(self._exploring),
            "shuffling": generator_state(self._shuffling),
            **({"unreported": self._unreported_table()} if self._unreported else {}),
        }

    def _unreported_table(self) -> Array:
        rows = [row for outcome in self._unreported for row in outcome.table]
        return np.array(rows, np.float32).reshape(-1, len(self._learner.metrics))

    def _version_state(self, version: _Version) -> State:
        normaliser = version.normaliser
        return {
            "network": self._weights.state(version.params),
            "normaliser": None if normaliser is None else {"mean": normaliser.mean, "variance": normaliser.variance},
        }

    def _learning_state(self, learning: _Learning) -> State:
        return {
            "network": self._weights.state(self._learned.params),
            "columns": tree_state(learning.columns),
            "seed": learning.seed,
            "began_at": learning.began_at,
            "explained_variance": learning.explained_variance,
            "made": learning.made,
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Go on from there."""
        if state.get("algorithm") != _ALGORITHM:
            raise StateError(f"the state is of {state.get('algorithm')!r:.40}, not of {_ALGORITHM!r}")
        counts = {name: saved_count(state, name) for name in ("env_steps", "updates", "policy_version", "stale_steps")}
        acting = self._version_from_state(state.get("weights"), "the weights")
        previous = self._version_from_state(state.get("previous"), "the previous weights")
        optimiser = tree_from_state(self._learned.optimiser, state.get("optimiser"), "optimiser")
        moments, scale = self._moments, self._reward_scale
        if moments is not None:
            moments = moments.loaded(state.get("moments"), state["weights"]["normaliser"])
        if scale is not None:
            scale = scale.loaded(state.get("reward_scale"))
        elif state.get("reward_scale") is not None:
            raise StateError("the state has a normaliser of rewards, which the agent has not")
        rollout, waiting = (self._rollout_from_state(state.get(name), name) for name in ("rollout", "waiting"))
        params, learning = acting.params, None
        if state.get("learning") is not None:
            params, learning = self._learning_from_state(state["learning"])
        is_full = waiting is not None and len(waiting) == self.config.rollout_steps
        if rollout is None or (waiting is not None and (learning is not None or not is_full)):
            raise StateError("not the rollouts of an agent that waits for one to be full, or learns from it")
        try:
            chosen_by = dict(msgspec.convert(state.get("chosen_by"), list[tuple[int, int]]))
        except msgspec.ValidationError as error:
            raise StateError(f"not the versions of open actions: {error}") from None
        losses = LossMean.checked(state.get("losses"))
        unreported = self._unreported_from_state(state.get("unreported"))
        exploring, shuffling = (generator_from_state(state.get(name) or {}) for name in ("exploring", "shuffling"))

        self.env_steps, self.updates, self.policy_version, self.stale_steps = counts.values()
        self._acting, self._previous = acting, previous
        made = 0 if learning is None else learning.made
        self._learned = placed(Learned(params, optimiser, np.int32(made), np.False_), self._learner.device)
        self._moments, self._reward_scale = moments, scale
        self._rollout, self._other = rollout, waiting or Rollout(self.observation_space, self.action_space)
        self._is_waiting, self._learning = waiting is not None, learning
        self._chosen_by = chosen_by
        self._losses.load(losses)
        self._unreported = unreported
        self._exploring, self._shuffling = exploring, shuffling
        self._publish()

    def take_over(self, state: State, *, with_optimiser: bool = False) -> None:
        """Begin with what another agent has learned: its weights and its normalisation.

        `with_optimiser` takes over the optimiser and the counters too.
        """
        names = {"algorithm", "weights", "previous", "moments", "reward_scale"}
        if with_optimiser:
            names |= {"optimiser", "env_steps", "updates"}
        self.load_state({**self.state(), **{name: state[name] for name in names if name in state}})

    def load_weights(self, weights: State) -> None:
        """Act, and go on learning, with the weights of another agent's state, and nothing else of it.

        What was collected so far is forgotten.
        """
        version = self._version_from_state(weights, "the weights")
        if self._moments is not None:
            self._moments.load_weights(weights["normaliser"])
        self._previous, self._acting = self._acting, version
        self.policy_version += 1
        self._learned = placed(self._learned._replace(params=version.params), self._learner.device)
        for rollout in (self._rollout, self._other):
            rollout.clear()
        self._is_waiting, self._learning, self._unreported = False, None, []
        self._publish()

    def _version_from_state(self, state: Any, what: str) -> _Version:
        saved: State = state if isinstance(state, dict) else {}
        params, normaliser = self._weights.from_state(saved.get("network"), what), saved.get("normaliser")
        if self._moments is not None:
            return _Version(params, self._moments.normaliser(normaliser))
        if normaliser is not None:
            raise StateError(f"{what} are for normalised observations: set normalise_observations")
        return _Version(params, None)

    def _rollout_from_state(self, state: Any, what: str) -> Rollout | None:
        if state is None:
            return None
        rollout, most = Rollout(self.observation_space, self.action_space), self.config.rollout_steps
        rollout.load_state(state)
        if len(rollout) > most:
            raise StateError(f"the {what} has {len(rollout)} steps, more than rollout_steps, {most}")
        return rollout

    def _learning_from_state(self, state: Any) -> tuple[Array, _Learning]:
        saved: State = state if isinstance(state, dict) else {}
        seed, began_at, made = (saved_count(saved, name) for name in ("seed", "began_at", "made"))
        most, explained = self._updates_each, saved.get("explained_variance")
        if made >= most or not isinstance(explained, float):
            raise StateError(f"{made} of {most} updates were made on a rollout that explained {explained!r:.40}")
        columns = tree_from_state(self._zero_columns(self.config.rollout_steps), saved.get("columns"), "rollout")
        learning = _Learning(placed(columns, self._learner.device), seed, began_at, explained, self._order(seed), made)
        return self._weights.from_state(saved.get("network"), "the weights being learned"), learning

    def _unreported_from_state(self, table: Any) -> list[Outcome]:
        if table is None:
            return []
        width = len(self._learner.metrics)
        if not isinstance(table, np.ndarray) or table.ndim != 2 or table.shape[1] != width or table.dtype != np.float32:
            raise StateError(f"not the metrics of updates, {width} numbers each: {table!r:.40}")
        return [Outcome(cast("Any", table), None, len(table))]


def _untouched() -> dict[str, Any]:
    """What counts the updates on a rollout, before the first."""
    return {"made": np.int32(0), "is_over": np.False_}


def _inputs(columns: dict[str, Any], settings: dict[str, float], device: Any) -> dict[str, Any]:
    """What an update takes beside a minibatch; arrays, so that a schedule compiles nothing."""
    return {"rollout": columns, **{name: placed_number(value, device) for name, value in settings.items()}}


def _minibatches(config: PPOConfig) -> Array:
    """Which places of a shuffled rollout make up each minibatch; one past the last where there is nothing."""
    rows = config.rollout_steps
    parts = np.array_split(np.arange(rows), math.ceil(rows / config.minibatch_size))
    table = np.full((len(parts), len(parts[0])), rows)
    for line, part in zip(table, parts, strict=True):
        line[: len(part)] = part
    return table


def _normalised(version: _Version, encoded: Array) -> Array:
    return encoded if version.normaliser is None else version.normaliser.apply(encoded)


def _explained_variance(values: Array, returns: Array) -> float:
    """How much of what returns differ by was foreseen: at most 1, and 0 if they do not differ."""
    spread = float(np.var(returns))
    return 1 - float(np.var(returns - values)) / spread if spread > 0 else 0.0


def _head(space: Any) -> ActionHead:
    shape: list[int] = list(getattr(space, "shape", None) or ())
    match type(space).__name__:
        case "Discrete" | "MultiDiscrete":
            counts, starts = discrete_values(space)
        case "MultiBinary":
            counts, starts = [2] * math.prod(shape), [0] * math.prod(shape)
        case "Box" if np.dtype(space.dtype).kind == "f":
            low, high = _inside(space.low), -_inside(-space.high)
            return ActionHead("gaussian", np.dtype(space.dtype).str, shape, low=low, high=high)
        case _:
            raise ConfigError(
                f"action_space is {space!r}: PPO needs Discrete, MultiDiscrete, MultiBinary, or a Box of floats"
            )
    return ActionHead("categorical", np.dtype(space.dtype).str, shape, counts, starts)


def _inside(low: Array) -> Array:
    """Lower bounds in single precision, none of them below what it was."""
    with np.errstate(over="ignore"):
        single = low.ravel().astype(np.float32)
    return np.where(single < low.ravel(), np.nextafter(single, np.float32(np.inf)), single)

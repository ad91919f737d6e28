"""Deep Q-learning, and every part of Rainbow as a setting.

The value of an action is what it earns now and what the best action earns from there on. A network learns it from
remembered transitions, against the values of an older copy of itself, the target:

    q(s, a)  <-  r + discount * target(s', argmax q(s', .))

Papers: Mnih 2015 (DQN), van Hasselt 2016 (double), Wang 2016 (dueling), Schaul 2016 (prioritised), Bellemare 2017
(distributional), Fortunato 2018 (noisy), Hessel 2018 (Rainbow).
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import optax

from rekindle.agent import Metrics, State, StreamSlots
from rekindle.agents.acting import Actor, CompiledPolicy, device_of, zero_observations
from rekindle.agents.counting import LossMean, UpdateRatio, saved_count
from rekindle.agents.dispatch import Dispatch, Outcome
from rekindle.agents.networks import (
    Activation,
    Dense,
    Module,
    NoisyDense,
    Sequential,
    convolutions,
    feature_size,
    hidden_layers,
    layers_of,
    noise_size,
    split_noise,
    user_network,
)
from rekindle.agents.normalisation import RunningMoments, moments_of, normalise
from rekindle.agents.settings import (
    Linear,
    Setting,
    check_choice,
    check_flag,
    check_number,
    check_sizes,
    check_whole,
    make_config,
    network_setting,
    value_at,
)
from rekindle.agents.trees import placed, tree_from_state, tree_state
from rekindle.agents.weights import Weights
from rekindle.encoding import Encoding
from rekindle.errors import AgentError, ConfigError, InputError, StateError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.policy import ActionHead, Layer, NetworkPolicy, draw_noise
from rekindle.replay import Batch, Memory, PrioritizedMemory
from rekindle.rng import generator_from_state, generator_state

__all__ = ["DQN", "DQNConfig", "Learned", "Learner", "QNetwork", "project", "rainbow"]

_ALGORITHM = "dqn"
_EXPLORE = ActMode.EXPLORE
_MOST_PRIORITISED = 8
"""Updates that may use the same priorities."""


class DQNConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `DQN` agent."""

    learning_rate: Setting = 1e-4
    """Adam's step size, above 0; or a schedule over env steps."""
    gamma: float = 0.99
    """What a reward is worth one step earlier, from 0 to 1."""
    capacity: int = 100_000
    """Rows of memory: one for each transition, and one more for each episode."""
    warmup_steps: int = 10_000
    """Env steps before the first update."""
    batch_size: int = 32
    """Transitions in an update."""
    update_every: int = 1
    """Env steps from one round of updates to the next."""
    updates_each: int = 1
    """Updates in a round."""
    target_update_every: int = 1_000
    """Updates between copies of the network to the target."""
    tau: float | None = None
    """Instead of copies: how far the target moves towards the network in each update, above 0 and at most 1."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of the hidden layers; None for (128, 128), or (512,) after the convolutions on images."""
    network: str | None = None
    """A network of your own from an observation to features, as `package.module:Name`."""
    double: bool = True
    """Let the network choose the next action and the target value it, so that values are not overestimated."""
    dueling: bool = False
    """Learn the value of a state and the advantages of actions apart."""
    n_step: int = 1
    """Steps of reward in a target before a value stands for the rest."""
    atoms: int = 1
    """1 learns the mean return; more learn its distribution over that many values (C51)."""
    v_min: float = -10.0
    """The least return that atoms stand for, after `reward_scale`."""
    v_max: float = 10.0
    """The largest return that atoms stand for, after `reward_scale`."""
    noisy: bool = False
    """Explore by noise on the weights of the dense layers, which learns how much of it there should be."""
    noisy_sigma: float = 0.5
    """How much noise there is at first."""
    prioritised: bool = False
    """Sample transitions that surprised more often."""
    priority_alpha: float = 0.6
    """How much more often, from 0 (not at all) to 1."""
    priority_beta: Setting = 0.4
    """How far that is corrected for in the loss, from 0 (not at all) to 1."""
    loss: Literal["huber", "mse"] = "huber"
    """How errors count; with atoms it is the cross entropy."""
    exploration: Literal["epsilon", "softmax"] = "epsilon"
    """A random action now and then, or actions by how good they seem."""
    epsilon_start: float = 1.0
    """How likely a random action is at first."""
    epsilon_end: float = 0.05
    """How likely a random action is from `epsilon_steps` on."""
    epsilon_steps: int = 50_000
    """Env steps over which epsilon moves from start to end, in a straight line."""
    temperature: Setting = 1.0
    """With softmax: values are divided by it; 0 takes the best action."""
    max_grad_norm: float | None = 10.0
    """Scale gradients down to this norm."""
    adam_eps: float = 1e-8
    """Adam's epsilon, above 0."""
    gradient_accumulation: int = 1
    """Updates whose gradients are averaged into one step of the optimiser."""
    reward_scale: float = 1.0
    """What rewards are multiplied with before learning; logged returns are not."""
    normalise_observations: bool = False
    """Subtract the mean of the observations seen and divide by their standard deviation."""
    observation_clip: float = 10.0
    """The largest size of a normalised observation."""
    frame_stack: int | None = None
    """Say that observations are so many frames, each the older ones and a new one: memory then holds each once."""
    acting_device: str | None = None
    """Where to act, when not with numpy: a platform such as `cpu` or `gpu:1`; None for JAX's own choice."""
    learning_device: str | None = None
    """Where to learn."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        for name in ("gamma", "epsilon_start", "epsilon_end", "priority_alpha", "priority_beta"):
            check_number(name, getattr(self, name), most=1.0)
        for name in ("noisy_sigma", "adam_eps", "observation_clip"):
            check_number(name, getattr(self, name), above=True)
        check_number("learning_rate", self.learning_rate, above=not isinstance(self.learning_rate, Linear))
        check_number("temperature", self.temperature)
        for name, most in (("tau", 1.0), ("max_grad_norm", math.inf)):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), most=most, above=True)
        for name in ("v_min", "v_max", "reward_scale"):
            check_number(name, getattr(self, name), least=-math.inf)
        for name in ("warmup_steps", "epsilon_steps"):
            check_whole(name, getattr(self, name), 0)
        for name in (
            "batch_size",
            "update_every",
            "updates_each",
            "target_update_every",
            "n_step",
            "atoms",
            "gradient_accumulation",
        ):
            check_whole(name, getattr(self, name), 1)
        check_whole("capacity", self.capacity, 2)
        if self.frame_stack is not None:
            check_whole("frame_stack", self.frame_stack, 1)
        for name in ("double", "dueling", "noisy", "prioritised", "normalise_observations"):
            check_flag(name, getattr(self, name))
        check_choice("loss", self.loss, ("huber", "mse"))
        check_choice("exploration", self.exploration, ("epsilon", "softmax"))
        check_sizes("hidden_sizes", self.hidden_sizes)
        if self.v_min >= self.v_max:
            raise ConfigError(f"v_max is {self.v_max!r}: use a number above v_min, {self.v_min!r}")
        if self.reward_scale == 0:
            raise ConfigError(f"reward_scale is {self.reward_scale!r}: use a number other than 0")

    def explores(self, env_steps: int) -> float:
        """How much exploration there is after so many env steps: epsilon, or the temperature of softmax."""
        if self.exploration == "softmax":
            return value_at(self.temperature, env_steps)
        if env_steps >= self.epsilon_steps:
            return self.epsilon_end
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * env_steps / self.epsilon_steps


def rainbow(**settings: Any) -> dict[str, Any]:
    """Settings with every part of Rainbow on, and those given: `DQN(..., **rainbow(v_min=0, v_max=100))`."""
    return {
        "double": True,
        "dueling": True,
        "n_step": 3,
        "prioritised": True,
        "priority_alpha": 0.5,
        "priority_beta": Linear(0.4, 1.0, 1_000_000),
        "atoms": 51,
        "noisy": True,
        "epsilon_start": 0.0,
        "epsilon_end": 0.0,
        "learning_rate": 6.25e-5,
        "adam_eps": 1.5e-4,
        "update_every": 4,
        "target_update_every": 2_000,
        "warmup_steps": 20_000,
        **settings,
    }


# The network


class QNetwork(eqx.Module):
    """Features of an observation, and from them the value of each action, or the logits of its atoms."""

    body: Module
    value: Module | None
    """With dueling: the value of the state."""
    advantage: Module
    """The value of each action, or with dueling how it differs from that of the state."""
    atoms: int = eqx.field(static=True)
    support: tuple[float, ...] = eqx.field(static=True)
    """The returns that the atoms stand for."""

    def __init__(
        self, config: DQNConfig, encoding: Encoding, actions: int, network: Any, rng: np.random.Generator
    ) -> None:
        """The last hidden layer belongs to the streams of value and advantage, as in the papers."""
        sizes = config.hidden_sizes or ((512,) if encoding.image else (128, 128))
        if network is not None:
            self.body, sizes = user_network(network, encoding, rng=rng), ()
        elif encoding.image:
            self.body = Sequential(convolutions(encoding, rng=rng))
        else:
            self.body, sizes = Sequential(hidden_layers(encoding.shape[0], sizes[:-1], rng=rng)), sizes[-1:]
        features = feature_size(self.body, encoding)
        self.atoms = config.atoms
        self.support = tuple(np.linspace(config.v_min, config.v_max, config.atoms).tolist())
        self.value = _stream(config, features, (*sizes, config.atoms), rng) if config.dueling else None
        self.advantage = _stream(config, features, (*sizes, actions * config.atoms), rng)

    def __call__(self, x: jax.Array, noise: jax.Array | None = None) -> jax.Array:
        """(actions, atoms) for one observation."""
        body, value, advantage = split_noise(noise, (self.body, self.value, self.advantage))
        features = self.body(x, body)
        output = self.advantage(features, advantage).reshape(-1, self.atoms)
        if self.value is not None:
            output = self.value(features, value) + output - output.mean(axis=0)
        return output

    @property
    def noise_size(self) -> int:
        """How many random numbers make it noisy."""
        return sum(map(noise_size, (self.body, self.value, self.advantage)))

    def means(self, output: jax.Array) -> jax.Array:
        """The value of each action, from the output."""
        if self.atoms == 1:
            return output[..., 0]
        return jax.nn.softmax(output) @ jnp.array(self.support)

    def layers(self) -> list[Layer]:
        """As data: from an encoded observation to the values of the actions."""
        body, advantage = layers_of(self.body), layers_of(self.advantage)
        if self.value is not None:
            advantage = [Layer("dueling", value=layers_of(self.value), advantage=advantage, atoms=self.atoms)]
        if self.atoms == 1:
            return [*body, *advantage]
        support = {"support": np.array(self.support, np.float32)}
        return [*body, *advantage, Layer("expectation", support, atoms=self.atoms)]


def _stream(config: DQNConfig, features: int, sizes: Sequence[int], rng: np.random.Generator) -> Sequential:
    """Hidden layers and an output, all of them noisy or none."""
    modules: list[Any] = []
    for size in sizes:
        if config.noisy:
            modules.append(NoisyDense(features, size, rng=rng, sigma=config.noisy_sigma))
        else:
            modules.append(Dense(features, size, rng=rng))
        modules.append(Activation("relu"))
        features = size
    return Sequential(modules[:-1])


# The update


class Learned(NamedTuple):
    """Everything that an update changes."""

    params: Any
    """The weights of the network, in one vector."""
    target: Any
    """Those of the target."""
    optimiser: Any
    updates: Any


def project(probabilities: jax.Array, rewards: jax.Array, discounts: jax.Array, support: jax.Array) -> jax.Array:
    """The distribution of `reward + discount * return`, put back on the atoms of the support.

    An atom's mass goes to the two atoms between which it lands, more to the nearer; one that lands on an atom keeps
    its mass whole, and one beyond the ends goes to the end.
    """
    spacing = (support[-1] - support[0]) / (len(support) - 1)
    landed = jnp.clip(rewards[:, None] + discounts[:, None] * support, support[0], support[-1])
    places = (landed - support[0]) / spacing
    shares = jnp.clip(1 - jnp.abs(places[:, :, None] - jnp.arange(len(support))), 0, 1)
    return jnp.einsum("bj,bji->bi", probabilities, shares)


class Learner:
    """One update, as a pure function of state and batch."""

    def __init__(
        self, config: DQNConfig, encoding: Encoding, weights: Weights[QNetwork], *, first_action: int = 0
    ) -> None:
        self._config, self._encoding, self._weights = config, encoding, weights
        self._first_action = first_action
        self.device = device_of(config.learning_device, "learning_device")
        clip = optax.identity() if config.max_grad_norm is None else optax.clip_by_global_norm(config.max_grad_norm)
        optimiser = optax.chain(clip, optax.scale_by_adam(eps=config.adam_eps))
        if config.gradient_accumulation > 1:
            optimiser = optax.MultiSteps(optimiser, config.gradient_accumulation).gradient_transformation()
        self._optimiser = optimiser
        saturation = ("saturation",) if config.atoms > 1 else ()
        self.metrics = ("loss", "q_mean", "grad_norm", "target_lag", *saturation)

    def start(self) -> Learned:
        """The state before the first update."""
        params = self._weights.initial
        return placed(Learned(params, params, jax.jit(self._optimiser.init)(params), np.int32(0)), self.device)

    def step(self, state: Learned, batch: Any, inputs: Any) -> tuple[Learned, dict[str, jax.Array], jax.Array | None]:
        """One update."""
        config = self._config
        (loss, (metrics, surprise)), gradient = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, state.target, batch, inputs
        )
        step, optimiser = self._optimiser.update(gradient, state.optimiser, state.params)
        params = state.params - inputs["learning_rate"] * step
        updates = state.updates + 1
        if config.tau is None:
            target = jnp.where(updates % config.target_update_every == 0, params, state.target)
        else:
            target = state.target + config.tau * (params - state.target)
        lag = jnp.linalg.norm(params - target)
        metrics = {"loss": loss, "grad_norm": jnp.linalg.norm(gradient), "target_lag": lag, **metrics}
        return Learned(params, target, optimiser, updates), metrics, surprise if config.prioritised else None

    def loss(
        self, params: jax.Array, target_params: jax.Array, batch: Any, inputs: Any
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """The loss of a batch, and beside it metrics and how much each transition surprised."""
        config = self._config
        network, target = self._weights.network(params), self._weights.network(target_params)
        observations, next_observations = (
            normalise(self._encoding.encode(batch[name], jnp), inputs["normaliser"])
            for name in ("observations", "next_observations")
        )
        rewards = batch["rewards"] * config.reward_scale
        # One sample of noise for a batch, and another for the target.
        noise, target_noise = (None, None) if batch["noise"] is None else batch["noise"]

        # What the next state is worth: the action is the network's choice, its value the target's.
        future = jax.vmap(target, (0, None))(next_observations, target_noise)
        choices = jax.vmap(network, (0, None))(next_observations, noise) if config.double else future
        ranks = network.means(choices)
        mask = self._encoding.mask(batch["next_observations"], jnp)
        best = jnp.argmax(ranks if mask is None else jnp.where(mask, ranks, -jnp.inf), axis=1)
        future = _pick(future, best)

        predicted = _pick(jax.vmap(network, (0, None))(observations, noise), batch["actions"] - self._first_action)
        metrics = {"q_mean": network.means(predicted).mean()}
        if config.atoms == 1:
            values = jax.lax.stop_gradient(rewards + batch["discounts"] * future[:, 0])
            errors = predicted[:, 0] - values
            losses = optax.huber_loss(errors) if config.loss == "huber" else jnp.square(errors)
            surprise = jnp.abs(errors)
        else:
            support = jnp.array(network.support)
            distribution = jax.nn.softmax(future)
            goal = jax.lax.stop_gradient(project(distribution, rewards, batch["discounts"], support))
            losses = -(goal * jax.nn.log_softmax(predicted)).sum(axis=1)
            surprise = losses + jax.scipy.special.xlogy(goal, goal).sum(axis=1)  # the Kullback-Leibler divergence
            landed = rewards[:, None] + batch["discounts"][:, None] * support
            beyond = (landed < support[0]) | (landed > support[-1])
            metrics["saturation"] = (distribution * beyond).sum(axis=1).mean()
        if batch["weights"] is not None:
            losses = losses * batch["weights"]
        return losses.mean(), (metrics, surprise)


def _pick(outputs: jax.Array, actions: jax.Array) -> jax.Array:
    """(rows, actions, atoms) to (rows, atoms)."""
    return jnp.take_along_axis(outputs, actions[:, None, None], axis=1)[:, 0]


# The agent


class DQN:
    """Learns the values of discrete actions from remembered transitions.

    The settings are the fields of `DQNConfig`: `DQN(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or what makes one from the shape of an encoded observation and `key=`.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        check_whole("seed", seed, 0)
        self.config = config = make_config(DQNConfig, {**settings, "network": network_setting(network)})
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = 0
        """Transitions observed so far."""
        self.updates = 0
        """Gradient steps made so far."""
        self._head = _head(action_space, config)
        self._encoding = encoding = _encoding(observation_space, config, self._head.counts[0])
        self._ratio = UpdateRatio(
            warmup_steps=config.warmup_steps, update_every=config.update_every, updates_each=config.updates_each
        )
        self._losses = LossMean()
        self._moments = (
            RunningMoments(encoding.shape[0], clip=config.observation_clip) if config.normalise_observations else None
        )
        memory = Memory(config.capacity, observation_space, action_space, frame_stack=config.frame_stack)
        self._memory = PrioritizedMemory(memory, alpha=config.priority_alpha) if config.prioritised else memory
        # Generators of their own, so that how much is learned does not change which actions are tried.
        initial, self._exploring, self._sampling = np.random.default_rng(seed).spawn(3)
        network = QNetwork(config, encoding, self._head.counts[0], network, initial)
        self._noise_size = network.noise_size
        self._weights = Weights(network)
        self._learner = Learner(config, encoding, self._weights, first_action=self._head.starts[0])
        self._learned = self._learner.start()
        self._dispatch = Dispatch(
            self._learner.step,
            self._learner.metrics,
            example=self._example(),
            rows=config.batch_size if config.prioritised else 0,
            most=_MOST_PRIORITISED if config.prioritised else None,
        )
        self._actor = Actor(
            self._weights,
            encoding,
            lambda network, x, noise: network.means(network(x, noise)),
            noise_size=self._noise_size,
            device=device_of(config.acting_device, "acting_device"),
        )
        self._publish()

    # Acting

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        """An action for each row."""
        rng = self._exploring if mode is _EXPLORE else None
        output = self._actor.output(observations, rng)
        return self._head.choose(output, self._encoding.mask(observations), rng, self.exploration)

    @property
    def exploration(self) -> float:
        """How much exploration there is now: epsilon, or the temperature of softmax."""
        return self.config.explores(self.env_steps)

    def policy(self) -> NetworkPolicy | CompiledPolicy:
        """How to act now; later updates do not change it."""
        return self._actor.policy(msgspec.structs.replace(self._head, exploration=self.exploration), _ALGORITHM)

    # Remembering

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Remember transitions."""
        self._memory.append(transitions, streams)
        if self._moments is not None:
            self._moments.add(self._encoding.encode(transitions.observations))
        self.env_steps += len(transitions)

    def cut(self, streams: StreamSlots) -> None:
        """Link nothing to the last transitions of these streams."""
        self._memory.cut(streams)

    def replay(self) -> Memory | PrioritizedMemory:
        """The memory."""
        return self._memory

    # Learning

    def updates_due(self) -> int:
        """How many updates are owed: none while warming up."""
        return self._ratio.due(self.env_steps) if len(self._memory) else 0

    def skip_updates(self, n: int) -> None:
        """Owe `n` updates less."""
        self._ratio.settle(n)

    def update(self, n: int) -> Metrics:
        """Make `n` updates, as few dispatches as there can be."""
        if n < 1 or not len(self._memory):
            raise InputError(f"update({n}): there are {len(self._memory)} transitions to learn from")
        if self._moments is not None:
            self._moments.publish()
        inputs = self._inputs()
        outcomes: list[Outcome] = []
        for count in self._dispatch.split(n):
            rows, batches = self._draw(count)
            self._learned, outcome = self._dispatch(self._learned, batches, count, inputs)
            self._reprioritise(rows, outcome)
            outcomes.append(outcome)
        self._publish()
        self._ratio.settle(n)
        self.updates += n
        metrics = self._dispatch.metrics(outcomes)
        self._losses.add(metrics["loss"])
        return {**metrics, **self._settings_now()}

    def warm_up(self) -> None:
        """Compile everything that acting and learning may need."""
        self._learned = self._dispatch.warm_up(self._learned, self._inputs())
        self._publish()
        self._actor.warm_up(self.observation_space)

    def _inputs(self) -> dict[str, Any]:
        """What an update takes beside a batch; arrays, so that a schedule compiles nothing."""
        return {
            "learning_rate": np.float32(value_at(self.config.learning_rate, self.env_steps)),
            "normaliser": moments_of(None if self._moments is None else self._moments.published),
        }

    def _draw(self, count: int) -> tuple[Array, dict[str, Any]]:
        """So many batches in one go: the rows of the memory they are from, and what updates take of them."""
        config, memory, rng, rows = self.config, self._memory, self._sampling, count * self.config.batch_size
        weights = None
        if isinstance(memory, Memory):
            batch = memory.sample(rng, rows, n_step=config.n_step, gamma=config.gamma)
        else:
            beta = value_at(config.priority_beta, self.env_steps)
            batch, weights = memory.sample(
                rng, rows, beta=beta, batches=count, n_step=config.n_step, gamma=config.gamma
            )
        return batch.rows, _columns(batch, weights, draw_noise(rng, 2 * count, self._noise_size))

    def _example(self) -> dict[str, Any]:
        """A batch like any other, of zeros."""
        rows = self.config.batch_size
        observations, numbers = zero_observations(self.observation_space, rows), np.zeros(rows, np.float32)
        batch = Batch(observations, np.zeros(rows, np.int64), numbers, observations, numbers, np.zeros(rows, np.int64))
        weights = numbers if self.config.prioritised else None
        noise = np.zeros((2, self._noise_size), np.float32) if self._noise_size else None
        return _columns(batch, weights, noise)

    def _reprioritise(self, rows: Array, outcome: Outcome) -> None:
        if isinstance(self._memory, PrioritizedMemory):
            surprise = outcome.rows().ravel()
            if not np.isfinite(surprise).all():
                raise AgentError("the loss is not finite: training has diverged")
            self._memory.update(rows, surprise)

    def _settings_now(self) -> dict[str, float]:
        """What a schedule has come to."""
        now = {self.config.exploration: self.exploration}
        if self.config.prioritised:
            now["beta"] = value_at(self.config.priority_beta, self.env_steps)
        return now

    def _publish(self) -> None:
        self._actor.use(self._learned.params, None if self._moments is None else self._moments.published)

    # Reporting

    def episode_extras(self) -> Mapping[str, float]:
        """Epsilon (or temperature), and the mean loss since an episode last started."""
        loss = self._losses.mean()
        exploration = {self.config.exploration: self.exploration}
        return exploration if loss is None else {**exploration, "loss": loss}

    def on_episode_start(self) -> None:
        """Start counting anew."""
        self._losses.clear()

    # Going on later

    def state(self) -> State:
        """Everything but the rows of the memory."""
        learned, moments = self._learned, self._moments
        return {
            "algorithm": _ALGORITHM,
            "weights": {
                "network": self._weights.state(learned.params),
                "normaliser": None if moments is None else moments.weights(),
            },
            "target": self._weights.state(learned.target),
            "optimiser": tree_state(learned.optimiser),
            "moments": None if moments is None else moments.state(),
            "memory": self._memory.state(),
            "env_steps": self.env_steps,
            "updates": self.updates,
            "settled": self._ratio.settled,
            "losses": self._losses.state(),
            "exploring": generator_state(self._exploring),
            "sampling": generator_state(self._sampling),
        }

    def load_state(self, state: State) -> None:
        """Go on from there; until its rows are restored, the memory is empty."""
        if state.get("algorithm") != _ALGORITHM:
            raise StateError(f"the state is of {state.get('algorithm')!r:.40}, not of {_ALGORITHM!r}")
        weights: State = state.get("weights") or {}
        before = self._learned
        env_steps, updates, settled = (saved_count(state, name) for name in ("env_steps", "updates", "settled"))
        learned = Learned(
            params=self._weights.from_state(weights.get("network"), "the weights"),
            target=self._weights.from_state(state.get("target"), "the weights of the target"),
            optimiser=tree_from_state(before.optimiser, state.get("optimiser"), "optimiser"),
            updates=np.int32(updates),
        )
        losses = LossMean.checked(state.get("losses"))
        exploring, sampling = (generator_from_state(state.get(name) or {}) for name in ("exploring", "sampling"))
        moments = None
        if self._moments is not None:
            moments = self._moments.loaded(state.get("moments"), weights.get("normaliser"))
        elif state.get("moments") is not None:
            raise StateError("the state has a normaliser of observations, which the agent has not")
        self._memory.load_state(state.get("memory") or {})
        self._learned = placed(learned, self._learner.device)
        self._moments = moments
        self._exploring, self._sampling = exploring, sampling
        self.env_steps, self.updates, self._ratio.settled = env_steps, updates, settled
        self._losses.load(losses)
        self._publish()

    def load_weights(self, weights: State) -> None:
        """Act, and go on learning, with the weights of another agent's state, and nothing else of it."""
        params = self._weights.from_state(weights.get("network"), "the weights")
        if self._moments is not None:
            self._moments.load_weights(weights.get("normaliser"))
        elif weights.get("normaliser") is not None:
            raise StateError("the weights are for normalised observations: set normalise_observations")
        self._learned = placed(self._learned._replace(params=params, target=params), self._learner.device)
        self._publish()


def _columns(batch: Batch, weights: Array | None, noise: Array | None) -> dict[str, Any]:
    """What updates take; two samples of noise for each."""
    return {
        "observations": batch.observations,
        "actions": batch.actions,
        "rewards": batch.rewards,
        "next_observations": batch.next_observations,
        "discounts": batch.discounts,
        "weights": weights,
        "noise": noise,
    }


def _head(space: Any, config: DQNConfig) -> ActionHead:
    if not (hasattr(space, "n") and hasattr(space, "start") and getattr(space, "shape", None) == ()):
        raise ConfigError(f"action_space is {space!r}: DQN needs a Discrete space")
    kind = "greedy" if config.exploration == "epsilon" else "softmax"
    return ActionHead(kind, np.dtype(space.dtype).str, [], [int(space.n)], [int(space.start)])


def _encoding(space: Any, config: DQNConfig, actions: int) -> Encoding:
    encoding = Encoding.of(space)
    if encoding.mask_size not in (0, actions):
        raise ConfigError(f"the action_mask has {encoding.mask_size} numbers, but there are {actions} actions")
    if encoding.image and config.normalise_observations:
        raise ConfigError("normalise_observations is True: images are scaled to 0..1 and cannot be normalised")
    return encoding

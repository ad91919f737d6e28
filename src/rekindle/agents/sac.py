"""Soft actor-critic: a random policy that earns much and stays as random as it can.

Critics learn what an action is worth, when every later step also earns the entropy of the policy, times a temperature.
The least of two counts, as a single one would be taken in by its own errors. The actor learns to do what they value:

    q(s, a)      <-  r + discount * (least target q(s', a') - temperature * log p(a' | s')),    a' from the actor
    actor        <-  least q(s, a) - temperature * log p(a | s),    a from the actor
    temperature  <-  higher while the entropy is below `target_entropy`, lower while it is above

Papers: Haarnoja 2018 (SAC), Haarnoja 2018b (automatic temperature), Chen 2021 (REDQ: more than two critics).
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np

from rekindle.agents.acting import Actor, device_of
from rekindle.agents.continuous import (
    ActorNetwork,
    Critics,
    Seen,
    check_actor_critic,
    continuous_head,
    draw_pairs,
    followed,
    head_by_steps,
    in_turn,
    networks,
    seen,
)
from rekindle.agents.offpolicy import OffPolicyAgent, generators
from rekindle.agents.optimiser import optimised, optimiser_of
from rekindle.agents.settings import Linear, Setting, check_number, encoding_of, make_config, network_setting
from rekindle.agents.trees import placed
from rekindle.agents.weights import Parts, Weights, norm
from rekindle.errors import ConfigError
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding

__all__ = ["Learned", "Learner", "SAC", "SACConfig", "squashed_log_prob"]

_LEAST_LOG_STD, _MOST_LOG_STD = -20.0, 2.0


class SACConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a `SAC` agent."""

    learning_rate: Setting = 3e-4
    """Adam's step size for actor and critics, above 0; or a schedule over env steps."""
    gamma: float = 0.99
    """What a reward is worth one step earlier, from 0 to 1."""
    capacity: int = 1_000_000
    """Rows of memory: one for each transition, and one more for each episode."""
    warmup_steps: int = 10_000
    """Env steps before the first update; until then actions are tried anywhere in the bounds."""
    batch_size: int = 256
    """Transitions in an update."""
    update_every: int = 1
    """Env steps from one round of updates to the next."""
    updates_each: int = 1
    """Updates in a round."""
    tau: float = 0.005
    """How far the target moves towards the critics, above 0 and at most 1."""
    target_update_every: int = 1
    """Updates between such moves."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of the hidden layers of actor and critics; on images they come after the convolutions."""
    network: str | None = None
    """A network of your own from an observation to features, as `package.module:Name`; the hidden layers follow it."""
    critics: int = 2
    """How many critics; of more than two, a random pair makes a target, and the actor follows their mean."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    policy_delay: int = 1
    """Updates of the critics for one of the actor."""
    temperature: float | Literal["auto"] = "auto"
    """What entropy is worth, at least 0; or learn it."""
    initial_temperature: float = 1.0
    """With auto: where it starts, above 0."""
    temperature_learning_rate: Setting | None = None
    """With auto: Adam's step size for it, above 0; None for `learning_rate`."""
    target_entropy: float | None = None
    """With auto: the entropy to aim at, of actions from -1 to 1; None for minus their dimensions."""
    n_step: int = 1
    """Steps of reward in a target before a value stands for the rest."""
    prioritised: bool = False
    """Sample transitions that surprised more often."""
    priority_alpha: float = 0.6
    """How much more often, from 0 (not at all) to 1."""
    priority_beta: Setting = 0.4
    """How far that is corrected for in the loss, from 0 (not at all) to 1."""
    max_grad_norm: float | None = None
    """Scale gradients down to this norm."""
    adam_eps: float = 1e-8
    """Adam's epsilon, above 0."""
    gradient_accumulation: int = 1
    """Updates whose gradients are averaged into one step of an optimiser."""
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
        check_actor_critic(self)
        if isinstance(self.temperature, str) and self.temperature != "auto":
            raise ConfigError(f"temperature is {self.temperature!r}: use a number of at least 0, or 'auto'")
        if not isinstance(self.temperature, str):
            check_number("temperature", self.temperature)
        check_number("initial_temperature", self.initial_temperature, above=True)
        rate = self.temperature_learning_rate
        if rate is not None:
            check_number("temperature_learning_rate", rate, above=not isinstance(rate, Linear))
        if self.target_entropy is not None:
            check_number("target_entropy", self.target_entropy, least=-math.inf)


# The update


class Learned(NamedTuple):
    """Everything that an update changes."""

    actor: Any
    """The weights of the actor, in one vector."""
    critics: Any
    """Those of all critics."""
    target: Any
    """Those of their target."""
    log_temperature: Any
    actor_optimiser: Any
    critic_optimiser: Any
    temperature_optimiser: Any
    actor_loss: Any
    """That of the actor's last update."""
    updates: Any


def squashed_log_prob(before: jax.Array, noise: jax.Array, log_std: jax.Array) -> jax.Array:
    """The log density of actions `tanh(before)`, where `before` is a mean and `noise` standard deviations.

    The slope of tanh, 1 - tanh(x)^2, is written so that it is exact far out, where tanh is 1 to the last bit.
    """
    gaussian = -0.5 * jnp.square(noise) - log_std - 0.5 * math.log(2 * math.pi)
    log_slope = 2 * (math.log(2) - before - jax.nn.softplus(-2 * before))
    return (gaussian - log_slope).sum(axis=-1)


class Learner:
    """One update, as a pure function of state and batch."""

    algorithm = "sac"
    acting = ("actor",)
    metrics = (
        "loss",
        "critic_loss",
        "actor_loss",
        "q_mean",
        "entropy",
        "temperature",
        "grad_norm",
        "target_lag",
    )

    def __init__(
        self,
        config: SACConfig,
        encoding: Encoding,
        head: ActionHead,
        actor: Weights[ActorNetwork],
        critics: Weights[Critics],
    ) -> None:
        self._config, self._encoding, self._head = config, encoding, head
        self._actor, self._critics = actor, critics
        self._dimensions = head.low.size
        self.weights = {"actor": actor, "critics": critics, "target": critics}
        rate = config.temperature_learning_rate
        self.schedules = {
            "learning_rate": config.learning_rate,
            "temperature_learning_rate": config.learning_rate if rate is None else rate,
        }
        self.device = device_of(config.learning_device, "learning_device")
        self._optimiser = optimiser_of(config)
        self._target_entropy = -float(self._dimensions) if config.target_entropy is None else config.target_entropy

    def start(self) -> Learned:
        """The state before the first update."""
        actor, critics = self._actor.initial, self._critics.initial
        log_temperature = np.float32(math.log(self._config.initial_temperature))
        first = [jax.jit(self._optimiser.init)(params) for params in (actor, critics, log_temperature)]
        state = Learned(
            actor, critics, critics, log_temperature, first[0], first[1], first[2], np.float32(0), np.int32(0)
        )
        return placed(state, self.device)

    def noise(self, rng: np.random.Generator, count: int) -> dict[str, Any]:
        """For the actions of two policies, and a pair of critics for each update."""
        shape = (count * self._config.batch_size, self._dimensions)
        return {
            "next": rng.standard_normal(shape, np.float32),
            "now": rng.standard_normal(shape, np.float32),
            "pair": draw_pairs(rng, self._config.critics, count),
        }

    def step(self, state: Learned, batch: Any, inputs: Any) -> tuple[Learned, dict[str, jax.Array], jax.Array | None]:
        """One update: of the critics, and when it is its turn, of the actor and the temperature."""
        config = self._config
        batch = seen(batch, inputs, encoding=self._encoding, head=self._head, reward_scale=config.reward_scale)
        temperature = self.temperature(state)
        (critic_loss, (metrics, surprise)), gradient = jax.value_and_grad(self.critic_loss, has_aux=True)(
            state.critics, state, batch
        )
        critics, optimiser = optimised(
            self._optimiser, gradient, state.critic_optimiser, state.critics, inputs["learning_rate"]
        )
        state = state._replace(critics=critics, critic_optimiser=optimiser, updates=state.updates + 1)

        state = in_turn(config, state, state.updates, lambda: self._improve(state, batch, inputs))

        target = followed(config, state.target, critics, state.updates)
        metrics = {
            **metrics,
            "loss": critic_loss + state.actor_loss,
            "critic_loss": critic_loss,
            "actor_loss": state.actor_loss,
            "temperature": temperature,
            "grad_norm": norm(gradient),
            "target_lag": norm(jax.tree_util.tree_map(jnp.subtract, critics, target)),
        }
        return state._replace(target=target), metrics, surprise if config.prioritised else None

    def temperature(self, state: Learned) -> jax.Array:
        """What entropy is worth now."""
        fixed = self._config.temperature
        return jnp.exp(state.log_temperature) if isinstance(fixed, str) else jnp.float32(fixed)

    def critic_loss(
        self, critics: Parts, state: Learned, batch: Seen
    ) -> tuple[jax.Array, tuple[dict[str, jax.Array], jax.Array]]:
        """The loss of all critics, and beside it metrics and how much each transition surprised."""
        target = self._critics.network(state.target)
        actions, log_probs = self._act(state.actor, batch.next_observations, batch.noise["next"])
        future = target(batch.next_observations, actions, batch.noise["pair"]).min(axis=0)
        future = future - self.temperature(state) * log_probs
        values = jax.lax.stop_gradient(batch.rewards + batch.discounts * future)

        predicted = self._critics.network(critics)(batch.observations, batch.actions)
        errors = predicted - values
        losses = 0.5 * jnp.square(errors).sum(axis=0)
        if batch.weights is not None:
            losses = losses * batch.weights
        metrics = {"q_mean": predicted.mean(), "entropy": -log_probs.mean()}
        return losses.mean(), (metrics, jnp.abs(errors).mean(axis=0))

    def actor_loss(self, actor: Parts, state: Learned, batch: Seen) -> tuple[jax.Array, jax.Array]:
        """The loss of the actor, and the mean log density of its actions."""
        actions, log_probs = self._act(actor, batch.observations, batch.noise["now"])
        values = self._critics.network(state.critics)(batch.observations, actions)
        value = values.min(axis=0) if batch.noise["pair"] is None else values.mean(axis=0)
        return (self.temperature(state) * log_probs - value).mean(), log_probs.mean()

    def temperature_loss(self, log_temperature: jax.Array, log_prob: jax.Array) -> jax.Array:
        """The loss of the temperature, for actions of this mean log density."""
        return -log_temperature * (log_prob + self._target_entropy)

    def _improve(self, state: Learned, batch: Seen, inputs: Any) -> Learned:
        """The state after an update of the actor and the temperature."""
        (loss, log_prob), gradient = jax.value_and_grad(self.actor_loss, has_aux=True)(state.actor, state, batch)
        actor, optimiser = optimised(
            self._optimiser, gradient, state.actor_optimiser, state.actor, inputs["learning_rate"]
        )
        improved = state._replace(actor=actor, actor_optimiser=optimiser, actor_loss=loss)
        if not isinstance(self._config.temperature, str):
            return improved
        gradient = jax.grad(self.temperature_loss)(state.log_temperature, jax.lax.stop_gradient(log_prob))
        rate = inputs["temperature_learning_rate"]
        log_temperature, optimiser = optimised(
            self._optimiser, gradient, state.temperature_optimiser, state.log_temperature, rate
        )
        return improved._replace(log_temperature=log_temperature, temperature_optimiser=optimiser)

    def _act(self, actor: Parts, observations: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Actions of the policy from -1 to 1, and their log densities."""
        output = jax.vmap(self._actor.network(actor))(observations)
        mean, log_std = jnp.split(output, 2, axis=1)
        log_std = jnp.clip(log_std, _LEAST_LOG_STD, _MOST_LOG_STD)
        before = mean + jnp.exp(log_std) * noise
        return jnp.tanh(before), squashed_log_prob(before, noise, log_std)


# The agent


class SAC(OffPolicyAgent[SACConfig]):
    """Learns continuous actions from remembered transitions, and how random they should be.

    The settings are the fields of `SACConfig`: `SAC(observation_space, action_space, seed=0, gamma=0.98)`. `network`
    may also be an equinox module, or what makes one from the shape of an encoded observation and `key=`; actor and
    critics each have their own. `load_weights` takes over the actor, and leaves the critics as they are.
    """

    def __init__(
        self, observation_space: Any, action_space: Any, *, seed: int, network: Any = None, **settings: Any
    ) -> None:
        initial, exploring, sampling = generators(seed)
        config = make_config(SACConfig, {**settings, "network": network_setting(network)})
        head = continuous_head(action_space, "squashed", agent="SAC")
        encoding = encoding_of(observation_space, config, actions=0)
        dimensions = head.low.size
        actor, critics = networks(
            encoding, config, outputs=2 * dimensions, dimensions=dimensions, network=network, rng=initial
        )
        super().__init__(
            observation_space,
            action_space,
            config,
            Learner(config, encoding, head, actor, critics),
            Actor(
                actor,
                encoding,
                lambda network, x, _: network(x),
                device=device_of(config.acting_device, "acting_device"),
            ),
            encoding=encoding,
            head=head_by_steps(head, config.warmup_steps),
            exploring=exploring,
            sampling=sampling,
        )

"""Settings that several agents share."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from rekindle.agents.settings import (
    Linear,
    RunSteps,
    Setting,
    check_choice,
    check_flag,
    check_number,
    check_sizes,
    check_steps,
    check_whole,
    value_at,
)
from rekindle.errors import ConfigError
from rekindle.policy.images import Convolutions

__all__ = ["ActorCriticConfig", "AgentConfig", "DiscreteConfig", "OffPolicyConfig", "OnPolicyConfig"]


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of every agent with a network."""

    learning_rate: Setting = 3e-4
    """Adam's step size, above 0; or a schedule over env steps."""
    gamma: float = 0.99
    """What a reward is worth one step earlier, from 0 to 1."""
    network: str | None = None
    """A network of your own from an observation to features, as `package.module:Name`."""
    convolutions: Convolutions = "auto"
    """Which arrays of an observation are images: `auto` follows the rule in the guide to images, `always` means every
    array of at least 7 rows and columns, and `never` none."""
    normalise_observations: bool = False
    """Subtract the mean of the observations seen and divide by their standard deviation; images stay as they are."""
    observation_clip: float = 10.0
    """The largest size of a normalised observation."""
    max_grad_norm: float | None = None
    """Scale gradients down to this norm."""
    adam_eps: float = 1e-8
    """Adam's epsilon, above 0."""
    gradient_accumulation: int = 1
    """Updates whose gradients are averaged into one step of the optimiser."""
    acting_device: str | None = None
    """Where to act, when not with numpy: a platform such as `cpu` or `gpu:1`; None for JAX's own choice."""
    learning_device: str | None = None
    """Where to learn."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        check_number("learning_rate", self.learning_rate, above=not isinstance(self.learning_rate, Linear))
        check_number("gamma", self.gamma, most=1.0)
        for name in ("observation_clip", "adam_eps"):
            check_number(name, getattr(self, name), above=True)
        if self.max_grad_norm is not None:
            check_number("max_grad_norm", self.max_grad_norm, above=True)
        check_whole("gradient_accumulation", self.gradient_accumulation, 1)
        check_flag("normalise_observations", self.normalise_observations)
        check_choice("convolutions", self.convolutions, ("auto", "always", "never"))


class OffPolicyConfig(AgentConfig, frozen=True, kw_only=True):
    """The settings that agents which learn from remembered transitions have beside those."""

    capacity: int = 1_000_000
    """Rows of memory: one for each transition, and one more for each episode."""
    warmup_steps: RunSteps = 10_000
    """Env steps before the first update, or a fraction of the training."""
    batch_size: int = 256
    """Transitions in an update."""
    update_every: int = 1
    """Env steps from one round of updates to the next."""
    updates_each: int = 1
    """Updates in a round."""
    n_step: int = 1
    """Steps of reward in a target before a value stands for the rest."""
    prioritised: bool = False
    """Sample transitions that surprised more often."""
    priority_alpha: float = 0.6
    """How much more often, from 0 (not at all) to 1."""
    priority_beta: Setting = 0.4
    """How far that is corrected for in the loss, from 0 (not at all) to 1."""
    reward_scale: float = 1.0
    """What rewards are multiplied with before learning; logged returns are not."""
    frame_stack: int | None = None
    """Say that observations are so many frames, each the older ones and a new one: memory then holds each once."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        super().__post_init__()
        for name in ("priority_alpha", "priority_beta"):
            check_number(name, getattr(self, name), most=1.0)
        for name in ("batch_size", "update_every", "updates_each", "n_step"):
            check_whole(name, getattr(self, name), 1)
        check_steps("warmup_steps", self.warmup_steps)
        check_whole("capacity", self.capacity, 2)
        if self.capacity < self.batch_size:
            raise ConfigError(f"capacity is {self.capacity!r}: use at least batch_size, {self.batch_size!r}")
        if self.frame_stack is not None:
            check_whole("frame_stack", self.frame_stack, 1)
        check_flag("prioritised", self.prioritised)
        check_number("reward_scale", self.reward_scale, least=-math.inf)
        if self.reward_scale == 0:
            raise ConfigError(f"reward_scale is {self.reward_scale!r}: use a number other than 0")


class DiscreteConfig(OffPolicyConfig, frozen=True, kw_only=True):
    """The settings that agents which learn the values of discrete actions have beside those."""

    capacity: int = 100_000
    """Rows of memory: one for each transition, and one more for each episode."""
    batch_size: int = 32
    """Transitions in an update."""
    target_update_every: int = 1_000
    """Updates between copies of the network to the target."""
    tau: float | None = None
    """Instead of copies: how far the target moves towards the network in each update, above 0 and at most 1."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of the hidden layers; None for (128, 128), or (512,) if an observation is one image."""
    double: bool = True
    """Let the network choose the next action and the target value it, so that values are not overestimated."""
    exploration: Literal["epsilon", "softmax"] = "epsilon"
    """A random action now and then, or actions by how good they seem."""
    epsilon_start: float = 1.0
    """How likely a random action is at first."""
    epsilon_end: float = 0.05
    """How likely a random action is from `epsilon_steps` on."""
    epsilon_steps: RunSteps = 50_000
    """Env steps over which epsilon moves linearly from start to end, or a fraction of the training."""
    temperature: Setting = 1.0
    """With softmax: values are divided by it; 0 takes the best action."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        super().__post_init__()
        for name in ("epsilon_start", "epsilon_end"):
            check_number(name, getattr(self, name), most=1.0)
        check_number("temperature", self.temperature)
        if self.tau is not None:
            check_number("tau", self.tau, most=1.0, above=True)
        check_steps("epsilon_steps", self.epsilon_steps)
        check_whole("target_update_every", self.target_update_every, 1)
        check_flag("double", self.double)
        check_choice("exploration", self.exploration, ("epsilon", "softmax"))
        check_sizes("hidden_sizes", self.hidden_sizes)

    def explores(self, env_steps: int) -> float:
        """How much exploration there is after so many env steps: epsilon, or the temperature of softmax."""
        if self.exploration == "softmax":
            return value_at(self.temperature, env_steps)
        if env_steps >= self.epsilon_steps:
            return self.epsilon_end
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * env_steps / self.epsilon_steps


class ActorCriticConfig(OffPolicyConfig, frozen=True, kw_only=True):
    """The settings that agents with an actor and several critics have beside those."""

    warmup_steps: RunSteps = 10_000
    """Env steps before the first update, or a fraction of the training; until then, actions are uniform within the
    bounds, and correlated over time as `noise` is."""
    network: str | None = None
    """A network of your own from an observation to features, as `package.module:Name`; the hidden layers follow it."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of the hidden layers of actor and critics; on images they come after the convolutions."""
    critics: int = 2
    """How many critics; of more than two, a random pair makes a target."""
    layer_norm: bool = False
    """Normalise the hidden layers of the critics."""
    policy_delay: int = 1
    """Updates of the critics for one of the actor."""
    tau: float = 0.005
    """How far targets move towards what they follow, above 0 and at most 1."""
    target_update_every: int = 1
    """Updates between such moves."""
    noise: Literal["white", "ou", "pink"] = "white"
    """The correlation of exploration noise over time: `white` (none), `ou` (Ornstein-Uhlenbeck) or `pink` (1/f)."""
    noise_timescale: float = 20.0
    """With `ou`: env steps after which the correlation has fallen to 1/e, above 0."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        super().__post_init__()
        check_number("tau", self.tau, most=1.0, above=True)
        check_sizes("hidden_sizes", self.hidden_sizes)
        for name in ("critics", "policy_delay", "target_update_every"):
            check_whole(name, getattr(self, name), 1)
        check_flag("layer_norm", self.layer_norm)
        check_choice("noise", self.noise, ("white", "ou", "pink"))
        check_number("noise_timescale", self.noise_timescale, above=True)


class OnPolicyConfig(AgentConfig, frozen=True, kw_only=True):
    """The settings that agents which learn from rollouts of their newest policy have beside those of every agent."""

    gae_lambda: float = 0.95
    """How far advantages trust rewards (1) over the values learned so far (0)."""
    rollout_steps: int = 2_048
    """Transitions of all streams together that are collected, and then learned from."""
    minibatch_size: int = 64
    """Transitions in an update at most: a rollout that it does not divide is cut into minibatches as even as can be."""
    epochs: int = 10
    """How often each transition is learned from."""
    target_kl: float | None = None
    """Learn no more from a rollout once the policy is so far from the one that chose its actions (as a Kullback-Leibler
    divergence, estimated on a minibatch); None for no such limit."""
    network: str | None = None
    """A network of your own from an observation to features that policy and value share, as `package.module:Name`."""
    normalise_rewards: bool = False
    """Divide rewards by the standard deviation of the discounted return; logged returns are not."""
    reward_clip: float = 10.0
    """The largest size of a normalised reward."""
    max_grad_norm: float | None = 0.5
    """Scale gradients down to this norm."""
    adam_eps: float = 1e-5
    """Adam's epsilon, above 0."""

    def __post_init__(self) -> None:
        """Refuse what is out of range."""
        super().__post_init__()
        check_number("gae_lambda", self.gae_lambda, most=1.0)
        check_number("reward_clip", self.reward_clip, above=True)
        if self.target_kl is not None:
            check_number("target_kl", self.target_kl, above=True)
        for name in ("rollout_steps", "minibatch_size", "epochs"):
            check_whole(name, getattr(self, name), 1)
        check_flag("normalise_rewards", self.normalise_rewards)
        if self.minibatch_size > self.rollout_steps:
            raise ConfigError(
                f"minibatch_size is {self.minibatch_size!r}: use at most rollout_steps, {self.rollout_steps!r}"
            )

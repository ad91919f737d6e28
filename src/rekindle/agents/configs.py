"""Settings shared by several agents."""

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
    """Settings of every agent with a neural network."""

    learning_rate: Setting = 3e-4
    """Learning rate of Adam, above 0; or a linear schedule over env steps."""
    gamma: float = 0.99
    """Discount factor, from 0 to 1: each step of delay multiplies a reward by it."""
    network: str | None = None
    """Your own feature network, as `package.module:Name`: it maps one observation to a vector of features."""
    convolutions: Convolutions = "auto"
    """Which arrays of an observation are images: `auto` follows the rule in the guide to images, `always` means every
    array with at least 7 rows and columns, and `never` means none."""
    normalise_observations: bool = False
    """Normalise observations with their running mean and standard deviation; images are not normalised."""
    observation_clip: float = 10.0
    """Clip normalised observations to plus or minus this value, above 0."""
    max_grad_norm: float | None = None
    """Largest L2 norm of the gradient, above 0: a larger gradient is scaled down; None for no limit."""
    adam_eps: float = 1e-8
    """Epsilon of Adam, above 0."""
    gradient_accumulation: int = 1
    """Number of updates whose gradients are averaged into one optimiser step, at least 1."""
    acting_device: str | None = None
    """Device for acting with JAX (small batches use numpy), such as `cpu` or `gpu:1`; None for JAX's default."""
    learning_device: str | None = None
    """Device for updates, such as `cpu` or `gpu:1`; None for JAX's default."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
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
    """Settings of agents that learn from a replay buffer."""

    capacity: int = 1_000_000
    """Size of the replay buffer in rows: one row for each transition, and one more for each episode."""
    warmup_steps: RunSteps = 10_000
    """Env steps before the first update; or a fraction of the training, from 0.0 to 1.0."""
    batch_size: int = 256
    """Transitions in the minibatch of one update, at least 1."""
    update_every: int = 1
    """Env steps between rounds of updates, at least 1."""
    updates_each: int = 1
    """Updates in each round, at least 1."""
    n_step: int = 1
    """Number of rewards in an n-step target before it bootstraps from a value, at least 1."""
    prioritised: bool = False
    """Prioritised replay: sample transitions with a large TD error more often."""
    priority_alpha: float = 0.6
    """With prioritised replay: the exponent of the priorities, from 0 (uniform sampling) to 1."""
    priority_beta: Setting = 0.4
    """With prioritised replay: the exponent of the importance weights, from 0 (no correction) to 1 (full correction);
    or a linear schedule over env steps."""
    reward_scale: float = 1.0
    """Factor for rewards before learning, not 0; logged returns are not scaled."""
    frame_stack: int | None = None
    """Number of frames that an observation stacks, so that the replay buffer stores each frame once; None if
    observations are not stacked frames."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
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
    """Settings of agents that learn the values of discrete actions."""

    capacity: int = 100_000
    """Size of the replay buffer in rows: one row for each transition, and one more for each episode."""
    batch_size: int = 32
    """Transitions in the minibatch of one update, at least 1."""
    target_update_every: int = 1_000
    """Updates between copies of the network to the target network, at least 1; not used with `tau`."""
    tau: float | None = None
    """Soft target updates instead of copies: how far the target network moves towards the network in each update, above
    0 and at most 1."""
    hidden_sizes: tuple[int, ...] | None = None
    """Units of each hidden layer; None for (128, 128), or (512,) if an observation is one image."""
    double: bool = True
    """Double Q-learning: the network selects the next action and the target network evaluates it, which reduces
    overestimation."""
    exploration: Literal["epsilon", "softmax"] = "epsilon"
    """How to explore: `epsilon` takes a random action with a probability of epsilon, `softmax` samples from the softmax
    of the values."""
    epsilon_start: float = 1.0
    """Probability of a random action at the start, from 0 to 1."""
    epsilon_end: float = 0.05
    """Probability of a random action after `epsilon_steps`, from 0 to 1."""
    epsilon_steps: RunSteps = 50_000
    """Env steps over which epsilon moves linearly from start to end; or a fraction of the training, from 0.0 to 1.0."""
    temperature: Setting = 1.0
    """With softmax: the number that values are divided by, at least 0 (greedy); or a linear schedule over env steps."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
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
        """Epsilon, or the softmax temperature, after `env_steps` env steps."""
        if self.exploration == "softmax":
            return value_at(self.temperature, env_steps)
        if env_steps >= self.epsilon_steps:
            return self.epsilon_end
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * env_steps / self.epsilon_steps


class ActorCriticConfig(OffPolicyConfig, frozen=True, kw_only=True):
    """Settings of agents with an actor and several critics."""

    warmup_steps: RunSteps = 10_000
    """Env steps before the first update; or a fraction of the training, from 0.0 to 1.0. Until then actions are uniform
    within the bounds, and correlated over time as `noise` says."""
    network: str | None = None
    """Your own feature network, as `package.module:Name`; the hidden layers come after it."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of actor and critics; on images these layers come after the convolutions."""
    critics: int = 2
    """Number of critics, at least 1; with more than two, each target uses a random pair of them."""
    layer_norm: bool = False
    """Use layer normalisation in the hidden layers of the critics."""
    policy_delay: int = 1
    """Critic updates for each update of the actor, at least 1."""
    tau: float = 0.005
    """How far target networks move in each target update, above 0 and at most 1."""
    target_update_every: int = 1
    """Updates between target updates, at least 1."""
    noise: Literal["white", "ou", "pink"] = "white"
    """Correlation of the exploration noise over time: `white` (none), `ou` (Ornstein-Uhlenbeck) or `pink` (1/f)."""
    noise_timescale: float = 20.0
    """With `ou`: env steps after which the autocorrelation has fallen to 1/e, above 0."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
        super().__post_init__()
        check_number("tau", self.tau, most=1.0, above=True)
        check_sizes("hidden_sizes", self.hidden_sizes)
        for name in ("critics", "policy_delay", "target_update_every"):
            check_whole(name, getattr(self, name), 1)
        check_flag("layer_norm", self.layer_norm)
        check_choice("noise", self.noise, ("white", "ou", "pink"))
        check_number("noise_timescale", self.noise_timescale, above=True)


class OnPolicyConfig(AgentConfig, frozen=True, kw_only=True):
    """Settings of agents that learn from rollouts of the current policy."""

    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation, from 0 (one-step TD errors) to 1 (returns minus values)."""
    rollout_steps: int = 2_048
    """Transitions in a rollout, counted over all environments together."""
    minibatch_size: int = 64
    """Largest number of transitions in a minibatch; if it does not divide `rollout_steps`, the minibatches are as equal
    in size as possible."""
    epochs: int = 10
    """Passes over each rollout, at least 1."""
    target_kl: float | None = None
    """Stop the updates on a rollout when the KL divergence from the policy that collected it, estimated on a minibatch,
    exceeds this value, above 0; None for no limit."""
    network: str | None = None
    """Your own feature network, as `package.module:Name`; policy and value function share its features."""
    normalise_rewards: bool = False
    """Divide rewards by the running standard deviation of the discounted return; logged returns are not normalised."""
    reward_clip: float = 10.0
    """Clip normalised rewards to plus or minus this value, above 0."""
    max_grad_norm: float | None = 0.5
    """Largest L2 norm of the gradient, above 0: a larger gradient is scaled down; None for no limit."""
    adam_eps: float = 1e-5
    """Epsilon of Adam, above 0."""

    def __post_init__(self) -> None:
        """Raise `ConfigError` for a setting that is out of range."""
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

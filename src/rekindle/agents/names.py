"""The names of settings in Stable-Baselines3, CleanRL and RLlib, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import NamedTuple

__all__ = ["NAMES", "Name", "advice_on", "name_here"]

_FRACTION = "a fraction such as 0.1 is a fraction of the training"
_RATE = "it may be a schedule, START:END:100%"

NAMES: Mapping[str, tuple[tuple[str, ...], str]] = {
    # Spelling
    "normalize_observations": (("normalise_observations",), ""),
    "normalize_rewards": (("normalise_rewards",), ""),
    "normalize_advantages": (("normalise_advantages",), ""),
    "prioritized": (("prioritised",), ""),
    "with_optimizer": (("with_optimiser",), ""),
    # The trainer
    "total_timesteps": (("steps",), ""),
    "n_timesteps": (("steps",), ""),
    "max_steps": (("steps",), ""),
    "stop_timesteps": (("steps",), ""),
    "n_envs": (("num_envs",), ""),
    "num_envs_per_env_runner": (("num_envs",), ""),
    "num_envs_per_worker": (("num_envs",), ""),
    "num_workers": (("workers",), ""),
    "num_env_runners": (("workers",), ""),
    "num_rollout_workers": (("workers",), ""),
    "env_id": (("env",), ""),
    "eval_freq": (("eval_every",), ""),
    "evaluation_interval": (("eval_every",), "it counts env steps"),
    "n_eval_episodes": (("eval_episodes",), ""),
    "num_eval_episodes": (("eval_episodes",), ""),
    "evaluation_duration": (("eval_episodes",), "it counts episodes"),
    "save_freq": (("checkpoint_every",), ""),
    "checkpoint_freq": (("checkpoint_every",), ""),
    "checkpoint_frequency": (("checkpoint_every",), ""),
    "keep_checkpoints_num": (("keep_checkpoints",), ""),
    "log_interval": (("metrics_every",), "it counts env steps"),
    "tensorboard_log": (("record",), "use record=('tensorboard',)"),
    "track": (("record",), "use record=('wandb',)"),
    "wandb_project_name": (("record",), "use record=('wandb',)"),
    "log_dir": (("root", "runs"), ""),
    "logdir": (("root", "runs"), ""),
    "save_dir": (("root", "runs"), ""),
    "output_dir": (("root", "runs"), ""),
    "storage_path": (("root", "runs"), ""),
    "agent_kwargs": (("agent_settings",), ""),
    "agent_config": (("agent_settings",), ""),
    "env_kwargs": (("arguments",), ""),
    "env_config": (("arguments",), ""),
    "exp_name": (("name",), ""),
    "tb_log_name": (("name",), ""),
    # Every agent
    "lr": (("learning_rate",), ""),
    "lr_schedule": (("learning_rate",), _RATE),
    "anneal_lr": (("learning_rate",), _RATE),
    "learning_rate_schedule": (("learning_rate",), _RATE),
    "policy_lr": (("learning_rate",), ""),
    "actor_lr": (("learning_rate",), ""),
    "critic_lr": (("learning_rate",), "actor and critics share it"),
    "q_lr": (("learning_rate",), "actor and critics share it"),
    "qf_learning_rate": (("learning_rate",), "actor and critics share it"),
    "policy_kwargs": (("hidden_sizes",), "network takes a network of your own"),
    "net_arch": (("hidden_sizes",), ""),
    "fcnet_hiddens": (("hidden_sizes",), ""),
    "hiddens": (("hidden_sizes",), ""),
    "layers": (("hidden_sizes",), ""),
    "model": (("network", "hidden_sizes"), ""),
    "features_extractor_class": (("network",), ""),
    "custom_model": (("network",), ""),
    "device": (("learning_device",), ""),
    "discount": (("gamma",), ""),
    "grad_clip": (("max_grad_norm",), ""),
    "max_gradient_norm": (("max_grad_norm",), ""),
    "grad_norm_clipping": (("max_grad_norm",), ""),
    "adam_epsilon": (("adam_eps",), ""),
    "observation_filter": (("normalise_observations",), ""),
    "norm_obs": (("normalise_observations",), ""),
    "norm_reward": (("normalise_rewards", "reward_scale"), ""),
    "clip_obs": (("observation_clip",), ""),
    "clip_reward": (("reward_clip", "reward_scale"), ""),
    # PPO
    "n_steps": (("rollout_steps", "n_step"), ""),
    "num_steps": (("rollout_steps", "n_step"), ""),
    "rollout_fragment_length": (("rollout_steps",), ""),
    "train_batch_size": (("rollout_steps", "batch_size"), ""),
    "train_batch_size_per_learner": (("rollout_steps", "batch_size"), ""),
    "batch_size": (("minibatch_size", "batch_size"), ""),
    "sgd_minibatch_size": (("minibatch_size",), ""),
    "num_minibatches": (("minibatch_size",), "it is the size of a minibatch, not their number"),
    "n_epochs": (("epochs",), ""),
    "num_epochs": (("epochs",), ""),
    "num_sgd_iter": (("epochs",), ""),
    "update_epochs": (("epochs",), ""),
    "clip_range": (("clip",), ""),
    "clip_coef": (("clip",), ""),
    "clip_param": (("clip",), ""),
    "clip_range_vf": (("clip_value",), ""),
    "clip_vloss": (("clip_value",), "it is the width of the clip"),
    "vf_clip_param": (("clip_value",), ""),
    "ent_coef": (("entropy_coef", "temperature"), ""),
    "entropy_coeff": (("entropy_coef", "temperature"), ""),
    "vf_coef": (("value_coef",), ""),
    "vf_loss_coeff": (("value_coef",), ""),
    "norm_adv": (("normalise_advantages",), ""),
    "normalize_advantage": (("normalise_advantages",), ""),
    "lambda": (("gae_lambda",), ""),
    "lambda_": (("gae_lambda",), ""),
    "kl_target": (("target_kl",), ""),
    # Replay memory
    "buffer_size": (("capacity",), ""),
    "replay_buffer_capacity": (("capacity",), ""),
    "memory_size": (("capacity",), ""),
    "learning_starts": (("warmup_steps",), ""),
    "num_steps_sampled_before_learning_starts": (("warmup_steps",), ""),
    "random_steps": (("warmup_steps",), ""),
    "start_steps": (("warmup_steps",), ""),
    "minibatch": (("minibatch_size", "batch_size"), ""),
    "train_freq": (("update_every",), ""),
    "train_frequency": (("update_every",), ""),
    "training_intensity": (("updates_each",), "updates_each / update_every is the number of updates per env step"),
    "gradient_steps": (("updates_each",), ""),
    "target_update_interval": (("target_update_every",), "it counts updates, not env steps"),
    "target_network_frequency": (("target_update_every",), "it counts updates, not env steps"),
    "target_network_update_freq": (("target_update_every",), "it counts updates, not env steps"),
    "polyak": (("tau",), "it is how far the target moves: 1 - polyak"),
    "optimize_memory_usage": (("frame_stack",), "the replay buffer then stores each frame once"),
    "prioritized_replay": (("prioritised",), ""),
    "prioritized_replay_alpha": (("priority_alpha",), ""),
    "prioritized_replay_beta": (("priority_beta",), ""),
    "replay_buffer_class": (("prioritised",), ""),
    "replay_buffer_config": (("capacity", "prioritised"), ""),
    # DQN
    "exploration_fraction": (("epsilon_steps",), _FRACTION),
    "exploration_initial_eps": (("epsilon_start",), ""),
    "exploration_final_eps": (("epsilon_end",), ""),
    "start_e": (("epsilon_start",), ""),
    "end_e": (("epsilon_end",), ""),
    "initial_epsilon": (("epsilon_start",), ""),
    "final_epsilon": (("epsilon_end",), ""),
    "epsilon_timesteps": (("epsilon_steps",), ""),
    "epsilon": (("epsilon_end",), "epsilon falls to it from epsilon_start over epsilon_steps"),
    "double_q": (("double",), ""),
    "noisy_nets": (("noisy",), ""),
    "sigma0": (("noisy_sigma",), ""),
    "n_atoms": (("atoms",), ""),
    "num_atoms": (("atoms",), ""),
    "n_quantiles": (("quantiles",), ""),
    "num_quantiles": (("quantiles",), ""),
    # IQN
    "num_tau_samples": (("quantiles",), ""),
    "num_tau_prime_samples": (("target_quantiles",), ""),
    "num_quantile_samples": (("policy_quantiles",), ""),
    "n_greedy_quantiles": (("policy_quantiles",), ""),
    "quantile_embedding_dim": (("cosines",), ""),
    "embed_size": (("cosines",), ""),
    # Learning from data
    "weight_temp": (("advantage_scale",), ""),
    "awac_lambda": (("advantage_scale",), "it is 1 / lambda"),
    "lam": (("advantage_scale",), "it is 1 / lambda"),
    "iql_tau": (("expectile",), ""),
    "exp_adv_max": (("max_weight",), ""),
    "policy_type": (("loss",), "'mse' learns one action, 'likelihood' a distribution"),
    # SAC and TD3
    "alpha": (("temperature", "priority_alpha", "learning_rate"), ""),
    "autotune": (("temperature",), "'auto' learns it"),
    "initial_alpha": (("initial_temperature",), ""),
    "alpha_lr": (("temperature_learning_rate",), ""),
    "policy_frequency": (("policy_delay",), ""),
    "target_network_noise": (("target_noise",), ""),
    "target_policy_noise": (("target_noise",), ""),
    "policy_noise": (("target_noise",), ""),
    "noise_clip": (("target_noise_clip",), ""),
    "action_noise": (("exploration_noise", "noise"), "noise is 'white', 'ou' or 'pink'"),
    "smooth_target_policy": (("target_noise",), ""),
    "n_critics": (("critics",), ""),
    "twin_q": (("critics",), "it is the number of critics"),
}
"""By the name in another library: our names (the first that the agent has counts), and a note on differences."""

_NOTES = {"rollout_steps": "it counts the transitions of all environments together"}
"""Notes on our settings, whatever their name in another library."""

_ABSENT = {
    "use_sde": "there is no state-dependent exploration",
    "sde_sample_freq": "there is no state-dependent exploration",
    "use_rms_prop": "the optimiser is Adam",
    "optimizer_class": "the optimiser is Adam",
    "callback": "add callbacks with trainer.on(Event, function)",
    "callbacks": "add callbacks with trainer.on(Event, function)",
    "progress": "pass progress to trainer.train(), or use --ui",
    "progress_bar": "pass progress to trainer.train(), or use --ui",
    "verbose": "use --ui or the Python module logging to choose how much is shown",
}


class Name(NamedTuple):
    """Our name of a setting."""

    ours: str
    note: str
    """How the setting differs; empty if it does not."""


def name_here(elsewhere: str, known: Collection[str]) -> Name | None:
    """Our name, among `known` settings, for a setting of another library; None if there is none."""
    candidates, note = NAMES.get(elsewhere, ((), ""))
    ours = next((name for name in candidates if name in known), None)
    return None if ours is None else Name(ours, note or _NOTES.get(ours, ""))


def advice_on(unknown: str, known: Collection[str], *, others: Mapping[str, Collection[str]] | None = None) -> str:
    """Advice on an unknown setting: our name for it, the part it belongs to, or similar names.

    `others` are the settings of other parts, such as the trainer, by owner.
    """
    if (name := name_here(unknown, known)) is not None:
        return f"`{unknown}` is called `{name.ours}` here{f': {name.note}' if name.note else ''}"
    for owner, names in (others or {}).items():
        if unknown in names:
            return f"`{unknown}` is a setting of {owner}"
        if (name := name_here(unknown, names)) is not None:
            note = f": {name.note}" if name.note else ""
            return f"`{unknown}` is called `{name.ours}` here, and is a setting of {owner}{note}"
    if unknown in _ABSENT:
        return _ABSENT[unknown]
    near = difflib.get_close_matches(unknown, known, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known) or 'none'}"

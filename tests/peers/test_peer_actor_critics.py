"""From the same weights, batch and noise, the losses and gradients of SAC and TD3 are those of Stable-Baselines3."""

from typing import Any

import jax
import numpy as np
import pytest
from gymnasium.spaces import Box
from stable_baselines import (
    Arrays,
    Spaces,
    assert_same,
    batch_of,
    dense,
    fill,
    load,
    logged,
    make_model,
    random_transitions,
    stable_baselines3,
    train,
)

from rekindle.agents import SAC, TD3
from rekindle.agents.distributions import to_unit
from rekindle.agents.networks import layers_of
from rekindle.agents.updates import Minibatch
from rekindle.experience import Array, Transitions

pytestmark = pytest.mark.exhaustive

OBSERVATIONS = Box(-2, 2, (3,), np.float32)
ACTIONS = Box(np.array([-2, 0], np.float32), np.array([2, 3], np.float32))
HIDDEN = (16, 24)
ROWS = 64
GAMMA = 0.9


def critics(weights: Any, vector: Array) -> Arrays:
    bodies, arrays = weights.views(vector).bodies, {}
    for index in range(2):
        body: Any = jax.tree_util.tree_map(lambda array, index=index: array[index], bodies)
        arrays |= dense(layers_of(body), [f"qf{index}.{layer}" for layer in (0, 2, 4)])
    return arrays


def squashed_actor(weights: Any, vector: Array) -> Arrays:
    """Ours gives means and deviations in one layer, the peer's in two."""
    arrays = dense(weights.layers(vector), ["latent_pi.0", "latent_pi.2", "last"])
    for kind in ("weight", "bias"):
        arrays[f"mu.{kind}"], arrays[f"log_std.{kind}"] = np.split(arrays.pop(f"last.{kind}"), 2)
    return arrays


def actor(weights: Any, vector: Array) -> Arrays:
    return dense(weights.layers(vector), ["mu.0", "mu.2", "mu.4"])


def with_other_targets(learned: Any, *names: str, seed: int) -> Any:
    """The state of an agent whose targets are not what they follow, as they are after some updates."""
    rng = np.random.default_rng(seed)
    targets = {name: np.asarray(getattr(learned, name)) for name in names}
    return jax.tree_util.tree_map(np.asarray, learned)._replace(
        **{name: target + rng.normal(0, 0.1, target.shape).astype(np.float32) for name, target in targets.items()}
    )


def seen_by(agent: Any, transitions: Transitions, noise: dict[str, Array]) -> Minibatch:
    batch = batch_of(agent, transitions, {**noise, "pair": None})
    return batch._replace(actions=to_unit(batch.actions, agent._algorithm._head))


def normals(count: int, *, seed: int) -> list[Array]:
    """The noise that the peer will draw next."""
    import torch

    torch.manual_seed(seed)
    drawn = [torch.empty(ROWS, 2).normal_().numpy() for _ in range(count)]
    torch.manual_seed(seed)
    return drawn


def parameters(module: Any) -> tuple[Any, dict[str, Any]]:
    return module.optimizer, dict(module.named_parameters())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_losses_and_the_gradients_of_sac(seed: int) -> None:
    model = make_model(
        stable_baselines3().SAC,
        Spaces(OBSERVATIONS, ACTIONS),
        HIDDEN,
        buffer_size=ROWS,
        gamma=GAMMA,
        ent_coef="auto_0.3",
    )
    model.actor.action_dist.epsilon = 0.0  # it adds 1e-6 to the slope of tanh, for which ours has an exact form
    agent = SAC(OBSERVATIONS, ACTIONS, seed=seed, hidden_sizes=HIDDEN, gamma=GAMMA, initial_temperature=0.3)
    learner: Any = agent._algorithm
    state = with_other_targets(agent._learned, "target", seed=seed)
    load(model.actor, squashed_actor(learner._actor, state.actor))
    load(model.critic, critics(learner._critics, state.critics))
    load(model.critic_target, critics(learner._critics, state.target))
    transitions = random_transitions(OBSERVATIONS, ACTIONS, ROWS, seed=seed)
    fill(model, transitions)
    now, following = normals(2, seed=seed)

    gradients = train(
        model,
        {
            "actor": parameters(model.actor),
            "critics": parameters(model.critic),
            "temperature": (model.ent_coef_optimizer, {"log": model.log_ent_coef}),
        },
        1,
        ROWS,
    )
    batch = seen_by(agent, transitions, {"now": now, "next": following})
    (critic_loss, _), critic_gradient = jax.value_and_grad(learner.critic_loss, has_aux=True)(
        state.critics, state, batch
    )
    (actor_loss, log_prob), actor_gradient = jax.value_and_grad(learner.actor_loss, has_aux=True)(
        state.actor, state, batch
    )
    temperature_loss, temperature_gradient = jax.value_and_grad(learner.temperature_loss)(
        state.log_temperature, log_prob
    )

    assert float(critic_loss) == pytest.approx(logged(model, "critic_loss"), rel=1e-4)
    assert float(actor_loss) == pytest.approx(logged(model, "actor_loss"), rel=1e-4)
    assert float(temperature_loss) == pytest.approx(logged(model, "ent_coef_loss"), rel=1e-4)
    assert_same(critics(learner._critics, np.asarray(critic_gradient)), gradients["critics"])
    assert_same(squashed_actor(learner._actor, np.asarray(actor_gradient)), gradients["actor"])
    assert_same({"log": np.asarray(temperature_gradient)[None]}, gradients["temperature"])


@pytest.mark.parametrize("seed", [0, 1])
def test_the_losses_and_the_gradients_of_td3(seed: int) -> None:
    model = make_model(
        stable_baselines3().TD3,
        Spaces(OBSERVATIONS, ACTIONS),
        HIDDEN,
        buffer_size=ROWS,
        gamma=GAMMA,
        policy_delay=1,
        target_policy_noise=0.2,
        target_noise_clip=0.3,
    )
    agent = TD3(
        OBSERVATIONS, ACTIONS, seed=seed, hidden_sizes=HIDDEN, gamma=GAMMA, target_noise=0.2, target_noise_clip=0.3
    )
    learner: Any = agent._algorithm
    state = with_other_targets(agent._learned, "target_actor", "target_critics", seed=seed)
    load(model.actor, actor(learner._actor, state.actor))
    load(model.actor_target, actor(learner._actor, state.target_actor))
    load(model.critic, critics(learner._critics, state.critics))
    load(model.critic_target, critics(learner._critics, state.target_critics))
    transitions = random_transitions(OBSERVATIONS, ACTIONS, ROWS, seed=seed)
    fill(model, transitions)
    (following,) = normals(1, seed=seed)
    assert 0 < (np.abs(0.2 * following) > 0.3).mean() < 1

    gradients = train(model, {"actor": parameters(model.actor), "critics": parameters(model.critic)}, 1, ROWS)
    batch = seen_by(agent, transitions, {"next": following})
    (critic_loss, _), critic_gradient = jax.value_and_grad(learner.critic_loss, has_aux=True)(
        state.critics, state, batch
    )
    actor_loss, actor_gradient = jax.value_and_grad(learner.actor_loss)(state.actor, state, batch)

    assert float(critic_loss) == pytest.approx(logged(model, "critic_loss"), rel=1e-4)
    assert float(actor_loss) == pytest.approx(logged(model, "actor_loss"), rel=1e-4)
    assert_same(critics(learner._critics, np.asarray(critic_gradient)), gradients["critics"])
    assert_same(actor(learner._actor, np.asarray(actor_gradient)), gradients["actor"])

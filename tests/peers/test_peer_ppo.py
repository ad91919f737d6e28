"""From the same weights and transitions, PPO's advantages, loss and gradients are those of Stable-Baselines3."""

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Space
from stable_baselines import Arrays, assert_same, dense, load, logged, make_model, stable_baselines3, train

from rekindle.agents import PPO
from rekindle.agents.networks import layers_of
from rekindle.agents.updates import RolloutBatch
from rekindle.experience import Array, EpisodeStatus, Transitions
from rekindle.interrupt import never

pytestmark = pytest.mark.exhaustive

OBSERVATIONS = Box(-2, 2, (3,), np.float32)
# The peer learns from the actions that it drew, and ours from those that were within bounds: these always are.
ACTIONS: dict[str, Space[Any]] = {"discrete": Discrete(4), "continuous": Box(-1e3, 1e3, (2,), np.float32)}
HIDDEN = (16, 24)
POLICY = ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]
VALUE = ["mlp_extractor.value_net.0", "mlp_extractor.value_net.2", "value_net"]
STEPS, STREAMS = 32, 2
ROWS = STEPS * STREAMS
GAMMA, GAE_LAMBDA, CLIP, ENTROPY_COEF, VALUE_COEF = 0.9, 0.8, 0.2, 0.05, 0.7


class Chance(gymnasium.Env[Any, Any]):
    """A world in which all that happens follows from a seed, and which keeps what happened."""

    def __init__(self, action_space: Space[Any], seed: int) -> None:
        self.observation_space, self.action_space = OBSERVATIONS, action_space
        self._rng = np.random.default_rng(seed)
        self.happened: list[tuple[Array, float, Array, EpisodeStatus]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._seen = self._rng.uniform(-2, 2, 3).astype(np.float32)
        return self._seen, {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        before, reward = self._seen, float(self._rng.normal())
        status = EpisodeStatus(int(self._rng.choice(3, p=[0.8, 0.1, 0.1])))
        self._seen = self._rng.uniform(-2, 2, 3).astype(np.float32)
        self.happened.append((before, reward, self._seen, status))
        return self._seen, reward, status is EpisodeStatus.TERMINATED, status is EpisodeStatus.TRUNCATED, {}


def named(agent: PPO, vector: Array) -> Arrays:
    network = agent._weights.views(vector)
    arrays = dense(layers_of(network.policy), POLICY) | dense(layers_of(network.value), VALUE)
    return arrays if network.log_std is None else {**arrays, "log_std": np.asarray(network.log_std)}


def collected(model: Any) -> tuple[Array, Arrays]:
    """The actions of a rollout that it collects itself, and what it makes of them: rows in the order they came."""
    _, callback = model._setup_learn(ROWS, None)
    rollout = model.rollout_buffer
    assert model.collect_rollouts(model.env, callback, rollout, STEPS)
    actions = rollout.actions if isinstance(model.action_space, Box) else rollout.actions[..., 0]
    numbers = {name: getattr(rollout, name).reshape(ROWS) for name in ("log_probs", "values", "advantages", "returns")}
    return actions.copy(), numbers


def tell(agent: PPO, worlds: list[Chance], actions: Array) -> None:
    """Let an agent observe what happened in the worlds, as if it had chosen the actions."""
    for step in range(STEPS):
        before, rewards, after, statuses = zip(*(world.happened[step] for world in worlds), strict=True)
        transitions = Transitions(
            np.stack(before), actions[step], np.array(rewards), np.stack(after), np.array(statuses, np.uint8)
        )
        agent.observe(transitions, np.arange(STREAMS))


@pytest.mark.parametrize("kind", ACTIONS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_advantages_the_loss_and_the_gradients_of_ppo(seed: int, kind: str) -> None:
    peer = stable_baselines3()
    from stable_baselines3.common.vec_env import DummyVecEnv

    worlds = [Chance(ACTIONS[kind], seed=10 * seed + index) for index in range(STREAMS)]
    model = make_model(
        peer.PPO,
        DummyVecEnv([lambda world=world: world for world in worlds]),
        HIDDEN,
        n_steps=STEPS,
        batch_size=ROWS,
        n_epochs=1,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip_range=CLIP,
        ent_coef=ENTROPY_COEF,
        vf_coef=VALUE_COEF,
        max_grad_norm=np.inf,
        seed=seed,
    )
    agent = PPO(
        OBSERVATIONS,
        ACTIONS[kind],
        seed=seed,
        hidden_sizes=HIDDEN,
        rollout_steps=ROWS,
        minibatch_size=ROWS,
        gamma=GAMMA,
        gae_lambda=GAE_LAMBDA,
        clip=CLIP,
        entropy_coef=ENTROPY_COEF,
        value_coef=VALUE_COEF,
    )
    rng = np.random.default_rng(seed)
    old = agent._weights.initial + rng.normal(0, 0.2, agent._weights.size).astype(np.float32)
    new = old + rng.normal(0, 0.1, agent._weights.size).astype(np.float32)

    load(model.policy, named(agent, old))
    actions, numbers = collected(model)
    assert {status for world in worlds for *_, status in world.happened} == set(EpisodeStatus)
    agent.load_weights({"network": agent._weights.state(old), "normaliser": None})
    tell(agent, worlds, actions)
    columns = agent._begun(never).columns
    assert_same(dict(zip(numbers, np.asarray(columns["numbers"]).T, strict=True)), numbers)

    load(model.policy, named(agent, new))
    gradients = train(model, {"policy": (model.policy.optimizer, dict(model.policy.named_parameters()))})
    update: Any = agent._algorithm
    loss = jax.value_and_grad(update.loss, has_aux=True)
    batch = RolloutBatch.of(columns, np.arange(ROWS, dtype=np.int32), ROWS).normalised()
    (value, metrics), gradient = loss(new, batch, agent._inputs(columns, agent.env_steps)["schedules"])
    assert 0 < float(metrics["clip_fraction"]) < 1
    assert float(metrics["clip_fraction"]) == pytest.approx(logged(model, "clip_fraction"))
    assert float(value) == pytest.approx(logged(model, "loss"), rel=1e-4)
    assert_same(named(agent, np.asarray(gradient)), gradients["policy"])

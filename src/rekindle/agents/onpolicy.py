"""The base of on-policy agents: everything except the algorithm.

Collecting rollouts, scoring them with the policy that chose their actions, learning from them in epochs of
minibatches, acting, and resuming. The algorithm is an `OnPolicyUpdate`: its state, and an update as a pure function.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np
from numpy.typing import NDArray

from rekindle.agent import Metrics, State, StreamSlots
from rekindle.agents.acting import Actor, CompiledPolicy, device_of
from rekindle.agents.collecting import Collector, Minibatches
from rekindle.agents.configs import OnPolicyConfig
from rekindle.agents.counting import LossMean, saved_count
from rekindle.agents.dispatch import Dispatch, Outcome
from rekindle.agents.distributions import Distribution
from rekindle.agents.normalisation import ReturnScale, RunningMoments, observation_moments
from rekindle.agents.saving import save
from rekindle.agents.scoring import Learning, Scorer, Version, explained_variance
from rekindle.agents.settings import value_at
from rekindle.agents.trees import placed, placed_number, tree_from_state, tree_state
from rekindle.agents.updates import OnPolicyUpdate, RolloutBatch
from rekindle.agents.weights import Weights
from rekindle.checks import refuses_misfits
from rekindle.errors import AgentError, InputError, Interrupted, StateError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.interrupt import ShouldStop, never
from rekindle.policy.encoding import Encoding, vector_of
from rekindle.policy.network import Normaliser
from rekindle.policy.policy import NetworkPolicy
from rekindle.rng import generator_from_state, generator_state

__all__ = ["OnPolicyAgent"]

Config = TypeVar("Config", bound=OnPolicyConfig)

_EXPLORE = ActMode.EXPLORE
_MOST_PREVIEWED = 256
"""Steps from which the first normalisation of observations is estimated."""
_MOST_PRODUCTS = 1 << 30
"""Rows times weights of the updates in one dispatch, so that a stop need not wait long: about a tenth of a second."""


class OnPolicyAgent(Generic[Config]):
    """Acts, collects rollouts, and learns from them with an `OnPolicyUpdate`.

    It acts with the weights that the last rollout left it with, until the next is learned from whole. What is observed
    meanwhile belongs to the rollout after. A transition that was chosen by a policy before the last two, or for which
    there is no room while updates are owed, is left out and counted in `stale_steps`.
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        config: Config,
        algorithm: OnPolicyUpdate,
        actor: Actor[Any],
        *,
        weights: Weights[Any],
        encoding: Encoding,
        distribution: Distribution,
        exploring: np.random.Generator,
        shuffling: np.random.Generator,
    ) -> None:
        self.config = config
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = 0
        """Transitions observed so far."""
        self.updates = 0
        """Gradient steps made so far."""
        self._encoding, self._distribution = encoding, distribution
        self._exploring, self._shuffling = exploring, shuffling
        self._losses = LossMean()
        self._moments = observation_moments(encoding, config)
        self._reward_scale = ReturnScale(config.gamma, clip=config.reward_clip) if config.normalise_rewards else None
        self._collector = Collector(observation_space, action_space, config.rollout_steps)
        self._learning: Learning | None = None
        self._unreported: list[Outcome] = []
        """Updates that were made before an interruption: the next `update` reports them."""
        self._algorithm, self._weights = algorithm, weights
        self._device = device_of(config.learning_device, "learning_device")
        self._learned = placed(algorithm.start(), self._device)
        self._scorer = Scorer(
            algorithm.score, encoding, distribution, rollout_steps=config.rollout_steps, device=self._device
        )
        self._minibatches = Minibatches(config)
        self._updates_each = config.epochs * len(self._minibatches.table)
        """Updates on a rollout."""
        most = max(2, min(self._updates_each, _MOST_PRODUCTS // (weights.size * self._minibatches.size)))
        self._dispatch = Dispatch(
            self._step,
            algorithm.metrics,
            example={"indices": self._minibatches.table[0].astype(np.int32)},
            most=1 if encoding.images else most,
        )
        self._actor = actor
        actor.owner = type(self).__name__
        self._acting = self._previous = Version(weights.initial, self._normaliser)
        self._policy: NetworkPolicy | CompiledPolicy | None = None
        """How to act now; made at the first call."""
        self._publish()

    @property
    def policy_version(self) -> int:
        """How often the policy has changed: after each rollout, and if the first is normalised by its first steps."""
        return self._collector.version

    @property
    def stale_steps(self) -> int:
        """Transitions that were too old to learn from."""
        return self._collector.stale_steps

    # Acting

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """An action for each row."""
        output, mask = self._actor.output(observations, None), self._encoding.mask(observations)
        if mode is not _EXPLORE:
            return self._head.choose(output, mask, None)
        self._collector.chose(streams)
        return self._head.choose(output, mask, self._exploring)

    def chose(self, streams: StreamSlots, versions: NDArray[np.int64]) -> None:
        """Record that policies of these versions chose the open actions of these streams."""
        self._collector.chose(streams, versions)

    def predict(self, observations: Any) -> Any:
        """The greedy action for one observation, or one for each row of a batch."""
        return CompiledPolicy(self._actor.output, self._encoding, self._head).act(observations)

    def policy(self) -> NetworkPolicy | CompiledPolicy:
        """The current policy; later updates do not change it."""
        if self._policy is None:
            self._policy = self._actor.policy(self._head, self._algorithm.algorithm)
        return self._policy

    def _publish(self) -> None:
        self._actor.use(self._acting.params, self._acting.normaliser)
        deviations = self._distribution.deviations
        log_std = self._weights.views(self._acting.params).log_std if deviations else None
        self._head = self._distribution.head(log_std)
        self._policy = None

    # Collecting

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Collect transitions; raises `InputError` if there are more at once than two rollouts hold."""
        before = self._collector.collected
        self._collector.add(transitions, streams)
        if self._moments is not None and self.policy_version == 0:
            self._preview_moments(self._moments, before)
        if self._reward_scale is not None:
            self._reward_scale.add(transitions.rewards, transitions.statuses, streams)
        self.env_steps += len(transitions)

    def _preview_moments(self, moments: RunningMoments, before: int) -> None:
        """Normalise the rest of the first rollout by its first steps if these are clipped."""
        collector, enough = self._collector, min(_MOST_PREVIEWED, self.config.rollout_steps // 8)
        if not before < enough <= collector.collected:
            return
        if moments.preview(vector_of(self._encoding.encode(collector.observations()))):
            self._previous, self._acting = self._acting, Version(self._acting.params, self._normaliser)
            collector.change_policy()
            self._publish()

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
        self._collector.cut(streams)
        if self._reward_scale is not None:
            self._reward_scale.cut(streams)

    # Learning

    def _step(self, state: Any, batch: Any, inputs: Any) -> tuple[Any, dict[str, jax.Array], None]:
        """One update on the rows of a minibatch."""
        minibatch = RolloutBatch.of(inputs["rollout"], batch["indices"], self.config.rollout_steps)
        return *self._algorithm.step(state, minibatch, inputs["schedules"]), None

    def updates_due(self) -> int:
        """The number of updates that are due: 0 until a rollout is full, then the rest of its epochs."""
        collector = self._collector
        if not collector.is_ahead:
            return 0
        made = 0 if self._learning is None else self._learning.made
        return self._updates_each * (1 + collector.is_full) - made

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
        while left > 0 and self._collector.is_ahead:
            learning = self._learning = self._learning or self._begun(should_stop)
            about = {**self._settings_at(learning.began_at), "explained_variance": learning.explained_variance}
            left -= self._learn_from(learning, left, should_stop)
        outcomes, self._unreported = self._unreported, []
        self.updates += sum(outcome.count for outcome in outcomes)
        metrics = self._dispatch.metrics(outcomes)
        self._losses.add(metrics["loss"])
        return {**metrics, **about, "stale_steps": self.stale_steps}

    def _learn_from(self, learning: Learning, n: int, should_stop: ShouldStop) -> int:
        """Make up to `n` updates on a rollout, in as few dispatches as possible; returns how many."""
        inputs = self._inputs(learning.columns, learning.began_at)
        size, before = self._minibatches.size, learning.made
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

    def compiled(self) -> tuple[Dispatch[Any], Actor[Any]]:
        """The parts that compute updates and actions, for a diagnosis."""
        return self._dispatch, self._actor

    def warm_up(self) -> None:
        """Compile everything that acting and learning need."""
        columns = placed(self._scorer.zeros(self.config.rollout_steps), self._device)
        self._learned = self._dispatch.warm_up(self._learned, self._inputs(columns, 0))
        self._scorer.warm_up(self._acting)
        self._actor.warm_up(self.observation_space)

    def _begun(self, should_stop: ShouldStop) -> Learning:
        """Score the waiting rollout with the weights that chose its actions, and move it to the device.

        A stop can interrupt the scoring; nothing has changed then.
        """
        config, steps = self.config, self._collector.steps()
        scored = self._scorer.rollout(steps, self._acting, self._previous, self.policy_version, should_stop)
        rewards = None
        if self._reward_scale is not None:
            self._reward_scale.publish()
            rewards = self._reward_scale.apply(steps.rewards)
        advantages, returns = steps.advantages(
            scored.values, scored.last_values, gamma=config.gamma, gae_lambda=config.gae_lambda, rewards=rewards
        )
        if self._moments is not None:
            self._moments.add(vector_of(scored.encoded))
        columns = {
            "observations": scored.observations,
            "mask": scored.mask,
            "actions": scored.actions,
            "numbers": np.stack([scored.log_probs, scored.values, advantages, returns], axis=1),
        }
        seed = int(self._shuffling.integers(1 << 62))
        learning = Learning(
            columns=placed(columns, self._device),
            seed=seed,
            began_at=self.env_steps,
            explained_variance=explained_variance(scored.values, returns),
            order=self._minibatches.order(seed),
        )
        untouched: dict[str, Any] = {"made": np.int32(0), "is_over": np.False_}
        if self._device is not None:  # without a device, the compiled function moves them, which is faster
            untouched = placed(untouched, self._device)
        self._learned = self._learned._replace(**untouched)
        self._collector.begin_learning()
        return learning

    def _finish(self) -> None:
        """Act with the new weights; normalisation changes now, and at no other time."""
        params = jax.tree_util.tree_map(np.array, self._learned.params)
        if (reason := self._weights.diverged(params)) is not None:
            name = type(self).__name__
            raise AgentError(f"{name}: {reason}: training has diverged; the last good checkpoint is kept")
        if self._moments is not None:
            self._moments.publish()
        self._previous, self._acting = self._acting, Version(params, self._normaliser)
        self._collector.end_learning()
        self._learning = None
        self._publish()

    def _inputs(self, columns: dict[str, Any], env_steps: int) -> dict[str, Any]:
        """The inputs of an update other than its minibatch: arrays, so that a changed value does not compile again."""
        settings = self._settings_at(env_steps).items()
        return {"rollout": columns, "schedules": {name: placed_number(value, self._device) for name, value in settings}}

    def _settings_at(self, env_steps: int) -> dict[str, float]:
        """The current values of the schedules."""
        return {name: value_at(setting, env_steps) for name, setting in self._algorithm.schedules.items()}

    @property
    def _normaliser(self) -> Normaliser | None:
        return None if self._moments is None else self._moments.published

    # Reporting

    def episode_extras(self) -> Mapping[str, float]:
        """The mean loss since an episode last started."""
        loss = self._losses.mean()
        return {} if loss is None else {"loss": loss}

    def on_episode_start(self) -> None:
        """Reset the counts."""
        self._losses.clear()

    # Going on later

    def save(self, path: str | Path) -> None:
        """Save the agent, without rollouts and random generators, to a file for `rekindle.agents.load`."""
        save(self, path)

    def state(self) -> State:
        """The whole state."""
        moments, scale, learning = self._moments, self._reward_scale, self._learning
        return {
            "algorithm": self._algorithm.algorithm,
            "weights": self._version_state(self._acting),
            "previous": self._version_state(self._previous),
            "optimiser": tree_state(self._learned.optimiser),
            "moments": None if moments is None else moments.state(),
            "reward_scale": None if scale is None else scale.state(),
            **self._collector.state(),
            "learning": None if learning is None else learning.state(self._weights.state(self._learned.params)),
            "env_steps": self.env_steps,
            "updates": self.updates,
            "losses": self._losses.state(),
            "exploring": generator_state(self._exploring),
            "shuffling": generator_state(self._shuffling),
            **({"unreported": self._unreported_table()} if self._unreported else {}),
        }

    def _unreported_table(self) -> Array:
        rows = [row for outcome in self._unreported for row in outcome.table]
        return np.array(rows, np.float32).reshape(-1, len(self._algorithm.metrics))

    def _version_state(self, version: Version) -> State:
        normaliser = version.normaliser
        return {
            "network": self._weights.state(version.params),
            "normaliser": None if normaliser is None else {"mean": normaliser.mean, "variance": normaliser.variance},
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Load a saved state."""
        if state.get("algorithm") != self._algorithm.algorithm:
            raise StateError(f"the state is of {state.get('algorithm')!r:.40}, not of {self._algorithm.algorithm!r}")
        env_steps, updates = (saved_count(state, name) for name in ("env_steps", "updates"))
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
        params, learning = acting.params, None
        if state.get("learning") is not None:
            params, learning = self._learning_from_state(state["learning"])
        collector = self._collector.loaded(state, is_learning=learning is not None)
        losses = LossMean.checked(state.get("losses"))
        unreported = self._unreported_from_state(state.get("unreported"))
        exploring, shuffling = (generator_from_state(state.get(name) or {}) for name in ("exploring", "shuffling"))

        self.env_steps, self.updates, self._collector = env_steps, updates, collector
        self._acting, self._previous = acting, previous
        made = 0 if learning is None else learning.made
        learned = self._learned._replace(params=params, optimiser=optimiser, made=np.int32(made), is_over=np.False_)
        self._learned = placed(learned, self._device)
        self._moments, self._reward_scale = moments, scale
        self._learning = learning
        self._losses.load(losses)
        self._unreported = unreported
        self._exploring, self._shuffling = exploring, shuffling
        self._publish()

    def take_over(self, state: State, *, with_optimiser: bool = False) -> None:
        """Start from the network and the normalisation of another agent's state.

        `with_optimiser` loads the optimiser and the counters too.
        """
        names = {"algorithm", "weights", "previous", "moments", "reward_scale"}
        if with_optimiser:
            names |= {"optimiser", "env_steps", "updates"}
        self.load_state({**self.state(), **{name: state[name] for name in names if name in state}})

    def load_weights(self, weights: State) -> None:
        """Replace the weights with those of another agent's state, and nothing else; rollouts are discarded."""
        version = self._version_from_state(weights, "the weights")
        if self._moments is not None:
            self._moments.load_weights(weights["normaliser"])
        self._previous, self._acting = self._acting, version
        self._collector.clear()
        self._learned = placed(self._learned._replace(params=version.params), self._device)
        self._learning, self._unreported = None, []
        self._publish()

    def _version_from_state(self, state: Any, what: str) -> Version:
        saved: State = state if isinstance(state, dict) else {}
        params, normaliser = self._weights.from_state(saved.get("network"), what), saved.get("normaliser")
        if self._moments is not None:
            return Version(params, self._moments.normaliser(normaliser))
        if normaliser is not None:
            raise StateError(f"{what} are for normalised observations: set normalise_observations")
        return Version(params, None)

    def _learning_from_state(self, state: Any) -> tuple[Array, Learning]:
        saved: State = state if isinstance(state, dict) else {}
        learning = Learning.of_state(saved, self._minibatches)
        if learning.made >= self._updates_each:
            raise StateError(f"{learning.made} of {self._updates_each} updates were made on a rollout")
        columns = tree_from_state(self._scorer.zeros(self.config.rollout_steps), saved.get("columns"), "rollout")
        learning.columns = placed(columns, self._device)
        return self._weights.from_state(saved.get("network"), "the weights being learned"), learning

    def _unreported_from_state(self, table: Any) -> list[Outcome]:
        if table is None:
            return []
        width = len(self._algorithm.metrics)
        if not isinstance(table, np.ndarray) or table.ndim != 2 or table.shape[1] != width or table.dtype != np.float32:
            raise StateError(f"not the metrics of updates, {width} numbers each: {table!r:.40}")
        return [Outcome(cast("Any", table), None, len(table))]

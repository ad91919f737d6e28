"""The base of off-policy agents: everything except the algorithm.

It acts, stores transitions, samples minibatches, encodes and normalises them, makes the updates that are due, and
saves and loads the state. Minibatches come from the replay buffer, from data (`learn_from`), or from both. The
algorithm is an `OffPolicyUpdate`: its state, and its update step as a pure function.
"""

# JAX's own types are partial.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import jax
import numpy as np

from rekindle.agent import Metrics, State, StreamSlots
from rekindle.agents.acting import Actor, CompiledPolicy, device_of, zero_observations
from rekindle.agents.configs import OffPolicyConfig
from rekindle.agents.counting import LossMean, UpdateRatio, saved_count
from rekindle.agents.dispatch import Dispatch, Outcome
from rekindle.agents.noise import stream_noise
from rekindle.agents.normalisation import moments_of, observation_moments
from rekindle.agents.saving import save
from rekindle.agents.settings import Linear, check_number, value_at
from rekindle.agents.trees import placed, placed_number, tree_from_state, tree_state
from rekindle.agents.updates import Minibatch, OffPolicyUpdate
from rekindle.checks import refuses_misfits
from rekindle.errors import AgentError, ConfigError, InputError, StateError
from rekindle.experience import ActMode, Array, Observations, Transitions
from rekindle.policy.actions import ActionHead
from rekindle.policy.encoding import Encoding, vector_of
from rekindle.policy.policy import NetworkPolicy
from rekindle.replay import Batch, Memory, PrioritizedMemory, TransitionSource, mixed
from rekindle.rng import generator_from_state, generator_state

__all__ = ["OffPolicyAgent"]

Config = TypeVar("Config", bound=OffPolicyConfig)

_EXPLORE = ActMode.EXPLORE
_MOST_PRIORITISED = 8
"""The most updates in one dispatch with prioritised replay: they all use the same priorities."""
_END = 1 << 62
"""Env steps that are the end of every schedule."""
_NORMALISED_BY = 1 << 16
"""The number of transitions of data for the statistics that normalise observations."""


class OffPolicyAgent(Generic[Config]):
    """Acts, stores transitions in a replay buffer, and learns from it with an `OffPolicyUpdate`."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        config: Config,
        algorithm: OffPolicyUpdate,
        actor: Actor[Any],
        *,
        encoding: Encoding,
        head: Callable[[int], ActionHead],
        exploring: np.random.Generator,
        sampling: np.random.Generator,
        reports: Callable[[int], dict[str, float]] = lambda _: {},
    ) -> None:
        """`head` and `reports` are functions of the env steps: the action head, and settings to log."""
        self.config = config
        self.observation_space, self.action_space = observation_space, action_space
        self.env_steps = 0
        """Transitions observed so far."""
        self.updates = 0
        """Gradient steps made so far."""
        self._encoding, self._head, self._reports = encoding, head, reports
        self._exploring, self._sampling = exploring, sampling
        self._noise = stream_noise(config, action_space, exploring)
        self._ratio = UpdateRatio(
            warmup_steps=int(config.warmup_steps), update_every=config.update_every, updates_each=config.updates_each
        )
        self._losses = LossMean()
        self._moments = observation_moments(encoding, config)
        memory = Memory(config.capacity, observation_space, action_space, frame_stack=config.frame_stack)
        self._memory = PrioritizedMemory(memory, alpha=config.priority_alpha) if config.prioritised else memory
        self._data: TransitionSource | None = None
        self._data_share = 0.0
        self._algorithm = algorithm
        self._device = device_of(config.learning_device, "learning_device")
        self._learned = placed(algorithm.start(), self._device)
        self._schedules = {name: value for name, value in algorithm.schedules.items() if isinstance(value, Linear)}
        self._constants = {name: value for name, value in algorithm.schedules.items() if name not in self._schedules}
        places = jax.tree_util.tree_unflatten(self._structure, range(self._structure.num_leaves))
        self._acting_places: int | tuple[int, ...] = getattr(places, algorithm.acting[0])
        """The indices of the acting network's weights among the leaves of the state."""
        self._dispatch: Dispatch[Any] = Dispatch(
            self._step,
            algorithm.metrics,
            example=self._example(),
            rows=config.batch_size if config.prioritised else 0,
            most=1 if encoding.images else _MOST_PRIORITISED if config.prioritised else None,
        )
        self._actor = actor
        actor.owner = type(self).__name__
        self._publish()

    @property
    def _learned(self) -> Any:
        """The state of the algorithm, which updates change."""
        return jax.tree_util.tree_unflatten(self._structure, self._leaves)

    @_learned.setter
    def _learned(self, learned: Any) -> None:
        # Updates pass a flat tuple, because JAX is slow to build named tuples.
        leaves, self._structure = jax.tree_util.tree_flatten(learned)
        self._leaves = tuple(leaves)

    # Acting

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:
        """An action for each row."""
        rng = self._exploring if mode is _EXPLORE else None
        output = self._actor.output(observations, rng)
        head, mask = self._head(self.env_steps), self._encoding.mask(observations)
        if self._noise is None or rng is None:
            return head.choose(output, mask, rng)
        return head.choose(output, mask, rng, self._noise.draw(streams))

    def predict(self, observations: Any) -> Any:
        """The greedy action for one observation, or the greedy actions for a batch."""
        return CompiledPolicy(self._actor.output, self._encoding, self._head(self.env_steps)).act(observations)

    def policy(self) -> NetworkPolicy | CompiledPolicy:
        """The current policy; later updates do not change it.

        After learning from data alone it explores as at the end of a training, without a warm-up.
        """
        steps = _END if self.updates and not self.env_steps else self.env_steps
        return self._actor.policy(self._head(steps), self._algorithm.algorithm)

    def check_learner(self, learner: str) -> None:
        """Raise `ConfigError` for correlated noise with a learner whose policies can only explore with white noise."""
        others = {"background": "use learner='inline' or 'manual'", "actors": "train without actors"}
        if learner in others and self._noise is not None:
            where = "with actors" if learner == "actors" else f"with learner={learner!r}"
            raise ConfigError(
                f"noise is {self._noise.kind!r}: {where} exploration noise is not correlated; "
                f"{others[learner]}, or use noise='white'"
            )

    # Storing

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:
        """Store transitions in the replay buffer."""
        self._memory.append(transitions, streams)
        if self._moments is not None:
            self._moments.add(vector_of(self._encoding.encode(transitions.observations)))
        if self._noise is not None:
            for row in transitions.statuses.nonzero()[0].tolist():
                self._noise.restart(int(streams[row]))
        self.env_steps += len(streams)

    def cut(self, streams: StreamSlots) -> None:
        """End the episodes of these streams: nothing is linked to their last transitions."""
        self._memory.cut(streams)
        if self._noise is not None:
            for stream in streams.tolist():
                self._noise.restart(stream)

    def replay(self) -> Memory | PrioritizedMemory:
        """The replay buffer."""
        return self._memory

    # Learning

    def learn_from(self, data: TransitionSource | None, *, share: float = 1.0) -> None:
        """Sample this share of each minibatch from data, and the rest from the replay buffer; None stops it.

        With a share below 1, each minibatch has at least one transition of each. With a share of 1 the agent learns
        offline: no updates are due, so call `update` yourself, and schedules count updates. The data is not part of
        the state: call this again with the same data when you load a state. If observations are normalised and none was
        observed yet, they are normalised with statistics of the data.
        """
        if data is None:
            self._data, self._data_share = None, 0.0
            return
        check_number("share", share, most=1.0, above=True)
        if share < 1 and self.config.batch_size == 1:
            raise ConfigError(f"share is {share!r}: a minibatch of one transition cannot be shared, set batch_size")
        if self.config.prioritised:
            raise ConfigError("prioritised is True: transitions of data have no priorities; set prioritised=False")
        if not len(data):
            raise InputError("there are no transitions in the data")
        self._data, self._data_share = data, share
        if self._moments is not None and not self._moments.count:
            sample = data.sample(np.random.default_rng(0), min(len(data), _NORMALISED_BY), n_step=1, gamma=1.0)
            self._moments.add(vector_of(self._encoding.encode(sample.observations)))

    @property
    def is_offline(self) -> bool:
        """Whether the agent learns from data only."""
        return self._data_share == 1

    @property
    def _schedule_steps(self) -> int:
        """The progress of schedules: env steps, or updates if the agent learns offline."""
        return self.updates if self.is_offline else self.env_steps

    def _step(self, leaves: Any, columns: Any, inputs: Any) -> tuple[Any, dict[str, jax.Array], jax.Array | None]:
        """One update on the columns of a minibatch."""
        batch = Minibatch.of(columns, self._encoding, inputs["moments"], reward_scale=self.config.reward_scale)
        state = jax.tree_util.tree_unflatten(self._structure, leaves)
        state, metrics, priorities = self._algorithm.step(state, batch, {**self._constants, **inputs["schedules"]})
        return tuple(jax.tree_util.tree_leaves(state)), metrics, priorities if self.config.prioritised else None

    def updates_due(self) -> int:
        """The number of updates that are due: 0 during the warm-up, and when the agent learns offline."""
        due = 0 if self.is_offline else self._ratio.due(self.env_steps)
        return due if due and len(self._memory) else 0

    def skip_updates(self, n: int) -> None:
        """Skip `n` updates that are due."""
        self._ratio.settle(n)

    def update(self, n: int) -> Metrics:
        """Make `n` updates, in as few dispatches as possible."""
        if n < 1 or not (len(self._memory) or self._data is not None):
            raise InputError(f"update({n}): there are {len(self._memory)} transitions to learn from")
        if self._moments is not None:
            self._moments.publish()
        inputs = self._inputs()
        outcomes: list[Outcome] = []
        for count in self._dispatch.split(n):
            rows, batches = self._draw(count)
            self._leaves, outcome = self._dispatch(self._leaves, batches, count, inputs)
            self._reprioritise(rows, outcome)
            outcomes.append(outcome)
        self._publish()
        if not self.is_offline:
            self._ratio.settle(n)
        self.updates += n
        metrics = self._dispatch.metrics(outcomes)
        self._losses.add(metrics["loss"])
        beta = {"beta": value_at(self.config.priority_beta, self.env_steps)} if self.config.prioritised else {}
        return {**metrics, **self._reports(self.env_steps), **beta}

    def compiled(self) -> tuple[Dispatch[Any], Actor[Any]]:
        """The parts that compute updates and actions, for a diagnosis."""
        return self._dispatch, self._actor

    def warm_up(self) -> None:
        """Compile everything that acting and learning need."""
        self._leaves = self._dispatch.warm_up(self._leaves, self._inputs())
        self._publish()
        self._actor.warm_up(self.observation_space)

    def _inputs(self) -> dict[str, Any]:
        """The inputs of an update other than its minibatch: arrays, so that a changed value does not compile again."""
        schedules, device = self._schedules.items(), self._device
        return {
            "schedules": {
                name: placed_number(schedule.at(self._schedule_steps), device) for name, schedule in schedules
            },
            "moments": moments_of(None if self._moments is None else self._moments.published),
        }

    def _draw(self, count: int) -> tuple[Array, dict[str, Any]]:
        """Sample `count` minibatches: their row numbers in the replay buffer, and the columns for the updates."""
        config, memory, rng = self.config, self._memory, self._sampling
        rows = count * config.batch_size
        weights = None
        if self._data is not None:
            batch = self._mixed(self._data, count)
        elif isinstance(memory, Memory):
            batch = memory.sample(rng, rows, n_step=config.n_step, gamma=config.gamma)
        else:
            beta = value_at(config.priority_beta, self.env_steps)
            batch, weights = memory.sample(
                rng, rows, beta=beta, batches=count, n_step=config.n_step, gamma=config.gamma
            )
        return batch.rows, self._columns(batch, weights, self._algorithm.noise(rng, count))

    def _mixed(self, data: TransitionSource, count: int) -> Batch:
        """Sample `count` minibatches from data and the replay buffer, or only from data while that is empty."""
        config, rng, memory = self.config, self._sampling, cast("Memory", self._memory)
        each = config.batch_size
        if len(memory) and not self.is_offline:  # at least one row of each
            each = min(max(1, round(self._data_share * config.batch_size)), config.batch_size - 1)
        given = data.sample(rng, count * each, n_step=config.n_step, gamma=config.gamma)
        if each == config.batch_size:
            return given
        own = memory.sample(rng, count * (config.batch_size - each), n_step=config.n_step, gamma=config.gamma)
        return mixed(given, own, batches=count)

    def _example(self) -> dict[str, Any]:
        """A minibatch of zeros, with noise, to compile with."""
        rows = self.config.batch_size
        observations, numbers = zero_observations(self.observation_space, rows), np.zeros(rows, np.float32)
        actions = cast("Array", zero_observations(self.action_space, rows))
        batch = Batch(observations, actions, numbers, observations, numbers, np.zeros(rows, np.int64))
        weights = numbers if self.config.prioritised else None
        return self._columns(batch, weights, self._algorithm.noise(np.random.default_rng(0), 1))

    def _columns(self, batch: Batch, weights: Array | None, noise: Any) -> dict[str, Any]:
        """The columns that updates take."""
        return {
            "observations": self._encoding.narrow(batch.observations),
            "actions": batch.actions,
            "rewards": batch.rewards,
            "next_observations": self._encoding.narrow(batch.next_observations),
            "discounts": batch.discounts,
            "weights": weights,
            "noise": noise,
        }

    def _reprioritise(self, rows: Array, outcome: Outcome) -> None:
        if isinstance(self._memory, PrioritizedMemory):
            priorities = outcome.rows().ravel()
            if not np.isfinite(priorities).all():
                raise AgentError(f"{type(self).__name__}: the loss is not finite: training has diverged")
            self._memory.update(rows, priorities)

    def _publish(self) -> None:
        leaves, places = self._leaves, self._acting_places
        params = leaves[places] if isinstance(places, int) else tuple(leaves[place] for place in places)
        self._actor.use(params, None if self._moments is None else self._moments.published)

    # Reporting

    def episode_extras(self) -> Mapping[str, float]:
        """Settings that change, such as epsilon, and the mean loss since an episode last started."""
        loss, reports = self._losses.mean(), self._reports(self.env_steps)
        return reports if loss is None else {**reports, "loss": loss}

    def on_episode_start(self) -> None:
        """Reset the mean loss."""
        self._losses.clear()

    # Saving and loading

    def save(self, path: str | Path) -> None:
        """Save the agent, without replay buffer and random generators, to a file for `rekindle.agents.load`."""
        save(self, path)

    def state(self) -> State:
        """The whole state except the rows of the replay buffer."""
        algorithm, moments = self._algorithm, self._moments
        vectors = {name: kind.state(getattr(self._learned, name)) for name, kind in algorithm.weights.items()}
        return {
            "algorithm": algorithm.algorithm,
            "weights": {
                "network": vectors.pop(algorithm.acting[0]),
                "normaliser": None if moments is None else moments.weights(),
            },
            **vectors,
            "optimiser": tree_state(self._beside_weights()),
            "moments": None if moments is None else moments.state(),
            "memory": self._memory.state(),
            "env_steps": self.env_steps,
            "updates": self.updates,
            "settled": self._ratio.settled,
            "losses": self._losses.state(),
            "exploring": generator_state(self._exploring),
            "sampling": generator_state(self._sampling),
            **({} if self._noise is None else {"noise": self._noise.state()}),
        }

    @refuses_misfits
    def load_state(self, state: State) -> None:
        """Load a saved state; the replay buffer is empty until its rows are restored."""
        algorithm, before = self._algorithm, self._learned
        if state.get("algorithm") != algorithm.algorithm:
            raise StateError(f"the state is of {state.get('algorithm')!r:.40}, not of {algorithm.algorithm!r}")
        weights: State = state.get("weights") or {}
        env_steps, updates, settled = (saved_count(state, name) for name in ("env_steps", "updates", "settled"))
        saved = {**state, algorithm.acting[0]: weights.get("network")}
        learned = before._replace(
            **{
                name: kind.from_state(saved.get(name), f"the weights ({name})")
                for name, kind in algorithm.weights.items()
            },
            **tree_from_state(self._beside_weights(), state.get("optimiser"), "optimiser"),
            updates=np.int32(updates),
        )
        losses = LossMean.checked(state.get("losses"))
        exploring, sampling = (generator_from_state(state.get(name) or {}) for name in ("exploring", "sampling"))
        moments = None
        if self._moments is not None:
            moments = self._moments.loaded(state.get("moments"), weights.get("normaliser"))
        elif state.get("moments") is not None:
            raise StateError("the state has an observation normaliser, but normalise_observations is not set")
        noise = None
        if self._noise is not None:
            noise = self._noise.loaded(state.get("noise"))
        elif state.get("noise") is not None:
            raise StateError("the state has correlated exploration noise, but the agent's noise is white")
        self._memory.load_state(state.get("memory") or {})
        self._learned = placed(learned, self._device)
        self._moments = moments
        self._exploring, self._sampling, self._noise = exploring, sampling, noise
        self.env_steps, self.updates, self._ratio.settled = env_steps, updates, settled
        self._losses.load(losses)
        self._publish()

    def take_over(self, state: State, *, with_optimiser: bool = False) -> None:
        """Start from the networks and the normalisation of another agent's state.

        `with_optimiser` also takes its optimisers, its counters and the temperature of SAC. The replay buffer is empty,
        so there is another warm-up before the next update.
        """
        names = {"algorithm", "weights", "moments", *self._algorithm.weights}
        if with_optimiser:
            names |= {"optimiser", "env_steps", "updates"}
        self.load_state({**self.state(), **{name: state[name] for name in names if name in state}})
        self._ratio.restart(self.env_steps)

    def load_weights(self, weights: State) -> None:
        """Replace the weights of the acting network with those of another agent's state, and nothing else."""
        algorithm = self._algorithm
        params = algorithm.weights[algorithm.acting[0]].from_state(weights.get("network"), "the weights")
        if self._moments is not None:
            self._moments.load_weights(weights.get("normaliser"))
        elif weights.get("normaliser") is not None:
            raise StateError("the weights are for normalised observations: set normalise_observations")
        self._learned = placed(self._learned._replace(**dict.fromkeys(algorithm.acting, params)), self._device)
        self._publish()

    def _beside_weights(self) -> dict[str, Any]:
        """The fields of the state other than weights and the number of updates."""
        fields = self._learned._asdict()
        return {name: value for name, value in fields.items() if name not in {*self._algorithm.weights, "updates"}}

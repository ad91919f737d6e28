"""Rounds: the transitions that all actors play with one policy, and the state of each actor between two rounds."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import numpy as np

from rekindle.agent import State
from rekindle.errors import ConfigError, StateError
from rekindle.experience import Array, Transitions
from rekindle.rng import generator_from_state, generator_state
from rekindle.spaces import ActionStructure, ArraySpec, Layout

__all__ = [
    "ActorEnd",
    "ActorStart",
    "EnvStart",
    "Order",
    "Played",
    "RoundArrays",
    "RoundShape",
    "first_start",
    "generator_bytes",
    "generator_of",
    "next_starts",
    "rounds_fitting",
]

_MOST_ACTIONS = 1 << 17
"""The most steps of an open episode that are kept, so that the size of a checkpoint is bounded."""
_ALIGNMENT = 64


class RoundShape(msgspec.Struct, frozen=True, eq=False):
    """The size of a round."""

    layout: Layout
    structure: ActionStructure | None
    action: ArraySpec
    actors: int
    envs_each: int
    steps: int
    """Steps that each environment makes in a round."""

    @classmethod
    def of(cls, observation_space: Any, action_space: Any, *, actors: int, envs_each: int, steps: int) -> RoundShape:
        """For environments with these spaces."""
        layout, structure = Layout.of_space(observation_space), ActionStructure.of(action_space)
        actions = Layout.of_space(action_space)
        if layout is None or (structure is None and (actions is None or actions.is_dict)):
            raise ConfigError(
                f"actors cannot play in an environment with the spaces {observation_space}, {action_space}"
            )
        spec = structure.spec if structure is not None else cast("Layout", actions).leaves[""]
        return cls(layout, structure, spec, actors, envs_each, steps)

    @property
    def rows(self) -> int:
        """Environments of all actors."""
        return self.actors * self.envs_each

    @property
    def transitions(self) -> int:
        """Transitions of a round."""
        return self.rows * self.steps

    def rows_of(self, actors: range) -> slice:
        """The environments of consecutive actors."""
        return slice(actors.start * self.envs_each, actors.stop * self.envs_each)


class RoundArrays(msgspec.Struct, frozen=True, eq=False):
    """The transitions of some environments in a round: arrays of steps, environments, and the shape of one value."""

    observations: list[Array]
    """One array for each part of an observation."""
    following: list[Array]
    """The observations that followed, including the final ones of episodes."""
    actions: Array
    rewards: Array
    statuses: Array

    @classmethod
    def empty(cls, shape: RoundShape, rows: int) -> RoundArrays:
        """Arrays to be filled."""
        lead = (shape.steps, rows)
        leaves = list(shape.layout.leaves.values())
        return cls(
            [np.empty((*lead, *leaf.shape), leaf.dtype) for leaf in leaves],
            [np.empty((*lead, *leaf.shape), leaf.dtype) for leaf in leaves],
            np.empty((*lead, *shape.action.shape), shape.action.dtype),
            np.empty(lead, np.float64),
            np.empty(lead, np.uint8),
        )

    @classmethod
    def in_memory(cls, shape: RoundShape, rows: int, memory: Array) -> RoundArrays:
        """Arrays that lie one after the other in an array of bytes."""
        leaves = [*shape.layout.leaves.values()]
        specs = [*leaves, *leaves, shape.action, ArraySpec(np.dtype(np.float64)), ArraySpec(np.dtype(np.uint8))]
        arrays: list[Array] = []
        start = 0
        for spec in specs:
            size = shape.steps * rows * spec.nbytes
            arrays.append(memory[start : start + size].view(spec.dtype).reshape(shape.steps, rows, *spec.shape))
            start += _aligned(size)
        count = len(leaves)
        return cls(arrays[:count], arrays[count : 2 * count], *arrays[2 * count :])

    @staticmethod
    def size(shape: RoundShape, rows: int) -> int:
        """Bytes that `in_memory` needs."""
        leaves = [leaf.nbytes for leaf in shape.layout.leaves.values()]
        return sum(_aligned(shape.steps * rows * each) for each in [*leaves, *leaves, shape.action.nbytes, 8, 1])

    @property
    def each(self) -> list[Array]:
        """All arrays, in a fixed order."""
        return [*self.observations, *self.following, self.actions, self.rewards, self.statuses]

    def part(self, rows: slice) -> RoundArrays:
        """Views of some environments."""
        return RoundArrays(
            [array[:, rows] for array in self.observations],
            [array[:, rows] for array in self.following],
            self.actions[:, rows],
            self.rewards[:, rows],
            self.statuses[:, rows],
        )

    def take(self, other: RoundArrays, rows: slice) -> None:
        """Copy the transitions of some environments from other arrays."""
        for mine, theirs in zip(self.each, other.each, strict=True):
            mine[:, rows] = theirs


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class EnvStart(msgspec.Struct, frozen=True, eq=False):
    """The state of one environment at the beginning of a round."""

    episode: int = 0
    """The number of the open episode; if none is open, of the next one."""
    is_open: bool = False
    options: dict[str, Any] | None = None
    """The options of the reset of the open episode."""
    actions: tuple[Array, ...] | None = ()
    """The actions of the open episode, in pieces; None if it is too long to be replayed."""
    chain: bytes = b""
    """A hash of the observations and rewards of the open episode."""
    state: State | None = None
    """The state of the environment, if it can save one; then the episode is not replayed."""
    observation: tuple[Array, ...] | None = None
    """With a state, the newest observation."""

    def tree(self) -> State:
        """As data."""
        actions = None if not self.actions else np.concatenate(self.actions)
        return {
            "episode": self.episode,
            "is_open": self.is_open,
            "options": self.options,
            "actions": actions,
            "chain": self.chain.hex(),
            "state": self.state,
            "observation": None if self.observation is None else list(self.observation),
        }

    @classmethod
    def of_tree(cls, tree: State, shape: RoundShape) -> EnvStart:
        """From data; raises `StateError`."""
        episode, is_open, actions = tree["episode"], tree["is_open"], tree["actions"]
        if type(episode) is not int or episode < 0 or type(is_open) is not bool:
            raise StateError(f"an environment of an actor stands at {episode!r:.40}, {is_open!r:.40}")
        kept: tuple[Array, ...] | None = None if is_open else ()
        if is_open and actions is not None:
            kept = (shape.action.conform(actions, "the actions of an actor", rows=len(actions)),)
        observation = tree["observation"]
        if observation is not None:
            leaves = zip(shape.layout.leaves.values(), observation, strict=True)
            observation = tuple(leaf.conform(part, "the observation of an actor") for leaf, part in leaves)
        chain = bytes.fromhex(tree["chain"])
        return cls(episode, is_open, tree["options"], kept, chain, tree["state"], observation)


class ActorStart(msgspec.Struct, frozen=True, eq=False):
    """The state of an actor at the beginning of a round."""

    generator: bytes
    """The state of its random generator: see `generator_bytes`."""
    envs: tuple[EnvStart, ...]

    def tree(self) -> State:
        """As data."""
        generator = generator_state(generator_of(self.generator))
        return {"generator": generator, "envs": [env.tree() for env in self.envs]}

    @classmethod
    def of_tree(cls, tree: State, shape: RoundShape) -> ActorStart:
        """From data; raises `StateError`."""
        if len(tree["envs"]) != shape.envs_each:
            raise StateError(f"an actor had {len(tree['envs'])} environments, and has {shape.envs_each}")
        generator = generator_from_state(tree["generator"])
        if not isinstance(generator.bit_generator, np.random.PCG64):
            raise StateError(f"the generator of an actor is not a PCG64: {generator.bit_generator}")
        return cls(generator_bytes(generator), tuple(EnvStart.of_tree(env, shape) for env in tree["envs"]))


def first_start(seed: int, actor: int, envs_each: int) -> ActorStart:
    """The state of an actor before the first round."""
    return ActorStart(generator_bytes(np.random.default_rng([seed, 2, actor])), (EnvStart(),) * envs_each)


_GENERATOR = struct.Struct("<16s16sBI")


def generator_bytes(generator: np.random.Generator) -> bytes:
    """The state of a PCG64 generator in few bytes, as it is sent after every round."""
    state: Any = generator.bit_generator.state
    numbers = (state["state"][name].to_bytes(16, "little") for name in ("state", "inc"))
    return _GENERATOR.pack(*numbers, state["has_uint32"], state["uinteger"])


def generator_of(data: bytes) -> np.random.Generator:
    """A generator that continues from there."""
    state, inc, has_uint32, uinteger = _GENERATOR.unpack(data)
    bits = np.random.PCG64()
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": int.from_bytes(state, "little"), "inc": int.from_bytes(inc, "little")},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }
    return np.random.Generator(bits)


class ActorEnd(msgspec.Struct, frozen=True, eq=False):
    """The state of an actor after a round, except for what follows from the transitions."""

    generator: bytes
    chains: list[bytes]
    """A hash for each open episode."""
    abandoned: list[int]
    """Environments whose episode could not be continued at the beginning of the round."""
    extras: list[tuple[int, int, dict[str, float]]]
    """Step, environment and numbers of each episode that ended with any."""
    options: list[dict[str, Any] | None] | None = None
    """The options of the last reset of each environment; None if there are none."""
    states: list[State | None] | None = None
    """The state of each environment with an open episode; None if they cannot save one."""
    seconds: float = 0.0
    """How long the actor played."""

    def tree(self) -> State:
        """As data."""
        return msgspec.structs.asdict(self)

    @classmethod
    def of_tree(cls, tree: State) -> ActorEnd:
        """From data that another process has sent."""
        extras: Any = [(step, env, numbers) for step, env, numbers in tree["extras"]]
        fields: dict[str, Any] = {**tree, "extras": extras}
        return cls(**fields)


class Order(msgspec.Struct, frozen=True, eq=False):
    """The order to play a round."""

    number: int
    """The number of the round, from 0."""
    env_steps: int
    """Env steps of the training before it."""
    policy: Any
    """The policy as bytes; in the process of the learner it may be code."""
    version: int | None
    """The version of the policy, for an agent that counts them."""
    starts: Sequence[ActorStart]
    rewinds: bool = False
    """Whether actors have to go back to their starts, because they played the round before."""


class Played(msgspec.Struct, eq=False):
    """A round that was played."""

    number: int
    env_steps: int
    version: int | None
    arrays: RoundArrays
    abandoned: list[int]
    """Rows whose episode could not be continued at its beginning."""
    extras: Mapping[tuple[int, int], dict[str, float]]
    """By step and row, the numbers in the final info of an episode."""

    @classmethod
    def of(cls, order: Order, arrays: RoundArrays, ends: Sequence[ActorEnd], shape: RoundShape) -> Played:
        """From what actors have returned."""
        each, abandoned = shape.envs_each, cast("list[int]", [])
        extras: dict[tuple[int, int], dict[str, float]] = {}
        for actor, end in enumerate(ends):
            abandoned += [actor * each + env for env in end.abandoned]
            extras.update({(step, actor * each + env): numbers for step, env, numbers in end.extras})
        return cls(order.number, order.env_steps, order.version, arrays, abandoned, extras)

    def step(self, index: int, layout: Layout) -> Transitions:
        """One step of all environments."""
        arrays = self.arrays
        return Transitions(
            layout.observations([array[index] for array in arrays.observations]),
            arrays.actions[index],
            arrays.rewards[index],
            layout.observations([array[index] for array in arrays.following]),
            arrays.statuses[index],
        )

    def state(self) -> State:
        """For a checkpoint."""
        arrays = self.arrays
        return {
            "number": self.number,
            "env_steps": self.env_steps,
            "version": self.version,
            "observations": list(arrays.observations),
            "following": list(arrays.following),
            "actions": arrays.actions,
            "rewards": arrays.rewards,
            "statuses": arrays.statuses,
            "abandoned": list(self.abandoned),
            "extras": [[step, row, numbers] for (step, row), numbers in sorted(self.extras.items())],
        }

    @classmethod
    def of_state(cls, state: State, shape: RoundShape, *, rows: int | None = None) -> Played:
        """From a checkpoint, with all rows or this many; raises `StateError`."""
        count = shape.rows if rows is None else rows
        arrays = RoundArrays.empty(shape, count)
        given = [*state["observations"], *state["following"], state["actions"], state["rewards"], state["statuses"]]
        for mine, theirs in zip(arrays.each, given, strict=True):
            if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
                found, known = f"{theirs.shape} of {theirs.dtype}", f"{mine.shape} of {mine.dtype}"
                raise StateError(f"a round of {found} was saved, and a round is {known}")
            mine[...] = theirs
        if arrays.statuses.max(initial=0) > 2 or not all(0 <= row < count for row in state["abandoned"]):
            raise StateError("the statuses of a round are not those of episodes")
        extras = {(step, row): dict(numbers) for step, row, numbers in state["extras"]}
        return cls(state["number"], state["env_steps"], state["version"], arrays, list(state["abandoned"]), extras)


def next_starts(
    starts: Sequence[ActorStart], arrays: RoundArrays, ends: Sequence[ActorEnd], shape: RoundShape
) -> list[ActorStart]:
    """The states of actors after a round."""
    each, last = shape.envs_each, shape.steps - 1  # the arrays are those of these actors only
    counts, places = [0] * len(starts) * each, [0] * len(starts) * each
    for step, row in zip(*(part.tolist() for part in arrays.statuses.nonzero()), strict=True):
        counts[row] += 1
        places[row] = step
    following: list[ActorStart] = []
    for actor, (start, end) in enumerate(zip(starts, ends, strict=True)):
        envs: list[EnvStart] = []
        for env, before in enumerate(start.envs):
            row = actor * each + env
            first = places[row] + 1 if counts[row] else 0
            is_new = bool(counts[row]) or not before.is_open or env in end.abandoned
            episode = before.episode + counts[row] + (env in end.abandoned)
            if first > last:
                envs.append(EnvStart(episode))
                continue
            pieces = () if is_new else before.actions
            if pieces is not None:
                pieces = (*pieces, arrays.actions[first:, row].copy())
                if len(pieces) > 64:  # so that a long episode does not keep thousands of small arrays
                    pieces = (np.concatenate(pieces),)
                if sum(map(len, pieces)) > _MOST_ACTIONS:
                    pieces = None
            state = None if end.states is None else end.states[env]
            newest = None if state is None else tuple(np.array(part[last, row]) for part in arrays.following)
            envs.append(
                EnvStart(
                    episode,
                    is_open=True,
                    options=None if end.options is None else end.options[env],
                    actions=pieces,
                    chain=end.chains[env],
                    state=state,
                    observation=newest,
                )
            )
        following.append(ActorStart(end.generator, tuple(envs)))
    return following


def rounds_fitting(rollout_steps: int, rows: int) -> list[int]:
    """Values of `round_steps` with which rounds fill a rollout exactly."""
    return [steps for steps in range(1, rollout_steps // rows + 1) if rollout_steps % (rows * steps) == 0]

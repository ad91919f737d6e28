"""The spaces of the agents of a Godot game, and conversion of its JSON to arrays and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle.errors import InputError
from rekindle.experience import Array, Observations

__all__ = ["EnvInfo", "GameSpaces", "GodotObservations", "read_env_info"]

_MOST_PARTS = 256
_MOST_NUMBERS = 2**24
"""The most numbers in one part of an observation or action."""

GodotObservations = dict[str, Array]
"""One array for each part, with a row for each agent."""


class ObservationPart(msgspec.Struct, frozen=True):
    """One named part of an observation."""

    kind: Literal["box", "discrete", "image"]
    shape: tuple[int, ...]
    low: float = -math.inf
    high: float = math.inf
    count: int = 0
    """For `discrete`: the number of values."""

    def space(self) -> Any:
        """The Gymnasium space."""
        from gymnasium import spaces

        match self.kind:
            case "discrete":
                return spaces.Discrete(self.count)
            case "image":
                return spaces.Box(0, 255, self.shape, np.uint8)
            case "box":
                return spaces.Box(self.low, self.high, self.shape, np.float32)

    def read(self, values: list[Any], name: str) -> Array:
        """The values of all agents as one array; raises `InputError`."""
        try:
            match self.kind:
                case "image":
                    array = np.stack([_image(value) for value in values])
                case "box":
                    with np.errstate(over="ignore"):  # an overflow becomes infinity, which is detected later
                        array = np.asarray(values, np.float64).astype(np.float32)
                case "discrete":
                    numbers = np.asarray(values, np.float64)
                    array = numbers.astype(np.int64)
                    if not ((array == numbers) & (array >= 0) & (array < self.count)).all():
                        raise InputError(f"observation {name!r}: {values!r:.80} is not below {self.count}")
            return array.reshape(len(values), *self.shape)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"observation {name!r} does not have the shape {list(self.shape)} or is not made of numbers "
                f"({str(error)[:80]})"
            ) from None


def _image(value: Any) -> Array:
    if isinstance(value, str):
        return np.frombuffer(bytes.fromhex(value), np.uint8)
    array = np.asarray(value)
    if array.dtype.kind not in "iu" or array.min(initial=0) < 0 or array.max(initial=0) > 255:
        raise ValueError("an image is neither hexadecimal text nor bytes")
    return array.astype(np.uint8).reshape(-1)


class ActionPart(msgspec.Struct, frozen=True):
    """One named part of an action: one of `size` choices, or `size` numbers from -1 to 1."""

    kind: Literal["discrete", "continuous"]
    size: int

    def space(self) -> Any:
        """The Gymnasium space."""
        from gymnasium import spaces

        return spaces.Discrete(self.size) if self.kind == "discrete" else spaces.Box(-1.0, 1.0, (self.size,))

    def idle(self, rows: int) -> Array:
        """An action for agents with invalid observations: zeros."""
        return np.zeros(rows, np.int64) if self.kind == "discrete" else np.zeros((rows, self.size), np.float32)


class GameSpaces(msgspec.Struct, frozen=True):
    """The parts of observations and actions, which are the same for all agents that train together.

    A single part is its own space; several parts form a Dict. So a game with one discrete action has a Discrete action
    space, which every algorithm for discrete actions supports.
    """

    observation: dict[str, ObservationPart]
    action: dict[str, ActionPart]

    @property
    def observation_space(self) -> Any:
        """The observation space of the agent."""
        return _joined(self.observation)

    @property
    def action_space(self) -> Any:
        """The action space of the agent."""
        return _joined(self.action)

    def is_like(self, other: GameSpaces) -> bool:
        """Whether one policy fits both; the parts must have the same order too."""
        same_order = [*self.observation] == [*other.observation] and [*self.action] == [*other.action]
        return same_order and self == other

    # Observations

    def read_observations(self, rows: Sequence[Any]) -> GodotObservations:
        """The observations of agents; raises `InputError`."""
        for row in rows:
            if not isinstance(row, dict):
                raise InputError(f"an observation is {row!r:.80}, expected an object")
        named = cast("Sequence[dict[str, Any]]", rows)
        return {name: part.read([_value(row, name) for row in named], name) for name, part in self.observation.items()}

    def read_last_observation(self, value: Any) -> GodotObservations:
        """One observation; if it has one part only, it may be that part itself."""
        if len(self.observation) == 1 and not isinstance(value, dict):
            return self.read_observations([{next(iter(self.observation)): value}])
        return self.read_observations([value])

    def to_session(self, parts: Mapping[str, Array]) -> Observations:
        """Observations or actions in the form of the session: one array, or a dict of them."""
        return next(iter(parts.values())) if len(parts) == 1 else dict(parts)

    @staticmethod
    def finite(observations: GodotObservations, rows: int) -> Array:
        """Which rows have only finite numbers."""
        finite = np.ones(rows, np.bool_)
        for array in observations.values():
            if array.dtype.kind == "f":
                finite &= np.isfinite(array).reshape(rows, -1).all(axis=1)
        return finite

    # Actions

    def idle_actions(self, rows: int) -> dict[str, Array]:
        """Actions for agents with invalid observations: zeros."""
        return {name: part.idle(rows) for name, part in self.action.items()}

    def from_session(self, actions: Any) -> dict[str, Array]:
        """A batch of actions of the session, by part."""
        if len(self.action) == 1:
            return {next(iter(self.action)): actions}
        return {name: actions[name] for name in self.action}

    def to_game(self, actions: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Convert actions to the form that a game reads: an object for each agent."""
        columns = [array.tolist() for array in actions.values()]
        return [dict(zip(actions, row, strict=True)) for row in zip(*columns, strict=True)]


def _value(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise InputError(f"an observation has no {name!r}, only {', '.join(map(repr, row))[:120]}")
    return row[name]


def _joined(parts: Mapping[str, ObservationPart] | Mapping[str, ActionPart]) -> Any:
    from gymnasium import spaces

    found = {name: part.space() for name, part in parts.items()}
    # Pass a list, because Gymnasium sorts the keys of a dict.
    return next(iter(found.values())) if len(found) == 1 else spaces.Dict(list(found.items()))


class EnvInfo(msgspec.Struct, frozen=True):
    """The description that a game sends."""

    spaces: GameSpaces
    agents: int
    policies: tuple[str, ...]
    """The names of the policies that its agents request, without duplicates."""


def read_env_info(message: Mapping[str, Any], *, max_agents: int) -> EnvInfo:
    """Check the description of a game; raises `InputError` if it cannot be trained.

    Older plugins send one description for all agents; newer ones describe each agent.
    """
    agents = _whole(message.get("n_agents"), "n_agents")
    if agents > max_agents:
        raise InputError(f"the game has {agents:,} agents, more than the limit of {max_agents:,} for all games")
    if not agents:
        raise InputError("the game has no agents that train: set their control mode to training")
    observed = [_parts(tree, "observation") for tree in _each(message, "observation_space", agents)]
    acted = [_parts(tree, "action") for tree in _each(message, "action_space", agents)]
    spaces = [
        GameSpaces(
            {name: _observation_part(name, tree) for name, tree in observation.items()},
            {name: _action_part(name, tree) for name, tree in action.items()},
        )
        for observation, action in zip(observed, acted, strict=True)
    ]
    for index, other in enumerate(spaces):
        if not other.is_like(spaces[0]):
            raise InputError(
                f"agents 0 and {index} have different spaces, and one policy is trained: train those of one kind, and "
                "set the control mode of the others to human or ONNX inference"
            )
    names = message.get("agent_policy_names")
    policies = [str(name) for name in cast("list[Any]", names)] if isinstance(names, list) else []
    return EnvInfo(spaces[0], agents, tuple(dict.fromkeys(policies)))


def _each(message: Mapping[str, Any], field: str, agents: int) -> list[Any]:
    value = message.get(field)
    if isinstance(value, dict):
        return [value] * agents
    trees = cast("list[Any]", value) if isinstance(value, list) else []
    if len(trees) != agents:
        raise InputError(f"{field} describes {len(trees)} agents, but n_agents is {agents}")
    return trees


def _parts(tree: Any, what: str) -> dict[str, dict[str, Any]]:
    parts = cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}
    if not 0 < len(parts) <= _MOST_PARTS or not all(isinstance(part, dict) for part in parts.values()):
        raise InputError(f"the {what} space {tree!r:.80} is not an object with 1 to {_MOST_PARTS} parts")
    if wrong := [name for name in parts if "/" in name or not name]:
        raise InputError(f"the {what} space has a part named {wrong[0]!r:.40}: use another name, without /")
    return parts


def _observation_part(name: str, tree: dict[str, Any]) -> ObservationPart:
    what, size = f"the size of observation {name!r}", tree.get("size")
    sizes = cast("list[Any]", size) if isinstance(size, list) else [size]
    shape = tuple(_whole(length, what) for length in sizes)
    if not 0 < math.prod(shape) <= _MOST_NUMBERS:
        raise InputError(f"{what} is {size!r:.80}: use 1 to {_MOST_NUMBERS:,} numbers")
    match tree.get("space"):
        case "discrete":
            if len(shape) != 1:
                raise InputError(f"{what} is {size!r:.80}: use the number of values")
            return ObservationPart("discrete", (), count=shape[0])
        case "box" if "2d" in name:
            return ObservationPart("image", shape)
        case "box":
            low, high = (_bound(tree.get(side), default) for side, default in (("low", -math.inf), ("high", math.inf)))
            return ObservationPart("box", shape, low, high)
        case other:
            raise InputError(f"observation {name!r} has the space {other!r:.40}: use box or discrete")


def _bound(value: Any, default: float) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    return float(value) if is_number else default


def _action_part(name: str, tree: dict[str, Any]) -> ActionPart:
    size, kind = _whole(tree.get("size"), f"the size of action {name!r}"), tree.get("action_type")
    if not 0 < size <= 2**16:
        raise InputError(f"the size of action {name!r} is {size}: use 1 to {2**16:,}")
    if kind not in ("discrete", "continuous"):
        raise InputError(f"action {name!r} has the type {kind!r:.40}: use discrete or continuous")
    return ActionPart(kind, size)


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or not 0 <= value < 2**31:
        raise InputError(f"{what} is {value!r:.40}, expected a whole number")
    return int(value)

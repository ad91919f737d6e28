"""Seeds of episodes, and states of numpy generators."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np

from rekindle.agent import State
from rekindle.errors import StateError

__all__ = ["episode_seed", "generator_from_state", "generator_state"]

_BIT_GENERATORS: dict[str, type[np.random.BitGenerator]] = {
    kind.__name__: kind
    for kind in (
        np.random.MT19937,
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.Philox,
        np.random.SFC64,
    )
}

_LAST_POSITIONS = {"pos": 624, "buffer_pos": 4, "has_uint32": 1}


def episode_seed(run_seed: int, stream: int | str, episode: int) -> int:
    """The seed of one episode: always the same for the same run seed, stream and episode number.

    >>> episode_seed(0, 0, 0)
    2968811710
    """
    key = stream if isinstance(stream, int) else int.from_bytes(_digest(stream), "little")
    # The kind of key is part of the entropy, so that a name never equals a number.
    kind = 0 if isinstance(stream, int) else 1
    return int(np.random.SeedSequence([run_seed, kind, key, episode]).generate_state(1)[0])


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def generator_state(generator: np.random.Generator) -> State:
    """The complete state of a numpy generator as a tree that can be saved (128-bit integers become bytes)."""
    return cast("State", _pack(generator.bit_generator.state))


def generator_from_state(state: State) -> np.random.Generator:
    """A generator that continues from a saved state."""
    name = state.get("bit_generator") if isinstance(cast("Any", state), dict) else None
    if not (isinstance(name, str) and name in _BIT_GENERATORS):
        raise StateError(f"{name!r:.80} is not a numpy bit generator")
    bits = _BIT_GENERATORS[name]()
    try:
        tree = _unpack(state)
        _check_positions(tree)
        _check_positions(tree["state"])
        bits.state = tree
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise StateError(f"not the state of a {name} generator: {error}") from None
    return np.random.Generator(bits)


def _check_positions(fields: dict[str, Any]) -> None:
    # numpy does not check positions, and would read memory outside of its buffer.
    for field, last in _LAST_POSITIONS.items():
        if field in fields and not (type(fields[field]) is int and 0 <= fields[field] <= last):
            raise ValueError(f"{field} must be an integer from 0 to {last}, got {fields[field]!r:.80}")


def _pack(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _pack(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, np.ndarray):
        return cast("Any", value).copy()
    if isinstance(value, int) and value >= 2**63:
        return {"integer": np.frombuffer(value.to_bytes(16, "little"), np.uint8)}
    return value


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        if set(items) == {"integer"}:
            digits = items["integer"]
            if not isinstance(digits, np.ndarray) or cast("Any", digits).dtype != np.uint8:
                raise ValueError("an integer must be an array of bytes")
            return int.from_bytes(cast("Any", digits).tobytes(), "little")
        return {key: _unpack(item) for key, item in items.items()}
    return value

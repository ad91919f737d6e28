"""Check an environment, with messages that its author can act on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle.checks import all_finite
from rekindle.envs.determinism import Determinism, play, probe
from rekindle.envs.factory import EnvFactory, has_time_limit
from rekindle.envs.vector import EnvSlot
from rekindle.errors import InputError, Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.rng import episode_seed
from rekindle.spaces import Layout

__all__ = ["Finding", "check_env"]

_EPISODES = 3
_STEPS = 2_000
"""Steps to check, over all episodes."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Literal["good", "warning", "error"]
    what: str
    """What was checked: spaces, reset, step, seeding, determinism, replay."""
    message: str


def check_env(source: Any, *, should_stop: ShouldStop = never) -> list[Finding]:
    """Check everything that training and exact resumes rely on; after an error, the environment cannot be trained on.

    Raises `ConfigError` if it cannot be created, and `Interrupted` between two steps once `should_stop()` is true.
    """
    factory = EnvFactory(source)
    slot = EnvSlot(factory)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks below find what matters
            findings = [*_spaces(slot)]
            findings += _episodes(slot, should_stop)
    finally:
        slot.close()
    if not any(finding.level == "error" for finding in findings):
        findings += _repetition(factory, should_stop)
    return findings


def _spaces(slot: EnvSlot) -> Iterator[Finding]:
    yield Finding("good", "spaces", f"observations {slot.observation_space!r:.100}, actions {slot.action_space!r:.100}")
    actions = Layout.of_space(slot.action_space)
    if actions is None or actions.is_dict:
        yield Finding(
            "error",
            "spaces",
            f"no agent supports the action space {slot.action_space!r:.100}: use Discrete, "
            "MultiDiscrete, MultiBinary or Box",
        )
    for name, space in _boxes(slot.action_space, "the action space"):
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            yield Finding("warning", "spaces", f"{name} is unbounded: SAC and TD3 need finite bounds")
        elif (space.low != -1).any() or (space.high != 1).any():
            yield Finding("good", "spaces", f"{name} is not -1 to 1; rescale_actions can change that")
    for name, space in _boxes(slot.observation_space, "the observation space"):
        if space.dtype == np.float64:
            yield Finding(
                "warning",
                "spaces",
                f"{name} is float64: agents compute in float32, so half of the memory of replay buffers is wasted",
            )
        if space.dtype == np.uint8 and len(space.shape) == 3 and min(space.shape[0], space.shape[-1]) > 4:
            yield Finding("warning", "spaces", f"{name} has the shape {space.shape}: images have 1 to 4 channels")


def _boxes(space: Any, name: str) -> Iterator[tuple[str, Any]]:
    named = getattr(space, "spaces", None)
    if isinstance(named, Mapping):
        for key, part in cast("Mapping[str, Any]", named).items():
            yield from _boxes(part, f"{name}'s part {key!r}")
    elif type(space).__name__ == "Box":
        yield name, space


def _episodes(slot: EnvSlot, should_stop: ShouldStop) -> Iterator[Finding]:
    """Play random episodes, and report the first problem of each kind."""
    reported: set[str] = set()
    steps = ended = 0
    for episode in range(_EPISODES):
        seed = episode_seed(0, "check", episode)
        slot.action_space.seed(seed)
        for what, complaint in _episode(slot, seed, _STEPS // _EPISODES, should_stop):
            if what == "steps":
                steps += int(complaint)
            elif what == "ended":
                ended += 1
            elif complaint not in reported:
                reported.add(complaint)
                yield Finding("warning" if complaint.startswith("an observation lies") else "error", what, complaint)
                if len(reported) > 10:
                    return
    if not reported:
        yield Finding("good", "step", f"{steps} steps: shapes, dtypes and numbers are right")
    if not ended and not has_time_limit(slot.env):
        yield Finding(
            "warning",
            "step",
            f"no episode ended within {_STEPS // _EPISODES} random steps: set max_episode_steps if none ever does",
        )


def _episode(slot: EnvSlot, seed: int, most: int, should_stop: ShouldStop) -> Iterator[tuple[str, str]]:
    try:
        answer: Any = slot.reset(seed=seed, options=None)
        if not (isinstance(answer, tuple) and len(cast("tuple[Any, ...]", answer)) == 2):
            yield "reset", f"reset returned {answer!r:.80}, not (observation, info)"
            return
    except Exception as error:
        yield "reset", f"reset(seed=...) raised {type(error).__name__}: {error}"
        return
    yield from _observation(slot, answer[0], "reset")
    for step in range(1, most + 1):
        if should_stop():
            raise Interrupted(f"stopped while {slot.name} was checked")
        try:
            answer = slot.step(slot.action_space.sample())
        except Exception as error:
            yield "step", f"step raised {type(error).__name__}: {error}"
            return
        if not (isinstance(answer, tuple) and len(cast("tuple[Any, ...]", answer)) == 5):
            yield "step", f"step returned {answer!r:.80}, not (observation, reward, terminated, truncated, info)"
            return
        observation, reward, terminated, truncated, info = cast("tuple[Any, ...]", answer)
        yield from _observation(slot, observation, "step")
        yield from _outcome(reward, terminated, truncated, info)
        if terminated or truncated:
            yield "ended", ""
            yield "steps", str(step)
            return
    yield "steps", str(most)


def _observation(slot: EnvSlot, observation: Any, what: str) -> Iterator[tuple[str, str]]:
    layout = cast("Layout", Layout.of_space(slot.observation_space))
    try:
        arrays = layout.conform(observation, "an observation")
    except InputError as error:
        yield what, str(error)
        return
    if not all_finite(arrays):
        yield what, f"an observation of {what} holds NaN or infinity, which training refuses"
    elif not _contains(slot.observation_space, layout, arrays):
        yield (
            what,
            (
                f"an observation lies outside the space {slot.observation_space!r:.100}: training continues, but "
                "encodings rely on the bounds"
            ),
        )


def _contains(space: Any, layout: Layout, arrays: list[Array]) -> bool:
    values = layout.observations([array if array.ndim else array[()] for array in arrays])
    return bool(space.contains(values))


def _outcome(reward: Any, terminated: Any, truncated: Any, info: Any) -> Iterator[tuple[str, str]]:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        yield "step", f"the reward {reward!r:.80} is not a number"
    else:
        if not math.isfinite(value):
            yield "step", f"the reward {reward!r:.80} is not finite, which training refuses"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            yield "step", f"{name} is {flag!r:.80}, which is not a bool"
    if not isinstance(info, dict):
        yield "step", f"the info is {info!r:.80}, which is not a dict"


def _repetition(factory: EnvFactory, should_stop: ShouldStop) -> Iterator[Finding]:
    slot = EnvSlot(factory)
    try:
        first = play(slot, 0, should_stop=should_stop)
        others = [play(slot, seed, first.actions, should_stop=should_stop) for seed in range(1, 5)]
    finally:
        slot.close()
    if all(other.chain == first.chain for other in others):
        yield Finding(
            "warning",
            "seeding",
            "every seed gave the same episode: if anything in it is random, reset(seed=...) should seed it, with "
            "super().reset(seed=seed) and self.np_random",
        )
    else:
        yield Finding("good", "seeding", "different seeds give different episodes")
    yield from _REPETITION[probe(factory, should_stop=should_stop)]


_REPETITION = {
    Determinism.REPEATS: (
        Finding("good", "determinism", "the same seed and actions give the same episode"),
        Finding("good", "replay", "an open episode is replayed exactly after a resume"),
    ),
    Determinism.LEAKS: (
        Finding(
            "warning",
            "determinism",
            "earlier episodes affect later ones, although each is seeded: a new instance is created for every episode, "
            "which is slower",
        ),
        Finding("good", "replay", "in a new instance an open episode is replayed exactly after a resume"),
    ),
    Determinism.RANDOM: (
        Finding(
            "warning",
            "determinism",
            "the same seed and actions give different episodes: something random is not seeded by reset(seed=...), or "
            "depends on the clock",
        ),
        Finding("warning", "replay", "a resume is approximate: an episode that is open is closed as truncated"),
    ),
}

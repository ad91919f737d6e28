"""Check an environment, with messages that its author can act on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec
import numpy as np

from rekindle.checks import all_finite
from rekindle.envs.actions import RandomActions
from rekindle.envs.determinism import PROBE_STEPS, Determinism, judge, play, probe_lengths
from rekindle.envs.factory import ENV_ERRORS, EnvFactory, has_time_limit
from rekindle.envs.vector import EnvSlot, error_text
from rekindle.envs.wrappers import stateful_wrappers
from rekindle.errors import ConfigError, EnvError, InputError, Interrupted
from rekindle.experience import Array
from rekindle.interrupt import ShouldStop, never
from rekindle.policy.encoding import Encoding
from rekindle.policy.images import image_shape
from rekindle.rng import episode_seed
from rekindle.spaces import Layout, SpaceParts
from rekindle.traces import EpisodeTrace

__all__ = ["Finding", "check_env"]

_OTHER_SEEDS = 4
_MOST_COMPLAINTS = 10


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Literal["good", "warning", "error"]
    what: str
    """What was checked: wrappers, spaces, reset, step, seeding, determinism, replay."""
    message: str


def check_env(source: Any, *, steps: int = PROBE_STEPS, should_stop: ShouldStop = never) -> list[Finding]:
    """Check what training and exact resumes need; with a finding of level `error`, training is not possible.

    It creates at most three instances, and makes at most `steps` env steps in total. Raises `ConfigError` if the
    environment cannot be created, and `Interrupted` between two steps once `should_stop()` is true.
    """
    factory = EnvFactory(source)
    lengths = probe_lengths(steps, short_plays=_OTHER_SEEDS)
    slot = EnvSlot(factory)
    findings: list[Finding] = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the checks below find what matters
            findings += [Finding("error", "wrappers", complaint) for complaint in stateful_wrappers(slot.env)]
            findings += _spaces(slot)
            examined = _Examination(slot, should_stop)
            for episode, most in enumerate(lengths):
                examined.play(episode_seed(0, "check", episode), most)
            findings += examined.findings(lengths[0])
            if any(finding.level == "error" for finding in findings):
                return findings
            findings.append(_seeding(slot, examined.played[1], should_stop))
        return [*findings, *_REPETITION[judge(factory, examined.played, should_stop=should_stop)]]
    except EnvError as error:
        return [*findings, Finding("error", "step", str(error))]
    finally:
        slot.close()


def _spaces(slot: EnvSlot) -> Iterator[Finding]:
    yield Finding("good", "spaces", f"observations {slot.observation_space!r:.100}, actions {slot.action_space!r:.100}")
    layout = Layout.of_space(slot.action_space)
    if layout is None or not any(math.prod(spec.shape) for spec in layout.leaves.values()):
        yield Finding(
            "error",
            "spaces",
            f"no agent supports the action space {slot.action_space!r:.100}: use Discrete, "
            "MultiDiscrete, MultiBinary or Box, or a Dict or Tuple of those",
        )
    for name, space in _boxes(slot.action_space, "the action space"):
        if space.dtype.kind != "f":
            yield Finding(
                "warning",
                "spaces",
                f"{name} is a Box of {space.dtype}, which only agents of your own take: use "
                "Discrete, MultiDiscrete or MultiBinary",
            )
        elif not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            yield Finding("warning", "spaces", f"{name} is unbounded: agents other than PPO need finite bounds")
        elif (space.low != -1).any() or (space.high != 1).any():
            yield Finding("good", "spaces", f"{name} is not -1 to 1; rescale_actions can change that")
    for name, space in _boxes(slot.observation_space, "the observation space"):
        if space.dtype == np.float64:
            yield Finding(
                "warning",
                "spaces",
                f"{name} is float64: agents compute in float32, so half of the memory of replay buffers is wasted",
            )
        if space.dtype.kind == "f" and space.high.max(initial=0) == 255:
            yield Finding("warning", "spaces", f"{name} has numbers up to 255: only uint8 is scaled to 0..1")
    try:
        images = Encoding.of(slot.observation_space).images
    except ConfigError as error:
        yield Finding("error", "spaces", str(error))
        return
    for part in images:
        channels, rows, columns = image_shape(part.shape, part.channels)
        name = _named("the observation space", part.name)
        yield Finding(
            "good",
            "spaces",
            f"{name} is an image of {rows} x {columns} pixels and {channels} channel{'s' * (channels > 1)}",
        )


def _boxes(space: Any, name: str) -> Iterator[tuple[str, Any]]:
    for key, part in SpaceParts.of(space).parts.items():
        if type(part.space).__name__ == "Box":
            yield _named(name, key), part.space


def _named(space: str, key: str) -> str:
    return f"{space}'s part {key!r}" if key else space


class _Examination:
    """Plays random episodes in one instance, and collects the first problem of each kind."""

    def __init__(self, slot: EnvSlot, should_stop: ShouldStop) -> None:
        self._slot, self._should_stop = slot, should_stop
        self._layout = cast("Layout", Layout.of_space(slot.observation_space))
        self._actions = RandomActions(slot.action_space)
        self._complaints: dict[str, str] = {}
        """The check that found each problem, by message."""
        self._steps = self._ended = 0
        self.played: list[EpisodeTrace] = []

    def findings(self, longest: int) -> Iterator[Finding]:
        """The results; no episode was longer than `longest` steps."""
        for complaint, what in [*self._complaints.items()][:_MOST_COMPLAINTS]:
            yield Finding("warning" if complaint.startswith("an observation lies") else "error", what, complaint)
        if not self._complaints:
            yield Finding("good", "step", f"{self._steps} steps: shapes, dtypes and numbers are right")
        if not self._ended and not has_time_limit(self._slot.env):
            yield Finding(
                "warning",
                "step",
                f"no episode ended within {longest} random steps: set max_episode_steps if episodes never end",
            )

    def play(self, seed: int, most: int) -> None:
        """Play one episode, or its first steps."""
        slot, trace = self._slot, EpisodeTrace(seed, None)
        self._actions.seed(seed)
        try:
            answer: Any = slot.reset(seed=seed, options=None)
        except ENV_ERRORS as error:
            self._complain("reset", f"reset(seed=...) {_raised(error)}")
            return
        if not _has_length(answer, 2):
            self._complain("reset", f"reset returned {answer!r:.80}, not (observation, info)")
            return
        observation = answer[0]
        trace.start(self._checked(observation, "reset"))
        for _ in range(most):
            if self._should_stop():
                raise Interrupted(f"stopped while {slot.name} was checked")
            try:
                action = self._actions.draw(observation)
            except InputError as error:
                self._complain("step", str(error))
                return
            try:
                answer = slot.step(self._actions.executed(action))
            except ENV_ERRORS as error:
                self._complain("step", f"step {_raised(error)}")
                return
            if not _has_length(answer, 5):
                self._complain(
                    "step", f"step returned {answer!r:.80}, not (observation, reward, terminated, truncated, info)"
                )
                return
            observation, reward, terminated, truncated, info = answer
            arrays = self._checked(observation, "step")
            complaints = [*_outcome(reward, terminated, truncated, info)]
            for complaint in complaints:
                self._complain("step", complaint)
            self._steps += 1
            if not complaints:
                trace.add(action, float(reward), arrays)
            if terminated or truncated:
                self._ended += 1
                break
        self.played.append(trace)

    def _checked(self, observation: Any, what: str) -> list[Array]:
        """The arrays of an observation, after checking it; an empty one if it does not fit the space."""
        try:
            arrays = self._layout.conform(observation, "an observation")
        except InputError as error:
            self._complain(what, str(error))
            return [np.empty(0)]
        if not all_finite(arrays):
            self._complain(what, f"an observation of {what} holds NaN or infinity, which training refuses")
        elif not _contains(self._slot.observation_space, self._layout, arrays):
            self._complain(
                what,
                f"an observation lies outside the space {self._slot.observation_space!r:.100}: training continues, but "
                "encodings rely on the bounds",
            )
        return arrays

    def _complain(self, what: str, complaint: str) -> None:
        self._complaints.setdefault(complaint, what)


def _raised(error: Exception | SystemExit) -> str:
    if isinstance(error, SystemExit):
        return error_text(error).removeprefix("it ")
    return f"raised {type(error).__name__}: {error}"


def _has_length(answer: Any, length: int) -> bool:
    return isinstance(answer, tuple) and len(cast("tuple[Any, ...]", answer)) == length


def _contains(space: Any, layout: Layout, arrays: list[Array]) -> bool:
    values = layout.nested([array if array.ndim else array[()] for array in arrays])
    return bool(space.contains(values))


def _outcome(reward: Any, terminated: Any, truncated: Any, info: Any) -> Iterator[str]:
    try:
        value = float(reward)
    except (TypeError, ValueError):
        yield f"the reward {reward!r:.80} is not a number"
    else:
        if not math.isfinite(value):
            yield f"the reward {reward!r:.80} is not finite, which training refuses"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            yield f"{name} is {flag!r:.80}, which is not a bool"
    if not isinstance(info, dict):
        yield f"the info is {info!r:.80}, which is not a dict"


def _seeding(slot: EnvSlot, short: EpisodeTrace, should_stop: ShouldStop) -> Finding:
    """Test whether the actions of an episode have a different outcome with other seeds."""
    actions = RandomActions(slot.action_space)
    others = (
        play(slot, seed, actions, known=short.actions, should_stop=should_stop)
        for seed in range(short.seed + 1, short.seed + 1 + _OTHER_SEEDS)
    )
    if any(other.chain != short.chain for other in others):
        return Finding("good", "seeding", "different seeds give different episodes")
    return Finding(
        "warning",
        "seeding",
        "every seed gave the same episode: if anything in it is random, reset(seed=...) should seed it, with "
        "super().reset(seed=seed) and self.np_random",
    )


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

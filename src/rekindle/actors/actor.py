"""A logical actor: its environments, its random generator, and their states. Any process can run it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from rekindle.actors.policies import Act
from rekindle.actors.rounds import (
    ActorEnd,
    ActorStart,
    EnvStart,
    RoundArrays,
    RoundShape,
    generator_bytes,
    generator_of,
)
from rekindle.agent import State
from rekindle.envs import Envs
from rekindle.envs.factory import ENV_ERRORS
from rekindle.envs.vector import SingleEnv, failed, numbers_in
from rekindle.errors import EnvError, Interrupted, StateError
from rekindle.experience import Array
from rekindle.rng import episode_seed
from rekindle.storage.advice import advice_on, type_name
from rekindle.traces import frozen_options

__all__ = ["LogicalActor", "ResetOptions"]

_PLAIN = frozenset({type(None), bool, int, float, str})

ResetOptions = Callable[[int, int, int], dict[str, Any] | None]
"""Returns the options of a reset for a stream, an episode number and the env steps before the round."""


class LogicalActor:
    """Plays rounds in its environments.

    Its transitions depend only on the seed of the run, its index, its policies and its state before the round. So a
    round can be played again, in another process too.
    """

    def __init__(
        self,
        index: int,
        envs: Envs,
        shape: RoundShape,
        *,
        seed: int,
        reset_options: ResetOptions | None = None,
        extras: Sequence[str] | None = None,
        beat: Callable[[], object] = lambda: None,
    ) -> None:
        """`beat` is called after every step and reset, to show that the actor is alive."""
        self.index = index
        self._envs, self._shape, self._seed = envs, shape, seed
        self._options_of, self._extras, self._beat = reset_options, extras, beat
        self._rows = range(index * shape.envs_each, (index + 1) * shape.envs_each)
        self._streams = np.arange(self._rows.start, self._rows.stop)
        count = shape.envs_each
        self._newest: list[Array] = [
            np.zeros((count, *leaf.shape), leaf.dtype) for leaf in shape.layout.leaves.values()
        ]
        self._episodes = [0] * count
        self._is_open = [False] * count
        self._chains = [b""] * count
        self._options: list[dict[str, Any] | None] = [None] * count
        self._abandoned: list[int] = []
        self._saves_states = bool(envs.one(0).has_state)
        self._rng = np.random.default_rng(0)

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    # Going back to where it stood

    def restore(self, start: ActorStart) -> None:
        """Restore the state before a round; open episodes are replayed.

        If a replay has another outcome, the episode is abandoned, and the next round reports it.
        """
        self._rng = generator_of(start.generator)
        self._abandoned = []
        for env, before in enumerate(start.envs):
            self._episodes[env], self._is_open[env] = before.episode, before.is_open
            self._chains[env], self._options[env] = before.chain, before.options
            if before.is_open and not self._continues(env, before):
                self._abandoned.append(env)
                self._episodes[env] += 1
                self._is_open[env] = False

    def _continues(self, env: int, before: EnvStart) -> bool:
        """Bring an environment back to the middle of an episode; returns whether that succeeded."""
        single = self._envs.one(env)
        seed = episode_seed(self._seed, self._rows[env], before.episode)
        try:
            if before.state is not None and before.observation is not None and self._saves_states:
                single.reset(seed=seed, options=before.options)
                single.set_state(_own_copy(before.state, ""))
                self._beat()
                self._show(env, before.observation)
                return True
            return before.actions is not None and self._is_replayed(env, single, seed, before)
        except (EnvError, Interrupted):
            raise
        except ENV_ERRORS as error:
            raise failed(self._envs.name, self._rows[env], "a replay of its episode", error) from error

    def _is_replayed(self, env: int, single: SingleEnv, seed: int, before: EnvStart) -> bool:
        layout, structure = self._shape.layout, self._shape.structure
        observation, _ = single.reset(seed=seed, options=before.options)
        self._beat()
        arrays = layout.conform(observation, "the observation")
        chain = _first_link(arrays)
        actions = np.concatenate(cast("tuple[Array, ...]", before.actions))
        # Rounds end at fixed steps, so the first piece of an episode is the shorter one.
        left = len(actions) % self._shape.steps or self._shape.steps
        seen: list[list[Array]] = []
        rewards: list[float] = []
        for action in actions:
            executed = action if structure is None else structure.nested(action)
            observation, reward, terminated, truncated, _ = single.step(executed)
            self._beat()
            if terminated or truncated:
                return False
            arrays = layout.conform(observation, "the observation")
            seen.append([np.array(array) for array in arrays])
            rewards.append(float(reward))
            if len(rewards) == left:
                parts = [np.stack(part) for part in zip(*seen, strict=True)]
                chain = _next_link(chain, parts, np.array(rewards))
                seen, rewards, left = [], [], self._shape.steps
        self._show(env, arrays)
        return chain == before.chain

    def _show(self, env: int, arrays: Sequence[Array]) -> None:
        for newest, array in zip(self._newest, arrays, strict=True):
            newest[env] = array

    # Playing

    def play(self, act: Act, out: RoundArrays, env_steps: int) -> ActorEnd:
        """Play a round into arrays; an action is chosen in the round in which it is executed."""
        began = time.perf_counter()
        shape, envs, rows = self._shape, self._envs, range(self._shape.envs_each)
        extras: list[tuple[int, int, dict[str, float]]] = []
        begun = [0] * len(rows)
        """The step of this round at which the open episode of each environment begins or continues."""
        for step in range(shape.steps):
            if not all(self._is_open):
                self._start_episodes(step, begun, env_steps)
            newest = self._newest
            for column, array in zip(out.observations, newest, strict=True):
                column[step] = array
            chosen = act(shape.layout.observations(newest), self._rng, self._streams)
            # An environment gets the numbers that are learned from, and that a replay repeats.
            actions = shape.action.conform(chosen, "the actions of the policy", rows=len(rows))
            out.actions[step] = actions
            executed = actions if shape.structure is None else [shape.structure.nested(row) for row in actions]
            outcome = envs.step(executed)
            observations = outcome.observations
            self._newest = (
                list(observations.values()) if isinstance(observations, dict) else [cast("Array", observations)]
            )
            for column, array in zip(out.following, self._newest, strict=True):
                column[step] = array
            out.rewards[step], out.statuses[step] = outcome.rewards, outcome.statuses
            for env in outcome.statuses.nonzero()[0].tolist():
                self._is_open[env] = False
                self._episodes[env] += 1
                if numbers := numbers_in(outcome.extras.get(env, {}), self._extras):
                    extras.append((step, env, numbers))
            self._beat()
        for env in rows:
            if self._is_open[env]:
                first = begun[env]
                parts = [array[first:, env] for array in out.following]
                self._chains[env] = _next_link(self._chains[env], parts, out.rewards[first:, env])
        abandoned, self._abandoned = self._abandoned, []
        return ActorEnd(
            generator=generator_bytes(self._rng),
            chains=list(self._chains),
            abandoned=abandoned,
            extras=extras,
            options=None if self._options_of is None else list(self._options),
            states=self._states() if self._saves_states else None,
            seconds=time.perf_counter() - began,
        )

    def _start_episodes(self, step: int, begun: list[int], env_steps: int) -> None:
        for env, is_open in enumerate(self._is_open):
            if is_open:
                continue
            row, episode = self._rows[env], self._episodes[env]
            try:
                if self._options_of is not None:
                    self._options[env] = frozen_options(self._options_of(row, episode, env_steps))
                observation, _ = self._envs.one(env).reset(
                    seed=episode_seed(self._seed, row, episode), options=self._options[env]
                )
                arrays = self._shape.layout.conform(observation, "the observation")
            except EnvError:
                raise
            except ENV_ERRORS as error:
                raise failed(self._envs.name, row, "reset", error) from error
            self._beat()
            self._show(env, arrays)
            self._chains[env] = _first_link(arrays)
            self._is_open[env], begun[env] = True, step

    def _states(self) -> list[State | None]:
        states: list[State | None] = []
        for env, is_open in enumerate(self._is_open):
            try:
                states.append(_own_copy(self._envs.one(env).get_state(), "") if is_open else None)
            except ENV_ERRORS as error:
                raise failed(self._envs.name, self._rows[env], "get_state", error) from error
        return states


def _own_copy(state: object, path: str) -> Any:
    """A copy of the state of an environment, which may change its own; raises `StateError` if it cannot be saved."""
    kind, where = type(state), path or "the state"
    if kind is dict:
        return {key: _own_copy(value, f"{where}[{key!r}]") for key, value in cast("State", state).items()}
    if kind is list:
        return [_own_copy(value, f"{where}[{place}]") for place, value in enumerate(cast("list[Any]", state))]
    if kind is np.ndarray and cast("Array", state).dtype.kind in "biufc":
        return cast("Array", state).copy()
    if kind in _PLAIN and (kind is not int or -(2**63) <= cast("int", state) < 2**64):
        return state
    raise StateError(f"{where} is a {type_name(state)}, which cannot be saved: {advice_on(state)}")


def _first_link(arrays: Sequence[Array]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.digest()


def _next_link(chain: bytes, parts: Sequence[Array], rewards: Array) -> bytes:
    """The hash after some steps, with the observations and rewards that they led to."""
    digest = hashlib.blake2b(chain, digest_size=16)
    for part in parts:
        digest.update(part.tobytes())
    digest.update(rewards.tobytes())
    return digest.digest()

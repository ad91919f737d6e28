"""Vector environments that reset themselves, with the true final observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from rekindle.envs.factory import ENV_ERRORS, close_env
from rekindle.envs.vector import Outcome, failed, numbers_in
from rekindle.errors import ConfigError
from rekindle.experience import Array, EpisodeStatus, Observations
from rekindle.spaces import Layout

if TYPE_CHECKING:
    import gymnasium

__all__ = ["AutoresetEnvs"]


class AutoresetEnvs:
    """A Gymnasium vector environment with any autoreset mode.

    In NEXT_STEP mode a row whose episode ended is resting: its next step is a reset, not a transition. In SAME_STEP
    mode the true final observation is in the info. In DISABLED mode rows are reset with a mask. Open episodes cannot be
    restored, because no row can be stepped alone.
    """

    def __init__(self, vector_env: gymnasium.vector.VectorEnv[Any, Any, Any], name: str) -> None:
        from gymnasium.vector import AutoresetMode

        self._env = env = cast("Any", vector_env)
        self.name = name
        self.num_envs: int = env.num_envs
        self.observation_space: Any = env.single_observation_space
        self.action_space: Any = env.single_action_space
        layout = Layout.of_space(self.observation_space)
        if layout is None:
            raise ConfigError(f"{name}: the observation space {self.observation_space!r:.120} is not supported")
        mode: Any = env.metadata.get("autoreset_mode")
        try:
            self.mode = AutoresetMode(mode)
        except ValueError:
            raise ConfigError(
                f"{name}: its metadata['autoreset_mode'] is {mode!r}, so it is unknown which observations are "
                f"final; use one of {', '.join(known.value for known in AutoresetMode)}"
            ) from None
        self.inexact: str | None = f"{name} is a vector environment whose open episodes cannot be restored"
        self.resting = np.zeros(self.num_envs, np.bool_)
        """Rows whose next step is a reset, and not a transition."""
        self._layout = layout
        self._resets_next = self.mode is AutoresetMode.NEXT_STEP
        self._resets_same = self.mode is AutoresetMode.SAME_STEP

    @property
    def resets_itself(self) -> bool:
        """Whether rows start the next episode by themselves."""
        return self._resets_next or self._resets_same

    def one(self, row: int) -> NoReturn:
        """Raise, because no row can be stepped alone."""
        raise ConfigError(f"{self.name}: row {row} cannot be stepped alone")

    def reset(self, rows: Array, seeds: Sequence[int], options: dict[str, Any] | None = None) -> Observations:
        """Reset some rows, each with its own seed if the environment supports it; returns all observations."""
        everything = bool(rows.all())
        chosen: dict[str, Any] | None = {**(options or {}), "reset_mask": rows} if not everything else options
        try:
            try:
                observations, _ = self._env.reset(seed=list(seeds), options=chosen)
            except Exception:
                if not everything:
                    raise
                observations, _ = self._env.reset(seed=seeds[0], options=chosen)  # one generator for all rows
        except ENV_ERRORS as error:
            raise failed(self.name, int(np.argmax(rows)), "reset", error) from error
        self.resting &= ~rows
        return self._observations(observations)

    def step(self, actions: Any) -> Outcome:
        """Step all rows; rows that were resting are now at the first observation of an episode."""
        try:
            raw, rewards, terminated, truncated, infos = self._env.step(actions)
        except ENV_ERRORS as error:
            raise failed(self.name, 0, "step", error) from error
        observations = self._observations(raw)
        statuses = np.zeros(self.num_envs, np.uint8)
        # Fewer than half of the steps end an episode, and counting is the fastest way to see it.
        if np.count_nonzero(truncated):
            statuses[np.asarray(truncated, np.bool_)] = EpisodeStatus.TRUNCATED
        if np.count_nonzero(terminated):
            statuses[np.asarray(terminated, np.bool_)] = EpisodeStatus.TERMINATED
        ended = statuses.nonzero()[0]
        following = None
        final_infos: Mapping[str, Any] = infos
        if self._resets_same and len(ended):
            following = observations
            observations = self._with_final(observations, infos, ended)
            final_infos = infos.get("final_info", {})
        if self._resets_next:
            self.resting = statuses.astype(np.bool_)
        extras = {row: numbers_in(_row_info(final_infos, row)) if final_infos else {} for row in ended.tolist()}
        return Outcome(observations, np.asarray(rewards, np.float64), statuses, extras, following)

    def _observations(self, raw: Any) -> Observations:
        """Copy the observations, because vector environments reuse their buffers."""
        arrays = self._layout.conform(raw, f"{self.name}: the observation", rows=self.num_envs)
        return self._layout.observations([array.copy() for array in arrays])

    def _with_final(self, observations: Observations, infos: Mapping[str, Any], ended: Array) -> Observations:
        if "final_obs" not in infos:
            raise failed(self.name, int(ended[0]), "step", KeyError("final_obs is missing from the info"))
        arrays = [array.copy() for array in self._layout.conform(observations, "observations", rows=self.num_envs)]
        final = infos["final_obs"]
        is_named = type(final) is dict  # otherwise there is one observation per row
        nesting = self._layout.nesting
        for row in ended.tolist():
            if nesting is not None:
                true: Any = nesting.row(final, row)
            else:
                true = {name: final[name][row] for name in self._layout.leaves} if is_named else final[row]
            for array, value in zip(arrays, self._layout.conform(true, "final_obs"), strict=True):
                array[row] = value
        return self._layout.observations(arrays)

    def first(self, observations: Observations) -> Any:
        """The observation of row 0, in the structure of the observation space."""
        return self._layout.nested([array[0] for array in self._layout.conform(observations, "", rows=self.num_envs)])

    def render(self) -> Any:
        """Render each row, if the environment supports it."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        close_env(self._env, self.name)


def _row_info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """The info of one row: values are in arrays, and flags say which rows have them."""
    return {
        name: values[row]
        for name, values in infos.items()
        if type(values) is np.ndarray and f"_{name}" in infos and infos[f"_{name}"][row]
    }

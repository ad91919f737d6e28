"""Videos of an agent: evaluation episodes as animated gifs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.error import DependencyNotInstalled

from rekindle.envs import EnvFactory
from rekindle.errors import ConfigError, EnvError, MissingExtra, StorageError
from rekindle.interrupt import ShouldStop, never
from rekindle.recorders.extras import require
from rekindle.recorders.video import Film
from rekindle.storage.files import write_output
from rekindle.text import install_command
from rekindle.training import EpisodeEvaluator
from rekindle.training.evaluation import Act

__all__ = ["Studio"]

_MOST = 3
"""The most episodes that are recorded."""
_MOST_FRAMES = 3_000
"""The most frames of an episode that are recorded."""
_COLOURS = 64
_FRAME_RATE = 30
"""Frames per second, if the environment does not specify it."""


class Studio:
    """Records the first episodes of an evaluation."""

    def __init__(self, factory: EnvFactory, directory: Path, *, seed: int, rebuilds: bool, max_steps: int) -> None:
        require("a film", "PIL", extra="video")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot create {directory}: {error.strerror}") from error
        settings = factory.settings
        known = settings.arguments if settings is not None else {}
        self._factory = EnvFactory(factory, arguments={**known, "render_mode": "rgb_array"})
        self._directory, self._seed, self._rebuilds, self._max_steps = directory, seed, rebuilds, max_steps
        self._films: list[Film] = []
        self._rate = _FRAME_RATE

    def film(self, act: Act, episodes: int, step: int, *, should_stop: ShouldStop = never) -> list[Path]:
        """Play the first episodes again, and write each to `step_<step>-episode_<number>.gif`."""
        self._films = []
        evaluator = EpisodeEvaluator(
            EnvFactory(self._made), seed=self._seed, num_envs=1, rebuilds=self._rebuilds, max_steps=self._max_steps
        )
        try:
            evaluator.evaluate(act, min(episodes, _MOST))
        except EnvError as error:
            if isinstance(error.__cause__, DependencyNotInstalled):
                raise MissingExtra(f"a video needs {install_command('video')} ({error.__cause__})") from error
            raise
        finally:
            evaluator.close()
        written: list[Path] = []
        for number, film in enumerate(self._films):
            file = self._directory / f"step_{step}-episode_{number}.gif"
            write_output(file, film.gif(self._rate, should_stop=should_stop))
            written.append(file)
        return written

    def _made(self) -> _Filmed:
        env = self._factory(training=False)
        if env.render_mode != "rgb_array":
            raise ConfigError(f"{self._factory.name} cannot be recorded: it has no render_mode rgb_array")
        self._rate = env.metadata.get("render_fps", _FRAME_RATE)
        return _Filmed(env, self._films)


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records a frame of every step."""

    def __init__(self, env: gymnasium.Env[Any, Any], films: list[Film]) -> None:
        super().__init__(env)
        self._films = films

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start a recording."""
        answer = self.env.reset(seed=seed, options=options)
        self._films.append(Film(colours=_COLOURS))
        self._shoot()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step and record a frame."""
        answer = self.env.step(action)
        self._shoot()
        return answer

    def _shoot(self) -> None:
        if len(self._films[-1]) < _MOST_FRAMES:
            frame: Any = self.env.render()
            self._films[-1].add(frame)

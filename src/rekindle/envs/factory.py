"""Settings of an environment that a config can store, and a factory that creates it."""

from __future__ import annotations

import contextlib
import copy
import difflib
import importlib
import inspect
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsFloat, cast

import msgspec
import numpy as np

from rekindle.checks import checked_count
from rekindle.envs.instances import is_environment, likeness
from rekindle.errors import ConfigError, MissingExtra
from rekindle.spaces import Layout
from rekindle.text import install_command

if TYPE_CHECKING:
    import gymnasium

__all__ = [
    "ENV_ERRORS",
    "EnvFactory",
    "EnvSettings",
    "EnvWrapping",
    "close_env",
    "has_time_limit",
    "latest_version",
    "required_files",
    "required_modules",
]

logger = logging.getLogger("rekindle")


ENV_ERRORS = (Exception, SystemExit)
"""What counts as a failure of an environment: a call of `sys.exit()` must not end the process without a message."""

_MINATAR = "MinAtar/"
"""What its ids begin with."""
_MOST_FRAMES = 1000
"""The most frames to stack: each environment keeps them in memory."""


class EnvWrapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The wrappers around an environment."""

    max_episode_steps: int | None = None
    """Truncate episodes after this many steps; None keeps the environment's own limit."""
    atari: bool = False
    """Atari preprocessing: up to 30 no-ops at the start, 4 frames per step, 84 x 84 gray."""
    frame_stack: int | None = None
    """Stack this many of the newest frames on a leading axis."""
    rescale_actions: bool = False
    """Rescale actions, so that they range from -1 to 1 whatever the bounds of the environment."""
    clip_actions: bool = False
    """Accept any action, and clip it to the bounds."""
    sign_rewards: bool = False
    """Train on the sign of rewards; evaluations use the original rewards."""

    def __post_init__(self) -> None:
        """Refuse values that are out of range, and convert numpy integers to int."""
        for name, most in (("max_episode_steps", None), ("frame_stack", _MOST_FRAMES)):
            msgspec.structs.force_setattr(self, name, checked_count(name, getattr(self, name), 1, most))


class EnvSettings(EnvWrapping, frozen=True, kw_only=True):
    """An environment and its wrappers, as stored in a config."""

    id: str
    """A Gymnasium id such as `CartPole-v1`, or `module:name` of a function or class that creates one."""
    arguments: dict[str, Any] = {}
    """Arguments for the environment."""
    modules: tuple[str, ...] = ()
    """Modules to import first, because they register ids."""


class EnvFactory:
    """Creates environments of one kind: from an id, from `module:name`, from a function, or like an environment.

    >>> EnvFactory("FrozenLake-v1", arguments={"is_slippery": False})().observation_space
    Discrete(16)
    """

    def __init__(
        self, source: str | EnvSettings | Callable[..., Any] | EnvFactory | gymnasium.Env[Any, Any], **settings: Any
    ) -> None:
        """`settings` are the fields of `EnvSettings`."""
        self._make: Callable[..., Any] | None = None
        self._spec: Any = None
        """In another process: how the process that made the factory has registered the id."""
        if isinstance(source, EnvFactory):
            self._make, self._spec, known = source._make, source._spec, source._known
        elif isinstance(source, EnvSettings):
            known = source
        elif isinstance(source, str):
            known = EnvSettings(id=latest_version(source))
        elif is_environment(source):
            found = likeness(source)
            self._make, known = found.make, EnvSettings(**found.settings)
        elif callable(cast("Any", source)):
            make = cast("Callable[..., Any]", source)
            self._make, known = make, EnvSettings(id=_import_name(make) or _shown(make))
        else:
            raise ConfigError(f"{source!r:.80} does not create environments: use a Gymnasium id, or a function")
        if not known.id:
            raise ConfigError("env is empty: use a Gymnasium id such as CartPole-v1, or module:name")
        unknown = sorted(settings.keys() - set(EnvSettings.__struct_fields__))
        if unknown:
            there = ", ".join(EnvSettings.__struct_fields__)
            raise ConfigError(f"an environment has no setting {', '.join(unknown)}; there are {there}")
        self._known: EnvSettings = msgspec.structs.replace(known, **settings)

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which knows the ids of Gymnasium and of `modules`, and not those of a script."""
        spec = None if self._known.modules else _registry().get(self._known.id)
        is_known = spec is None or str(spec.entry_point).startswith("gymnasium.")
        return {**self.__dict__, "_spec": self._spec if is_known else spec}

    @property
    def name(self) -> str:
        """The name of the environment in messages."""
        return self._known.id

    @property
    def settings(self) -> EnvSettings | None:
        """The settings for a config; None for a lambda or local function, which other processes cannot import."""
        return None if "<" in self._known.id else self._known

    def __call__(self, *, training: bool = True) -> gymnasium.Env[Any, Any]:
        """Create an environment for training, or (with the original rewards) for evaluation."""
        with _explained(self.name):
            env = self._wrapped(self._made(), training=training)
        for name in ("observation_space", "action_space"):
            if getattr(env, name, None) is None:
                raise ConfigError(f"{self.name} has no {name}: set self.{name} in its __init__")
        if Layout.of_space(env.observation_space) is None:
            close_env(env, self.name)
            raise ConfigError(
                f"{self.name}: the observation space {env.observation_space!r:.120} is not supported: use Box, "
                "Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those"
            )
        return env

    def make_vector(self, num_envs: int) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        """Create the environment's own vector environment, if it has one."""
        import gymnasium

        known = self._known
        with _explained(self.name):
            make = self._maker()
            entry_point = None if make is not None else gymnasium.spec(known.id).vector_entry_point
            if make is None and entry_point is None:
                raise ConfigError(f"{self.name} has no vector environment of its own: use sync or async")
            is_atari = str(entry_point).startswith("ale_py.")
            wrappers = ("rescale_actions", "clip_actions", *(() if is_atari else _ATARI_WRAPPERS))
            if touched := [name for name in wrappers if getattr(known, name)]:
                raise ConfigError(f"{self.name}: {', '.join(touched)} cannot wrap its own vector environment")
            if is_atari:
                from rekindle.envs.atari import AtariSeeds, vector_arguments

                arguments = {**vector_arguments(known), **known.arguments}
                return AtariSeeds(_vector_of_id(known.id, num_envs, arguments))
            limit = {} if known.max_episode_steps is None else {"max_episode_steps": known.max_episode_steps}
            if make is None:
                return _vector_of_id(known.id, num_envs, {**known.arguments, **limit})
            made: Any = make(num_envs=num_envs, **known.arguments, **limit)
            if not isinstance(made, gymnasium.vector.VectorEnv) or made.num_envs != num_envs:
                raise ConfigError(f"{self.name}: {made!r:.80} is not a vector environment of {num_envs} rows")
            return cast("gymnasium.vector.VectorEnv[Any, Any, Any]", made)

    def _maker(self) -> Callable[..., Any] | None:
        """The function that creates it; None for an id."""
        for module in self._known.modules:
            _import_named(module)
        if self._known.id.startswith("ALE/"):
            _import_library("ale_py")  # registers them
        if self._known.id.startswith(_MINATAR):
            _import_library("minatar.gym")
            from rekindle.envs.minatar import register

            register()
        if self._spec is not None:
            _registry().setdefault(self._known.id, self._spec)
        if self._make is not None:
            return self._make
        module, colon, name = self._known.id.partition(":")
        if module.endswith(".py"):
            raise _not_a_module(module, f":{name or 'Name'}")
        if not colon or not name.isidentifier():
            return None
        imported = _import_named(module)
        found = getattr(imported, name, None)
        if found is None and latest_version(name) not in _registry():
            near = difflib.get_close_matches(name, [known for known in vars(imported) if known[0] != "_"], n=1)
            advice = f"; did you mean {module}:{near[0]}?" if near else ""
            raise ConfigError(
                f"{self.name}: {module} has no function or class {name}, and registers no such id{advice}"
            )
        return found  # None: an id that the module registers

    def _made(self) -> gymnasium.Env[Any, Any]:
        import gymnasium

        known, make = self._known, self._maker()
        # Atari preprocessing skips frames itself, and refuses an environment that does; the wrapper counts the steps.
        skip = {"frameskip": 1} if known.atari else {}
        limit = None if known.atari else known.max_episode_steps
        if make is None:
            arguments = {**skip, **known.arguments}
            env = gymnasium.make(known.id, max_episode_steps=limit, disable_env_checker=True, **arguments)
            env = _without_order_check(env)
            if not known.id.startswith(_MINATAR):
                return env
            from rekindle.envs.minatar import MinAtarEpisodes

            return MinAtarEpisodes(env)
        made: Any = make(**known.arguments, **({"num_envs": 1} if _makes_vectors(make) else {}))
        if isinstance(made, gymnasium.vector.VectorEnv):
            from rekindle.envs.alone import AloneEnv

            made = AloneEnv(cast("gymnasium.vector.VectorEnv[Any, Any, Any]", made), self.name)
        if not isinstance(made, gymnasium.Env):
            raise ConfigError(f"{self.name} made {made!r:.80}, which is not a gymnasium.Env")
        env = cast("gymnasium.Env[Any, Any]", made)
        return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)

    def _wrapped(self, env: gymnasium.Env[Any, Any], *, training: bool) -> gymnasium.Env[Any, Any]:
        from gymnasium import wrappers

        known = self._known
        if known.atari:
            env = wrappers.AtariPreprocessing(env)
            if known.max_episode_steps is not None:
                env = wrappers.TimeLimit(env, known.max_episode_steps)
        if known.rescale_actions:
            env = wrappers.RescaleAction(env, np.float32(-1), np.float32(1))
        if known.clip_actions:
            env = wrappers.ClipAction(env)
        if known.frame_stack is not None:
            # The same padding as the Atari vector environment, so that agents see the same in both.
            padding = "zero" if known.atari else "reset"
            if not known.atari:  # the wrapper keeps the frames, and an environment may overwrite the one it returned
                env = wrappers.TransformObservation(env, copy.deepcopy, None)
            env = wrappers.FrameStackObservation(env, known.frame_stack, padding_type=padding)
        if known.sign_rewards and training:
            env = wrappers.TransformReward(env, _sign)
        return env


def _import_named(module: str) -> ModuleType:
    if module.endswith(".py"):
        raise _not_a_module(module)
    return importlib.import_module(module)


def _not_a_module(file: str, name: str = "") -> ConfigError:
    place, called = os.path.split(file.removesuffix(".py"))
    where = f" in the directory {place}" if place not in ("", ".") else ""
    return ConfigError(f"{file} is a file: use the name of its module, as {called}{name}{where}")


def _import_library(name: str) -> None:
    """Import the library of an id, never from the working directory, which may be a downloaded run."""
    former = sys.path
    sys.path = [entry for entry in former if not _is_here(entry)]
    try:
        importlib.import_module(name)
    finally:
        sys.path = former


def _is_here(entry: str) -> bool:
    try:
        return os.path.samefile(entry or ".", ".")
    except OSError:  # it does not exist
        return False


def close_env(env: Any, name: str) -> None:
    """Close an environment. If that fails, log a warning: nothing depends on it any more."""
    try:
        env.close()
    except ENV_ERRORS as error:
        _warn_once(f"{name} failed in close: {type(error).__name__}: {error}")


@cache
def _warn_once(message: str) -> None:
    logger.warning("%s", message)


def _without_order_check(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Remove the wrapper that checks at every step whether there was a reset: there always was."""
    from gymnasium import Wrapper
    from gymnasium.wrappers import OrderEnforcing

    if isinstance(env, OrderEnforcing):
        return env.env
    if isinstance(env, Wrapper):
        env.env = _without_order_check(env.env)
    return cast("gymnasium.Env[Any, Any]", env)


_ATARI_WRAPPERS = ("atari", "frame_stack", "sign_rewards")
"""The wrappers that the Atari vector environment replaces."""


def _vector_of_id(name: str, num_envs: int, arguments: dict[str, Any]) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    import gymnasium

    return gymnasium.make_vec(name, num_envs, vectorization_mode="vector_entry_point", **arguments)


def _makes_vectors(make: Callable[..., Any]) -> bool:
    """Whether a function has a required parameter `num_envs`."""
    try:
        parameter = inspect.signature(make).parameters.get("num_envs")
    except (TypeError, ValueError):  # a compiled function
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty


def _sign(reward: SupportsFloat) -> float:
    return float(np.sign(float(reward)))


def latest_version(env_id: str) -> str:
    """A Gymnasium id with its version: `CartPole` stands for the newest version that is registered, `CartPole-v1`.

    Other text, such as `module:name` and ids that a module registers later, is returned unchanged.
    """
    if env_id in _registry():
        return env_id
    versions = [
        (spec.version, known)
        for known, spec in _registry().items()
        if spec.version is not None and known == f"{env_id}-v{spec.version}"
    ]
    return max(versions)[1] if versions else env_id


def _registry() -> dict[str, Any]:
    import gymnasium

    return cast("dict[str, Any]", gymnasium.registry)


def has_time_limit(env: gymnasium.Env[Any, Any]) -> bool:
    """Whether an environment is known to truncate episodes after some number of steps."""
    spec = env.spec
    if spec is not None and spec.kwargs.get("max_num_frames_per_episode"):  # counted by the Atari emulator
        return True
    return env.has_wrapper_attr("_max_episode_steps")  # of Gymnasium's TimeLimit


def required_modules(settings: EnvSettings) -> list[str]:
    """The modules named in the settings that are imported to create an environment."""
    module, colon, _ = settings.id.partition(":")
    return list(dict.fromkeys([*settings.modules, *([module] if colon else [])]))


def required_files(settings: EnvSettings) -> list[str]:
    """The arguments that could make an environment open a file or an address, such as `xml_file` of MuJoCo."""
    return [text for text in _texts(settings.arguments) if text[:1] in ("~", ".") or "/" in text or "\\" in text]


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in cast("dict[str, Any]", value).items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in cast("list[Any]", value):
            yield from _texts(item)


def _import_name(function: Callable[..., Any]) -> str | None:
    """The name under which any process can import a function."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module in (None, "__main__") or name is None or not name.isidentifier():
        return None
    with contextlib.suppress(ImportError):
        if getattr(importlib.import_module(module), name, None) is function:
            return f"{module}:{name}"
    return None


def _shown(function: Callable[..., Any]) -> str:
    return f"<{getattr(function, '__qualname__', None) or type(function).__qualname__}>"


_EXTRAS = {
    "ale_py": "atari",
    "opencv": "atari",
    "box2d": "box2d",
    "minatar": "minatar",
    "mujoco": "mujoco",
    "pygame": "video",
}
"""The extra that provides a library that an environment may need."""


def _missing(name: str, error: Exception) -> MissingExtra:
    module = error.name if isinstance(error, ModuleNotFoundError) else None
    text = (module or str(error)).lower()
    extra = next((extra for library, extra in _EXTRAS.items() if library in text), None)
    what = str(error) if module is None else f"the module {module}"
    advice = "" if extra is None else f": {install_command(extra)}"
    return MissingExtra(f"{name} needs a library that is not installed{advice} ({what})", name=module)


@contextlib.contextmanager
def _explained(name: str) -> Generator[None]:
    """Convert errors during the creation of an environment to messages for its user."""
    from gymnasium import error

    try:
        yield
    except (error.DependencyNotInstalled, ModuleNotFoundError) as missing:
        raise _missing(name, missing) from missing
    except error.Error as unknown:
        raise ConfigError(
            f"{name}: {str(unknown).rstrip('.')}; gymnasium.pprint_registry() lists the known ids. "
            "If a module of yours registers it, name that module: --env-module, or modules= in Python"
        ) from unknown
    except (ConfigError, MissingExtra):
        raise
    except ENV_ERRORS as failure:
        raise ConfigError(f"{name} could not be created: {type(failure).__name__}: {failure}") from failure

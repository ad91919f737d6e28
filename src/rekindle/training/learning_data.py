"""The data of a training, and its agent: open the data, compare it with the environment, give it to the agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rekindle.agent import LearningAgent, LearnsFromData
from rekindle.data import Dataset
from rekindle.data.shipped import is_shipped
from rekindle.envs import EnvFactory
from rekindle.envs.factory import close_env
from rekindle.envs.wrappers import refuse_stateful_wrappers
from rekindle.errors import ConfigError, RekindleError
from rekindle.interrupt import ShouldStop, never
from rekindle.run.reader import RunReader
from rekindle.stages import stage
from rekindle.storage.files import absolute
from rekindle.training.algorithms import ALGORITHMS, algorithm_of, make_agent, named_algorithm
from rekindle.training.config import TrainerConfig, TrainerSettings

__all__ = [
    "AgentSource",
    "DataSource",
    "check_data",
    "created_agent",
    "data_settings",
    "environment_spaces",
    "give_data",
    "is_growing",
    "open_data",
    "without_evaluations",
]

AgentSource = LearningAgent | str | Callable[[Any, Any], LearningAgent]
DataSource = str | Path | Dataset
Spaces = tuple[Any, Any]
"""The observation space and the action space."""

_OPTIONS = ("timeout_after", "fixed_length")
"""Settings of `Dataset.open`."""
_IMITATES = "bc"
NEED_DATA = (_IMITATES, "iql", "awac")
"""Algorithms that are made for data: without any, the first agent has nothing good to learn from."""


def environment_spaces(factory: EnvFactory) -> Spaces:
    """The spaces of an environment; raises `ConfigError` if a wrapper of it keeps what a resume cannot restore."""
    if factory.name in ALGORITHMS:
        raise ConfigError(
            f"{factory.name} is an algorithm, and no environment: use Trainer(ENV, ALGO), or rekindle train ALGO ENV"
        )
    stage(f"creating {factory.name}")
    example = factory()
    try:
        refuse_stateful_wrappers(example, factory.name)
        return example.observation_space, example.action_space
    finally:
        close_env(example, factory.name)


def open_data(
    source: DataSource, spaces: Spaces | None, settings: Mapping[str, Any], *, should_stop: ShouldStop = never
) -> Dataset:
    """Open a data set; raises `DataError` if its transitions cannot be those of an environment with these spaces.

    The settings may have `timeout_after` and `fixed_length`.
    """
    options: dict[str, Any] = {
        "should_stop": should_stop,
        **{name: settings[name] for name in _OPTIONS if name in settings},
    }
    dataset = source if isinstance(source, Dataset) else Dataset.open(source, **options)
    if spaces is None or _fits(dataset, spaces):
        return dataset
    if isinstance(source, Dataset):
        raise ConfigError(
            f"the spaces of the data are {dataset.observation_space} and {dataset.action_space}, and those of the "
            f"environment {spaces[0]} and {spaces[1]}"
        )
    # Files often store no spaces, or others: whether the values fit is found out by a conversion.
    return Dataset.open(source, observation_space=spaces[0], action_space=spaces[1], **options)


def _fits(dataset: Dataset, spaces: Spaces) -> bool:
    """Whether an agent for these spaces can learn from the data; the bounds of observations do not matter."""
    return dataset.action_space == spaces[1] and _alike(dataset.observation_space, spaces[0])


def _alike(first: Any, second: Any) -> bool:
    """Whether two observation spaces are the same, except for the bounds of numbers."""
    kind = type(first).__name__
    if kind != type(second).__name__:
        return False
    if kind == "Box":
        return (first.shape, first.dtype) == (second.shape, second.dtype)
    if kind == "Dict":
        return first.keys() == second.keys() and all(_alike(first[name], second[name]) for name in first)
    if kind == "Tuple":
        return len(first) == len(second) and all(map(_alike, first, second))
    return first == second


def created_agent(
    agent: AgentSource,
    spaces: Spaces,
    seed: int,
    settings: Mapping[str, Any] | None,
    *,
    dataset: Dataset | None,
    share: float,
) -> LearningAgent:
    """The agent of a training: given, made by a function, or created by its name with settings."""
    if not isinstance(agent, str):
        if settings:
            raise ConfigError("agent_settings are for an agent that is given by name")
        return _fitting(_called(agent, spaces), spaces)
    is_offline = dataset is not None and share == 1
    others = {"the trainer": TrainerSettings.__struct_fields__}
    try:
        return make_agent(agent, *spaces, seed=seed, settings=settings, others=others, is_offline=is_offline)
    except ConfigError as error:
        if dataset is None or "action_space" not in dataset.inferred or "finite bounds" not in str(error):
            raise
        raise ConfigError(
            f"{error}. {dataset.path} has no action_space, and actions outside of -1 to 1: name the environment, add "
            "action_space to the file, or pass action_space to Dataset.open"
        ) from None


def _called(agent: LearningAgent | Callable[[Any, Any], LearningAgent], spaces: Spaces) -> LearningAgent:
    if isinstance(agent, type) and (name := named_algorithm(agent)) is not None:
        kind = agent.__name__
        raise ConfigError(
            f"the agent is the class {kind}: pass its name, {name!r}, with its settings as agent_settings, or a "
            f"function such as lambda observations, actions: {kind}(observations, actions, seed=0)"
        )
    return agent if isinstance(agent, LearningAgent) else agent(*spaces)


def _fitting(agent: LearningAgent, spaces: Spaces) -> LearningAgent:
    """Refuse an agent of this package that was created for other spaces: it would choose other actions."""
    if algorithm_of(agent) is None:
        return agent
    made_for: Any = agent
    if not _alike(made_for.observation_space, spaces[0]):
        raise _other_spaces("observations", made_for.observation_space, spaces[0])
    if made_for.action_space != spaces[1]:
        raise _other_spaces("actions", made_for.action_space, spaces[1])
    return agent


def _other_spaces(kind: str, agents: Any, envs: Any) -> ConfigError:
    return ConfigError(
        f"the agent was created for other {kind} than those of the environment: {agents!r:.200}, not {envs!r:.200}"
    )


def data_settings(source: DataSource, dataset: Dataset) -> dict[str, Any]:
    """The settings with which a resume opens the data again."""
    return {"data": _name(source), **{name: getattr(dataset, name) for name in _OPTIONS}}


def _name(source: DataSource) -> str:
    """The absolute path of a data set, or `rekindle:NAME`."""
    if not isinstance(source, Dataset) and is_shipped(source):
        return str(source)
    return str(absolute(source.path if isinstance(source, Dataset) else Path(source)))


def is_growing(data: str) -> bool:
    """Whether a data set is a run that is not finished."""
    try:
        return not is_shipped(data) and RunReader(data).metadata.status != "finished"
    except RekindleError:  # no run
        return False


def check_data(config: TrainerConfig, *, is_named: bool) -> None:
    """Raise `ConfigError` if the settings for data contradict each other, or the algorithm is for data and has none.

    `is_named` if the agent was given by name: an agent that a script creates may have its data already.
    """
    name = config.algorithm if is_named else None
    if config.data is None and config.data_share != 1:
        raise ConfigError(
            f"data_share is {config.data_share}, but there is no data: pass --data PATH, or data= in Python"
        )
    for option in _OPTIONS if config.data is None else ():
        if getattr(config, option):
            raise ConfigError(f"{option} is for data, but there is none: pass --data PATH, or data= in Python")
    if config.is_offline and config.keep_data:
        raise ConfigError("keep_data: a training from data alone makes no transitions")
    if name == _IMITATES and config.data is not None and not config.is_offline:
        raise ConfigError(f"{name} learns from data only: use it without data_share")
    if name in NEED_DATA and config.data is None and (config.parent is None or name == _IMITATES):
        begun = "" if name == _IMITATES else ", or continue from the weights of another run: --from RUN, or start_from="
        raise ConfigError(f"{name} learns from data: pass --data PATH, or data= in Python{begun}")


def without_evaluations(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a training without an environment; raises `ConfigError` for those that need evaluations."""
    for name in ("target_score", "patience"):
        if settings.get(name) is not None:
            raise ConfigError(f"{name} is for evaluations, and there are none without an environment: pass ENV, or env")
    return {"eval_episodes": 0}


def give_data(agent: LearningAgent, dataset: Dataset, share: float) -> None:
    """Let an agent learn from data; raises `ConfigError` if it cannot."""
    if not isinstance(agent, LearnsFromData):
        raise ConfigError(
            f"{type(agent).__name__} cannot learn from data: use an off-policy algorithm, such as iql, bc, td3 or dqn"
        )
    agent.learn_from(dataset.reader(), share=share)

"""The actors of a trainer, from its settings."""

from __future__ import annotations

from typing import Any, cast

from rekindle.actors import ActorsHere, Cast, Crew, RoundShape
from rekindle.actors.actor import ResetOptions
from rekindle.actors.cluster import ActorsOnRay
from rekindle.actors.policies import act_of_agent, check_portable
from rekindle.actors.processes import ActorProcesses
from rekindle.agent import ChecksLearner, HasPolicy, LearningAgent
from rekindle.envs import Determinism, EnvFactory
from rekindle.errors import ConfigError
from rekindle.session.session import TrainingSession
from rekindle.training.actor_sampling import ActorSampler
from rekindle.training.config import TrainerConfig
from rekindle.training.forecast import check_rounds
from rekindle.training.free_sampling import FreeSampler
from rekindle.training.sampling import StepProcessor
from rekindle.training.strategies import Actors, Offline, Strategy, Synchronous

__all__ = ["actor_sampler", "check_actors", "default_strategy", "make_crew"]


def default_strategy(config: TrainerConfig) -> Strategy:
    """The training loop that the settings ask for."""
    if config.is_offline:
        return Offline()
    if config.actors is None:
        return Synchronous()
    return Actors(actors=config.actors)


def check_actors(agent: LearningAgent, config: TrainerConfig, *, has_sampler: bool) -> None:
    """Raise `ConfigError` if an agent, or a sampler of the host, cannot train with the actors of the settings."""
    if config.actors is None:
        return
    if has_sampler:
        raise ConfigError("sampler: with actors, they step the environments; leave out sampler, or actors")
    if config.is_offline:
        raise ConfigError("actors: a training from data alone steps no environment; leave out --actors")
    if isinstance(agent, ChecksLearner):
        agent.check_learner("actors")
    if config.actors_on != "here":
        check_portable(agent, config.actors_on)
    if not config.free:
        check_rounds(agent, config)


def make_crew(
    agent: LearningAgent,
    factory: EnvFactory,
    spaces: tuple[Any, Any],
    config: TrainerConfig,
    determinism: Determinism,
    reset_options: ResetOptions | None,
) -> Crew:
    """Create the actors, where the settings say."""
    shape = RoundShape.of(*spaces, actors=config.actors or 1, envs_each=config.envs_each, steps=config.round_steps or 1)
    made = Cast(factory, shape, config.seed, determinism, reset_options, config.extras)
    if config.actors_on == "processes":
        return ActorProcesses(made, workers=config.workers, patience=config.actor_patience)
    if config.actors_on == "ray":
        return ActorsOnRay(made, workers=config.workers, address=config.ray_address, patience=config.actor_patience)
    act = None if isinstance(agent, HasPolicy) else act_of_agent(agent)
    return ActorsHere(made, act=act, vectorization=config.vectorization, workers=config.workers)


def actor_sampler(
    session: TrainingSession, crew: Crew, config: TrainerConfig, processor: StepProcessor | None
) -> ActorSampler | FreeSampler:
    """Create what passes the rounds of actors to the session."""
    crew.report = session.warn
    if isinstance(crew, ActorsOnRay):
        crew.mark_inexact = session.mark_inexact
    if config.free:
        return FreeSampler(session, cast("ActorProcesses", crew), seed=config.seed, processor=processor)
    return ActorSampler(session, crew, crew.shape, seed=config.seed, pipeline=config.pipeline, processor=processor)

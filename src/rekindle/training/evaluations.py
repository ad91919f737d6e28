"""The evaluations of a training: at intervals, at the end, and at the start of one that begins with another run."""

from __future__ import annotations

import contextlib
from typing import Any

from rekindle.actors.casting import Crew
from rekindle.actors.evaluating import EvalPlan
from rekindle.actors.policies import refusal
from rekindle.agent import LearningAgent
from rekindle.envs import Determinism, EnvFactory
from rekindle.errors import ConfigError, Interrupted
from rekindle.experience import ActMode
from rekindle.interrupt import never
from rekindle.session.session import TrainingSession
from rekindle.training.actor_evaluation import ActorEvaluator
from rekindle.training.config import TrainerConfig
from rekindle.training.evaluation import EpisodeEvaluator, Evaluation, Evaluator, greedy
from rekindle.training.stopping import EarlyStopping

__all__ = ["Evaluations"]


class Evaluations:
    """Evaluates the agent of a trainer, logs the episodes, keeps the best agent, and stops early.

    The evaluator is created when it is first needed. An interrupted evaluation raises `Interrupted` and logs nothing.
    """

    def __init__(self, agent: LearningAgent, factory: EnvFactory | None, evaluator: Evaluator | None) -> None:
        self._agent, self._factory, self._evaluator = agent, factory, evaluator
        self.crew: Crew | None = None
        """The actors of the current training."""
        self._greedy = greedy(agent)
        self._session: TrainingSession | None = None
        """The session of the current training."""
        self._stopping = EarlyStopping(target=None, patience=None)
        self._last: tuple[int, Evaluation] | None = None
        """The last periodic evaluation, and its env step."""

    def join(self, session: TrainingSession, config: TrainerConfig, *, was_finished: bool) -> None:
        """Evaluate in a training: register hooks with the session, and restore early stopping."""
        self._session = session
        self._stopping = EarlyStopping(target=config.target_score, patience=config.patience)
        session.attach("early stopping", self._stopping)
        if was_finished and not session.is_done:  # more steps were requested
            self._stopping.go_on()
        self._stop_early(session)
        if config.eval_episodes:
            if config.eval_every is not None:
                session.every(config.eval_every, lambda: self._evaluate(session, config))
            session.at_end(lambda: self._evaluate_finally(session, config))

    def begin(self, session: TrainingSession, config: TrainerConfig) -> None:
        """Evaluate what a training starts from, if that is another run and there are evaluations at intervals.

        A resume does not repeat it, but completes one that a stop interrupted.
        """
        is_wanted = config.parent is not None and config.eval_every is not None and config.eval_episodes
        if is_wanted and not self._stopping.has_scores and not session.is_done:
            with contextlib.suppress(Interrupted):  # the stop ends the training before its first step
                self._evaluate(session, config)

    def leave(self) -> None:
        """End a training: close the environments."""
        self._session = self.crew = None
        if self._evaluator is not None:
            self._evaluator.close()

    @property
    def has_evaluator(self) -> bool:
        """Whether there is an evaluator; if not, the determinism of the environment must be known."""
        return self._evaluator is not None

    def evaluate(self, episodes: int, config: TrainerConfig) -> Evaluation:
        """Evaluate the current agent; during a training, log the result, and keep the agent if it is the best."""
        evaluation = self._play(episodes, config)
        if self._session is None:
            self.leave()
        else:
            _log(self._session, evaluation, final=False)
        return evaluation

    def _evaluate(self, session: TrainingSession, config: TrainerConfig) -> None:
        evaluation = self._play(config.eval_episodes, config)
        self._last = (session.total_steps, evaluation)
        _log(session, evaluation, final=False)
        self._stopping.update(evaluation.score)
        self._stop_early(session)

    def _evaluate_finally(self, session: TrainingSession, config: TrainerConfig) -> None:
        """Evaluate the agent at the end of the training, unless it was evaluated at this step already."""
        step, evaluation = self._last or (-1, None)
        if evaluation is None or step != session.total_steps:
            evaluation = self._play(config.eval_episodes, config)
        _log(session, evaluation, final=True)

    def _play(self, episodes: int, config: TrainerConfig) -> Evaluation:
        if self._evaluator is None:
            if self._factory is None:
                raise ConfigError("there is no environment to evaluate the agent in: pass one to the trainer")
            self._evaluator = self._actor_evaluator(self._factory, config) or EpisodeEvaluator(
                self._factory,
                seed=config.seed,
                num_envs=config.eval_envs,
                rebuilds=config.determinism is Determinism.LEAKS,
                extras=config.extras,
                max_steps=config.eval_max_steps,
            )
        if isinstance(self._evaluator, ActorEvaluator):
            self._evaluator.crew = None if self._session is None else self.crew
            self._evaluator.should_stop = never if self._session is None else self._session.interrupter.should_stop
        return self._evaluator.evaluate(self._act, episodes)

    def _actor_evaluator(self, factory: EnvFactory, config: TrainerConfig) -> ActorEvaluator | None:
        """With actors, whose policies are data: an evaluator whose result does not depend on who plays."""
        if config.actors is None or refusal(self._agent) is not None:
            return None
        plan = EvalPlan(
            factory, config.seed, config.determinism is Determinism.LEAKS, config.extras, config.eval_max_steps
        )
        return ActorEvaluator(self._agent, plan, workers=config.eval_workers)

    def _act(self, observations: Any) -> Any:
        session = self._session
        if session is None:
            return self._greedy(observations)
        session.interrupter.check()
        return session.act_many(observations, ActMode.EXPLOIT)

    def _stop_early(self, session: TrainingSession) -> None:
        if self._stopping.reason is not None:
            session.stop(self._stopping.reason, complete=True)


def _log(session: TrainingSession, evaluation: Evaluation, *, final: bool) -> None:
    for record in evaluation.records:
        session.on_eval_episode(record, final=final)
    session.maybe_save_best(evaluation.score)

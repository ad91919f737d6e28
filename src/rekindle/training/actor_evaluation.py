"""Evaluations of a training with actors: on their worker processes, or here, with the same result."""

from __future__ import annotations

from rekindle.actors.blas import one_thread
from rekindle.actors.casting import Crew
from rekindle.actors.evaluating import EpisodePlayer, EvalPlan, PlayedEpisode, records_of
from rekindle.actors.policies import packed_policy, policy_of, unpacked_policy
from rekindle.agent import LearningAgent, PortablePolicy
from rekindle.errors import Interrupted
from rekindle.interrupt import ShouldStop
from rekindle.training.evaluation import Act, Evaluation

__all__ = ["ActorEvaluator"]


class ActorEvaluator:
    """Plays episodes one after the other, or on several workers at a time; the score is the mean return."""

    def __init__(self, agent: LearningAgent, plan: EvalPlan, *, workers: int | None) -> None:
        self._agent, self._plan, self._workers = agent, plan, workers or 0
        self._player: EpisodePlayer | None = None
        self.crew: Crew | None = None
        """The actors of the current training, if their workers are to be used."""
        self.should_stop: ShouldStop = lambda: False

    def evaluate(self, act: Act, episodes: int) -> Evaluation:  # noqa: ARG002 - the policy itself acts
        """Play episodes 0 to `episodes - 1`; the score is their mean return."""
        policy = policy_of(self._agent)
        if not isinstance(policy, PortablePolicy):
            raise AssertionError("the policy was data when the training began")
        packed, numbers = packed_policy(policy), list(range(episodes))
        played: list[PlayedEpisode] | None = None
        if self.crew is not None and self._workers:
            parts = [numbers[part :: self._workers] for part in range(min(self._workers, episodes))]
            played = self.crew.evaluate(self._plan, packed, parts, self.should_stop)
        if played is None:
            self._player = self._player or EpisodePlayer(self._plan)
            with one_thread():  # as in workers: with several, the last bits of an action may differ
                played = self._player.play(unpacked_policy(packed), numbers, self._check)
        records = records_of(played)
        return Evaluation(sum(record.total_reward for record in records) / episodes, records)

    def _check(self) -> None:
        if self.should_stop():
            raise Interrupted("stopped in an evaluation")

    def close(self) -> None:
        """Close the environment."""
        self.crew = None
        if self._player is not None:
            self._player.close()
            self._player = None

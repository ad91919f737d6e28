"""A training of ours, for `benchmarks/peers.py`: what `rekindle train` does.

python ours.py CASE               # with a run, logs, progress, checkpoints and evaluations
python ours.py CASE --recorded    # the same without checkpoints and evaluations before the end
python ours.py CASE --bare        # also without run, logs, windows of metrics, events and progress
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from timing import CASES, Case, Stopwatch, keep_to_one_processor

from rekindle import TrainingSession
from rekindle.envs import EnvFactory, make_envs
from rekindle.training import Components, Synchronous, Trainer
from rekindle.training.algorithms import make_agent
from rekindle.training.progress import Progress
from rekindle.training.sampling import Round, make_sampler

SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {
        "hidden_sizes": (120, 84),
        "learning_rate": 2.5e-4,
        "batch_size": 128,
        "capacity": 100_000,
        "update_every": 4,
        "target_update_every": 250,
        "double": False,
        "epsilon_steps": 2_000,
    },
    "ppo": {"rollout_steps": 1_024, "minibatch_size": 256, "epochs": 4},
    "sac": {"hidden_sizes": (256, 256), "batch_size": 256, "learning_rate": 3e-4},
}
ATARI_SETTINGS: dict[str, dict[str, Any]] = {
    "dqn": {
        "batch_size": 32,
        "capacity": 10_000,
        "update_every": 4,
        "target_update_every": 250,
        "double": False,
        "epsilon_steps": 1_000,
        "frame_stack": 4,
    },
    "ppo": {"rollout_steps": 1_024, "minibatch_size": 256, "epochs": 4},
}


class Timed:
    """The usual loop, with a look at the clock."""

    def __init__(self, watch: Stopwatch) -> None:
        self._watch = watch

    def train_loop(self, components: Components) -> Iterator[Round]:
        for made in Synchronous().train_loop(components):
            self._watch.look(components.session.total_steps)
            yield made


def settings_of(case: Case) -> dict[str, Any]:
    settings = (ATARI_SETTINGS if case.is_atari else SETTINGS)[case.algorithm]
    return {**settings, **({"warmup_steps": case.warmup} if case.warmup else {})}


def factory_of(case: Case) -> EnvFactory:
    atari = {"atari": True, "frame_stack": 4, "sign_rewards": True} if case.is_atari else {}
    return EnvFactory(case.env_id, **atari)


def train(case: Case, watch: Stopwatch, **options: Any) -> None:
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(
            factory_of(case),
            case.algorithm,
            steps=case.steps,
            num_envs=case.num_envs,
            name="peers",
            root=root,
            agent_settings=settings_of(case),
            strategy=Timed(watch),
            **options,
        )
        Progress(trainer)
        trainer.train()
        watch.report(case.steps)


def train_bare(case: Case, watch: Stopwatch) -> None:
    envs = make_envs(factory_of(case), case.num_envs)
    spaces = (envs.observation_space, envs.action_space)
    agent = make_agent(case.algorithm, *spaces, seed=0, settings=settings_of(case))
    with TrainingSession(agent, seed=0, max_steps=case.steps, metrics_every=None) as session:
        for _ in Timed(watch).train_loop(Components(session, envs, make_sampler(session, envs))):
            pass
    watch.report(case.steps)


def main() -> None:
    case, *flags = sys.argv[1:]
    keep_to_one_processor()
    watch = Stopwatch(CASES[case].first)
    if flags == ["--bare"]:
        train_bare(CASES[case], watch)
    elif flags == ["--recorded"]:
        train(CASES[case], watch, checkpoint_every=None, eval_episodes=0)
    else:
        # Evaluations as the scripts of Stable-Baselines3 (RL Zoo) make them, but none on Atari: the last one would take
        # as many steps as are timed. Checkpoints as often as by default.
        train(CASES[case], watch, eval_every=25_000, eval_episodes=0 if CASES[case].is_atari else 5)


if __name__ == "__main__":
    main()

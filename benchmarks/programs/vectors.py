"""PPO on a vector of CartPole environments, for `benchmarks/many_envs.py`: what `rekindle train` does.

python vectors.py NUM_ENVS ROLLOUTS
"""

from __future__ import annotations

import sys
import tempfile

from ours import Timed
from timing import Stopwatch, keep_to_one_processor

from rekindle.training import Trainer
from rekindle.training.progress import Progress

STEPS_EACH, EPOCHS, MINIBATCHES = 128, 4, 4


def main() -> None:
    num_envs, rollouts = map(int, sys.argv[1:])
    keep_to_one_processor()
    rollout_steps = num_envs * STEPS_EACH
    watch = Stopwatch(rollout_steps)
    with tempfile.TemporaryDirectory() as root:
        trainer = Trainer(
            "CartPole-v1",
            "ppo",
            steps=rollouts * rollout_steps,
            num_envs=num_envs,
            vectorization="native",
            name="vectors",
            root=root,
            agent_settings={
                "hidden_sizes": (64, 64),
                "rollout_steps": rollout_steps,
                "minibatch_size": rollout_steps // MINIBATCHES,
                "epochs": EPOCHS,
                "learning_rate": 3e-4,
                "entropy_coef": 0.01,
                "clip_value": 0.2,
            },
            eval_episodes=0,
            strategy=Timed(watch),
        )
        Progress(trainer)
        trainer.train()
        watch.report(rollouts * rollout_steps)


if __name__ == "__main__":
    main()

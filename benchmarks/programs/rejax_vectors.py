"""PPO of rejax on CartPole environments that are compiled with it, for `benchmarks/many_envs.py`.

python rejax_vectors.py NUM_ENVS ROLLOUTS
"""

# The peer is not installed here.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportMissingTypeStubs=false

from __future__ import annotations

import sys

import jax
import rejax
from timing import Stopwatch, keep_to_one_processor

STEPS_EACH, EPOCHS, MINIBATCHES = 128, 4, 4


def main() -> None:
    num_envs, rollouts = map(int, sys.argv[1:])
    keep_to_one_processor()
    steps = rollouts * num_envs * STEPS_EACH
    algorithm = rejax.PPO.create(
        env="CartPole-v1",
        num_envs=num_envs,
        num_steps=STEPS_EACH,
        num_minibatches=MINIBATCHES,
        num_epochs=EPOCHS,
        learning_rate=3e-4,
        max_grad_norm=0.5,
        agent_kwargs={"activation": "tanh", "hidden_layer_sizes": (64, 64)},
        total_timesteps=steps,
        eval_freq=steps,
        skip_initial_evaluation=True,
    ).replace(eval_callback=lambda *_: ())
    train = jax.jit(algorithm.train).lower(jax.random.PRNGKey(0)).compile()
    watch = Stopwatch(-1)
    watch.look(0)
    jax.block_until_ready(train(jax.random.PRNGKey(0)))
    watch.report(steps)


if __name__ == "__main__":
    main()

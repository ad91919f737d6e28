"""The vector environment of ale-py, with the same preprocessing as single Atari environments."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rekindle.envs.factory import EnvSettings
from rekindle.errors import ConfigError

__all__ = ["AtariSeeds", "vector_arguments"]


def vector_arguments(settings: EnvSettings) -> dict[str, Any]:
    """Arguments that make it preprocess like Gymnasium's `AtariPreprocessing` and `FrameStackObservation`."""
    if not settings.atari or settings.frame_stack is None:
        raise ConfigError(
            f"{settings.id}: its own vector environment always preprocesses and stacks frames: set atari and "
            "frame_stack"
        )
    if settings.max_episode_steps is not None:
        raise ConfigError(
            f"{settings.id}: its own vector environment counts frames, not steps: instead of max_episode_steps, pass "
            "max_num_frames_per_episode in its arguments"
        )
    return {
        "stack_num": settings.frame_stack,
        "frameskip": 4,
        "noop_max": 30,
        "use_fire_reset": False,
        "reward_clipping": settings.sign_rewards,
    }


class AtariSeeds(gymnasium.vector.VectorWrapper):
    """Accepts a list of seeds, one per row and of any size, like other vector environments."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all rows."""
        rows: Any = np.array(seed) % 2**31 if isinstance(seed, list) else seed
        return self.env.reset(seed=rows, options=options)

"""MinAtar: registers its environments, and makes their episodes independent of each other."""

# MinAtar is not typed.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportMissingImports=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

__all__ = ["MinAtarEpisodes", "register"]

_PIXELS = 16
"""The side of a cell in a rendered frame."""


def register() -> None:
    """Register the ids of MinAtar, which it does only when asked."""
    from minatar.gym import register_envs

    if "MinAtar/Breakout-v1" not in gymnasium.registry:
        register_envs()


class MinAtarEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Forgets the last action of an episode, which the first step of the next one may repeat (sticky actions).

    So an episode depends only on its seed and actions. Frames are enlarged, and in bytes.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self.unwrapped.game.last_action = 0  # pyright: ignore[reportAttributeAccessIssue]
        return self.env.reset(seed=seed, options=options)

    def render(self) -> Any:
        """The frame, if there is one."""
        frame: Any = self.env.render()
        if self.render_mode != "rgb_array":
            return frame
        cells = np.rint(np.asarray(frame) * 255).astype(np.uint8)
        return cells.repeat(_PIXELS, 0).repeat(_PIXELS, 1)

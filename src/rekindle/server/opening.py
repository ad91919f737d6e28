"""Open the session on another thread, so that the server keeps answering while an agent is created and compiled.

One opening is under way at a time. Its thread owns the session until it is open; then the thread of the server does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from rekindle.errors import ConfigError, DataError, RekindleError
from rekindle.server.desk import Desk
from rekindle.server.refusals import Refusal
from rekindle.wire.messages import Hello
from rekindle.wire.space_trees import read_space_tree

__all__ = ["Opening", "Ready"]

logger = logging.getLogger("rekindle")

Ready = Callable[[Refusal | None], None]
"""Called when an opening has ended: with a refusal, or None if the client can ask for the session again."""
_MOST_REASONS = 10


class Opening:
    """Opens the session with the spaces of the first client; other clients wait for it."""

    def __init__(
        self,
        make: Callable[[Any, Any], Desk],
        *,
        most_numbers: int,
        opened: Callable[[Desk], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Nothing is opened yet.

        Args:
            make: opens the session for an observation space and an action space; called on another thread.
            most_numbers: the most numbers in the bounds of a space.
            opened: called with the result, before any client is told.
            failed: called if no session can be opened, whatever the spaces are.
        """
        self._make, self._most_numbers, self._opened, self._failed = make, most_numbers, opened, failed
        self._waiting: list[Ready] = []
        """In the order of arrival; the spaces of the first are used."""
        self._task: asyncio.Task[None] | None = None
        self._reasons: set[str] = set()

    def wait(self, hello: Hello, ready: Ready) -> None:
        """Call `ready` when the session is open, or could not be opened.

        If nothing is being opened, the spaces of this client are used; raises `Refusal` if it has sent none.
        """
        if self._task is None:
            spaces = self._spaces(hello)
            self._task = asyncio.get_running_loop().create_task(self._open(*spaces))
        self._waiting.append(ready)

    async def settle(self) -> None:
        """Wait until nothing is being opened."""
        while self._task is not None:
            await asyncio.wait((self._task,))  # which does not cancel it if the caller is cancelled

    def _spaces(self, hello: Hello) -> list[Any]:
        if hello.observation_space is None or hello.action_space is None:
            raise Refusal("spaces", "the server does not know the spaces yet: send observation_space and action_space")
        try:
            return [
                read_space_tree(getattr(hello, name), name=name, most_numbers=self._most_numbers)
                for name in ("observation_space", "action_space")
            ]
        except (DataError, ConfigError) as error:
            raise self._refused(error) from None

    async def _open(self, observation_space: Any, action_space: Any) -> None:
        refusal: Refusal | None = None
        concerns_all = False
        try:
            self._opened(await asyncio.to_thread(self._make, observation_space, action_space))
        except (DataError, ConfigError) as error:
            refusal = self._refused(error)
        except (RekindleError, OSError) as error:
            self._failed(error)
            refusal, concerns_all = Refusal("internal", f"the session cannot be opened: {error}"), True
        except Exception as error:
            logger.exception("the session for the spaces of a client could not be opened")
            refusal = Refusal("internal", f"the session could not be opened: {type(error).__name__}")
        (first, *others), self._waiting, self._task = self._waiting, [], None
        first(refusal)
        for ready in others:
            ready(refusal if concerns_all else None)

    def _refused(self, error: Exception) -> Refusal:
        """Log why there is no session: the reason may be an option of the server. Each reason is logged once."""
        why = str(error)
        if why not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(why)
            logger.warning("no session for the spaces of a client: %s", why)
        return Refusal("spaces", why)

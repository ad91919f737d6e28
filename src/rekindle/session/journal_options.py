"""The options of an input journal, and whose inputs it holds."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, NamedTuple

import msgspec

from rekindle.agent import LearningAgent
from rekindle.checks import checked_choice, checked_count, checked_flag, plain_number
from rekindle.errors import CheckpointError, ConfigError
from rekindle.run.directory import TrainingRun
from rekindle.storage import codec

__all__ = ["About", "JournalOptions"]


class JournalOptions(NamedTuple):
    """The options of an input journal."""

    is_on: bool
    sync: float
    limit: int | None
    keep: str
    is_elsewhere: bool = False
    """Whether the calls of another run's journal are replayed, and none are recorded."""

    def checked(self, run: TrainingRun | None) -> JournalOptions:
        """The options as plain values; raises `ConfigError` for options that cannot be right."""
        is_on, sync = checked_flag("journal", self.is_on), plain_number(self.sync)
        # A thread cannot wait any longer.
        if isinstance(sync, bool) or not (isinstance(sync, int | float) and 0 <= sync <= threading.TIMEOUT_MAX):
            raise ConfigError(f"journal_sync is {self.sync!r:.80}: give a number of seconds, or 0")
        limit = checked_count("journal_limit", self.limit, 1)
        checked_choice("journal_keep", self.keep, ("needed", "all"))
        if is_on and run is None:
            raise ConfigError("journal=True needs a run: TrainingSession(agent, run=TrainingRun.create(...))")
        return self._replace(is_on=is_on, sync=float(sync), limit=limit)


class About(msgspec.Struct, frozen=True, kw_only=True):
    """Whose inputs a journal holds: a replay with another agent or other settings would be another training."""

    agent: str
    """The class of the agent."""
    config: dict[str, Any] | None
    """Its settings, if it has a config."""
    learner: str
    bad_values: str
    metrics_every: int | None
    first_state: str | None
    """The digest of the agent's state at the beginning of the run; None after a resume."""

    @classmethod
    def of(
        cls, agent: LearningAgent, learner: str, bad_values: str, metrics_every: int | None, *, is_first: bool
    ) -> About:
        """Describe a session."""
        config = getattr(agent, "config", None)
        return cls(
            agent=type(agent).__name__,
            config=_plain(config) if isinstance(config, msgspec.Struct) else None,
            learner=learner,
            bad_values=bad_values,
            metrics_every=metrics_every,
            first_state=digest_of(agent) if is_first else None,
        )

    @classmethod
    def read(cls, data: bytes) -> About:
        """Read the description in a segment; raises `CheckpointError`."""
        try:
            return msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise CheckpointError("the input journal does not say whose inputs it holds") from error

    def changed_to(self, now: About) -> str | None:
        """A setting that has another value now, in words; None if all that matter for a replay are the same."""
        for name, before in (self.config or {}).items():
            value = (now.config or {}).get(name)
            if value != before:
                return f"{name} of the agent was {before!r} and is {value!r}"
        for name in ("learner", "bad_values", "metrics_every"):
            if getattr(self, name) != getattr(now, name):
                return f"{name} was {getattr(self, name)!r} and is {getattr(now, name)!r}"
        return None

    def check_against(self, data: bytes, agent: LearningAgent, *, has_checkpoint: bool) -> None:
        """Raise `CheckpointError` if the journal's inputs were given to another agent or session."""
        recorded = About.read(data)
        if recorded.agent != self.agent:
            raise self._refusal(f"they were given to {recorded.agent}, and this is {self.agent}")
        if (change := recorded.changed_to(self)) is not None:
            raise self._refusal(change)
        if not has_checkpoint and recorded.first_state not in (None, digest_of(agent)):
            raise self._refusal("the agent began with another state: pass the same seed and settings")

    @staticmethod
    def _refusal(why: str) -> CheckpointError:
        return CheckpointError(
            f"the calls in the input journal cannot be replayed: {why}. Open the run as it was, and close it: that "
            "takes a checkpoint, after which settings can be changed"
        )


def digest_of(agent: LearningAgent) -> str:
    """A digest of the agent's whole state."""
    digest = hashlib.sha256()
    for chunk in codec.encode({"agent": agent.state()}):
        digest.update(chunk)
    return digest.hexdigest()


def _plain(config: msgspec.Struct) -> dict[str, Any]:
    # Through JSON, as it is read back from the journal.
    return msgspec.json.decode(msgspec.json.encode(config, enc_hook=repr))

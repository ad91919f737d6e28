"""Report the outcomes from games to one training session, and get the next actions from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rekindle.experience import ActMode, Array, EpisodeStatus, Transitions
from rekindle.server.godot_game import LAST_OBSERVATION, Game, Reply
from rekindle.server.godot_spaces import GameSpaces
from rekindle.server.options import MOST_REWARD
from rekindle.session.session import TrainingSession

__all__ = ["EndRules", "GodotCounts", "Play"]

_CONTINUING, _TERMINATED, _TRUNCATED = map(int, EpisodeStatus)
_TRUNCATED_FLAG = "TimeLimit.truncated"
"""The flag in the info of an agent that marks a truncated episode (the name is that of Stable-Baselines3)."""
_OTHER_NUMBERS = (_TRUNCATED_FLAG, "return", "length")
"""What is not logged of an info: the last two are names of our own means over episodes."""
_MOST_INFO_NAMES = 64
"""The most names of numbers in infos that are logged: each is a metric of the run."""


class EndRules(msgspec.Struct, frozen=True):
    """Whether `done` means terminated or truncated, if a game does not say it: the protocol has one flag for both."""

    done: Literal["terminated", "truncated"] | None = None
    """The meaning of `done`. None if it is unknown: the end counts as a termination and as an unclear end."""
    time_limit: int | None = None
    """Episodes of at least this many steps count as truncated; `done` then applies to shorter ones."""

    @property
    def is_given(self) -> bool:
        """Whether `done` or `time_limit` is set."""
        return self.done is not None or self.time_limit is not None

    def status(self, info: dict[str, Any], length: int) -> int:
        """The status of an episode of `length` steps that is done."""
        told = info.get(_TRUNCATED_FLAG)
        if told is not None:
            return _TRUNCATED if told else _TERMINATED
        if self.time_limit is not None and length >= self.time_limit:
            return _TRUNCATED
        return _TRUNCATED if self.done == "truncated" else _TERMINATED


class GodotCounts(msgspec.Struct):
    """Counts of the outcomes that games reported since the server started, and of missing information."""

    terminated: int = 0
    truncated: int = 0
    unclear_ends: int = 0
    """Ends for which neither the game nor an option says whether they are terminations or truncations."""
    no_last_observation: int = 0
    """Terminations without a last observation from the game."""
    cut_transitions: int = 0
    """Transitions that were dropped because the game did not send the last observation of a truncated episode."""
    bad_values: int = 0
    """Transitions that were dropped because an observation or a reward was not finite, or a reward too large."""

    @property
    def missing(self) -> dict[str, int]:
        """Counts of missing information, by description; without those that are 0."""
        found = {
            "unclear ends": self.unclear_ends,
            "terminations without a last observation": self.no_last_observation,
            "dropped last transitions": self.cut_transitions,
            "values not finite": self.bad_values,
        }
        return {what: count for what, count in found.items() if count}


class _Outcome(NamedTuple):
    """The rows of a reply that become transitions, with their statuses and next observations."""

    rows: NDArray[np.intp]
    statuses: NDArray[np.uint8]
    following: dict[str, Array]
    extras: dict[str, dict[str, float]]
    """Numbers for the records of episodes that end, by stream."""


class Play:
    """Drives a session with the replies of games.

    A reply has the outcomes of the actions of all agents of a game. Replies that arrive together are one batch.
    """

    def __init__(self, session: TrainingSession, spaces: GameSpaces, rules: EndRules, *, learns: bool = True) -> None:
        self.session, self.spaces = session, spaces
        self.counts = GodotCounts()
        self.returns: deque[float] = deque(maxlen=100)
        """The returns of the last episodes; only used without learning."""
        self._rules, self._learns = rules, learns
        self._warned: set[str] = set()
        self._info_names: set[str] = set()

    def join(self, game: Game) -> None:
        """Add the agents of a game; open episodes of an earlier game with the same number are closed as truncated."""
        for name in game.streams if self._learns else ():
            stream = self.session.stream(name)
            if stream.is_open:
                stream.abandon()

    def leave(self, game: Game) -> None:
        """Remove the agents of a game; their open episodes are closed as truncated."""
        for name in game.streams if self._learns else ():
            self.session.stream(name).close()

    def take(self, replies: Sequence[tuple[Game, Reply]]) -> None:
        """Report the outcomes of the last actions, and store the new observations."""
        if not self._learns:
            self._watch(replies)
            return
        outcomes = [(game, reply, self._judge(game, reply)) for game, reply in replies]
        reported = [(game, reply, outcome) for game, reply, outcome in outcomes if len(outcome.rows)]
        if reported:
            transitions = Transitions(
                self._joined((game.observations, outcome.rows) for game, _, outcome in reported),
                self._joined((game.actions, outcome.rows) for game, _, outcome in reported),
                np.concatenate([reply.rewards[outcome.rows] for _, reply, outcome in reported]),
                self._joined((outcome.following, outcome.rows) for _, _, outcome in reported),
                np.concatenate([outcome.statuses[outcome.rows] for _, _, outcome in reported]),
            )
            streams = [name for game, _, outcome in reported for name in game.names(outcome.rows)]
            extras = {name: numbers for _, _, outcome in reported for name, numbers in outcome.extras.items()}
            for ended in self.session.observe_many(transitions, streams=streams):
                self.session.on_episode(extras=extras[str(ended)], stream=ended)
        for game, reply, outcome in outcomes:
            self._close_rest(game, reply, outcome)

    def act(self, games: Sequence[Game]) -> None:
        """Choose the next actions of all agents; agents with observations that are not finite get zeros."""
        chosen = [(game, np.flatnonzero(game.spaces.finite(game.observations, game.agents))) for game in games]
        streams = [name for game, rows in chosen for name in game.names(rows)]
        for game in games:
            game.actions = self.spaces.idle_actions(game.agents)
        if not streams:
            return
        observations = self._joined((game.observations, rows) for game, rows in chosen)
        mode = ActMode.EXPLORE if self._learns else ActMode.EXPLOIT
        actions = self.spaces.from_session(self.session.act_many(observations, mode, streams=streams))
        start = 0
        for game, rows in chosen:
            end = start + len(rows)
            for name, array in actions.items():
                game.actions[name][rows] = array[start:end]
            game.is_open[rows] = True
            start = end

    def _joined(self, parts: Iterable[tuple[dict[str, Array], NDArray[np.intp]]]) -> Any:
        """Join rows of several games into one batch for the session."""
        picked = [{name: array[rows] for name, array in arrays.items()} for arrays, rows in parts]
        names = picked[0]
        return self.spaces.to_session({name: np.concatenate([part[name] for part in picked]) for name in names})

    def _judge(self, game: Game, reply: Reply) -> _Outcome:
        """Decide which rows of a reply are transitions, and their statuses; changes only counts."""
        statuses = np.zeros(game.agents, np.uint8)
        following = reply.observations
        extras: dict[str, dict[str, float]] = {}
        is_known = np.abs(reply.rewards) <= MOST_REWARD  # False for NaN
        is_good = game.spaces.finite(following, game.agents)
        for row in np.flatnonzero(reply.dones & game.is_open).tolist():
            info = reply.infos[row]
            status = self._rules.status(info, int(game.lengths[row]) + 1)
            last = reply.lasts.get(row)
            if info.get(_TRUNCATED_FLAG) is None and not self._rules.is_given:
                self.counts.unclear_ends += 1
            if following is reply.observations:
                following = {name: array.copy() for name, array in following.items()}
            # The value after a termination is 0, so any observation can replace a missing last one.
            for name, array in following.items():
                array[row] = game.observations[name][row] if last is None else last[name][0]
            is_good[row] = last is not None or status == _TERMINATED
            if last is None and status == _TERMINATED and is_known[row]:
                self.counts.no_last_observation += 1
            if last is None and status == _TRUNCATED and is_known[row]:
                self.counts.cut_transitions += 1
            statuses[row] = status
            extras[game.streams[row]] = {**self._numbers(info), "no_last_observation": float(last is None)}
        bad = game.is_open & ~(is_known & (is_good | reply.dones))
        self.counts.bad_values += int(bad.sum())
        rows = np.flatnonzero(game.is_open & is_known & is_good)
        self.counts.terminated += int((statuses[rows] == _TERMINATED).sum())
        self.counts.truncated += int((statuses[rows] == _TRUNCATED).sum())
        return _Outcome(rows, statuses, following, extras)

    def _numbers(self, info: dict[str, Any]) -> dict[str, float]:
        """The numbers and flags in the info of an agent, for the record of its episode; new names up to a limit."""
        names = self._info_names
        found: dict[str, float] = {}
        for name, value in info.items():
            if not isinstance(value, int | float) or name in _OTHER_NUMBERS or not abs(value) < 1e300:
                continue
            if name in names or len(names) < _MOST_INFO_NAMES:
                names.add(name)
                found[name] = float(value)
        return found

    def _close_rest(self, game: Game, reply: Reply, outcome: _Outcome) -> None:
        """Close open episodes without a new transition, and store the new observations of a game."""
        is_reported = np.zeros(game.agents, np.bool_)
        is_reported[outcome.rows] = True
        game.lengths += is_reported
        is_over = is_reported & (outcome.statuses != _CONTINUING)
        for row in np.flatnonzero(game.is_open & ~is_reported).tolist():
            self.session.stream(game.streams[row]).abandon()
            is_over[row] = True
        game.lengths[is_over] = 0
        game.is_open &= ~is_over
        game.observations = reply.observations

    def _watch(self, replies: Sequence[tuple[Game, Reply]]) -> None:
        for game, reply in replies:
            game.totals += np.nan_to_num(reply.rewards, posinf=0.0, neginf=0.0)
            self.returns += game.totals[reply.dones].tolist()
            game.totals[reply.dones] = 0.0
            game.observations = reply.observations

    def warn_of_missing(self) -> None:
        """Warn once of each kind of information that a game does not send."""
        for what in self.counts.missing.keys() - self._warned:
            self._warned.add(what)
            self.session.warn(f"a Godot game: {what}; {_ADVICE[what]}")


_ADVICE = {
    "unclear ends": "the protocol has one flag for terminated and truncated episodes. To distinguish them, return "
    f"`{_TRUNCATED_FLAG}` from get_info(), or use the options --done and --time-limit",
    "terminations without a last observation": "this does not affect learning, because the value after a termination "
    "is 0",
    "dropped last transitions": "truncated episodes ended one step early, because the game did not send their last "
    f"observation. To send it, return `{LAST_OBSERVATION}` from get_info()",
    "values not finite": "an observation or reward was NaN or infinite; the episode was truncated there",
}

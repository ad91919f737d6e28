"""A game that never drops a frame: 50 characters learn to walk home while the game runs at 60 frames a second.

The learner is slow on purpose: an update takes 10 ms, with the matrix products of a network of 256 units. It learns on
a thread of its own. A frame only asks a policy for actions, and reports the transitions.

    python examples/game_loop.py --frames 1200
"""

from __future__ import annotations

import argparse
import gc
import os
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the learner's matrices leave the other cores to the game

import numpy as np

from rekindle import ActMode, EpisodeStatus, State, TrainingSession, Transitions
from rekindle.agent import Metrics, StreamSlots
from rekindle.experience import Array, Observations
from rekindle.rng import generator_from_state, generator_state

FRAME_SECONDS = 1 / 60
TERMINATED, TRUNCATED = np.uint8(EpisodeStatus.TERMINATED), np.uint8(EpisodeStatus.TRUNCATED)
MOVES = 0.02 * np.array([[0, 1], [0, -1], [1, 0], [-1, 0]], np.float32)  # a second or so to walk home


class HomingPolicy:
    """Scores each move linearly: immutable, so the game can use it while the learner makes the next."""

    def __init__(self, weights: Array) -> None:
        self._weights = weights

    def act(
        self,
        observations: Observations,
        mode: ActMode = ActMode.EXPLOIT,
        rng: np.random.Generator | None = None,
    ) -> Array:
        """The best move, or now and then another."""
        moves: Array = (np.asarray(observations) @ self._weights).argmax(axis=1)
        if mode is ActMode.EXPLORE and rng is not None:
            chances, others = rng.random((2, len(moves)))
            moves = np.where(chances < 0.1, (others * len(MOVES)).astype(moves.dtype), moves)
        return moves


class SlowLearner:
    """Regresses the reward on position and move, and burns 10 ms an update the way a small network would."""

    def __init__(self, *, seed: int) -> None:
        self.env_steps = 0
        self.updates = 0
        self._rng = np.random.default_rng(seed)
        self._weights = np.zeros((2, len(MOVES)), np.float32)
        self._recent: list[Transitions] = []
        self._ballast = self._rng.random((256, 256), np.float32)
        self._product = np.empty_like(self._ballast)

    def act(self, observations: Observations, mode: ActMode, streams: StreamSlots) -> Array:  # noqa: ARG002
        """As the policy of this moment does."""
        return self.policy().act(observations, mode, self._rng)

    def observe(self, transitions: Transitions, streams: StreamSlots) -> None:  # noqa: ARG002
        """Remember the last few frames."""
        self._recent = [*self._recent[-63:], transitions]
        self.env_steps += len(transitions)

    def updates_due(self) -> int:
        """There is always something to learn."""
        return 1 if self._recent else 0

    def update(self, n: int) -> Metrics:
        """Move each chosen move's score towards the reward it earned."""
        loss = 0.0
        for _ in range(n):
            batch = self._recent[self._rng.integers(len(self._recent))]
            observations = np.asarray(batch.observations)
            chosen = self._weights[:, batch.actions].T
            errors = batch.rewards - (observations * chosen).sum(axis=1)
            for move in range(len(MOVES)):
                mine = batch.actions == move
                if mine.any():
                    self._weights[:, move] += 0.5 * (errors[mine, None] * observations[mine]).mean(axis=0)
            loss = float((errors**2).mean())
            finish = time.perf_counter() + 0.010
            while time.perf_counter() < finish:
                np.matmul(self._ballast, self._ballast, out=self._product)
            self.updates += 1
        return {"loss": loss}

    def policy(self) -> HomingPolicy:
        """A copy of the weights that later updates do not touch."""
        return HomingPolicy(self._weights.copy())

    def state(self) -> State:
        """Everything, the remembered frames included."""
        return {
            "weights": self._weights.copy(),
            "rng": generator_state(self._rng),
            "env_steps": self.env_steps,
            "updates": self.updates,
            "recent": [
                {"observations": t.observations, "actions": t.actions, "rewards": t.rewards} for t in self._recent
            ],
        }

    def load_state(self, state: State) -> None:
        """Go on from there."""
        self._weights = state["weights"].copy()
        self._rng = generator_from_state(state["rng"])
        self.env_steps, self.updates = state["env_steps"], state["updates"]
        self._recent = [
            Transitions(t["observations"], t["actions"], t["rewards"], t["observations"], np.zeros(0, np.uint8))
            for t in state["recent"]
        ]


class Game:
    """Characters on a plane who are paid for every step towards the middle."""

    def __init__(self, characters: int, *, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.positions = self._rng.uniform(-1, 1, (characters, 2)).astype(np.float32)
        self._distances = _distances(self.positions)
        self._ages = np.zeros(characters, np.int64)

    def advance(self, moves: Array) -> tuple[Array, Array]:
        """One frame of physics: rewards, and how each character's episode continues or ends."""
        before = self._distances
        self.positions = self.positions + MOVES[moves]
        self._distances = _distances(self.positions)
        self._ages += 1
        is_home, is_late = self._distances < 0.15, self._ages >= 300
        statuses = np.where(is_home, TERMINATED, is_late * TRUNCATED)
        return (before - self._distances).astype(np.float64), statuses

    def respawn(self, who: list[int]) -> None:
        """Put characters somewhere else; their next episode begins there."""
        self.positions[who] = self._rng.uniform(-1, 1, (len(who), 2))
        self._distances[who] = _distances(self.positions[who])
        self._ages[who] = 0


def play_frame(game: Game, session: TrainingSession) -> None:
    """Move every character, and report what happened."""
    positions = game.positions
    moves = session.act_many(positions)
    rewards, statuses = game.advance(moves)
    ended = session.observe_many(Transitions(positions, moves, rewards, game.positions, statuses))
    if ended:
        session.on_episodes({character: {} for character in ended})
        game.respawn([int(character) for character in ended])


def _distances(positions: Array) -> Array:
    return np.hypot(positions[:, 0], positions[:, 1])


def _percentiles(milliseconds: Array) -> str:
    p50, p99, most = np.percentile(milliseconds, [50, 99, 100])
    return f"p50 {p50:.3f} ms, p99 {p99:.3f} ms, max {most:.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--frames", type=int, default=1200)
    parser.add_argument("--characters", type=int, default=50)
    parser.add_argument("--runs", default="runs")
    parser.add_argument("--journal", action="store_true", help="record every call, so that a resume is exact")
    arguments = parser.parse_args()

    game = Game(arguments.characters, seed=0)
    clocks: list[tuple[float, float, float, float]] = []
    with TrainingSession.open(
        "game",
        SlowLearner(seed=0),
        root=arguments.runs,
        learner="background",
        checkpoint_every=20_000,
        journal=arguments.journal,
    ) as session:
        if session.resumed:
            print(f"resumed at step {session.resumed.step} ({session.resumed.grade})")
        gc.freeze()  # exempt all present objects from garbage collection, which could start in the middle of a frame
        next_frame = time.perf_counter()
        for _ in range(arguments.frames):
            if session.is_done:
                break
            started = time.perf_counter(), time.thread_time()
            play_frame(game, session)
            clocks.append((*started, time.perf_counter(), time.thread_time()))
            next_frame += FRAME_SECONDS
            time.sleep(max(0.0, next_frame - time.perf_counter()))
    print(f"{len(clocks)} frames, {session.total_steps} steps, {session.updates} updates, {session.episodes} episodes")
    started, worked, ended, rested = 1e3 * np.array(clocks).T
    print(f"frame work: {_percentiles(ended - started)}")
    print(f"  processor time of it: {_percentiles(rested - worked)}")  # the rest: waiting for a core, or another thread
    print(f"skipped updates {session.skipped_updates}, blocked calls {session.blocked_calls}")
    print(f"mean return {session.stats_summary()['episode_reward']:.3f}")


if __name__ == "__main__":
    main()

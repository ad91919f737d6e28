"""A run is a data set: what its replay journal holds, or all of its transitions if it keeps them."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from toys import Corridor, ToyAgent

from rekindle import Experience, Trainer, TrainingRun, TrainingSession, Transitions, verify
from rekindle.agents.tabular import Tabular
from rekindle.checkpoint.store import Checkpoint, list_steps
from rekindle.data import Dataset
from rekindle.data.runs import RunData
from rekindle.errors import ConfigError, DataError, InputError, RekindleError
from rekindle.experience import EpisodeStatus
from rekindle.replay import Memory
from rekindle.run.finding import find_run
from rekindle.session import keeping

WORKER = Path(__file__).parent / "kept_run.py"


def trained(root: Path, *arguments: object) -> int:
    command = [sys.executable, str(WORKER), str(root), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("undisturbed")
    assert trained(root, 132, 3) == 0
    return root / "kept"


def test_a_run_that_keeps_its_data_holds_every_transition(undisturbed: Path) -> None:
    dataset = Dataset.open(undisturbed)
    assert len(dataset) == 132
    assert dataset.notes == ()
    found = dataset.statistics()
    logged = (find_run(undisturbed) / "train_episodes.jsonl").read_text().count("\n")
    assert found.terminated + found.truncated == logged
    assert found.fragments == 0


@pytest.mark.slow
@pytest.mark.parametrize("kill", [("step", 5), ("step", 21), ("step", 47), ("step", 131), ("write", 9), ("write", 12)])
def test_after_a_kill_and_a_resume_the_data_are_those_of_an_uninterrupted_run(
    kill: tuple[str, int], undisturbed: Path, tmp_path: Path
) -> None:
    assert trained(tmp_path, 132, 3, *kill) == -signal.SIGKILL
    assert trained(tmp_path, 132, 3) == 0
    run = find_run(tmp_path / "kept")
    assert Dataset.open(run).digest == Dataset.open(undisturbed).digest
    whole, again = verify(undisturbed), verify(run)
    assert (again.ok, again.grade) == (True, "exact")
    assert again.digests == whole.digests


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(0, 90, 3))
def test_after_a_kill_at_any_write_the_data_are_those_of_an_uninterrupted_run(
    number: int, undisturbed: Path, tmp_path: Path
) -> None:
    trained(tmp_path, 132, 3, "write", number)
    assert trained(tmp_path, 132, 3) == 0
    assert Dataset.open(tmp_path / "kept").digest == Dataset.open(undisturbed).digest


def keep(tmp_path: Path, agent: Any = None, **options: Any) -> TrainingSession:
    run = TrainingRun.create("kept", root=tmp_path)
    return TrainingSession(agent or ToyAgent(), run=run, keep_data=True, **options)


def test_the_data_are_what_the_host_reported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    observed: list[list[Any]] = [[], []]
    with keep(tmp_path) as session:
        last = [rng.normal(size=2).astype(np.float32) for _ in range(2)]
        for step in range(40):
            for stream in range(2):
                status = EpisodeStatus([0, 0, 1, 0, 0, 0, 2, 0][(step + 3 * stream) % 8])
                following = rng.normal(size=2).astype(np.float32)
                action = int(rng.integers(2))
                session.observe(Experience(last[stream], action, float(step), following, status), stream=stream)
                observed[stream].append((last[stream], action, float(step), following, status))
                last[stream] = following
                if status.is_done:
                    session.on_episode(stream=stream)
                    last[stream] = rng.normal(size=2).astype(np.float32)
        path = session.run.path if session.run else tmp_path
    dataset = Dataset.open(path)
    assert len(dataset) == 80
    held: list[Any] = []
    for episode in dataset.episodes():
        rows = zip(episode.actions, episode.rewards, episode.statuses, strict=True)
        seen = np.asarray(episode.observations)
        held += [
            (tuple(seen[row]), int(action), float(reward), tuple(seen[row + 1]), int(status))
            for row, (action, reward, status) in enumerate(rows)
        ]
    expected = [
        (tuple(before), action, reward, tuple(after), int(status))
        for stream in observed
        for before, action, reward, after, status in stream
    ]
    assert sorted(held) == sorted(expected)


def test_batches_are_kept_like_single_transitions(tmp_path: Path) -> None:
    digests: list[str] = []
    for is_batch in (True, False):
        rng = np.random.default_rng(0)
        with keep(tmp_path / str(is_batch), checkpoint_every=50) as session:
            last = rng.normal(size=(12, 2)).astype(np.float32)
            for step in range(20):
                following = rng.normal(size=(12, 2)).astype(np.float32)
                statuses = np.where(np.arange(12) == step % 5, 2, 0).astype(np.uint8)
                rewards, actions = rng.normal(size=12), rng.integers(2, size=12)
                if is_batch:
                    session.observe_many(Transitions(last, actions, rewards, following, statuses))
                else:
                    for row in range(12):
                        status = EpisodeStatus(int(statuses[row]))
                        one = Experience(last[row], actions[row], rewards[row], following[row], status)
                        session.observe(one, stream=row)
                last = following
                for row in np.flatnonzero(statuses).tolist():
                    session.on_episode(stream=row)
                    last[row] = rng.normal(size=2)
        digests.append(Dataset.open(tmp_path / str(is_batch) / "kept").digest)
    assert digests[0] == digests[1]


def test_a_dropped_transition_leaves_two_pieces_of_an_episode(tmp_path: Path) -> None:
    values = [np.full(2, value, np.float32) for value in range(8)]
    with keep(tmp_path, bad_values="drop") as session:
        for step in range(6):
            reward = float("nan") if step == 2 else 1.0
            status = EpisodeStatus.TERMINATED if step == 5 else EpisodeStatus.CONTINUING
            session.observe(Experience(values[step], 0, reward, values[step + 1], status))
        session.on_episode()
        session.observe(Experience(values[0], 0, 1.0, values[1], EpisodeStatus.TERMINATED))
        session.on_episode()
    dataset = Dataset.open(tmp_path / "kept")
    shapes = [(len(episode), episode.status, episode.is_fragment) for episode in dataset.episodes()]
    assert shapes == [
        (2, EpisodeStatus.CONTINUING, False),
        (3, EpisodeStatus.TERMINATED, True),
        (1, EpisodeStatus.TERMINATED, False),
    ]
    assert dataset.statistics().fragments == 1


def test_an_abandoned_episode_ends_without_an_end(tmp_path: Path) -> None:
    values = [np.full(2, value, np.float32) for value in range(8)]
    with keep(tmp_path) as session:
        stream = session.stream()
        for first in (0, 4):
            stream.begin(values[first])
            stream.step(values[first + 1], 1.0)
            stream.step(values[first + 2], 1.0)
            stream.abandon()
    dataset = Dataset.open(tmp_path / "kept")
    assert [(len(episode), episode.status) for episode in dataset.episodes()] == [(2, 0), (2, 0)]


def test_a_refused_transition_is_not_kept(tmp_path: Path) -> None:
    value = np.zeros(2, np.float32)
    with keep(tmp_path) as session:
        session.observe(Experience(value, 0, 1.0, value + 1))
        with pytest.raises(InputError):
            session.observe(Experience(value + 1, 0, float("nan"), value + 2))
        session.observe(Experience(value + 1, 0, 1.0, value + 2, EpisodeStatus.TERMINATED))
        session.on_episode()
    assert Dataset.open(tmp_path / "kept").episode(0).rewards.tolist() == [1.0, 1.0]


def test_a_run_keeps_its_data_from_its_beginning_or_not_at_all(tmp_path: Path) -> None:
    for first, second, message in ((True, False, "keeps its data"), (False, True, "does not keep its data")):
        root = tmp_path / str(first)
        value = np.zeros(2, np.float32)
        with TrainingSession.open("kept", ToyAgent(), root=root, keep_data=first) as session:
            session.observe(Experience(value, 0, 1.0, value + 1))
        with pytest.raises(ConfigError, match=message):
            TrainingSession.open("kept", ToyAgent(), root=root, keep_data=second)
    with pytest.raises(ConfigError, match="keep_data needs a run"):
        TrainingSession(ToyAgent(), keep_data=True)


def test_many_small_checkpoints_leave_few_files_and_old_rows_are_never_removed(tmp_path: Path) -> None:
    with keep(tmp_path, checkpoint_every=1, keep_checkpoints=1) as session:
        value = np.zeros(2, np.float32)
        for _ in range(40):
            session.observe(Experience(value, 0, 1.0, value))
    run = find_run(tmp_path / "kept")
    assert len(list((run / "data").glob("*.mpk"))) < 8
    assert len(Dataset.open(run)) == 40


def test_rows_do_not_wait_in_memory_for_a_checkpoint_that_is_far_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_MOST_BYTES", 1000)
    with keep(tmp_path, checkpoint_every=None) as session:
        value = np.zeros(2, np.float32)
        for _ in range(300):
            session.observe(Experience(value, 0, 1.0, value))
        session.flush()
        assert list((find_run(tmp_path / "kept") / "data").glob("*.mpk"))
    assert len(Dataset.open(tmp_path / "kept")) == 300


def test_a_missing_segment_of_the_data_is_noticed_by_a_resume_and_by_verify(tmp_path: Path) -> None:
    with keep(tmp_path) as session:
        session.observe(Experience(np.zeros(2, np.float32), 0, 1.0, np.ones(2, np.float32)))
    run = find_run(tmp_path / "kept")
    for segment in (run / "data").glob("*.mpk"):
        segment.unlink()
    assert not verify(run).ok
    with pytest.raises(DataError, match=r"rows_0_2_r0\.mpk: missing"):
        Dataset.open(run)
    with pytest.raises(RekindleError, match=r"rows_0_2_r0\.mpk: missing"):
        TrainingSession.open("kept", ToyAgent(), root=tmp_path, keep_data=True)


def test_a_damaged_segment_is_refused(tmp_path: Path) -> None:
    with keep(tmp_path) as session:
        session.observe(Experience(np.zeros(2, np.float32), 0, 1.0, np.ones(2, np.float32)))
    run = find_run(tmp_path / "kept")
    (segment,) = (run / "data").glob("*.mpk")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    with pytest.raises(DataError, match="the checksum does not match"):
        Dataset.open(run)


# Replay journals


def test_a_run_of_a_tabular_agent_holds_its_replay_memory(tmp_path: Path) -> None:
    spaces = gymnasium.spaces.Discrete(16), gymnasium.spaces.Discrete(4)
    agent = Tabular(*spaces, seed=0, capacity=500, replay_updates=1)
    trainer = Trainer("FrozenLake-v1", agent, name="lake", root=tmp_path, steps=300, eval_episodes=0, eval_every=None)
    trainer.train()
    dataset = Dataset.open(tmp_path / "lake", observation_space=spaces[0], action_space=spaces[1])
    assert len(dataset) == 300
    found = dataset.statistics()
    assert found.terminated + found.truncated + found.open == found.episodes
    assert dataset.inferred == ()


def test_a_run_with_values_outside_of_other_spaces_is_refused(tmp_path: Path) -> None:
    Trainer("FrozenLake-v1", "tabular", name="lake", root=tmp_path, steps=300, eval_episodes=0, keep_data=True).train()
    fewer = gymnasium.spaces.Discrete(3)
    with pytest.raises(DataError, match=r"lake.*: action: row \d+ is .*3.*, outside of the space Discrete\(3\)"):
        Dataset.open(tmp_path / "lake", action_space=fewer)
    with pytest.raises(DataError, match=r"lake.*: observation: row \d+ is .*, outside of the space Discrete\(3\)"):
        Dataset.open(tmp_path / "lake", observation_space=fewer)
    more = gymnasium.spaces.Discrete(17)
    assert len(Dataset.open(tmp_path / "lake", observation_space=more, action_space=more)) == 300


class Remembering(ToyAgent):
    """A toy agent with a replay buffer of linked rows."""

    def __init__(self, memory: Callable[[], Memory]) -> None:
        super().__init__()
        self._memory = memory()

    def observe(self, transitions: Transitions, streams: Any) -> None:
        super().observe(transitions, streams)
        self._memory.append(transitions, streams)

    def cut(self, streams: Any) -> None:
        self._memory.cut(streams)

    def replay(self) -> Memory:
        return self._memory

    def state(self) -> Any:
        return {**super().state(), "memory": self._memory.state()}

    def load_state(self, state: Any) -> None:
        super().load_state({key: value for key, value in state.items() if key != "memory"})
        self._memory.load_state(state["memory"])


OBSERVATIONS = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(2)


def walked(root: Path, agent: Any, *, streams: int, steps: int) -> Path:
    run = TrainingRun.create("walk", root=root)
    with TrainingSession(agent, run=run, checkpoint_every=50, keep_data=True) as session:
        envs = [Corridor() for _ in range(streams)]
        handles = [session.stream(name) for name in range(streams)]
        actions = [handle.begin(handle.reset(env)) for handle, env in zip(handles, envs, strict=True)]
        for _ in range(steps):
            for index, (handle, env) in enumerate(zip(handles, envs, strict=True)):
                observation, reward, terminated, truncated, _ = env.step(actions[index])
                actions[index] = handle.step(observation, reward, terminated, truncated)
                if terminated or truncated:
                    actions[index] = handle.begin(handle.reset(env))
    return run.path


def without_kept_data(run: Path) -> None:
    """Make the newest checkpoint one of a run that keeps no data."""
    from rekindle.storage import codec, files

    newest = run / "checkpoints" / f"step_{list_steps(run / 'checkpoints')[-1]}.mpk"
    tree = codec.read_file(newest)
    tree.pop("data")
    files.write_atomic(newest, *codec.encode(tree))
    assert Checkpoint.read(newest).data is None


def test_the_journal_of_a_replay_memory_holds_the_same_as_kept_data(tmp_path: Path) -> None:
    run = walked(tmp_path, Remembering(lambda: Memory(10_000, OBSERVATIONS, ACTIONS)), streams=3, steps=60)
    kept = Dataset.open(run)
    without_kept_data(run)
    journal = Dataset.open(run)
    assert journal.num_episodes == kept.num_episodes
    for name in ("observation", "action", "status"):
        np.testing.assert_array_equal(journal.columns[name], kept.columns[name])
    np.testing.assert_array_equal(journal.columns["reward"], kept.columns["reward"].astype(np.float32))
    assert journal.inferred == ("observation_space", "action_space")


def test_a_full_replay_memory_holds_the_newest_transitions(tmp_path: Path) -> None:
    run = walked(tmp_path, Remembering(lambda: Memory(50, OBSERVATIONS, ACTIONS)), streams=2, steps=60)
    kept = Dataset.open(run)
    without_kept_data(run)
    journal = Dataset.open(run)
    assert 35 < len(journal) < 50
    assert journal.statistics().fragments
    assert "its replay buffer has lost the first" in journal.notes[0]
    known = {tuple(row) for row in kept.columns["observation"]}
    assert {tuple(row) for row in journal.columns["observation"]} <= known


@pytest.mark.parametrize("capacity", [1_000, 60])
def test_stacked_frames_are_put_together_again(tmp_path: Path, capacity: int) -> None:
    frames = gymnasium.spaces.Box(0, 255, (3, 2), np.uint8)
    agent = Remembering(lambda: Memory(capacity, frames, ACTIONS, frame_stack=3))
    run = TrainingRun.create("walk", root=tmp_path)
    rng = np.random.default_rng(0)
    with TrainingSession(agent, run=run, checkpoint_every=40, keep_data=True) as session:
        for length in (7, 12, 9, 20, 5):
            stack = np.repeat(rng.integers(255, size=(1, 2), dtype=np.uint8), 3, axis=0)
            for step in range(length):
                after = np.concatenate([stack[1:], rng.integers(255, size=(1, 2), dtype=np.uint8)])
                status = EpisodeStatus.TERMINATED if step == length - 1 else EpisodeStatus.CONTINUING
                session.observe(Experience(stack, int(rng.integers(2)), float(step), after, status))
                stack = after
            session.on_episode()
    kept = Dataset.open(run.path)
    without_kept_data(run.path)
    journal = Dataset.open(run.path)
    if capacity == 1_000:
        np.testing.assert_array_equal(journal.columns["observation"], kept.columns["observation"])
        np.testing.assert_array_equal(journal.columns["status"], kept.columns["status"])
    held = len(journal.columns["status"])
    newest = np.asarray(kept.columns["observation"])[-held + 5 :]
    np.testing.assert_array_equal(np.asarray(journal.columns["observation"])[5:], newest)


def test_a_run_without_any_transitions_says_what_to_do(tmp_path: Path) -> None:
    run = TrainingRun.create("plain", root=tmp_path)
    with TrainingSession(ToyAgent(), run=run) as session:
        session.observe(Experience(np.zeros(2, np.float32), 0, 1.0, np.ones(2, np.float32)))
    with pytest.raises(DataError, match=r"its agent has no replay buffer, .* train with --keep-data"):
        Dataset.open(run.path)
    TrainingRun.create("empty", root=tmp_path).close()
    with pytest.raises(DataError, match="there is no intact checkpoint yet"):
        Dataset.open(tmp_path / "empty")


@pytest.mark.exhaustive
def test_a_run_of_ppo_keeps_its_data_and_resumes_them_exactly(tmp_path: Path) -> None:
    def trainer(name: str) -> Trainer:
        settings = {"rollout_steps": 64, "minibatch_size": 32, "epochs": 1}
        options: dict[str, Any] = {"eval_episodes": 0, "eval_every": None, "checkpoint_every": 100, "num_envs": 2}
        return Trainer(
            "CartPole-v1", "ppo", name=name, root=tmp_path, agent_settings=settings, keep_data=True, **options
        )

    trainer("whole").train(600)
    trainer("parts").train(300)
    Trainer.resume(tmp_path / "parts", steps=600).train()
    whole, parts = Dataset.open(tmp_path / "whole"), Dataset.open(tmp_path / "parts")
    assert len(whole) == 600
    assert whole.digest == parts.digest
    assert whole.action_space == gymnasium.spaces.Discrete(2)


def test_calls_that_an_input_journal_makes_again_are_kept_once(tmp_path: Path) -> None:
    def open_session(root: Path) -> TrainingSession:
        return TrainingSession.open("kept", ToyAgent(), root=root, journal=True, keep_data=True, checkpoint_every=8)

    def step(session: TrainingSession, number: int) -> None:
        status = EpisodeStatus.TERMINATED if number % 5 == 4 else EpisodeStatus.CONTINUING
        before, after = (np.full(2, number + offset, np.float32) for offset in (0, 1))
        session.observe(Experience(before, 0, float(number), after, status))
        if status.is_done:
            session.on_episode()

    with open_session(tmp_path / "live") as session:
        for number in range(21):
            step(session, number)
        session.flush()
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")  # what a crash leaves at this moment
        for number in range(21, 30):
            step(session, number)
    with open_session(tmp_path / "crashed") as session:
        for number in range(21, 30):
            step(session, number)
    live, again = Dataset.open(tmp_path / "live" / "kept"), Dataset.open(tmp_path / "crashed" / "kept")
    assert len(live) == 30
    assert again.digest == live.digest


def test_a_run_that_trains_while_it_is_opened_is_opened_as_of_a_later_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(steps: int) -> None:
        Trainer.resume(tmp_path / "run", steps=steps, signals=False).train()

    options: dict[str, Any] = {"checkpoint_every": 20, "eval_episodes": 0, "agent_settings": {"capacity": 40}}
    Trainer("FrozenLake-v1", "tabular", name="run", root=tmp_path, steps=100, **options).train()
    plan, steps = RunData.plan, [300, 200]

    def plan_late(data: RunData, spaces: tuple[Any, Any]) -> Any:
        if steps:
            train(steps.pop())
        return plan(data, spaces)

    monkeypatch.setattr(RunData, "plan", plan_late)
    found = Dataset.open(tmp_path / "run")
    assert not steps
    assert found.digest == Dataset.open(tmp_path / "run").digest
    monkeypatch.setattr("rekindle.data.dataset._MOST_TRIES", 1)
    train(310)
    steps.append(400)
    with pytest.raises(DataError, match="takes checkpoints faster than they can be read"):
        Dataset.open(tmp_path / "run")
